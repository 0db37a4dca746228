"""Look at an agent elsewhere: its card with findings, its signature, how it is called, and whether its streams can be resumed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dragoman.client import Client
from dragoman.client.content import build_request
from dragoman.client.signature import check_signature
from dragoman.client.transport.tap import BODY, END, REQUEST, RESPONSE, WireEvent
from dragoman.client.transport.transport import NOT_JSON, decode_json
from dragoman.console.access import OPERATOR
from dragoman.console.api import Console, ConsoleRequest
from dragoman.console.findings import FetchedCard, check_card
from dragoman.console.login import Logins
from dragoman.console.outbound import check_url, connect_elsewhere
from dragoman.console.talk import describe_choice
from dragoman.dialects.cards import era_of
from dragoman.errors import A2AError, InvalidAgentResponse, Unreachable, UnsupportedOperation
from dragoman.model.card import AgentCard, SecurityScheme
from dragoman.model.fold import Fold
from dragoman.model.ids import timestamp
from dragoman.model.ops import Call, SubscribeToTask
from dragoman.model.task import Task
from dragoman.observe.redact import redact, redact_text
from dragoman.push.guard import OutboundGuard
from dragoman.server.routes import Route, RouteList

INSPECT_SECONDS = 60.0
RESUME_SECONDS = 120.0
MAX_CARD_BYTES = 4 << 20
_RESUME_TEXT = "Hello. This message tests whether an interrupted stream can be resumed."


class InspectRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    url: str
    credentials: str | None = None
    version: str | None = None
    binding: str | None = None


class ResumeRequest(InspectRequest, kw_only=True, forbid_unknown_fields=True):
    text: str = _RESUME_TEXT


class _Answered(Struct):
    """A request for a card, and what came back."""

    url: str
    began: float
    status: int = 0
    headers: dict[str, str] = {}
    body: bytearray = bytearray()
    error: str = ""
    ms: float = 0.0


class CardRequests:
    """A tap that keeps what was asked for while a card is looked for."""

    def __init__(self) -> None:
        self.answers: dict[int, _Answered] = {}

    async def __call__(self, event: WireEvent) -> None:
        if event.kind == REQUEST and event.method == "GET" and len(self.answers) < 32:
            self.answers[event.n] = _Answered(event.url, event.time, body=bytearray())
        answer = self.answers.get(event.n)
        if answer is None:
            return
        answer.ms = round((event.time - answer.began) * 1000, 1)
        if event.kind == RESPONSE:
            answer.status, answer.headers = event.status, dict(event.headers)
        elif event.kind == BODY and len(answer.body) <= MAX_CARD_BYTES:
            answer.body += event.body
        elif event.kind == END:
            answer.error = event.error

    def last_document(self) -> tuple[_Answered, Any] | None:
        """The last answer that is JSON."""
        for answer in reversed(self.answers.values()):
            if answer.status == 200:
                try:
                    return answer, decode_json(bytes(answer.body))
                except NOT_JSON:
                    continue
        return None

    def describe(self) -> list[dict[str, Any]]:
        return [
            {"url": redact_text(each.url), "status": each.status, "message": redact_text(each.error)}
            for each in self.answers.values()
        ]


async def inspect_agent(
    url: str, guard: OutboundGuard, *, credentials: Any = None, version: str = "", binding: str = ""
) -> dict[str, Any]:
    """Everything that can be known of an agent without sending it a message. Raises `A2AError` if it has no card."""
    seen = CardRequests()
    given = {"credentials": credentials, "version": version, "binding": binding}
    client = connect_elsewhere(url, guard, tap=seen, timeout=INSPECT_SECONDS, **given)
    problem, found, chosen = "", None, None
    signature: dict[str, Any] = {"state": "unknown", "message": "The card could not be used."}
    try:
        async with client:
            found = client.link.found
            chosen = describe_choice(client, None)
            link = client.link
            checked = await check_signature(found, link.transport, link.transport.without_credentials)
            signature = to_builtins(replace(checked, message=redact_text(checked.message)))
    except TimeoutError as error:
        raise Unreachable(str(error)) from None
    except (InvalidAgentResponse, UnsupportedOperation) as error:
        problem = error.message
        if seen.last_document() is None:
            raise
    last = seen.last_document() if found is None else None
    document: Any = found.document if found is not None else last[1] if last is not None else None
    place = found.url if found is not None else last[0].url if last is not None else url
    answer = next((each for each in seen.answers.values() if each.url == place and each.status == 200), None)
    era = era_of(document, found_at=place) if isinstance(document, dict) else "1.0"
    if isinstance(document, dict) and "supportedInterfaces" in document:
        era = "1.0"  # also if the list is empty, which is a finding
    fetched = FetchedCard(
        document=document,
        era=era,
        url=place,
        headers=answer.headers if answer is not None else {},
        size=len(answer.body) if answer is not None else 0,
    )
    card = found.card if found is not None else None
    return {
        "card": redact(document) if isinstance(document, dict) else document,
        "found": {
            "url": redact_text(place),
            "path": urlsplit(place).path,
            "status": answer.status if answer is not None else 0,
            "version": era,
            "contentType": fetched.headers.get("content-type", ""),
            "bytes": fetched.size,
            "ms": answer.ms if answer is not None else 0,
        },
        "tried": seen.describe(),
        "problem": redact_text(problem),
        "findings": check_card(fetched),
        "signature": signature,
        "interfaces": _interfaces(card, chosen),
        "chosen": chosen,
        "schemes": _schemes(card),
    }


def _interfaces(card: AgentCard | None, chosen: dict[str, Any] | None) -> list[dict[str, Any]]:
    from dragoman.client.routes import BINDINGS

    out = []
    for each in card.supported_interfaces[:100] if card is not None else ():
        binding = each.protocol_binding.upper()
        same = chosen is not None and chosen["binding"] == binding
        out.append(
            {
                "url": redact_text(each.url),
                "protocolBinding": each.protocol_binding,
                "protocolVersion": each.protocol_version,
                "tenant": each.tenant or None,
                "chosen": same
                and chosen is not None
                and (
                    binding == "GRPC"
                    or chosen["url"].rstrip("/").endswith(urlsplit(each.url).path.rstrip("/"))
                )
                and chosen["version"] == each.protocol_version[: len(chosen["version"])],
                "speaks": binding in BINDINGS,
            }
        )
    return out


def _schemes(card: AgentCard | None) -> list[dict[str, Any]]:
    """How callers may log in, for a form."""
    return (
        [_scheme(name, scheme) for name, scheme in card.security_schemes.items()] if card is not None else []
    )


def _scheme(name: str, scheme: SecurityScheme) -> dict[str, Any]:
    out: dict[str, Any] = {"name": name, "kind": "unknown", "description": "", "flows": []}
    if (key := scheme.api_key_security_scheme) is not None:
        return {
            **out,
            "kind": "apiKey",
            "description": key.description,
            "in": key.location,
            "parameter": key.name,
        }
    if (http := scheme.http_auth_security_scheme) is not None:
        return {**out, "kind": "http", "description": http.description, "scheme": http.scheme}
    if (openid := scheme.open_id_connect_security_scheme) is not None:
        return {
            **out,
            "kind": "openIdConnect",
            "description": openid.description,
            "url": openid.open_id_connect_url,
        }
    if (mtls := scheme.mtls_security_scheme) is not None:
        return {**out, "kind": "mutualTLS", "description": mtls.description}
    if (oauth := scheme.oauth2_security_scheme) is not None:
        flows = oauth.flows
        listed = {
            "authorizationCode": flows.authorization_code,
            "clientCredentials": flows.client_credentials,
            "deviceCode": flows.device_code,
            "implicit": flows.implicit,
            "password": flows.password,
        }
        out |= {"kind": "oauth2", "description": oauth.description}
        out["flows"] = [
            {
                "kind": kind,
                "authorizationUrl": flow.authorization_url,
                "tokenUrl": flow.token_url,
                "deviceUrl": flow.device_authorization_url,
                "scopes": flow.scopes,
            }
            for kind, flow in listed.items()
            if flow is not None
        ]
    return out


# -- the resume test -----------------------------------------------------------------------------------------------


class ResumeTest:
    """Sends a message, drops the connection after the first event, and looks whether the rest comes, each event once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._steps: list[dict[str, str]] = []
        self._fold = Fold()
        self._seqs: list[int] = []

    def _note(self, text: str) -> None:
        self._steps.append({"time": timestamp(), "text": text})

    def _result(self, ok: bool, method: str, message: str, **more: Any) -> dict[str, Any]:
        counts = {"missed": 0, "twice": sum(n - 1 for n in Counter(self._seqs).values()), **more}
        task = self._fold.task_id or None
        return {"ok": ok, "method": method, "message": message, "steps": self._steps, "task": task, **counts}

    async def run(self, text: str) -> dict[str, Any]:
        client = self._client
        link = client.link
        if not link.found.card.capabilities.streaming:
            return self._result(
                False, "none", "The card does not offer streaming, so there is nothing to resume."
            )
        call, request = build_request((text,), None)
        began = await self._read(link.peer.stream(call, request), until_task=True)
        self._note(f"Sent a message, and received {began} events. Dropped the connection.")
        if not self._fold.task_id:
            return self._result(False, "none", "The agent answered with a message and made no task.")
        if self._fold.over:
            return self._result(
                False,
                "none",
                "The task was over before the connection could be dropped: try a longer message.",
            )
        after = self._seqs[-1] if self._seqs and self._seqs[-1] else None
        return await self._resume(call, after)

    async def _resume(self, call: Call, after: int | None) -> dict[str, Any]:
        subscribe = SubscribeToTask(id=self._fold.task_id, tenant=self._client.link.peer.route.tenant)
        method = "subscribe" if after is None else "last-event-id"
        self._note(f"Subscribed to the task{f' after event {after}' if after is not None else ''}.")
        try:
            events = await self._read(self._client.link.peer.stream(replace(call, after=after), subscribe))
            self._note(f"Received {events} more events. The task is {self._fold.state.word}.")
        except A2AError as error:
            return await self._poll(error)
        task = await self._client.get(self._fold.task_id)
        missed = _missed(self._fold, task)
        if missed:
            message = f"The resumed stream left out something: {missed} artifacts differ from the task."
            return self._result(False, method, message, missed=missed)
        again = self._result(True, method, "The stream went on where it was interrupted.")
        if again["twice"]:
            again |= {"ok": False, "message": f"{again['twice']} events came twice."}
        return again

    async def _poll(self, error: A2AError) -> dict[str, Any]:
        self._note(f"The agent refused: {redact_text(error.message)}")
        try:
            task = await self._client.get(self._fold.task_id)
        except A2AError as failed:
            return self._result(
                False, "none", f"The task is lost to its caller: {redact_text(failed.message)}"
            )
        self._note(f"Asked for the task: it is {task.state.word}.")
        return self._result(
            False, "poll", "The stream cannot be resumed. The task can be asked for, so a client has to poll."
        )

    async def _read(self, batches: Any, *, until_task: bool = False) -> int:
        count = 0
        async with aclosing(batches):
            async for batch in batches:
                for response in batch:
                    count += 1
                    if response.seq:
                        self._seqs.append(response.seq)
                    self._fold.apply(response.event)
                if self._fold.over or (until_task and self._fold.task_id):
                    break
        return count


def _missed(fold: Fold, task: Task) -> int:
    """Artifacts of the task that differ from what the streams came to."""
    seen = fold.task
    have = {each.artifact_id: each.text for each in seen.artifacts} if seen is not None else {}
    return sum(have.get(each.artifact_id) != each.text for each in task.artifacts)


# -- routes --------------------------------------------------------------------------------------------------------


def routes(
    console: Console, guard: OutboundGuard, logins: Logins, *, url: str = "", handle: str = ""
) -> Sequence[Route]:
    """`url`: the agent that the operator named on the command line; `handle`: the login for it."""
    api = RouteList("inspect", access=OPERATOR)

    def options(asked: InspectRequest) -> dict[str, Any]:
        credential = logins.get(asked.credentials, asked.url).credential if asked.credentials else None
        return {
            "credentials": credential,
            "version": asked.version or "",
            "binding": asked.binding or "",
        }

    @api.add("GET", "/inspect", "The agent that the operator named on the command line.")
    async def given(request: ConsoleRequest) -> Any:
        return {"url": url or None, "credentials": handle or None}

    @api.add("POST", "/inspect", "Read the card of an agent elsewhere, and check it.", body=InspectRequest)
    async def inspect(request: ConsoleRequest) -> Any:
        asked = await request.json(InspectRequest)
        return await inspect_agent(asked.url, guard, **options(asked))

    @api.add(
        "POST", "/inspect/resume", "Test whether an interrupted stream can be resumed.", body=ResumeRequest
    )
    async def resume(request: ConsoleRequest) -> Any:
        asked = await request.json(ResumeRequest)
        check_url(asked.url)
        client = connect_elsewhere(asked.url, guard, timeout=INSPECT_SECONDS, **options(asked))
        began = time.monotonic()
        try:
            async with asyncio.timeout(RESUME_SECONDS), client:
                return await ResumeTest(client).run(asked.text)
        except TimeoutError:
            raise Unreachable(f"the test did not end within {time.monotonic() - began:.0f} s") from None

    return api

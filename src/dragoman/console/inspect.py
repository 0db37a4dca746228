"""Look at an agent elsewhere: its card with findings, its signature, and how it is called."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dragoman.client import Client
from dragoman.client.routes import BINDINGS
from dragoman.client.signature import check_signature
from dragoman.client.transport.tap import BODY, END, REQUEST, RESPONSE, WireEvent
from dragoman.client.transport.transport import NOT_JSON, decode_json
from dragoman.console.access import OPERATOR
from dragoman.console.api import Console, ConsoleRequest
from dragoman.console.findings import FetchedCard, check_card
from dragoman.console.login import Logins
from dragoman.console.outbound import check_url, connect_elsewhere
from dragoman.console.resume import ResumeTest
from dragoman.console.talk import describe_choice
from dragoman.dialects.cards import era_of
from dragoman.errors import InvalidAgentResponse, Unreachable, UnsupportedOperation
from dragoman.model.card import AgentCard, Interface, SecurityScheme
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


class _CardResponse(Struct):
    """A request for a card, and what came back."""

    url: str
    began: float
    status: int = 0
    headers: dict[str, str] = {}
    body: bytearray = bytearray()
    error: str = ""
    ms: float = 0.0


class CardRequests:
    """A tap that records the requests for a card, and their answers."""

    def __init__(self) -> None:
        self.answers: dict[int, _CardResponse] = {}

    async def __call__(self, event: WireEvent) -> None:
        if event.kind == REQUEST and event.method == "GET" and len(self.answers) < 32:
            self.answers[event.n] = _CardResponse(event.url, event.time, body=bytearray())
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

    def answer_from(self, url: str) -> _CardResponse:
        """The answer with the card; an empty one if the card was not fetched."""
        found = (each for each in self.answers.values() if each.url == url and each.status == 200)
        return next(found, _CardResponse(url, 0.0))

    def last_document(self) -> tuple[str, Any] | None:
        """The URL and the document of the last answer that is JSON."""
        for answer in reversed(self.answers.values()):
            if answer.status == 200:
                try:
                    return answer.url, decode_json(bytes(answer.body))
                except NOT_JSON:
                    continue
        return None

    def describe(self) -> list[dict[str, Any]]:
        return [
            {"url": redact_text(each.url), "status": each.status, "message": redact_text(each.error)}
            for each in self.answers.values()
        ]


class _Inspection(Struct, kw_only=True):
    """The result of looking for a card."""

    document: Any = None
    url: str
    """Where it was found."""
    card: AgentCard | None = None
    """None: the document is not a card that the client can use."""
    chosen: dict[str, Any] | None = None
    """How a client calls the agent."""
    signature: dict[str, Any]
    problem: str = ""
    """Why the agent cannot be called."""


async def inspect_agent(
    url: str, guard: OutboundGuard, *, credentials: Any = None, version: str = "", binding: str = ""
) -> dict[str, Any]:
    """Everything that can be known of an agent without sending it a message. Raises `A2AError` if it has no card."""
    requests = CardRequests()
    options = {"credentials": credentials, "version": version, "binding": binding}
    inspection = await _connect_and_check(
        connect_elsewhere(url, guard, tap=requests, timeout=INSPECT_SECONDS, **options), requests, url
    )
    answer = requests.answer_from(inspection.url)
    fetched = FetchedCard(
        document=inspection.document,
        era=_era(inspection),
        url=inspection.url,
        headers=answer.headers,
        size=len(answer.body),
    )
    schemes = inspection.card.security_schemes if inspection.card is not None else {}
    return {
        "card": redact(inspection.document) if isinstance(inspection.document, dict) else inspection.document,
        "found": {
            "url": redact_text(inspection.url),
            "path": urlsplit(inspection.url).path,
            "status": answer.status,
            "version": fetched.era,
            "contentType": fetched.headers.get("content-type", ""),
            "bytes": fetched.size,
            "ms": answer.ms,
        },
        "tried": requests.describe(),
        "problem": redact_text(inspection.problem),
        "findings": check_card(fetched),
        "signature": inspection.signature,
        "interfaces": _interfaces(inspection.card, inspection.chosen),
        "chosen": inspection.chosen,
        "schemes": [_scheme(*each) for each in schemes.items()],
    }


async def _connect_and_check(client: Client, requests: CardRequests, url: str) -> _Inspection:
    """Connect as a client does. Raises `A2AError` if nothing was found that could be a card."""
    inspection = _Inspection(
        url=url, signature={"state": "unknown", "message": "The card could not be used."}
    )
    try:
        async with client:
            link = client.link
            inspection.document, inspection.url, inspection.card = (
                link.found.document,
                link.found.url,
                link.found.card,
            )
            inspection.chosen = describe_choice(client, None)
            checked = await check_signature(link.found, link.transport, link.transport.without_credentials)
            inspection.signature = to_builtins(replace(checked, message=redact_text(checked.message)))
    except TimeoutError as error:
        raise Unreachable(str(error)) from None
    except (InvalidAgentResponse, UnsupportedOperation) as error:
        inspection.problem = error.message
        last = requests.last_document()
        if last is None:
            raise
        if inspection.card is None:
            inspection.url, inspection.document = last
    return inspection


def _era(inspection: _Inspection) -> str:
    """The version that a card is written for."""
    if not isinstance(inspection.document, dict) or "supportedInterfaces" in inspection.document:
        return "1.0"  # also if the list is empty, which is a finding
    return era_of(inspection.document, found_at=inspection.url)


def _interfaces(card: AgentCard | None, chosen: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [
        {
            "url": redact_text(each.url),
            "protocolBinding": each.protocol_binding,
            "protocolVersion": each.protocol_version,
            "tenant": each.tenant or None,
            "chosen": chosen is not None and _is_chosen(each, chosen),
            "speaks": each.protocol_binding.upper() in BINDINGS,
        }
        for each in (card.supported_interfaces[:100] if card is not None else ())
    ]


def _is_chosen(interface: Interface, chosen: dict[str, Any]) -> bool:
    binding, version = interface.protocol_binding.upper(), chosen["version"]
    if binding != chosen["binding"] or interface.protocol_version[: len(version)] != version:
        return False
    path = urlsplit(interface.url).path.rstrip("/")
    return binding == "GRPC" or chosen["url"].rstrip("/").endswith(path)


def _scheme(name: str, scheme: SecurityScheme) -> dict[str, Any]:
    """How callers may log in, for a form."""
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


# -- routes --------------------------------------------------------------------------------------------------------


def routes(
    console: Console, guard: OutboundGuard, logins: Logins, *, url: str = "", handle: str = ""
) -> Sequence[Route]:
    """`url`: the agent that the operator named on the command line; `handle`: the login for it."""
    api = RouteList("inspect", access=OPERATOR)

    def options(body: InspectRequest) -> dict[str, Any]:
        credential = logins.get(body.credentials, body.url).credential if body.credentials else None
        return {
            "credentials": credential,
            "version": body.version or "",
            "binding": body.binding or "",
        }

    @api.add("GET", "/inspect", "The agent that the operator named on the command line.")
    async def named_agent(request: ConsoleRequest) -> Any:
        return {"url": url or None, "credentials": handle or None}

    @api.add("POST", "/inspect", "Read the card of an agent elsewhere, and check it.", body=InspectRequest)
    async def inspect(request: ConsoleRequest) -> Any:
        body = await request.json(InspectRequest)
        return await inspect_agent(body.url, guard, **options(body))

    @api.add(
        "POST", "/inspect/resume", "Test whether an interrupted stream can be resumed.", body=ResumeRequest
    )
    async def resume(request: ConsoleRequest) -> Any:
        body = await request.json(ResumeRequest)
        check_url(body.url)
        client = connect_elsewhere(body.url, guard, timeout=INSPECT_SECONDS, **options(body))
        began = time.monotonic()
        try:
            async with asyncio.timeout(RESUME_SECONDS), client:
                return await ResumeTest(client).run(body.text)
        except TimeoutError:
            raise Unreachable(f"the test did not end within {time.monotonic() - began:.0f} s") from None

    return api

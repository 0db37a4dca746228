"""`/v1/orchestrate`, `/v1/agents/{id}/chat`, `/v1/events` and `/v1/requests`: ask an agent, follow, list, cancel,
delete.

`/v1/advise/gate` is here too. It starts no request, but counts as one against the tenant's limits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dragoman.errors import InvalidParams, TaskUnreadable, Unauthenticated
from dragoman.hub.agents.constitution import INDEX_ID, Advisor, Constitution, Short
from dragoman.hub.agents.programs import on_behalf_of
from dragoman.hub.agents.routing import agent_for_event
from dragoman.hub.api import ApiRequest, RouteList, stream_error
from dragoman.hub.conversations.events import EventFrames, HubEvent
from dragoman.hub.conversations.message_input import MessagePart, read_parts
from dragoman.hub.hub import Hub
from dragoman.hub.models.calls import respond
from dragoman.hub.quote import flatten, quote
from dragoman.hub.store.conversations import Conversation
from dragoman.hub.store.requests import StoredRequest
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.store.tokens import MANAGE
from dragoman.hub.tools.advisor import HALT, Verdict, gate_prompt, read_verdict
from dragoman.model.ops import Scope
from dragoman.model.usage import TokenUsage
from dragoman.server.routes import (
    HEAD_OF_STREAM,
    LAST_EVENT_ID,
    ApiResponse,
    Natural,
    NotFound,
    Route,
    header_value,
)

MAX_KEY_CHARACTERS = 256
IDEMPOTENCY_KEY = {
    "Idempotency-Key": "A request that is repeated with its key is answered with the first one's events."
}
MAX_EVENT_TYPE_CHARACTERS = 256
MAX_EVENT_BYTES = 64 * 1024
"""Bytes of an event that an agent reads."""


class NewRequest(Struct):
    """What to ask, and which agent."""

    message: str | list[MessagePart]
    agent: str = ""
    agent_def: dict[str, Any] | None = None
    original_query: str = ""
    channel: Literal["", "text", "voice"] = ""


class AnswerRequest(Struct, forbid_unknown_fields=True):
    """`approved`, and for no a `comment`; or a `message`, for a question that wants a text."""

    approved: bool | None = None
    comment: str = ""
    message: str | None = None
    last_seq: Natural | None = None
    """That of the request when the question was seen: an answer never meets a later question."""


class ExternalEvent(Struct):
    """An event from outside: an alert, a measurement, a webhook."""

    type: str
    source: str = ""
    payload: Any = None
    agent: str = ""


class GateCheck(Struct):
    """An answer before it leaves: the task, the answer, and the tools that were used."""

    advisor_model: Short
    original_task: str
    terminating_text: str
    tool_summary: str = ""
    prompt: str = ""


class RequestState(Struct, omit_defaults=True):
    request_id: str
    agent_id: str
    conversation_id: int
    via: str
    state: str
    """`running`, `input-required`, `auth-required`, `completed`, `failed` or `canceled`."""
    started_at: int
    completed_at: int
    error_message: str
    last_seq: int
    question: str = ""
    """What a request that waits asks."""
    approval: bool = False
    """It asks for yes or no."""
    details: Any = None
    """What it asks about. Of a command: `agent`, `command`, `arguments`, and its `body` if it has one."""


class RequestResponse(Struct):
    request: RequestState


class RequestList(Struct):
    requests: list[RequestState]


class AcceptedAnswer(Struct):
    request_id: str
    since_seq: int
    """The events after the answer follow this one."""


class CancelResult(Struct):
    request_id: str
    cancelled: bool


class NotRunning(NotFound):
    """There is no such request, or it has ended. The answer has the members of an Arbiter server's, too."""

    def __init__(self, request_id: str) -> None:
        why = "no in-flight request with that id"
        super().__init__(why, metadata={"reason": why})
        self.request_id, self.cancelled = request_id, False


def routes(hub: Hub) -> list[Route]:
    api = RouteList("requests")
    one = "/v1/requests/{id}"

    @api.add(
        "POST", "/v1/orchestrate", "Ask an agent (default `index`).", headers=IDEMPOTENCY_KEY, streams=True
    )
    async def orchestrate(request: ApiRequest, body: NewRequest) -> None:
        await start_and_stream(hub, request, body)

    @api.add("POST", "/v1/agents/{id}/chat", "Ask this agent.", headers=IDEMPOTENCY_KEY, streams=True)
    async def chat(request: ApiRequest, body: NewRequest) -> None:
        await start_and_stream(hub, request, body, agent=request.path["id"])

    event_summary = "Give an event to the agent whose `event_types` match it, or to `index`."

    @api.add("POST", "/v1/events", event_summary, headers=IDEMPOTENCY_KEY, streams=True)
    async def receive_event(request: ApiRequest, body: ExternalEvent) -> None:
        if not body.type.strip():
            raise InvalidParams("the event has no type", fields=(("type", "is empty"),))
        if len(body.type) > MAX_EVENT_TYPE_CHARACTERS:
            why = f"has more than {MAX_EVENT_TYPE_CHARACTERS} characters"
            raise InvalidParams(f"the type of the event {why}", fields=(("type", why),))
        lines = [f"Event: {flatten(body.type)}"]
        if body.source:
            lines.append(f"Source: {flatten(body.source)}")
        if body.payload is not None:
            lines.append(f"Payload: {msgspec.json.encode(body.payload).decode()}")
        quoted = quote("\n".join(lines), MAX_EVENT_BYTES)
        message = f"An event arrived:\n{quoted}"
        agent = body.agent
        if not agent:
            agents = await hub.catalogue.constitutions(request.tenant.id)
            agent = await asyncio.to_thread(agent_for_event, body.type, agents)
        await start_and_stream(hub, request, NewRequest(message=message), agent=agent)

    filters = {"limit": "100, at most 200.", "before_id": "Only requests before this one."}

    @api.add("GET", "/v1/requests", "List requests of both APIs, newest first.", RequestList, query=filters)
    async def list_requests(request: ApiRequest) -> Any:
        tenant = request.tenant

        async def describe(stored: StoredRequest) -> dict[str, Any] | None:
            with suppress(NotFound, TaskUnreadable):  # it is deleted at this moment, or damaged
                return await hub.describe(tenant, stored)
            return None

        limit, before = request.query_limit(100, 200), request.query("before_id")
        found = await hub.requests.list(tenant.id, limit, before=before)
        described = await asyncio.gather(*map(describe, found))
        return {"requests": [each for each in described if each is not None]}

    @api.add("GET", one, "Get the state of a request.", RequestResponse)
    async def get_request(request: ApiRequest) -> Any:
        found = await hub.find(request.tenant, request.path["id"])
        return {"request": await hub.describe(request.tenant, found)}

    since = {"since_seq": "Only events after this one."}
    follow_summary = "Stream the events of a request, optionally after `since_seq` or `Last-Event-ID`."

    @api.add("GET", f"{one}/events", follow_summary, query=since, headers=LAST_EVENT_ID, streams=True)
    async def get_events(request: ApiRequest) -> ApiResponse | None:
        found = await hub.find(request.tenant, request.path["id"])
        await hub.info(request.tenant, found)
        after = max(request.query_int("since_seq"), request.last_event_id or 0)
        if request.exchange.method == "HEAD":
            return HEAD_OF_STREAM
        await stream_events(hub, request, found, after)
        return None

    answer_summary = "Answer the question that a request waits with: yes or no, or a text."

    @api.add("POST", f"{one}/answer", answer_summary, AcceptedAnswer, status=202)
    async def answer(request: ApiRequest, body: AnswerRequest) -> ApiResponse:
        if (body.approved is None) == (body.message is None):
            raise InvalidParams("an answer has either approved or message")
        text = body.message or ""
        if body.approved is not None:
            text = "yes" if body.approved else f"no, {body.comment}" if body.comment.strip() else "no"
        if not text.strip():
            raise InvalidParams("the answer has no text", fields=(("message", "is empty"),))
        found = await hub.find(request.tenant, request.path["id"])
        before = await hub.answer(request.tenant, found, text, question=body.last_seq)
        return ApiResponse({"request_id": found.request_id, "since_seq": before.seq}, 202)

    @api.add("POST", f"{one}/cancel", "Cancel a running request.", CancelResult)
    async def cancel(request: ApiRequest) -> Any:
        id = request.path["id"]
        if not await hub.cancel(request.tenant, id):
            raise NotRunning(id)
        return {"request_id": id, "cancelled": True}

    @api.add("DELETE", one, "Delete a request that has ended: its events, and its task.", status=204)
    async def delete(request: ApiRequest) -> None:
        await hub.delete_request(request.tenant, request.path["id"])

    return api + gate_routes(hub)


def gate_routes(hub: Hub) -> list[Route]:
    api = RouteList("judge")
    summary = "Ask an advisor about an answer: `CONTINUE`, `REDIRECT` or `HALT`, and why."

    @api.add("POST", "/v1/advise/gate", summary, Verdict)
    async def gate(request: ApiRequest, body: GateCheck) -> Any:
        for name in ("advisor_model", "original_task", "terminating_text"):
            if not getattr(body, name).strip():
                raise InvalidParams(f"{name} is empty", fields=((name, "is empty"),))
        policy = await hub.policies.of(request.tenant.id)
        if why := hub.model_names.refusal(policy, body.advisor_model):
            raise InvalidParams(f"advisor_model {why}", fields=(("advisor_model", why),))
        advisor = Advisor(model=body.advisor_model, mode="gate", prompt=body.prompt)
        calls = [body.tool_summary] if body.tool_summary else []
        prompt = gate_prompt(advisor, body.original_task, body.terminating_text, calls)
        async with hub.admission.admit_gate(request.tenant):
            with on_behalf_of(request.tenant):
                reply = await respond(hub.model, prompt)
        if reply.error_code == "unauthorized":
            raise Unauthenticated(reply.error)
        if reply.usage.total:
            name, prices = hub.model.traits(body.advisor_model).name, hub.budgets.prices
            cost = prices.cost(name, reply.usage)
            used = TokenUsage(
                model=name,
                input_tokens=reply.usage.input_tokens,
                output_tokens=reply.usage.output_tokens,
                cost=cost,
                currency=prices.currency if cost else "",
            )
            hub.usages.add(Scope(request.tenant.key, "", request.tenant.key), used)
        verdict = read_verdict(reply.text, advisor)
        if reply.error:
            verdict = Verdict(signal=HALT, text=reply.error, malformed=True)
        return verdict

    return api


async def start_and_stream(
    hub: Hub,
    request: ApiRequest,
    body: NewRequest,
    *,
    agent: str = "",
    conversation: Conversation | None = None,
) -> None:
    """Start a request and stream its events. Raises `A2AError` if it is refused.

    An `agent_def` needs a token that may change agents. The `agent_def` of the conversation does not.
    """
    tenant, key = request.tenant, request.exchange.header(b"idempotency-key")
    if body.agent_def is not None:
        tenant.require(MANAGE)
    elif conversation is not None:
        body.agent_def = conversation.agent_def
    if len(key) > MAX_KEY_CHARACTERS:
        raise InvalidParams(f"an Idempotency-Key may have up to {MAX_KEY_CHARACTERS} characters")
    name, inline = await _choose_agent(hub, tenant, agent, body)
    about = {"original": body.original_query, "channel": body.channel}
    if conversation is not None:
        await hub.store_answers(tenant, conversation.id)
    started = await hub.start_request(
        tenant,
        name,
        partial(read_parts, body.message, hub.fetcher),
        key=key,
        inline=inline,
        conversation=conversation.id if conversation is not None else 0,
        about={name: value for name, value in about.items() if value},
    )
    await stream_events(hub, request, started)


async def _choose_agent(
    hub: Hub, tenant: Tenant, agent: str, body: NewRequest
) -> tuple[str, Constitution | None]:
    """The id of the agent that a request is for, and the agent that comes with it. `agent`: the one of the address.

    Raises `InvalidParams` and `NotFound`.
    """
    document = body.agent_def
    given = document.get("id") if document is not None else None
    if not isinstance(given, str | None):
        raise InvalidParams("the id of an agent is text", fields=(("agent_def.id", "must be a string"),))
    names = {name for name in (agent, body.agent, given) if name}
    if len(names) > 1:
        why = "the address, the body and agent_def name different agents"
        raise InvalidParams(
            f"{why}: {', '.join(sorted(name[:80] for name in names))}", fields=(("agent", why),)
        )
    name = names.pop() if names else INDEX_ID
    if document is not None:
        inline = await hub.catalogue.read_inline(tenant.id, document, name if name != INDEX_ID else "")
        return inline.id, inline
    if await hub.catalogue.find(tenant.id, name) is None:
        raise NotFound(f"there is no agent {name[:80]!r}")
    return name, None


async def stream_events(hub: Hub, request: ApiRequest, stored: StoredRequest, since: int = 0) -> None:
    """Stream the events of a request up to `done`."""

    def failed(error: Exception) -> bytes:
        why = stream_error(error, "the stream broke; come back with Last-Event-ID")
        done = {"ok": False, "request_id": stored.request_id}
        done |= {"error": why["message"], "error_code": why["reason"]}
        return HubEvent("error", why).frame + HubEvent("done", done).frame

    await request.exchange.shared.streams.serve(
        request.exchange,
        hub.events(request.tenant, stored, since),
        EventFrames(),
        failed=failed,
        headers=((b"x-request-id", header_value(stored.request_id)),),
    )

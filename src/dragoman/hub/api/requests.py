"""`/v1/orchestrate`, `/v1/agents/{id}/chat`, `/v1/events` and `/v1/requests`: ask an agent, follow, list, cancel.

`/v1/advise/gate` is here too. It starts no request, but counts as one against the tenant's limits.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dragoman.errors import InvalidParams, Unauthenticated
from dragoman.hub.agents.constitution import INDEX_ID, Advisor, Short
from dragoman.hub.agents.programs import on_behalf_of
from dragoman.hub.agents.routing import for_event
from dragoman.hub.api import ApiRequest, RouteList
from dragoman.hub.conversations.events import EventFrames, HubEvent, describe_request
from dragoman.hub.conversations.message_input import MessagePart, read_parts
from dragoman.hub.errors import NotFound
from dragoman.hub.hub import Hub
from dragoman.hub.models import Model, traits_of
from dragoman.hub.models.calls import respond
from dragoman.hub.quote import flatten, quote
from dragoman.hub.store.conversations import Conversation
from dragoman.hub.store.requests import StoredRequest
from dragoman.hub.store.tokens import MANAGE
from dragoman.hub.tools.advisor import HALT, Verdict, gate_prompt, read_verdict
from dragoman.model.ops import Scope
from dragoman.model.usage import TokenUsage
from dragoman.server.routes import HEAD_OF_STREAM, ApiResponse, Natural, Route, header_value

MAX_KEY_CHARACTERS = 256
KEY = {"Idempotency-Key": "A request that is repeated with its key is answered with the first one's events."}
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


class Answer(Struct, forbid_unknown_fields=True):
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


def routes(hub: Hub, model: Model) -> list[Route]:
    api = RouteList("requests")
    one = "/v1/requests/{id}"

    @api.add("POST", "/v1/orchestrate", "Ask an agent (default `index`).", headers=KEY, streams=True)
    async def orchestrate(request: ApiRequest, body: NewRequest) -> None:
        await start_request(hub, request, body)

    @api.add("POST", "/v1/agents/{id}/chat", "Ask this agent.", headers=KEY, streams=True)
    async def chat(request: ApiRequest, body: NewRequest) -> None:
        await start_request(hub, request, body, agent=request.path["id"])

    event_summary = "Give an event to the agent whose `event_types` match it, or to `index`."

    @api.add("POST", "/v1/events", event_summary, headers=KEY, streams=True)
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
            company = await hub.catalogue.constitutions(request.tenant.id)
            agent = await asyncio.to_thread(for_event, body.type, company)
        await start_request(hub, request, NewRequest(message=message), agent=agent)

    limits = {"limit": "100, at most 200."}

    @api.add("GET", "/v1/requests", "List requests of both APIs, newest first.", RequestList, query=limits)
    async def list_requests(request: ApiRequest) -> Any:
        tenant = request.tenant
        found = await hub.requests.list(tenant.id, request.query_limit(100, 200))
        loads = (hub.snapshot(tenant, each) for each in found)
        snapshots = await asyncio.gather(*loads, return_exceptions=True)
        pairs = zip(found, snapshots, strict=True)
        return {
            "requests": [describe_request(each, s) for each, s in pairs if not isinstance(s, BaseException)]
        }

    @api.add("GET", one, "Get the state of a request.", RequestResponse)
    async def get_request(request: ApiRequest) -> Any:
        found = await hub.find(request.tenant, request.path["id"])
        return {"request": describe_request(found, await hub.snapshot(request.tenant, found))}

    since = {"since_seq": "Only events after this one."}
    follow_summary = "Stream the events of a request, optionally after `since_seq` or `Last-Event-ID`."

    @api.add("GET", f"{one}/events", follow_summary, query=since, streams=True)
    async def get_events(request: ApiRequest) -> ApiResponse | None:
        found = await hub.find(request.tenant, request.path["id"])
        await hub.snapshot(request.tenant, found)
        after = max(request.query_int("since_seq"), request.last_event_id or 0)
        if request.exchange.method == "HEAD":
            return HEAD_OF_STREAM
        await stream_events(hub, request, found, after)
        return None

    answer_summary = "Answer the question that a request waits with: yes or no, or a text."

    @api.add("POST", f"{one}/answer", answer_summary, AcceptedAnswer, status=202)
    async def answer(request: ApiRequest, body: Answer) -> ApiResponse:
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
    async def cancel(request: ApiRequest) -> ApiResponse:
        id = request.path["id"]
        if await hub.cancel(request.tenant, id):
            return ApiResponse({"request_id": id, "cancelled": True})
        reason = "no in-flight request with that id"
        body = {"error": reason, "request_id": id, "cancelled": False, "reason": reason}
        return ApiResponse(body, 404)

    return api + gate_routes(hub, model)


def gate_routes(hub: Hub, model: Model) -> list[Route]:
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
        async with hub.admission.admit_call(request.tenant, "gate"):
            with on_behalf_of(request.tenant):
                reply = await respond(model, prompt)
        if reply.error_code == "unauthorized":
            raise Unauthenticated(reply.error)
        if reply.usage.total:
            name, prices = traits_of(model, body.advisor_model).name, hub.budgets.prices
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


async def start_request(
    hub: Hub,
    request: ApiRequest,
    body: NewRequest,
    *,
    agent: str = "",
    conversation: Conversation | None = None,
) -> None:
    """Start a request and stream its events. Raises `A2AError` if it is refused.

    An agent of its own is for tokens that may change agents, unless the conversation has it.
    """
    if body.agent_def is not None:
        request.tenant.require(MANAGE)
    elif conversation is not None:
        body.agent_def = conversation.agent_def
    key = request.exchange.header(b"idempotency-key")
    if len(key) > MAX_KEY_CHARACTERS:
        raise InvalidParams(f"an Idempotency-Key may have up to {MAX_KEY_CHARACTERS} characters")
    tenant = request.tenant
    given = body.agent_def.get("id") if body.agent_def is not None else None
    if not isinstance(given, str | None):
        raise InvalidParams("the id of an agent is text", fields=(("agent_def.id", "must be a string"),))
    names = {name for name in (agent, body.agent, given) if name}
    if len(names) > 1:
        why = "the address, the body and agent_def name different agents"
        raise InvalidParams(f"{why}: {', '.join(sorted(names))}", fields=(("agent", why),))
    name = names.pop() if names else INDEX_ID
    inline = None
    if body.agent_def is not None:
        given_id = name if name != INDEX_ID else ""
        inline = await hub.catalogue.read_inline(tenant.id, body.agent_def, given_id)
        name = inline.id
    elif await hub.catalogue.find(tenant.id, name) is None:
        raise NotFound(f"there is no agent {name[:80]!r}")
    about = {"original": body.original_query, "channel": body.channel}
    if conversation is not None:
        await hub.store_answers(tenant, conversation.id)
    started = await hub.ask(
        tenant,
        name,
        partial(read_parts, body.message, hub.fetcher),
        key=key,
        inline=inline,
        conversation=conversation.id if conversation is not None else 0,
        about={name: value for name, value in about.items() if value},
    )
    await stream_events(hub, request, started)


async def stream_events(hub: Hub, request: ApiRequest, stored: StoredRequest, since: int = 0) -> None:
    """Stream the events of a request up to `done`."""

    def failed(error: Exception) -> bytes:
        why, code = "the stream broke; come back with Last-Event-ID", "internal_error"
        done = {"ok": False, "request_id": stored.request_id, "error": why, "error_code": code}
        return HubEvent("error", {"message": why, "reason": code}).frame + HubEvent("done", done).frame

    await request.exchange.shared.streams.serve(
        request.exchange,
        hub.events(request.tenant, stored, since),
        EventFrames(),
        failed=failed,
        headers=((b"x-request-id", header_value(stored.request_id)),),
    )

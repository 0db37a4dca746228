"""`/v1/orchestrate`, `/v1/agents/{id}/chat` and `/v1/requests`: ask an agent, follow, look back, cancel."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.agents.routing import for_event
from dragoman.hub.api.routes import HEAD_OF_STREAM, Answer, Route, Visit, header_value
from dragoman.hub.conversations.conversations import Conversation
from dragoman.hub.conversations.events import EventFrames, HubEvent, shown
from dragoman.hub.conversations.message_input import Piece, parts
from dragoman.hub.conversations.requests import StoredRequest
from dragoman.hub.errors import NotFound
from dragoman.hub.hub import Hub

MAX_KEY = 256
MAX_EVENT_TYPE = 256


class Orchestrate(Struct):
    """What is asked, and of whom."""

    message: str | list[Piece]
    agent: str = ""
    agent_def: dict[str, Any] | None = None
    original_query: str = ""
    channel: Literal["", "text", "voice"] = ""


class Happened(Struct):
    """Something that happened elsewhere: an alert, a reading, a webhook."""

    type: str
    source: str = ""
    payload: Any = None
    agent: str = ""


def routes(hub: Hub) -> list[Route]:
    async def orchestrate(visit: Visit) -> None:
        await ask(hub, visit, await visit.json(Orchestrate))

    async def chat(visit: Visit) -> None:
        body = await visit.json(Orchestrate)
        await ask(hub, visit, body, agent=visit.values["id"])

    async def happened(visit: Visit) -> None:
        event = await visit.json(Happened)
        if not event.type.strip():
            raise InvalidParams("the event has no type", fields=(("type", "is empty"),))
        if len(event.type) > MAX_EVENT_TYPE:
            why = f"has more than {MAX_EVENT_TYPE} characters"
            raise InvalidParams(f"the type of the event {why}", fields=(("type", why),))
        lines = [f"HubEvent: {event.type}"]
        lines += [f"Source: {event.source}"] if event.source else []
        lines += (
            [f"Payload: {msgspec.json.encode(event.payload).decode()}"] if event.payload is not None else []
        )
        agent = event.agent or await _meant(hub, visit, event.type)
        await ask(hub, visit, Orchestrate(message="\n".join(lines)), agent=agent)

    async def list_requests(visit: Visit) -> Answer:
        found = await hub.requests.list(visit.tenant.id, visit.count("limit", 100, 200))
        snapshots = await asyncio.gather(
            *(hub.snapshot(visit.tenant, asked) for asked in found), return_exceptions=True
        )
        out = [
            shown(asked, snapshot)
            for asked, snapshot in zip(found, snapshots, strict=True)
            if not isinstance(snapshot, BaseException)
        ]
        return Answer({"requests": out})

    async def get_request(visit: Visit) -> Answer:
        asked = hub.find(visit.tenant, visit.values["id"])
        return Answer({"request": shown(asked, await hub.snapshot(visit.tenant, asked))})

    async def get_events(visit: Visit) -> Answer | None:
        asked = hub.find(visit.tenant, visit.values["id"])
        await hub.snapshot(visit.tenant, asked)
        since = max(visit.count("since_seq", 0), visit.last_event or 0)
        if visit.exchange.method == "HEAD":
            return HEAD_OF_STREAM
        await follow(hub, visit, asked, since)
        return None

    async def cancel(visit: Visit) -> Answer:
        id = visit.values["id"]
        if await hub.cancel(visit.tenant, id):
            return Answer({"request_id": id, "cancelled": True})
        reason = "no in-flight request with that id"
        return Answer({"request_id": id, "cancelled": False, "reason": reason}, 404)

    return [
        Route(
            "POST",
            "/v1/orchestrate",
            orchestrate,
            "Ask an agent, `index` if none is named, and follow its work.",
            "requests",
            body=Orchestrate,
            streams=True,
        ),
        Route(
            "POST",
            "/v1/agents/{id}/chat",
            chat,
            "Ask this agent, and follow its work.",
            "requests",
            body=Orchestrate,
            streams=True,
        ),
        Route(
            "POST",
            "/v1/events",
            happened,
            "Have the agent whose `event_types` fit work on something that happened, `index` if there is none.",
            "requests",
            body=Happened,
            streams=True,
        ),
        Route(
            "GET",
            "/v1/requests",
            list_requests,
            "What was asked, newest first, over A2A or here.",
            "requests",
            query={"limit": "How many at most; 100, and no more than 200."},
        ),
        Route("GET", "/v1/requests/{id}", get_request, "How a request stands.", "requests"),
        Route(
            "GET",
            "/v1/requests/{id}/events",
            get_events,
            "The events of a request, from the beginning or after `since_seq` (or `Last-HubEvent-ID`), until `done`.",
            "requests",
            query={"since_seq": "Only events after this one."},
            streams=True,
        ),
        Route("POST", "/v1/requests/{id}/cancel", cancel, "Cancel a request that is running.", "requests"),
    ]


async def ask(
    hub: Hub, visit: Visit, body: Orchestrate, *, agent: str = "", conversation: Conversation | None = None
) -> None:
    """Begin a request and stream its events. Raises what it is refused with."""
    key = visit.exchange.header(b"idempotency-key")
    if len(key) > MAX_KEY:
        raise InvalidParams(f"an Idempotency-Key may have up to {MAX_KEY} characters")
    tenant = visit.tenant
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
        inline = hub.catalogue.inline(body.agent_def, name if name != INDEX_ID else "")
        name = inline.id
    elif hub.catalogue.find(tenant.id, name) is None:
        raise NotFound(f"there is no agent {name[:80]!r}")
    about = {"original": body.original_query, "channel": body.channel}
    if conversation is not None:
        await hub.settle(tenant, conversation.id)
    asked = await hub.ask(
        tenant,
        name,
        partial(parts, body.message, hub.fetcher),
        key=key,
        inline=inline,
        conversation=conversation.id if conversation is not None else 0,
        about={name: value for name, value in about.items() if value},
    )
    await follow(hub, visit, asked)


async def _meant(hub: Hub, visit: Visit, type: str) -> str:
    """The agent that an event is for: the one that names it most exactly."""
    company = await hub.catalogue.company(visit.tenant.id)
    return await asyncio.to_thread(for_event, type, company)


async def follow(hub: Hub, visit: Visit, asked: StoredRequest, since: int = 0) -> None:
    """Stream a request's events, to `done`."""

    def failed(error: Exception) -> bytes:
        said = {"message": "the stream broke; come back with Last-HubEvent-ID", "reason": "internal_error"}
        done = {"ok": False, "request_id": asked.request_id, "error": said["message"]}
        return HubEvent("error", said).frame + HubEvent("done", {**done, "error_code": said["reason"]}).frame

    await visit.exchange.shared.streams.serve(
        visit.exchange,
        hub.events(visit.tenant, asked, since),
        EventFrames(),
        failed=failed,
        headers=((b"x-request-id", header_value(asked.request_id)),),
    )

"""`/v1/conversations`: talk with an agent that remembers what was said."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.api.requests import Orchestrate, ask
from dragoman.hub.api.routes import Answer, Route, Visit
from dragoman.hub.errors import NotFound
from dragoman.hub.hub import Hub


class NewConversation(Struct):
    """Whom to talk with: an agent there is, or one that is only for this conversation."""

    title: str = ""
    agent_id: str = ""
    agent: str = ""
    agent_def: dict[str, Any] | None = None


class ConversationChange(Struct):
    title: str | None = None
    archived: bool | None = None


def routes(hub: Hub) -> list[Route]:
    conversations = hub.conversations

    async def create(visit: Visit) -> Answer:
        body = await visit.json(NewConversation)
        agent = body.agent_id or body.agent
        if body.agent_def is not None:
            constitution = hub.catalogue.inline(body.agent_def, agent)
            if agent and constitution.id != agent:
                raise InvalidParams("agent_def and agent_id name different agents")
            agent = constitution.id
        elif hub.catalogue.find(visit.tenant.id, agent or INDEX_ID) is None:
            raise NotFound(f"there is no agent {agent[:80]!r}")
        made = await conversations.create(
            visit.tenant.id, title=body.title[:200], agent=agent or INDEX_ID, agent_def=body.agent_def
        )
        return Answer(made.shown, 201, ((b"location", f"/v1/conversations/{made.id}".encode()),))

    async def list_all(visit: Visit) -> Answer:
        found = await conversations.list(
            visit.tenant.id, before=visit.count("before_updated_at", 0), limit=visit.count("limit", 50, 200)
        )
        return Answer({"count": len(found), "conversations": [each.shown for each in found]})

    async def get(visit: Visit) -> Answer:
        return Answer(conversations.find(visit.tenant.id, visit.number("id")).shown)

    async def change(visit: Visit) -> Answer:
        body = await visit.json(ConversationChange)
        title = None if body.title is None else body.title[:200]
        changed = await conversations.change(
            visit.tenant.id, visit.number("id"), title=title, archived=body.archived
        )
        return Answer(changed.shown)

    async def delete(visit: Visit) -> Answer:
        conversation = conversations.find(visit.tenant.id, visit.number("id"))
        for request in await conversations.unanswered(conversation.id):
            await hub.cancel(visit.tenant, request)
        await conversations.delete(visit.tenant.id, conversation.id)
        return Answer(status=204)

    async def messages(visit: Visit) -> Answer:
        conversation = conversations.find(visit.tenant.id, visit.number("id"))
        await hub.settle(visit.tenant, conversation.id)
        found = await conversations.messages(
            conversation.id, after=visit.count("after_id", 0), limit=visit.count("limit", 200, 500)
        )
        return Answer({"count": len(found), "messages": found})

    async def say(visit: Visit) -> None:
        conversation = conversations.find(visit.tenant.id, visit.number("id"))
        body = await visit.json(Orchestrate)
        if body.agent_def is None:
            body.agent_def = conversation.agent_def
        await ask(hub, visit, body, agent=conversation.agent_id, conversation=conversation)

    one = "/v1/conversations/{id}"
    page = {"limit": "How many at most; 50, and no more than 200."}
    return [
        Route(
            "POST",
            "/v1/conversations",
            create,
            "Begin a conversation.",
            "conversations",
            body=NewConversation,
            status=201,
        ),
        Route(
            "GET",
            "/v1/conversations",
            list_all,
            "All conversations, the liveliest first.",
            "conversations",
            query={**page, "before_updated_at": "Only those that were quiet before this time."},
        ),
        Route("GET", one, get, "One conversation.", "conversations"),
        Route(
            "PATCH", one, change, "Give it a title, or archive it.", "conversations", body=ConversationChange
        ),
        Route(
            "DELETE",
            one,
            delete,
            "Delete it, with its messages, files and todos.",
            "conversations",
            status=204,
        ),
        Route(
            "GET",
            f"{one}/messages",
            messages,
            "What was said, oldest first.",
            "conversations",
            query={"after_id": "Only messages after this one.", "limit": "200, and no more than 500."},
        ),
        Route(
            "POST",
            f"{one}/messages",
            say,
            "Say something, and follow the answer. The agent is reminded of the newest hundred messages.",
            "conversations",
            body=Orchestrate,
            streams=True,
        ),
    ]

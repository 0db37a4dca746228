"""`/v1/memory` and `/v1/todos`: what agents keep in mind, for those who keep agents."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dragoman.hub.hub import Hub
from dragoman.hub.refusals import NotFound
from dragoman.hub.routing import Answer, Natural, Route, Visit
from dragoman.hub.scratchpads import SHARED

MILLISECONDS = 10**11
"""Times from here on are milliseconds: as seconds they would be three thousand years away."""


class NewEntry(Struct):
    type: str
    title: str
    content: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    artifact_id: Natural | None = None
    conversation_id: Natural = 0
    created_at: Natural | None = None
    supersedes_ids: tuple[Natural, ...] = ()


class EntryChange(Struct, omit_defaults=True):
    type: str | None = None
    title: str | None = None
    content: str | None = None
    source: str | None = None
    tags: tuple[str, ...] | None = None
    artifact_id: Natural | None = None


class NewRelation(Struct):
    source_id: Natural
    target_id: Natural
    relation: str


class NewTodo(Struct):
    subject: str
    description: str = ""
    conversation_id: Natural = 0


class TodoChange(Struct):
    state: str


def routes(hub: Hub) -> list[Route]:
    memories, pads, todos = hub.memories, hub.scratchpads, hub.todos

    async def list_pads(visit: Visit) -> Answer:
        found = await pads.list(visit.tenant.id)
        return Answer(
            {
                "scratchpads": [
                    {"agent_id": scope, "size": size, "updated_at": at} for scope, size, at in found
                ]
            }
        )

    async def get_pad(visit: Visit) -> Answer:
        id = visit.values["agent_id"]
        scope = SHARED if id == "*" else id
        return Answer({"agent_id": scope, "content": await pads.read(visit.tenant.id, scope)})

    async def add(visit: Visit) -> Answer:
        body = await visit.json(NewEntry)
        at = body.created_at
        if body.conversation_id:
            hub.conversations.find(visit.tenant.id, body.conversation_id)
        entry = await memories.add(
            visit.tenant.id,
            body.type,
            body.title,
            body.content,
            source=body.source,
            tags=body.tags,
            artifact_id=body.artifact_id,
            conversation=body.conversation_id,
            supersedes=body.supersedes_ids,
            at=at // 1000 if at and at >= MILLISECONDS else at,
        )
        return Answer(entry, 201)

    async def browse(visit: Visit) -> Answer:
        limit = visit.count("limit", 50, 200)
        as_of = visit.count("as_of", 0) or None
        conversation = visit.count("conversation_id", 0)
        if query := visit.asked("q"):
            found = await memories.search(
                visit.tenant.id, query, conversation=conversation, as_of=as_of, limit=limit
            )
        else:
            found = await memories.list(
                visit.tenant.id,
                types=[word for word in visit.asked("type").split(",") if word],
                tag=visit.asked("tag"),
                since=visit.count("since", 0),
                before=visit.count("before_updated_at", 0) or None,
                conversation=conversation or None,
                as_of=as_of,
                limit=limit,
            )
        return Answer({"count": len(found), "entries": found})

    async def get(visit: Visit) -> Answer:
        tenant, id = visit.tenant.id, visit.number("id")
        entry = _there(await memories.get(tenant, id), "entry", id)
        out = msgspec.to_builtins(entry)
        if entry.artifact_id is not None:
            out["artifact"] = await hub.artifacts.get(tenant, entry.artifact_id)
        return Answer(out)

    async def change(visit: Visit) -> Answer:
        changes = msgspec.structs.asdict(await visit.json(EntryChange))
        changes = {name: value for name, value in changes.items() if value is not None}
        id = visit.number("id")
        return Answer(_there(await memories.change(visit.tenant.id, id, **changes), "entry", id))

    async def delete(visit: Visit) -> Answer:
        id = visit.number("id")
        _there(await memories.delete(visit.tenant.id, id) or None, "entry", id)
        return Answer(status=204)

    async def invalidate(visit: Visit) -> Answer:
        tenant, id = visit.tenant.id, visit.number("id")
        _there(await memories.invalidate(tenant, id) or None, "entry that is valid", id)
        return Answer(await memories.get(tenant, id))

    async def relate(visit: Visit) -> Answer:
        body = await visit.json(NewRelation)
        made = await memories.relate(visit.tenant.id, body.source_id, body.relation, body.target_id)
        return Answer(made, 201)

    async def relations(visit: Visit) -> Answer:
        found = await memories.relations(visit.tenant.id, visit.count("entry_id", 0) or None)
        return Answer({"count": len(found), "relations": found})

    async def unrelate(visit: Visit) -> Answer:
        id = visit.number("id")
        _there(await memories.unrelate(visit.tenant.id, id) or None, "relation", id)
        return Answer(status=204)

    async def graph(visit: Visit) -> Answer:
        types = [word for word in visit.asked("type").split(",") if word]
        entries = await memories.list(visit.tenant.id, types=types, limit=1000)
        known = {entry.id for entry in entries}
        found = await memories.relations(visit.tenant.id)
        edges = [each for each in found if each.source_id in known and each.target_id in known]
        return Answer({"tenant_id": visit.tenant.id, "entries": entries, "relations": edges})

    async def list_todos(visit: Visit) -> Answer:
        found = await todos.list(visit.tenant.id, conversation=visit.count("conversation_id", 0))
        return Answer({"count": len(found), "todos": found})

    async def add_todo(visit: Visit) -> Answer:
        body = await visit.json(NewTodo)
        if body.conversation_id:
            hub.conversations.find(visit.tenant.id, body.conversation_id)
        made = await todos.add(
            visit.tenant.id, body.subject, body.description, conversation=body.conversation_id
        )
        return Answer(made, 201)

    async def mark_todo(visit: Visit) -> Answer:
        id, state = visit.number("id"), (await visit.json(TodoChange)).state
        return Answer(_there(await todos.mark(visit.tenant.id, id, state), "todo", id))

    async def delete_todo(visit: Visit) -> Answer:
        id = visit.number("id")
        _there(await todos.delete(visit.tenant.id, id) or None, "todo", id)
        return Answer(status=204)

    entries, one = "/v1/memory/entries", "/v1/memory/entries/{id}"
    filters = {
        "q": "Search for these words; without it, entries are listed, newest first.",
        "type": "Only these types, with commas between them.",
        "tag": "Only entries with this tag.",
        "since": "Only entries that changed at this time or later.",
        "before_updated_at": "Only entries that changed before this time.",
        "conversation_id": "Those of this conversation (first, in a search).",
        "as_of": "As it was at this time.",
        "limit": "50, and no more than 200.",
    }
    table: list[tuple[str, str, Any, str, dict[str, Any]]] = [
        ("GET", "/v1/memory", list_pads, "The scratchpads there are.", {}),
        (
            "GET",
            "/v1/memory/{agent_id}",
            get_pad,
            "An agent's scratchpad; that of `*` is the one they share.",
            {},
        ),
        ("POST", entries, add, "Remember something.", {"body": NewEntry, "status": 201}),
        ("GET", entries, browse, "What is remembered.", {"query": filters}),
        ("GET", one, get, "One entry, with the file that belongs to it.", {}),
        ("PATCH", one, change, "Change an entry.", {"body": EntryChange}),
        ("DELETE", one, delete, "Forget an entry altogether.", {"status": 204}),
        ("POST", f"{one}/invalidate", invalidate, "It is not true any more, but it was.", {}),
        ("POST", "/v1/memory/relations", relate, "Relate two entries.", {"body": NewRelation, "status": 201}),
        ("GET", "/v1/memory/relations", relations, "Relations.", {"query": {"entry_id": "Of this entry."}}),
        ("DELETE", "/v1/memory/relations/{id}", unrelate, "Undo a relation.", {"status": 204}),
        ("GET", "/v1/memory/graph", graph, "Entries and relations.", {"query": {"type": filters["type"]}}),
        (
            "GET",
            "/v1/todos",
            list_todos,
            "What is still to do.",
            {"query": {"conversation_id": "Of this one."}},
        ),
        ("POST", "/v1/todos", add_todo, "Something to do.", {"body": NewTodo, "status": 201}),
        ("PATCH", "/v1/todos/{id}", mark_todo, "Say how it stands.", {"body": TodoChange}),
        ("DELETE", "/v1/todos/{id}", delete_todo, "Forget it.", {"status": 204}),
    ]
    return [
        Route(
            method=method,
            path=path,
            handler=handler,
            about=about,
            tag="todos" if "todos" in path else "memory",
            **more,
        )
        for method, path, handler, about, more in table
    ]


def _there(found: Any, what: str, id: int) -> Any:
    if found is None:
        raise NotFound(f"there is no {what} {id}")
    return found

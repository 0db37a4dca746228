"""`/v1/memory`: what agents keep in mind, for those who keep agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman.errors import InvalidParams
from dragoman.hub.agents.constitution import Memory as Ranking
from dragoman.hub.api.routes import Answer, Natural, Route, Visit
from dragoman.hub.errors import there
from dragoman.hub.hub import Hub
from dragoman.hub.memory.scratchpads import SHARED
from dragoman.hub.memory.search import RELATIONS, TYPES, Entry, Search

GRAPH_CHARACTERS, GRAPH_RELATIONS = 8 << 20, 10_000
"""What a graph has at most, beside a thousand entries: characters in their texts, and relations."""
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
    supersedes_ids: Annotated[tuple[Natural, ...], msgspec.Meta(max_length=1000)] = ()


class EntryChange(Struct, omit_defaults=True):
    type: str | None = None
    title: str | None = None
    content: str | None = None
    source: str | None = None
    tags: tuple[str, ...] | None = None
    artifact_id: Natural | UnsetType | None = UNSET
    """Null: it has none any more."""


class NewRelation(Struct):
    source_id: Natural
    target_id: Natural
    relation: str


def routes(hub: Hub) -> list[Route]:
    memories, pads = hub.memories, hub.scratchpads

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
        if body.conversation_id:
            hub.conversations.find(visit.tenant.id, body.conversation_id)
        at = body.created_at
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
        types = _types(visit)
        if query := visit.asked("q"):
            search = Search(
                query=query,
                types=types,
                tag=visit.asked("tag"),
                conversation=conversation,
                wide=visit.flag("graduated", False),
                ranking=Ranking(intent_routing=visit.flag("intent"), age_decay=visit.flag("decay")),
                limit=limit,
            )
            found = await memories.search(visit.tenant.id, search, as_of=as_of)
            return Answer({"count": len(found), "entries": found})
        found = await memories.list(
            visit.tenant.id,
            types=types,
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
        entry = there(await memories.get(tenant, id), "entry", id)
        out = msgspec.to_builtins(entry)
        if entry.artifact_id is not None:
            out["artifact"] = await hub.artifacts.get(tenant, entry.artifact_id)
        return Answer(out)

    async def change(visit: Visit) -> Answer:
        body, id = await visit.json(EntryChange), visit.number("id")
        changes = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
        changes["artifact_id"] = body.artifact_id
        changes = {name: value for name, value in changes.items() if value is not UNSET}
        return Answer(there(await memories.change(visit.tenant.id, id, **changes), "entry", id))

    async def delete(visit: Visit) -> Answer:
        id = visit.number("id")
        there(await memories.delete(visit.tenant.id, id) or None, "entry", id)
        return Answer(status=204)

    async def invalidate(visit: Visit) -> Answer:
        tenant, id = visit.tenant.id, visit.number("id")
        there(await memories.invalidate(tenant, id) or None, "valid entry", id)
        return Answer(await memories.get(tenant, id))

    async def relate(visit: Visit) -> Answer:
        body = await visit.json(NewRelation)
        made = await memories.relate(visit.tenant.id, body.source_id, body.relation, body.target_id)
        return Answer(made, 201)

    async def relations(visit: Visit) -> Answer:
        kind = visit.asked("relation")
        if kind and kind not in RELATIONS:
            raise InvalidParams(
                f"there is no relation {kind[:40]!r}",
                fields=(("relation", f"is one of {', '.join(RELATIONS)}"),),
            )
        found = await memories.relations(
            visit.tenant.id,
            visit.count("entry_id", 0) or None,
            source=visit.count("source_id", 0) or None,
            target=visit.count("target_id", 0) or None,
            relation=kind or None,
            limit=visit.count("limit", 200, 1000),
        )
        return Answer({"count": len(found), "relations": found})

    async def unrelate(visit: Visit) -> Answer:
        id = visit.number("id")
        there(await memories.unrelate(visit.tenant.id, id) or None, "relation", id)
        return Answer(status=204)

    async def graph(visit: Visit) -> Answer:
        types = _types(visit)
        entries = _in_bounds(await memories.list(visit.tenant.id, types=types, limit=1000))
        known = {entry.id for entry in entries}
        found = await memories.relations(visit.tenant.id, limit=GRAPH_RELATIONS)
        edges = [each for each in found if each.source_id in known and each.target_id in known]
        return Answer({"tenant_id": visit.tenant.id, "entries": entries, "relations": edges})

    entries, one = "/v1/memory/entries", "/v1/memory/entries/{id}"
    among = {
        "entry_id": "Of this entry, in both directions.",
        "source_id": "From this entry.",
        "target_id": "To this entry.",
        "relation": "Of this kind.",
        "limit": "200, and no more than 1000.",
    }
    filters = {
        "q": "Search for these words; without it, entries are listed, newest first.",
        "type": "Only these types, with commas between them (first, in a search).",
        "tag": "Only entries with this tag (first, in a search).",
        "since": "Only entries that changed at this time or later.",
        "before_updated_at": "Only entries that changed before this time.",
        "conversation_id": "Those of this conversation (first, in a search).",
        "as_of": "As it was at this time.",
        "limit": "50, and no more than 200.",
        "graduated": "Search other conversations, too, with those of `conversation_id` first.",
        "intent": "`off`: the way a question is put does not count.",
        "decay": "`off`: age does not count.",
    }
    return [
        Route("GET", "/v1/memory", list_pads, "The scratchpads there are.", "memory"),
        Route(
            "GET",
            "/v1/memory/{agent_id}",
            get_pad,
            "An agent's scratchpad; that of `*` is the one they share.",
            "memory",
        ),
        Route("POST", entries, add, "Remember something.", "memory", body=NewEntry, status=201),
        Route("GET", entries, browse, "What is remembered.", "memory", query=filters),
        Route("GET", one, get, "One entry, with the file that belongs to it.", "memory"),
        Route("PATCH", one, change, "Change an entry.", "memory", body=EntryChange),
        Route("DELETE", one, delete, "Forget an entry altogether.", "memory", status=204),
        Route("POST", f"{one}/invalidate", invalidate, "It is not true any more, but it was.", "memory"),
        Route(
            "POST",
            "/v1/memory/relations",
            relate,
            "Relate two entries.",
            "memory",
            body=NewRelation,
            status=201,
        ),
        Route("GET", "/v1/memory/relations", relations, "Relations.", "memory", query=among),
        Route("DELETE", "/v1/memory/relations/{id}", unrelate, "Undo a relation.", "memory", status=204),
        Route(
            "GET",
            "/v1/memory/graph",
            graph,
            "Entries and relations.",
            "memory",
            query={"type": "Only these types."},
        ),
    ]


def _in_bounds(entries: Sequence[Entry]) -> list[Entry]:
    """The first entries, as long as their texts are not too long together."""
    out: list[Entry] = []
    room = GRAPH_CHARACTERS
    for entry in entries:
        room -= len(entry.content)
        if room < 0:
            break
        out.append(entry)
    return out


def _types(visit: Visit) -> list[str]:
    """The types that the caller wants to see. Raises `InvalidParams`."""
    types = [word for word in visit.asked("type").split(",") if word]
    if unknown := [word for word in types if word not in TYPES]:
        raise InvalidParams(
            f"there is no type {unknown[0][:40]!r}", fields=(("type", f"is one of {', '.join(TYPES)}"),)
        )
    return types

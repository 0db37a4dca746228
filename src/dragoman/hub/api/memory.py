"""`/v1/memory`: scratchpads and structured memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman.hub.agents.constitution import Memory as Ranking
from dragoman.hub.api import PAGE_START, ApiRequest, RouteList, must_exist, page, page_start, page_type
from dragoman.hub.hub import Hub
from dragoman.hub.store.artifacts import StoredFile
from dragoman.hub.store.memories import SHARED, ScratchpadInfo
from dragoman.hub.store.memory_search import RELATIONS, TYPES, MemoryEntry, MemorySearch, Relation
from dragoman.server.routes import Natural, Route

MAX_GRAPH_CHARACTERS, MAX_GRAPH_RELATIONS = 8 << 20, 10_000
MIN_MILLISECONDS = 10**11
"""A larger time is in milliseconds. As seconds, it would be three thousand years away."""


class NewMemoryEntry(Struct):
    type: str
    title: str
    content: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    artifact_id: Natural | None = None
    conversation_id: Natural = 0
    created_at: Natural | None = None
    supersedes_ids: Annotated[tuple[Natural, ...], msgspec.Meta(max_length=1000)] = ()


class MemoryEntryChange(Struct, omit_defaults=True):
    type: str | None = None
    title: str | None = None
    content: str | None = None
    source: str | None = None
    tags: tuple[str, ...] | None = None
    artifact_id: Natural | UnsetType | None = UNSET
    """Null removes it."""


class NewRelation(Struct):
    source_id: Natural
    target_id: Natural
    relation: str


class ScratchpadList(Struct):
    scratchpads: list[ScratchpadInfo]


class Scratchpad(Struct):
    agent_id: str
    content: str


class MemoryEntryWithFile(MemoryEntry, frozen=True, kw_only=True):
    artifact: StoredFile | None = None


class MemoryGraph(Struct):
    tenant_id: int
    entries: list[MemoryEntry]
    relations: list[Relation]


MemoryEntryList = page_type("MemoryEntryList", "entries", MemoryEntry)
RelationList = page_type("RelationList", "relations", Relation)


def routes(hub: Hub) -> list[Route]:
    api, memories, pads = RouteList("memory"), hub.memories, hub.scratchpads
    all, one = "/v1/memory/entries", "/v1/memory/entries/{id}"

    @api.add("GET", "/v1/memory", "List scratchpads.", ScratchpadList)
    async def list_pads(request: ApiRequest) -> Any:
        return {"scratchpads": await pads.list(request.tenant.id)}

    @api.add(
        "GET", "/v1/memory/{agent_id}", "Get the scratchpad of an agent; `*` is the shared one.", Scratchpad
    )
    async def get_pad(request: ApiRequest) -> Any:
        id = request.path["agent_id"]
        scope = SHARED if id == "*" else id
        return {"agent_id": scope, "content": await pads.read(request.tenant.id, scope)}

    @api.add("POST", all, "Add an entry.", MemoryEntry, status=201)
    async def add(request: ApiRequest, body: NewMemoryEntry) -> Any:
        if body.conversation_id:
            await hub.conversations.find(request.tenant.id, body.conversation_id)
        at = body.created_at
        return await memories.add(
            request.tenant.id,
            body.type,
            body.title,
            body.content,
            source=body.source,
            tags=body.tags,
            artifact_id=body.artifact_id,
            conversation=body.conversation_id,
            supersedes=body.supersedes_ids,
            at=at // 1000 if at and at >= MIN_MILLISECONDS else at,
        )

    filters = {
        "q": "Search for these words; without it, entries are listed, newest first.",
        "type": "Only these types, with commas between them (first, in a search).",
        "tag": "Only entries with this tag (first, in a search).",
        "since": "Only entries that changed at this time or later.",
        **PAGE_START,
        "conversation_id": "Those of this conversation (first, in a search).",
        "as_of": "The entries that were valid at this time.",
        "limit": "50, at most 200.",
        "graduated": "Search other conversations too; those of `conversation_id` come first.",
        "intent": "`off`: do not guess the type from the question.",
        "decay": "`off`: do not rank newer entries higher.",
        "expand": "Without effect: for clients of Arbiter.",
        "rerank": "Without effect: for clients of Arbiter.",
        "rerank_fine": "Without effect: for clients of Arbiter.",
    }

    @api.add("GET", all, "List or search entries.", MemoryEntryList, query=filters)
    async def list_entries(request: ApiRequest) -> Any:
        limit, as_of = request.query_limit(50, 200), request.query_int("as_of") or None
        conversation, tag = request.query_int("conversation_id"), request.query("tag")
        types = request.query_words("type", TYPES)
        if query := request.query("q"):
            search = MemorySearch(
                query=query,
                types=types,
                tag=tag,
                conversation=conversation,
                wide=request.query_flag("graduated", False),
                ranking=Ranking(
                    intent_routing=request.query_flag("intent"), age_decay=request.query_flag("decay")
                ),
                limit=limit,
            )
            return page("entries", await memories.search(request.tenant.id, search, as_of=as_of))
        found = await memories.list(
            request.tenant.id,
            types=types,
            tag=tag,
            since=request.query_int("since"),
            before=page_start(request),
            conversation=conversation or None,
            as_of=as_of,
            limit=limit,
        )
        return page("entries", found)

    @api.add("GET", one, "Get an entry with its file.", MemoryEntryWithFile)
    async def get(request: ApiRequest) -> Any:
        tenant, id = request.tenant.id, request.path_id()
        entry = must_exist(await memories.get(tenant, id), "entry", id)
        out = msgspec.to_builtins(entry)
        if entry.artifact_id is not None:
            out["artifact"] = await hub.artifacts.get(tenant, entry.artifact_id)
        return out

    @api.add("PATCH", one, "Change an entry.", MemoryEntry)
    async def change(request: ApiRequest, body: MemoryEntryChange) -> Any:
        id = request.path_id()
        changes = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not None}
        changes["artifact_id"] = body.artifact_id
        changes = {name: value for name, value in changes.items() if value is not UNSET}
        return must_exist(await memories.change(request.tenant.id, id, **changes), "entry", id)

    @api.add("DELETE", one, "Delete an entry.", status=204)
    async def delete(request: ApiRequest) -> None:
        id = request.path_id()
        must_exist(await memories.delete(request.tenant.id, id) or None, "entry", id)

    @api.add("POST", f"{one}/invalidate", "End an entry: it is no longer true.", MemoryEntry)
    async def invalidate(request: ApiRequest) -> Any:
        tenant, id = request.tenant.id, request.path_id()
        must_exist(await memories.invalidate(tenant, id) or None, "valid entry", id)
        return await memories.get(tenant, id)

    @api.add("POST", "/v1/memory/relations", "Relate two entries.", Relation, status=201)
    async def relate(request: ApiRequest, body: NewRelation) -> Any:
        return await memories.relate(request.tenant.id, body.source_id, body.relation, body.target_id)

    ends = {
        "entry_id": "Of this entry, in both directions.",
        "source_id": "From this entry.",
        "target_id": "To this entry.",
        "relation": "Of this kind.",
        "after_id": "Only relations after this one.",
        "limit": "200, at most 1000.",
    }

    @api.add("GET", "/v1/memory/relations", "List relations.", RelationList, query=ends)
    async def relations(request: ApiRequest) -> Any:
        kinds = request.query_words("relation", RELATIONS)
        found = await memories.relations(
            request.tenant.id,
            request.query_int("entry_id") or None,
            source=request.query_int("source_id") or None,
            target=request.query_int("target_id") or None,
            relation=kinds[0] if kinds else None,
            after=request.query_int("after_id"),
            limit=request.query_limit(200, 1000),
        )
        return page("relations", found)

    @api.add("DELETE", "/v1/memory/relations/{id}", "Delete a relation.", status=204)
    async def delete_relation(request: ApiRequest) -> None:
        id = request.path_id()
        must_exist(await memories.delete_relation(request.tenant.id, id) or None, "relation", id)

    @api.add(
        "GET",
        "/v1/memory/graph",
        "Get entries and relations.",
        MemoryGraph,
        query={"type": "Only these types."},
    )
    async def graph(request: ApiRequest) -> Any:
        tenant, types = request.tenant.id, request.query_words("type", TYPES)
        entries = _limit_characters(await memories.list(tenant, types=types, limit=1000))
        known = {entry.id for entry in entries}
        found = await memories.relations(tenant, limit=MAX_GRAPH_RELATIONS)
        edges = [each for each in found if each.source_id in known and each.target_id in known]
        return {"tenant_id": tenant, "entries": entries, "relations": edges}

    return api


def _limit_characters(entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    """The first entries whose texts have at most `MAX_GRAPH_CHARACTERS` together."""
    out: list[MemoryEntry] = []
    room = MAX_GRAPH_CHARACTERS
    for entry in entries:
        room -= len(entry.content)
        if room < 0:
            break
        out.append(entry)
    return out

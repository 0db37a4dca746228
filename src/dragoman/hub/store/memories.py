"""Memory: scratchpads, and typed entries with relations between them.

A scratchpad has the notes of one agent, or notes that all agents of a tenant share. An entry that is no longer true is not deleted:
it gets an end time, and can be read as of an earlier time. `memory_search.py` finds entries.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.store.database import NEWEST, Place, Repository, Transaction, read_row, transaction
from dragoman.hub.store.memory_search import (
    RELATIONS,
    TYPES,
    MemoryEntry,
    MemorySearch,
    Relation,
    entry_of,
    search_entries,
)
from dragoman.hub.store.policies import check_room, policy_of
from dragoman.model.ids import timestamp

CONTENT_LIMIT = 64 * 1024
MAX_TAGS = 32
RELATIONS_PER_ENTRY = 4
"""A tenant may store this many relations for each entry that it may store."""

_ONE = "select * from memories where tenant_id = ? and id = ?"
_ADD = """
insert into memories (tenant_id, conversation_id, type, title, content, source, tags, artifact_id, valid_from, created_at,
updated_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning *
"""


class RelationExists(A2AError):
    """The relation exists already: `existing_id`."""

    reason, rpc, http, grpc = "ALREADY_EXISTS", -32000, 409, "ALREADY_EXISTS"

    def __init__(self, existing_id: int) -> None:
        super().__init__("there is such a relation already")
        self.existing_id = existing_id


class Memories(Repository):
    # -- entries -----------------------------------------------------------------------------------------------

    @transaction
    async def add(
        self,
        db: Transaction,
        tenant: int,
        type: str,
        title: str,
        content: str = "",
        *,
        source: str = "",
        tags: Sequence[str] = (),
        artifact_id: int | None = None,
        conversation: int = 0,
        supersedes: Sequence[int] = (),
        at: int | None = None,
        reader: int | None = None,
    ) -> MemoryEntry:
        """Add an entry. The entries that it supersedes end, and get a relation. Raises `InvalidParams`, `QuotaExceeded`.

        `reader`: the conversation of the agent that adds it, which may link only a file that it can read: one of this conversation,
        or one that an entry links already.
        """
        check_entry(type, title, content, source, tags)
        now = int(time.time())
        await _check_artifact(db, tenant, artifact_id, reader)
        await check_room(db, tenant, "memories")
        about = (tenant, conversation, type, title.strip(), content, source, "\n".join(tags), artifact_id)
        entry = await db.one(_ADD, (*about, at or now, at or now, at or now))
        for old in supersedes:
            if not await _supersede(db, tenant, entry["id"], old, now):
                raise InvalidParams(f"there is no entry #{old} to supersede")
        return entry_of(entry)

    async def get(self, tenant: str | int, id: int) -> MemoryEntry | None:
        row = await self._db.look_up(_ONE, (int(tenant), id))
        return None if row is None else entry_of(row)

    async def list(
        self,
        tenant: str | int,
        *,
        types: Sequence[str] = (),
        tag: str = "",
        since: int = 0,
        before: Place = NEWEST,
        as_of: int | None = None,
        conversation: int | None = None,
        source: str = "",
        limit: int = 50,
    ) -> Sequence[MemoryEntry]:
        """Newest first, from a place on."""
        moment = as_of if as_of is not None else int(time.time())
        where = ["tenant_id = ?", "valid_from <= ?", "(valid_to is null or valid_to > ?)", "updated_at >= ?"]
        where += ["updated_at <= ?", "(updated_at < ? or id < ?)"]
        values: list[Any] = [int(tenant), moment, moment, since, before[0], *before]
        if types:
            where.append(f"type in ({', '.join('?' * len(types))})")
            values += types
        if tag:
            where.append("replace(lower(? || tags || ?), lower(?), '') <> lower(? || tags || ?)")
            values += ["\n", "\n", f"\n{tag}\n", "\n", "\n"]
        for term, value in (
            ("conversation_id = ?", conversation),
            ("source = ?", source or None),
        ):
            if value is not None:
                where.append(term)
                values.append(value)
        statement = (
            f"select * from memories where {' and '.join(where)} order by updated_at desc, id desc limit ?"
        )
        rows = await self._db.all(statement, (*values, limit))
        return [entry_of(row) for row in rows]

    @transaction
    async def change(self, db: Transaction, tenant: int, id: int, /, **changes: Any) -> MemoryEntry | None:
        """Change `type`, `title`, `content`, `source`, `tags` or `artifact_id`; None if there is no such entry."""
        if (row := await db.one(_ONE, (tenant, id))) is None:
            return None
        new = {name: changes.get(name, getattr(entry_of(row), name)) for name in _CHANGEABLE}
        check_entry(new["type"], new["title"], new["content"], new["source"], new["tags"])
        await _check_artifact(db, tenant, new["artifact_id"])
        new["tags"] = "\n".join(new["tags"])
        members = ", ".join(f"{name} = ?" for name in new)
        statement = (
            f"update memories set {members}, updated_at = ? where tenant_id = ? and id = ? returning *"
        )
        return entry_of(await db.one(statement, (*new.values(), int(time.time()), tenant, id)))

    @transaction
    async def invalidate(self, db: Transaction, tenant: int, id: int) -> bool:
        """End an entry. False if there is no valid one."""
        now = int(time.time())
        return await db.change(_END, (now, now, tenant, id)) > 0

    async def delete(self, tenant: int, id: int) -> bool:
        return await self._db.change("delete from memories where tenant_id = ? and id = ?", (tenant, id)) > 0

    async def search(
        self, tenant: str | int, search: MemorySearch, *, as_of: int | None = None
    ) -> Sequence[MemoryEntry]:
        """Best first."""
        moment = as_of if as_of is not None else int(time.time())
        return await self._db.read(lambda db: search_entries(db, int(tenant), search, moment))

    # -- relations ---------------------------------------------------------------------------------------------

    @transaction
    async def relate(self, db: Transaction, tenant: int, source: int, relation: str, target: int) -> Relation:
        """Raises `InvalidParams`, `RelationExists` and `QuotaExceeded`."""
        most = (await policy_of(db, tenant)).max_memories * RELATIONS_PER_ENTRY
        await check_room(db, tenant, "relations", limit=most)
        return await _relate(db, tenant, source, relation, target)

    async def relations(
        self,
        tenant: str | int,
        entry: int | None = None,
        *,
        source: int | None = None,
        target: int | None = None,
        relation: str | None = None,
        after: int = 0,
        limit: int = 2**62,
    ) -> Sequence[Relation]:
        """Relations after an id, filtered by entry (both directions), source, target or kind."""
        wanted = {
            "? in (source_id, target_id)": entry,
            "source_id = ?": source,
            "target_id = ?": target,
            "relation = ?": relation,
        }
        where = " and ".join(
            ["tenant_id = ?", "id > ?", *(term for term, value in wanted.items() if value is not None)]
        )
        values = (int(tenant), after, *(value for value in wanted.values() if value is not None), limit)
        statement = f"select * from relations where {where} order by id limit ?"
        return await self._db.select(Relation, statement, values)

    async def delete_relation(self, tenant: int, id: int) -> bool:
        return await self._db.change("delete from relations where tenant_id = ? and id = ?", (tenant, id)) > 0

    async def related_entries(
        self, tenant: str | int, id: int, *, depth: int = 1, limit: int = 50
    ) -> Sequence[tuple[int, MemoryEntry]]:
        """Related entries with their distance, nearest first."""

        async def look(db: Transaction) -> list[tuple[int, MemoryEntry]]:
            found: dict[int, int] = {id: 0}
            edge = [id]
            for distance in range(1, depth + 1):
                near: list[int] = []
                for entry in edge:
                    for (other,) in await db.all(_NEIGHBOURS, (int(tenant), entry)):
                        if len(found) > limit:
                            break
                        if other not in found:
                            found[other] = distance
                            near.append(other)
                edge = near
            rows = [(n, await db.one(_ONE, (int(tenant), other))) for other, n in found.items() if n]
            return [(distance, entry_of(row)) for distance, row in rows if row is not None]

        return await self._db.read(look)


_NEIGHBOURS = """
select case source_id when ?2 then target_id else source_id end from relations
where tenant_id = ?1 and (source_id = ?2 or target_id = ?2) order by id
"""


_END = "update memories set valid_to = ?, updated_at = ? where tenant_id = ? and id = ? and valid_to is null"
_CHANGEABLE = ("type", "title", "content", "source", "tags", "artifact_id")


def check_entry(type: str, title: str, content: str, source: str, tags: Sequence[str]) -> None:
    """Raises `InvalidParams`."""
    mistakes = []
    if type not in TYPES:
        mistakes.append(("type", f"is one of {', '.join(TYPES)}"))
    if not 1 <= len(title.strip()) <= 200:
        mistakes.append(("title", "has 1 to 200 characters"))
    if len(content.encode()) > CONTENT_LIMIT:
        mistakes.append(("content", f"has at most {CONTENT_LIMIT} bytes"))
    if len(source) > 200:
        mistakes.append(("source", "has at most 200 characters"))
    if len(tags) > MAX_TAGS or any(not 1 <= len(tag) <= 64 or "\n" in tag for tag in tags):
        mistakes.append(("tags", f"are at most {MAX_TAGS}, of 1 to 64 characters"))
    if mistakes:
        raise InvalidParams("; ".join(f"{field} {why}" for field, why in mistakes), fields=mistakes)


_ARTIFACT_FOR_READER = """
select 1 from artifacts where tenant_id = ? and id = ? and (conversation_id = ? or exists (
    select 1 from memories where memories.tenant_id = artifacts.tenant_id and memories.artifact_id = artifacts.id))
"""


async def _check_artifact(
    db: Transaction, tenant: int, artifact: int | None, reader: int | None = None
) -> None:
    """Raises `InvalidParams` for a file that an entry may not link. `reader`: see `Memories.add`."""
    if artifact is None:
        return
    if reader is None:
        found = await db.one("select 1 from artifacts where tenant_id = ? and id = ?", (tenant, artifact))
    else:
        found = await db.one(_ARTIFACT_FOR_READER, (tenant, artifact, reader))
    if not found:
        raise InvalidParams(f"there is no artifact #{artifact}", fields=(("artifact_id", "is unknown"),))


async def _supersede(db: Transaction, tenant: int, new: int, old: int, now: int) -> bool:
    """End the entry `old`, and relate it to `new`. False if there is no valid entry `old`."""
    ended = await db.change(
        "update memories set valid_to = ?, updated_at = ? where tenant_id = ? and id = ? and id != ? and valid_to is null",
        (now, now, tenant, old, new),
    )
    if ended:
        await _relate(db, tenant, new, "supersedes", old)
    return bool(ended)


async def _relate(db: Transaction, tenant: int, source: int, relation: str, target: int) -> Relation:
    if relation not in RELATIONS:
        raise InvalidParams(f"a relation is one of {', '.join(RELATIONS)}")
    if source == target:
        raise InvalidParams("an entry does not relate to itself")
    for id in (source, target):
        if not await db.one(_ONE, (tenant, id)):
            raise InvalidParams(f"there is no entry #{id}")
    known = await db.one(
        "select id from relations where source_id = ? and target_id = ? and relation = ?",
        (source, target, relation),
    )
    if known is not None:
        raise RelationExists(known["id"])
    row = await db.one(
        "insert into relations (tenant_id, source_id, target_id, relation, created_at) values (?, ?, ?, ?, ?) returning *",
        (tenant, source, target, relation, int(time.time())),
    )
    return read_row(Relation, row)


# -- scratchpads --------------------------------------------------------------------------------------------

MAX_SCRATCHPAD_BYTES = 4 << 20
_READ = "select content from scratchpads where tenant_id = ? and scope = ?"
_APPEND = """
insert into scratchpads (tenant_id, scope, content, size, updated_at) values (?, ?, ?, ?, ?)
on conflict (tenant_id, scope) do update set content = scratchpads.content || excluded.content,
size = scratchpads.size + excluded.size, updated_at = excluded.updated_at
"""
_SIZE = "select size from scratchpads where tenant_id = ? and scope = ?"
_LIST = "select scope as agent_id, size, updated_at from scratchpads where tenant_id = ? order by scope"
SHARED = ""
"""The scope of the shared scratchpad."""


class ScratchpadInfo(Struct, frozen=True):
    agent_id: str
    """Empty: the shared one."""
    size: int
    updated_at: int


class Scratchpads(Repository):
    async def read(self, tenant: str | int, scope: str) -> str:
        row = await self._db.one(_READ, (int(tenant), scope))
        return row["content"] if row is not None else ""

    @transaction
    async def add(self, db: Transaction, tenant: int, scope: str, text: str) -> None:
        """Add a line with the time. Raises `InvalidParams` if the scratchpad is full, and `QuotaExceeded`."""
        line = f"[{timestamp()}] {text}\n"
        size = len(line.encode())
        row = await db.one(_SIZE, (tenant, scope))
        if (row["size"] if row else 0) + size > MAX_SCRATCHPAD_BYTES:
            raise InvalidParams(f"the scratchpad is full ({MAX_SCRATCHPAD_BYTES} bytes): clear it first")
        if row is None:
            await check_room(db, tenant, "scratchpads")
        room = (await policy_of(db, tenant)).max_scratchpad_mb << 20
        await check_room(db, tenant, "scratchpad_bytes", limit=room, more=size)
        await db.change(_APPEND, (tenant, scope, line, size, int(time.time())))

    @transaction
    async def clear(self, db: Transaction, tenant: int, scope: str) -> None:
        await db.change("delete from scratchpads where tenant_id = ? and scope = ?", (tenant, scope))

    async def list(self, tenant: int) -> Sequence[ScratchpadInfo]:
        return await self._db.select(ScratchpadInfo, _LIST, (tenant,))

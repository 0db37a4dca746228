"""Structured memory: typed entries with relations between them, found by their words.

An entry that is not true any more is not deleted: it gets an end, and can be read as of a moment before. A search ranks
by BM25 (a word in the title counts more than one in the text), entries of the conversation before those of the tenant,
newer before older.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.constitution import Memory as Ranking
from dragoman.hub.database import Database

TYPES = ("user", "feedback", "project", "reference", "learning", "context")
RELATIONS = ("relates_to", "refines", "contradicts", "supersedes", "supports")
CONTENT_LIMIT = 64 * 1024

_STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "but",
        "by",
        "can",
        "did",
        "do",
        "does",
        "for",
        "from",
        "had",
        "has",
        "have",
        "how",
        "i",
        "in",
        "is",
        "it",
        "its",
        "me",
        "my",
        "not",
        "of",
        "on",
        "or",
        "our",
        "she",
        "so",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "they",
        "this",
        "to",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "with",
        "you",
        "your",
    ]
)
_RRF = 60
_IN_CONVERSATION, _IN_TENANT = 1.5, 1.0
_DAY = 86_400
_SEARCH = """
select m.*, bm25(memory_words, 10.0, 4.0, 8.0, 2.0) as score from memory_words
join memories m on m.id = memory_words.rowid
where memory_words match ? and m.tenant_id = ? and m.valid_from <= ? and (m.valid_to is null or m.valid_to > ?) {more}
order by score limit ?
"""


class Entry(Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: int
    type: str
    title: str
    content: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    artifact_id: int | None = None
    conversation_id: int = 0
    valid_from: int = 0
    valid_to: int | None = None
    created_at: int = 0
    updated_at: int = 0


class Relation(Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: int
    source_id: int
    target_id: int
    relation: str
    created_at: int = 0


class RelationExists(A2AError):
    """There is such a relation already: `existing_id`."""

    reason, rpc, http, grpc = "ALREADY_EXISTS", -32000, 409, "ALREADY_EXISTS"

    def __init__(self, existing_id: int) -> None:
        super().__init__("there is such a relation already")
        self.existing_id = existing_id


class Memories:
    """The entries of every tenant. One of another tenant is not there."""

    def __init__(self, database: Database) -> None:
        self._db = database

    # -- entries -----------------------------------------------------------------------------------------------

    async def add(
        self,
        tenant: str | int,
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
    ) -> Entry:
        """Raises `InvalidParams`. What it supersedes ends, and a relation says so."""
        _check(type, title, content, source, tags)
        tenant, now = int(tenant), int(time.time())

        def work(db: sqlite3.Connection) -> Entry:
            _artifact(db, tenant, artifact_id)
            entry = db.execute(
                "insert into memories (tenant_id, conversation_id, type, title, content, source, tags, artifact_id, "
                "valid_from, created_at, updated_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning *",
                (
                    tenant,
                    conversation,
                    type,
                    title.strip(),
                    content,
                    source,
                    "\n".join(tags),
                    artifact_id,
                    at or now,
                    at or now,
                    now,
                ),
            ).fetchone()
            for old in supersedes:
                ended = db.execute(
                    "update memories set valid_to = ?, updated_at = ? where tenant_id = ? and id = ? and id != ? and "
                    "valid_to is null",
                    (now, now, tenant, old, entry["id"]),
                )
                if not ended.rowcount:
                    raise InvalidParams(f"there is no entry #{old} to supersede")
                _relate(db, tenant, entry["id"], "supersedes", old)
            return _entry(entry)

        return await self._db.run(work)

    async def get(self, tenant: str | int, id: int) -> Entry | None:
        row = await self._db.read(
            lambda db: db.execute(
                "select * from memories where tenant_id = ? and id = ?", (int(tenant), id)
            ).fetchone()
        )
        return None if row is None else _entry(row)

    async def list(
        self,
        tenant: str | int,
        *,
        types: Sequence[str] = (),
        tag: str = "",
        since: int = 0,
        before: int | None = None,
        as_of: int | None = None,
        conversation: int | None = None,
        limit: int = 50,
    ) -> Sequence[Entry]:
        """Newest first."""
        moment = as_of if as_of is not None else int(time.time())
        where = ["tenant_id = ?", "valid_from <= ?", "(valid_to is null or valid_to > ?)", "updated_at >= ?"]
        values: list[Any] = [int(tenant), moment, moment, since]
        if types:
            where.append(f"type in ({', '.join('?' * len(types))})")
            values += types
        if tag:
            where.append("char(10) || tags || char(10) like '%' || char(10) || ? || char(10) || '%'")
            values.append(tag)
        if before is not None:
            where.append("updated_at < ?")
            values.append(before)
        if conversation is not None:
            where.append("conversation_id = ?")
            values.append(conversation)
        statement = (
            f"select * from memories where {' and '.join(where)} order by updated_at desc, id desc limit ?"
        )
        rows = await self._db.read(lambda db: db.execute(statement, (*values, limit)).fetchall())
        return [_entry(row) for row in rows]

    async def change(self, tenant: str | int, id: int, **changes: Any) -> Entry | None:
        """Change `type`, `title`, `content`, `source`, `tags` or `artifact_id`; None if there is no such entry."""
        known = await self.get(tenant, id)
        if known is None:
            return None
        new = {name: changes.get(name, getattr(known, name)) for name in _CHANGEABLE}
        _check(new["type"], new["title"], new["content"], new["source"], new["tags"])
        new["tags"] = "\n".join(new["tags"])

        def work(db: sqlite3.Connection) -> Entry | None:
            _artifact(db, int(tenant), new["artifact_id"])
            row = db.execute(
                f"update memories set {', '.join(f'{name} = ?' for name in new)}, updated_at = ? "
                "where tenant_id = ? and id = ? returning *",
                (*new.values(), int(time.time()), int(tenant), id),
            ).fetchone()
            return None if row is None else _entry(row)

        return await self._db.run(work)

    async def invalidate(self, tenant: str | int, id: int) -> bool:
        """It is not true any more. False: there is none that was."""
        now = int(time.time())
        return await self._db.run(
            lambda db: (
                db.execute(
                    "update memories set valid_to = ?, updated_at = ? where tenant_id = ? and id = ? and valid_to is null",
                    (now, now, int(tenant), id),
                ).rowcount
                > 0
            )
        )

    async def delete(self, tenant: str | int, id: int) -> bool:
        return await self._db.run(
            lambda db: (
                db.execute("delete from memories where tenant_id = ? and id = ?", (int(tenant), id)).rowcount
                > 0
            )
        )

    async def search(
        self,
        tenant: str | int,
        query: str,
        *,
        conversation: int = 0,
        as_of: int | None = None,
        ranking: Ranking | None = None,
        limit: int = 20,
    ) -> Sequence[Entry]:
        """Best first. With a conversation, its own entries come before the tenant's."""
        if not (words := _words(query)):
            return []
        ranking = ranking or Ranking()
        moment = as_of if as_of is not None else int(time.time())
        match = _match(words)

        def work(db: sqlite3.Connection) -> Sequence[Entry]:
            def rows(more: str, *values: Any) -> list[sqlite3.Row]:
                return db.execute(
                    _SEARCH.format(more=more), (match, int(tenant), moment, moment, *values, limit * 3)
                ).fetchall()

            passes = [(_IN_TENANT, rows("and m.conversation_id in (0, ?)", conversation))]
            if conversation:
                passes.append((_IN_CONVERSATION, rows("and m.conversation_id = ?", conversation)))
            else:
                passes = [(_IN_TENANT, rows(""))]
            scores: dict[int, float] = {}
            entries: dict[int, Entry] = {}
            for weight, found in passes:
                ranked = sorted(
                    ((_entry(row), -row["score"]) for row in found),
                    key=lambda pair: -pair[1] * _boost(pair[0], words) * _age(pair[0], moment, ranking),
                )
                for place, (entry, _) in enumerate(ranked, 1):
                    entries[entry.id] = entry
                    scores[entry.id] = scores.get(entry.id, 0.0) + weight / (_RRF + place)
            best = sorted(entries, key=lambda id: (-scores[id], -id))
            return [entries[id] for id in best[:limit]]

        return await self._db.read(work)

    # -- relations ---------------------------------------------------------------------------------------------

    async def relate(self, tenant: str | int, source: int, relation: str, target: int) -> Relation:
        """Raises `InvalidParams`, and `RelationExists`."""
        return await self._db.run(lambda db: _relate(db, int(tenant), source, relation, target))

    async def relations(self, tenant: str | int, entry: int | None = None) -> Sequence[Relation]:
        """All of them, or those of one entry, in both directions."""
        more = " and ? in (source_id, target_id)" if entry is not None else ""
        values = (int(tenant),) if entry is None else (int(tenant), entry)
        rows = await self._db.read(
            lambda db: db.execute(
                f"select * from relations where tenant_id = ?{more} order by id", values
            ).fetchall()
        )
        return [Relation(**row) for row in rows]

    async def unrelate(self, tenant: str | int, id: int) -> bool:
        return await self._db.run(
            lambda db: (
                db.execute("delete from relations where tenant_id = ? and id = ?", (int(tenant), id)).rowcount
                > 0
            )
        )

    async def around(
        self, tenant: str | int, id: int, *, depth: int = 1, limit: int = 50
    ) -> Sequence[tuple[int, Entry]]:
        """The entries near one, with their distance, nearest first."""
        found: dict[int, int] = {id: 0}
        edge = [id]
        for distance in range(1, depth + 1):
            near: list[int] = []
            for entry in edge:
                for relation in await self.relations(tenant, entry):
                    other = relation.target_id if relation.source_id == entry else relation.source_id
                    if other not in found and len(found) <= limit:
                        found[other] = distance
                        near.append(other)
            edge = near
        entries = [
            (distance, await self.get(tenant, other)) for other, distance in found.items() if other != id
        ]
        return [(distance, entry) for distance, entry in entries if entry is not None]


_CHANGEABLE = ("type", "title", "content", "source", "tags", "artifact_id")


def _entry(row: sqlite3.Row) -> Entry:
    values = {name: row[name] for name in Entry.__struct_fields__}
    values["tags"] = tuple(tag for tag in row["tags"].split("\n") if tag)
    return Entry(**values)


def _check(type: str, title: str, content: str, source: str, tags: Sequence[str]) -> None:
    wrong = []
    if type not in TYPES:
        wrong.append(("type", f"is one of {', '.join(TYPES)}"))
    if not 1 <= len(title.strip()) <= 200:
        wrong.append(("title", "has 1 to 200 characters"))
    if len(content.encode()) > CONTENT_LIMIT:
        wrong.append(("content", f"has at most {CONTENT_LIMIT} bytes"))
    if len(source) > 200:
        wrong.append(("source", "has at most 200 characters"))
    if len(tags) > 32 or any(not 1 <= len(tag) <= 64 or "\n" in tag for tag in tags):
        wrong.append(("tags", "are at most 32, of 1 to 64 characters"))
    if wrong:
        raise InvalidParams("; ".join(f"{field} {why}" for field, why in wrong), fields=wrong)


def _artifact(db: sqlite3.Connection, tenant: int, artifact: int | None) -> None:
    if (
        artifact is not None
        and not db.execute(
            "select 1 from artifacts where tenant_id = ? and id = ?", (tenant, artifact)
        ).fetchone()
    ):
        raise InvalidParams(f"there is no artifact #{artifact}", fields=(("artifact_id", "is unknown"),))


def _relate(db: sqlite3.Connection, tenant: int, source: int, relation: str, target: int) -> Relation:
    if relation not in RELATIONS:
        raise InvalidParams(f"a relation is one of {', '.join(RELATIONS)}")
    if source == target:
        raise InvalidParams("an entry does not relate to itself")
    for id in (source, target):
        if not db.execute("select 1 from memories where tenant_id = ? and id = ?", (tenant, id)).fetchone():
            raise InvalidParams(f"there is no entry #{id}")
    known = db.execute(
        "select id from relations where source_id = ? and target_id = ? and relation = ?",
        (source, target, relation),
    ).fetchone()
    if known is not None:
        raise RelationExists(known["id"])
    row = db.execute(
        "insert into relations (tenant_id, source_id, target_id, relation, created_at) values (?, ?, ?, ?, ?) returning *",
        (tenant, source, target, relation, int(time.time())),
    ).fetchone()
    return Relation(**row)


def _words(query: str) -> list[str]:
    words = [word.lower() for word in re.findall(r"\w+", query)]
    return [word for word in words if word not in _STOP_WORDS][:32] or words[:32]


def _match(words: list[str]) -> str:
    """The phrase, or the words near one another, or any of them."""
    quoted = [f'"{word}"' for word in words]
    ways = [" OR ".join(quoted)]
    if 2 <= len(words) <= 6:
        ways = ['"' + " ".join(words) + '"', f"NEAR({' '.join(quoted)}, 8)", *ways]
    return " OR ".join(ways)


def _boost(entry: Entry, words: list[str]) -> float:
    boost = 1.3 if entry.type in words else 1.0
    return boost * (1.2 if any(tag.lower() in words for tag in entry.tags) else 1.0)


def _age(entry: Entry, now: int, ranking: Ranking) -> float:
    if not ranking.age_decay:
        return 1.0
    days, half = (now - entry.updated_at) / _DAY, ranking.age_half_life_days
    for bound, factor in ((min(30.0, half), 1.0), (half, 0.9), (2 * half, 0.75), (4 * half, 0.6)):
        if days <= bound:
            return max(factor, ranking.age_floor)
    return ranking.age_floor

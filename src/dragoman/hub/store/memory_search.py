"""Memory entries, and the search for them.

BM25 ranks entries; a word in the title counts more than one in the text. Entries of a requested or guessed type, with a
requested tag, and newer entries rank higher. Entries of the conversation are also ranked separately, and both rankings are
fused by rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dragoman.hub.agents.constitution import Memory as Ranking
from dragoman.hub.store.database import Row, Transaction

TYPES = ("user", "feedback", "project", "reference", "learning", "context")
RELATIONS = ("relates_to", "refines", "contradicts", "supersedes", "supports")


class MemoryEntry(Struct, frozen=True, kw_only=True):
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


def entry_of(row: Row) -> MemoryEntry:
    values = {name: row[name] for name in MemoryEntry.__struct_fields__}
    values["tags"] = tuple(tag for tag in row["tags"].split("\n") if tag)
    return MemoryEntry(**values)


_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by can did do does for from had has have how i in is it its me my not of on or our "
        "she so than that the their them then there they this to was we were what when where which who why will with "
        "you your",
    )
)
_TYPE_WORDS = {
    type: frozenset(type_words.split())
    for type, type_words in {
        "user": "favorite favourite prefer prefers preferred preference likes dislikes name birthday wants",
        "feedback": "feedback complained complaint correction corrected wrong should never always",
        "project": "plan plans deadline milestone release decision decided status roadmap task tasks",
        "reference": "source sources link url paper article documentation docs page cite",
        "learning": "learned learnt lesson lessons conclusion conclusions finding findings cause",
        "context": "current currently now today recently blocker blocked focus",
    }.items()
}
"""Words that suggest the type of entry that answers a question."""
MAX_QUERY_CHARACTERS = 64 * 1024
"""Characters of a query that are read."""
_RRF_CONSTANT = 60
_IN_CONVERSATION, _IN_TENANT = 1.5, 1.0
_DAY = 86_400
_VALID = "m.tenant_id = ? and m.valid_from <= ? and (m.valid_to is null or m.valid_to > ?)"


class MemorySearch(Struct, frozen=True, kw_only=True):
    """A query and its filters."""

    query: str
    types: Sequence[str] = ()
    """Preferred types; others are found too."""
    tag: str = ""
    source: str = ""
    """Only entries of this source and of one of `types` are found."""
    conversation: int = 0
    """Entries of this conversation rank before those of none."""
    wide: bool = False
    """Search other conversations too."""
    ranking: Ranking = Ranking()
    limit: int = 20


async def search_entries(
    db: Transaction, tenant: int, search: MemorySearch, moment: int
) -> Sequence[MemoryEntry]:
    """The entries that were valid at `moment` and match the query, best first."""
    if not (words := _words(search.query[:MAX_QUERY_CHARACTERS])):
        return []
    types = frozenset(search.types or (_types_for(words) if search.ranking.intent_routing else ()))
    tags = {*words, search.tag.lower()}

    async def find(more: str, *values: Any) -> Sequence[MemoryEntry]:
        if search.source:
            more += f" and m.source = ? and m.type in ({', '.join('?' * len(search.types))})"
            values = (*values, search.source, *search.types)
        limits = (tenant, moment, moment, *values)
        rows = await db.search_memories(words, f"{_VALID} {more}", limits, search.limit * 3)
        scores = {
            entry: row["score"]
            * _boost(entry, words, types, tags)
            * _age_factor(entry, moment, search.ranking)
            for row in rows
            for entry in (entry_of(row),)
        }
        return sorted(scores, key=lambda entry: scores[entry])  # the lower, the better

    here = search.conversation
    if not here:
        return fuse([(_IN_TENANT, await find(""))], search.limit)
    around = await find("") if search.wide else await find("and m.conversation_id in (0, ?)", here)
    return fuse(
        [(_IN_TENANT, around), (_IN_CONVERSATION, await find("and m.conversation_id = ?", here))],
        search.limit,
    )


def fuse(rankings: Sequence[tuple[float, Sequence[MemoryEntry]]], limit: int) -> Sequence[MemoryEntry]:
    """Reciprocal rank fusion of weighted rankings."""
    scores: dict[int, float] = {}
    entries: dict[int, MemoryEntry] = {}
    for weight, ranked in rankings:
        for place, entry in enumerate(ranked, 1):
            entries[entry.id] = entry
            scores[entry.id] = scores.get(entry.id, 0.0) + weight / (_RRF_CONSTANT + place)
    best = sorted(entries, key=lambda id: (-scores[id], -id))
    return [entries[id] for id in best[:limit]]


def _words(query: str) -> list[str]:
    words = [word.lower() for word in re.findall(r"\w+", query)]
    return [word for word in words if word not in _STOP_WORDS][:32] or words[:32]


def _types_for(words: list[str]) -> list[str]:
    """The types that the words of a question suggest."""
    return [type for type, type_words in _TYPE_WORDS.items() if type_words.intersection(words)]


def _boost(entry: MemoryEntry, words: list[str], types: frozenset[str], tags: set[str]) -> float:
    boost = 1.3 if entry.type in types or entry.type in words else 1.0
    return boost * (1.2 if any(tag.lower() in tags for tag in entry.tags) else 1.0)


def _age_factor(entry: MemoryEntry, now: int, ranking: Ranking) -> float:
    if not ranking.age_decay:
        return 1.0
    days, half = (now - entry.updated_at) / _DAY, ranking.age_half_life_days
    for bound, factor in ((min(30.0, half), 1.0), (half, 0.9), (2 * half, 0.75), (4 * half, 0.6)):
        if days <= bound:
            return max(factor, ranking.age_floor)
    return ranking.age_floor

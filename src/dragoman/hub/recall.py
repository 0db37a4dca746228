"""Find entries by their words.

BM25 ranks them (a word in the title counts more than one in the text), an entry whose type or tag was asked for gains, and
so does a newer one. Entries of the conversation are ranked on their own as well, and both rankings are merged by place.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from dragoman.hub.constitution import Memory as Ranking
from dragoman.hub.entries import Entry, entry_of

_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by can did do does for from had has have how i in is it its me my not of on or our "
        "she so than that the their them then there they this to was we were what when where which who why will with "
        "you your",
    )
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


def recall(
    db: sqlite3.Connection,
    tenant: int,
    query: str,
    *,
    conversation: int,
    moment: int,
    ranking: Ranking,
    limit: int,
) -> list[Entry]:
    """The entries that held at `moment` and have words of `query`, best first.

    With a conversation: its own, and those that belong to none.
    """
    if not (words := _words(query)):
        return []
    match = _match(words)

    def rows(more: str, *values: Any) -> list[sqlite3.Row]:
        return db.execute(
            _SEARCH.format(more=more), (match, tenant, moment, moment, *values, limit * 3)
        ).fetchall()

    if conversation:
        passes = [
            (_IN_TENANT, rows("and m.conversation_id in (0, ?)", conversation)),
            (_IN_CONVERSATION, rows("and m.conversation_id = ?", conversation)),
        ]
    else:
        passes = [(_IN_TENANT, rows(""))]
    scores: dict[int, float] = {}
    entries: dict[int, Entry] = {}
    for weight, found in passes:
        ranked = sorted(
            ((entry_of(row), -row["score"]) for row in found),
            key=lambda pair: -pair[1] * _boost(pair[0], words) * _age(pair[0], moment, ranking),
        )
        for place, (entry, _) in enumerate(ranked, 1):
            entries[entry.id] = entry
            scores[entry.id] = scores.get(entry.id, 0.0) + weight / (_RRF + place)
    best = sorted(entries, key=lambda id: (-scores[id], -id))
    return [entries[id] for id in best[:limit]]


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

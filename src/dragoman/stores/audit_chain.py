"""Entries of an audit as a chain: each carries a hash of itself and of the one before it.

Whoever changes, adds or takes out an entry breaks the chain there, or has to make every later hash anew; and whoever has
noted one of those down sees that. A hash is SHA-256 over the hash before it (nothing, for the first) and the entry's
fields as a JSON array without spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.engine.protocols import Audit, AuditEntry

_PAGE = 1000
_encode = msgspec.json.Encoder().encode


def entries_of(rows: Iterable[Sequence[Any]]) -> list[AuditEntry]:
    """Of an audit, from rows in the order of their fields."""
    names = AuditEntry.__struct_fields__
    return [AuditEntry(**dict(zip(names, row, strict=True))) for row in rows]


fields: Callable[[AuditEntry], tuple[str, ...]] = attrgetter(
    "at", "tenant", "agent", "principal", "operation", "task", "outcome", "dialect", "trace"
)
"""What is kept of an entry, in the order of its columns."""


def chained(before: bytes, entries: Iterable[tuple[str, ...]]) -> list[tuple[str | bytes, ...]]:
    """The rows of entries that come after one whose hash is `before`: their fields, and the hash of each."""
    rows: list[tuple[str | bytes, ...]] = []
    for entry in entries:
        before = sha256(before + _encode(entry)).digest()
        rows.append((*entry, before))
    return rows


class Examined(Struct, kw_only=True):
    """What there is to say of a chain."""

    entries: int = 0
    older: int = 0
    """Entries from before there was a chain."""
    last: AuditEntry | None = None
    breaks: list[str] = []
    """Where it is broken, newest first: a sentence for each."""


async def examine(audit: Audit, known: str = "") -> Examined:
    """Walk a chain from its end to its beginning. `known` is a hash that was noted down before: it has to be in it.

    Where what is old was taken away, the last hash of that may be the `known` one: the chain then begins after it.
    """
    found, newer, seen = Examined(), None, False
    while page := await audit.entries(before=newer.id if newer else 0, limit=_PAGE):
        for entry in page:
            found.last = found.last or entry
            found.entries += 1
            seen = seen or entry.hash == known
            if newer is not None and (newer.hash or entry.hash) and not _follows(newer, entry.hash):
                found.breaks.append(f"entry {newer.id} does not follow from entry {entry.id}")
            found.older = 0 if entry.hash else found.older + 1
            newer = entry
    if newer is not None and newer.hash and not _follows(newer, ""):
        if known and _follows(newer, known):
            seen = True
        else:
            found.breaks.append(f"entry {newer.id} is not the first: what was before it is gone")
    if known and not seen:
        found.breaks.append(f"no entry has the hash {known}: what was written until then is not what is here")
    return found


def _follows(entry: AuditEntry, before: str) -> bool:
    try:
        return sha256(bytes.fromhex(before) + _encode(fields(entry))).hexdigest() == entry.hash
    except ValueError:
        return False

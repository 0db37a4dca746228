"""The entries of an audit log as a chain: each has a hash of itself and of the entry before it.

A change of an entry, an added or a deleted one breaks the chain there, unless every later hash is made anew. An auditor who has
written down one of the later hashes finds that, too. A hash is SHA-256 over the hash before it (nothing, for the first) and
the entry's fields as a JSON array without spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import takewhile
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.engine.protocols import Audit, AuditEntry, AuditQuery

_PAGE_ENTRIES = 1000
_encode = msgspec.json.Encoder().encode


def read_entries(rows: Iterable[Sequence[Any]]) -> list[AuditEntry]:
    """Entries from rows with their fields in order."""
    names = AuditEntry.__struct_fields__
    return [AuditEntry(**dict(zip(names, row, strict=True))) for row in rows]


def read_older(rows: Iterable[Sequence[Any]], before: str) -> list[AuditEntry]:
    """The entries of `rows`, which are the oldest first, up to the first that is not older than `before`."""
    return list(takewhile(lambda entry: entry.at < before, read_entries(rows)))


stored_fields: Callable[[AuditEntry], tuple[str, ...]] = attrgetter(
    "at", "tenant", "agent", "principal", "operation", "task", "outcome", "dialect", "trace"
)
"""The fields of an entry that are stored, in the order of the columns."""


def make_condition(terms: Mapping[str, str], query: AuditQuery) -> tuple[str, list[Any]]:
    """The condition of a search, for `where`, and its values. `terms`: the condition for each member of a query."""
    values = {name: value if name == "tenant" else value or None for name, value in query.items()}
    asked = {terms[name]: value for name, value in values.items() if value is not None}
    where = " and ".join(term.format(n=n) for n, term in enumerate(asked, 1))
    return f" where {where}" if where else "", list(asked.values())


def chain_rows(before: bytes, entries: Iterable[tuple[str, ...]]) -> list[tuple[str | bytes, ...]]:
    """The rows of entries that follow one whose hash is `before`: their fields and hashes."""
    rows: list[tuple[str | bytes, ...]] = []
    for entry in entries:
        before = sha256(before + _encode(entry)).digest()
        rows.append((*entry, before))
    return rows


class ChainReport(Struct, kw_only=True):
    """The result of a check."""

    entries: int = 0
    older: int = 0
    """Entries from before there was a chain."""
    last: AuditEntry | None = None
    breaks: list[str] = []
    """A sentence for each place where the chain is broken, newest first."""


async def check_chain(audit: Audit, known: str = "") -> ChainReport:
    """Check a chain from its end to its beginning. `known` is a hash that was written down before: the chain must have it.

    If old entries were deleted, the last of their hashes may be the `known` one: the chain then begins after it.
    """
    found, newer, seen = ChainReport(), None, False
    while page := await audit.entries(before=newer.id if newer else 0, limit=_PAGE_ENTRIES):
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
            found.breaks.append(f"entry {newer.id} is not the first: the entries before it are gone")
    if known and not seen:
        found.breaks.append(
            f"no entry has the hash {known}: the entries until then are not those that are here"
        )
    return found


def _follows(entry: AuditEntry, before: str) -> bool:
    try:
        return sha256(bytes.fromhex(before) + _encode(stored_fields(entry))).hexdigest() == entry.hash
    except ValueError:
        return False

"""An `Audit` that strangers cannot fill a disk with.

Who is not let in is written down like everything else, until there are too many of them in a minute: the rest of that
minute becomes one entry that says how many there were. What somebody with a name did is always an entry of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.engine.protocols import Audit, AuditEntry
from dragoman.model.ids import timestamp

MOST, MINUTE = 60, 60.0


class Sparing:
    """`audit`, with no more than `most` strangers of a kind, by agent and reason, in `seconds`."""

    def __init__(self, audit: Audit, *, most: int = MOST, seconds: float = MINUTE) -> None:
        self._audit, self._most, self._seconds = audit, most, seconds
        self._strangers: Counter[AuditEntry] = Counter()
        self._clock: asyncio.TimerHandle | None = None

    def record(self, entry: AuditEntry) -> None:
        if not entry.principal and entry.operation == "authenticate":
            if self._clock is None:
                self._clock = asyncio.get_running_loop().call_later(self._seconds, self.close)
            kind = replace(entry, at="")
            self._strangers[kind] += 1
            if self._strangers[kind] > self._most:
                return
        self._audit.record(entry)

    def close(self) -> None:
        """Write down how many more there were, and begin to count anew."""
        if self._clock is not None:
            self._clock.cancel()
        strangers, self._strangers, self._clock = self._strangers, Counter(), None
        for kind, count in strangers.items():
            if count > self._most:
                more = f"{kind.outcome}, {count - self._most} more"
                self._audit.record(replace(kind, at=timestamp(), outcome=more))

    async def entries(self, **asked: Any) -> Sequence[AuditEntry]:
        return await self._audit.entries(**asked)

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        return await self._audit.forget(before, limit=limit)

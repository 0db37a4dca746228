"""Rate-limits audit entries of unauthenticated callers, so that they cannot fill the disk.

The first failed authentications of a minute are written one by one. The rest of that minute becomes one entry with their
number. What an authenticated caller does is always an entry of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.engine.protocols import Audit, AuditEntry
from dragoman.model.ids import timestamp

MAX_STRANGERS_PER_MINUTE = 60


class RateLimitedAudit:
    """Writes at most `max_strangers` failed authentications per agent and reason to `audit`, every `seconds`."""

    def __init__(
        self, audit: Audit, *, max_strangers: int = MAX_STRANGERS_PER_MINUTE, seconds: float = 60.0
    ) -> None:
        self._audit, self._max, self._seconds = audit, max_strangers, seconds
        self._strangers: Counter[AuditEntry] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def record(self, entry: AuditEntry) -> None:
        if not entry.principal and entry.operation == "authenticate":
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._seconds, self.close)
            kind = replace(entry, at="")
            self._strangers[kind] += 1
            if self._strangers[kind] > self._max:
                return
        self._audit.record(entry)

    def close(self) -> None:
        """Write how many more there were, and start a new count."""
        if self._timer is not None:
            self._timer.cancel()
        strangers, self._strangers, self._timer = self._strangers, Counter(), None
        for kind, count in strangers.items():
            if count > self._max:
                more = f"{kind.outcome}, {count - self._max} more"
                self._audit.record(replace(kind, at=timestamp(), outcome=more))

    async def entries(self, **query: Any) -> Sequence[AuditEntry]:
        return await self._audit.entries(**query)

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        return await self._audit.forget(before, limit=limit)

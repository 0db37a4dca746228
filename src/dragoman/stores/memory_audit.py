"""Who did what, as long as the process lives, and not without end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count, islice

from msgspec.structs import replace

from dragoman.engine.protocols import AuditEntry

_KEPT = 100_000


class MemoryAudit:
    def __init__(self) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=_KEPT)
        self._ids = count(1)

    def record(self, entry: AuditEntry) -> None:
        self._entries.append(replace(entry, id=next(self._ids)))

    async def entries(
        self,
        *,
        tenant: str | None = None,
        principal: str = "",
        task: str = "",
        operation: str = "",
        since: str = "",
        before: int = 0,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        found = (
            entry
            for entry in reversed(self._entries)
            if (tenant is None or entry.tenant == tenant)
            and (not principal or entry.principal == principal)
            and (not task or entry.task == task)
            and (not operation or entry.operation == operation)
            and (not since or entry.at >= since)
            and (not before or entry.id < before)
        )
        return list(islice(found, limit))

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        gone: list[AuditEntry] = []
        while len(self._entries) > 1 and self._entries[0].at < before and len(gone) < limit:
            gone.append(self._entries.popleft())
        return gone

"""Follow a task's log, live.

SSE, gRPC streams, a blocking send, push delivery and the console are all this loop: read what is there, then wait to be
woken. The bus says *when* to look and the log says *what* happened, so a lost wake-up costs latency, never data.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from dragoman.engine.log import Record, Snapshot
from dragoman.engine.seams import Bus, Log, topic

POLL = 5.0
"""How long a reader trusts the bus before it looks for itself."""
MOST = 1000
"""Records that wait in memory for a reader that is slow. More of them wait in the log."""


class _Ear:
    """Collects what the bus brings between two looks."""

    __slots__ = ("records", "stale", "_waiter", "_loop")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.stale = False
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def __call__(self, records: Sequence[Record]) -> None:
        if not self.stale:
            waiting = self.records
            if not records or len(waiting) >= MOST or (waiting and records[0].seq != waiting[-1].seq + 1):
                self.stale, self.records = True, []  # unknown, too many, or out of order: look at the log
            else:
                waiting.extend(records)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _tired(self) -> None:
        self.stale = True
        self._wake()

    async def wait(self, timeout: float) -> None:
        if self.records or self.stale:
            return
        self._waiter = self._loop.create_future()
        alarm = self._loop.call_later(timeout, self._tired)
        try:
            await self._waiter
        finally:
            alarm.cancel()
            self._waiter = None


async def follow(
    log: Log, bus: Bus, snapshot: Snapshot, after: int, *, poll: float = POLL
) -> AsyncIterator[Sequence[Record]]:
    """Yield the records after `after`, in batches: all that was ready. It never ends by itself."""
    ear = _Ear()
    with bus.listen(topic(snapshot.scope, snapshot.task_id), ear):  # listen first, then read: no lost wake-up
        ear.stale = snapshot.seq != after
        while True:
            batch: Sequence[Record] = ()
            if not ear.stale:
                await ear.wait(poll)
            if not ear.stale:
                batch, ear.records = [r for r in ear.records if r.seq > after], []
                if batch and (batch[0].seq != after + 1 or batch[-1].seq != after + len(batch)):
                    ear.stale = True  # a wake-up was lost, or they came out of order
            if ear.stale:
                ear.stale, ear.records = False, []
                batch = await log.read(snapshot.task_id, after=after)
            if batch:
                after = batch[-1].seq
                yield batch

"""Follow a task's log, live.

SSE, gRPC streams, a blocking send, push delivery and the console are all this loop: read what is there, then wait to be
woken. The bus says *when* to look and the log says *what* happened, so a lost wake-up costs latency, never data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import Self

from dragoman.engine.protocols import Bus, Head, Log, Store
from dragoman.engine.records import PIECE_BYTES, Record, Snapshot, size_of, topic
from dragoman.errors import Unavailable, keep_going
from dragoman.model.ops import Scope

logger = logging.getLogger("dragoman.engine")

POLL_SECONDS = 5.0
"""Time between two searches for records that the bus did not report."""
MAX_READ_RECORDS = 1000
"""Records that a reader has in memory at a time. More wait in the log."""
MAX_WAITING_BYTES = 256 << 10
"""Bytes of records in memory that wait for a reader. Readers share them; more wait in the log."""


class Reader(AbstractContextManager["Reader"]):
    """A cursor in a task's log. It listens from `with` on, so that what happens before the first `next` is not missed.

    With `look`, there may be more in the log than `snapshot` shows. `others` are all readers of this process, which search
    together for records that the bus did not report; a reader without others searches by itself.
    """

    __slots__ = ("_after", "_bus", "_bytes", "_closed", "_listening", "_log", "_others", "_poll", "_records", "_scope",
                 "_stale", "_topic", "_task", "_waiter")  # fmt: skip

    def __init__(
        self,
        log: Log,
        bus: Bus,
        snapshot: Snapshot | Head,
        after: int,
        *,
        look: bool = False,
        poll: float = POLL_SECONDS,
        others: Readers | None = None,
    ) -> None:
        self._log, self._bus, self._after, self._poll = log, bus, after, poll
        self._others = others
        self._scope = snapshot.scope
        self._task, self._topic = snapshot.task_id, topic(snapshot.scope, snapshot.task_id)
        self._records: list[Record] = []
        self._bytes = 0
        """Of `_records`."""
        self._stale = look or snapshot.seq != after
        """There may be records that the bus did not bring: read the log."""
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._listening = self._bus.listen(self._topic, self._on_wake)
        self._listening.__enter__()
        if self._others is not None:
            self._others.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._others is not None:
            self._others.discard(self)
        self._listening.__exit__(None, None, None)
        del self._listening  # it holds us: without it we go at once, not when the collector comes

    async def next(self) -> Sequence[Record]:
        """The next records: all that were ready. Raises `Unavailable` once the reader was closed."""
        while True:
            if not self._stale and not self._records:
                await self._wait()
            if not self._stale:
                batch, self._records, self._bytes = self._records, [], 0
                if batch and batch[0].seq <= self._after:
                    batch = [record for record in batch if record.seq > self._after]
                if batch and batch[0].seq != self._after + 1:
                    self._stale = True  # a wake-up was lost
            if self._stale:
                self._stale, self._records, self._bytes = False, [], 0
                found = await self._log.read(
                    self._task, after=self._after, limit=MAX_READ_RECORDS, max_bytes=PIECE_BYTES
                )
                batch = list(found)
                self._stale |= (
                    len(batch) == MAX_READ_RECORDS or size_of(batch) >= PIECE_BYTES
                )  # and perhaps more
            if batch:
                self._after = batch[-1].seq
                return batch
            if self._closed:
                raise Unavailable("shutting down", retry_after=1)

    def close(self) -> None:
        """Read what there is, and wait for nothing more."""
        self._closed = self._stale = True
        self._wake()

    def _on_wake(self, records: Sequence[Record]) -> None:
        if not self._stale:
            waiting = self._records
            if (
                not records
                or len(waiting) >= MAX_READ_RECORDS
                or self._bytes >= MAX_WAITING_BYTES
                or (waiting and records[0].seq != waiting[-1].seq + 1)
            ):
                self._stale, self._records, self._bytes = True, [], 0  # unknown, too many, or out of order
            else:
                waiting.extend(records)
                for record in records:
                    self._bytes += len(record.raw)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def cursor(self) -> tuple[Scope, str, int] | None:
        """Where it waits: the scope, the task, the last record it has. None if it does not wait."""
        return (
            (self._scope, self._task, self._after) if self._waiter is not None and not self._stale else None
        )

    def look(self) -> None:
        """Read the log: there may be records that the bus did not bring."""
        self._stale = True
        self._wake()

    async def _wait(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        alarm = loop.call_later(self._poll, self.look) if self._others is None else None
        try:
            await self._waiter
        finally:
            if alarm is not None:
                alarm.cancel()
            self._waiter = None


class Readers(set[Reader]):
    """All readers of this process, and one search for all of them: a bus may lose a wake-up."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def close(self) -> None:
        """Have all readers read to the end of their logs, and wait for nothing more."""
        for reader in tuple(self):
            reader.close()

    async def poll(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with keep_going(logger, "looking for records that readers missed", Unavailable):
                await self.look()

    async def look(self) -> None:
        """Find the readers that missed something, with one search for all of them."""
        waiting = [(reader, cursor) for reader in self if (cursor := reader.cursor) is not None]
        if waiting:
            for place in await self._store.behind([cursor for _, cursor in waiting]):
                waiting[place][0].look()


async def follow(
    log: Log, bus: Bus, snapshot: Snapshot, after: int, *, others: Readers | None = None
) -> AsyncIterator[Sequence[Record]]:
    """Yield the records after `after`, in batches: all that was ready. It never ends by itself."""
    with Reader(log, bus, snapshot, after, others=others) as reader:
        while True:
            yield await reader.next()

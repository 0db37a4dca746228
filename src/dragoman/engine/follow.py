"""Follow a task's log, live.

SSE, gRPC streams, a blocking send and the console use this loop: read the records that are there, then wait for a wake-up.
The bus says *when* to look and the log says *what* happened, so a lost wake-up costs latency, never data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager

from dragoman.engine.protocols import Bus, Head, Store
from dragoman.engine.records import PIECE_BYTES, Record, size_of, topic
from dragoman.engine.snapshot import Snapshot
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
    """A cursor in a task's log. It listens from now until the end of its `with`, so that records before the first `next` are
    not missed.

    `stale`: the log may have more records than `snapshot`.
    """

    __slots__ = ("_after", "_bytes", "_closed", "_listening", "_log", "_readers", "_records", "_scope", "_stale", "_task",
                 "_waiter")  # fmt: skip

    def __init__(
        self, readers: Readers, snapshot: Snapshot | Head, after: int, *, stale: bool = False
    ) -> None:
        self._readers, self._after = readers, after
        self._scope, self._task = snapshot.scope, snapshot.task_id
        self._log = readers.store.scope(snapshot.scope)
        self._records: list[Record] = []
        self._bytes = 0
        """Of `_records`."""
        self._closed = readers.closed
        self._stale = stale or readers.closed or snapshot.seq != after
        """The log may have records that the bus did not send."""
        self._waiter: asyncio.Future[None] | None = None
        self._listening = readers.bus.listen(topic(self._scope, self._task), self.wake)
        readers.add(self)

    def __exit__(self, *exc: object) -> None:
        self._readers.discard(self)
        self._listening.__exit__(None, None, None)
        del self._listening  # it refers to this object: no cycle is left for the garbage collector

    async def next(self) -> Sequence[Record]:
        """The next records: all that are ready. Raises `Unavailable` at the end of the log if the reader was closed."""
        while True:
            if not self._stale and not self._records and not self._closed:
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
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
                self._stale |= len(batch) == MAX_READ_RECORDS or size_of(batch) >= PIECE_BYTES
            if batch:
                self._after = batch[-1].seq
                return batch
            if self._closed:
                raise Unavailable("shutting down", retry_after=1)

    def wake(self, records: Sequence[Record] = ()) -> None:
        """Take new records. Without records, the next `next` reads the log."""
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
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Let `next` return the rest of the log, and then raise `Unavailable`."""
        self._closed = True
        self.wake()

    @property
    def cursor(self) -> tuple[Scope, str, int] | None:
        """Scope, task and last record of a reader that waits; None if it does not wait."""
        return (
            (self._scope, self._task, self._after) if self._waiter is not None and not self._stale else None
        )


class Readers(set[Reader]):
    """All readers of this process. One search finds those that missed a wake-up."""

    def __init__(self, store: Store, bus: Bus) -> None:
        super().__init__()
        self.store, self.bus = store, bus
        self.closed = False

    def close(self) -> None:
        """Close all readers, and those that are created later."""
        self.closed = True
        for reader in tuple(self):
            reader.close()

    async def poll(self) -> None:
        """Call `wake_behind` periodically."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with keep_going(logger, "looking for records that readers missed", Unavailable):
                await self.wake_behind()

    async def wake_behind(self) -> None:
        """Wake the readers that missed records, with one search for all of them."""
        waiting = [(reader, cursor) for reader in self if (cursor := reader.cursor) is not None]
        if waiting:
            for place in await self.store.find_behind([cursor for _, cursor in waiting]):
                waiting[place][0].wake()

"""What a turn writes, on its way to the log.

Records are buffered while a commit is in flight, so a burst costs one transaction. Nobody outside sees a record before
it is on disk, and nothing is written once the lease is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from dragoman.engine.protocols import Bus, Lease, LeaseLost, Log, topic
from dragoman.engine.records import PIECE_BYTES, Record, Snapshot
from dragoman.errors import Unavailable

MAX_WAITING_RECORDS, MAX_WAITING_BYTES = 1024, 1 << 20
"""How much may wait for the disk before a writer waits for it."""

logger = logging.getLogger("dragoman.turn")


class Journal:
    __slots__ = ("_bus", "_bytes", "_committed", "_flusher", "_loop", "_scheduled", "_stop", "broken", "dead", "full", "lease", "log",
                 "snapshot", "waiting")  # fmt: skip

    def __init__(
        self,
        log: Log,
        bus: Bus,
        lease: Lease,
        snapshot: Snapshot,
        stop: Callable[[str], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`stop` is called with the reason when nothing more can be written: `lost`, or `broken`."""
        self.log, self.lease, self.snapshot = log, lease, snapshot
        self.waiting: list[Record] = []
        """Not on disk yet."""
        self._bytes = 0
        """Of those."""
        self.full = False
        """So much waits for the disk that a writer should call `commit`."""
        self.dead = False
        """The lease is gone, or the turn was given up: nothing more may be written."""
        self.broken: Exception | None = None
        """Why nothing more can be written, if it is not that."""
        self._bus, self._stop = bus, stop
        self._flusher: asyncio.Task[None] | None = None
        self._scheduled = False
        self._committed: asyncio.Future[None] | None = None
        self._loop = loop

    def put(self, record: Record) -> None:
        """Queue a record. The flush begins when the function lets the loop run, so a burst is one commit.

        What has no JSON form is refused here, in the agent's own call.
        """
        if self.dead:
            raise LeaseLost(self.lease.task)
        self._bytes += len(record.encode())
        self.waiting.append(record)
        if len(self.waiting) >= MAX_WAITING_RECORDS or self._bytes >= MAX_WAITING_BYTES:
            self.full = True
        if self._flusher is None and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start_flush)

    async def commit(self) -> None:
        """Wait until all that was written is on disk."""
        while (self.waiting or self._flusher is not None) and not self.dead:
            if self._committed is None:
                self._committed = self._loop.create_future()
            self._start_flush()
            await asyncio.shield(self._committed)
        if self.dead:
            raise LeaseLost(self.lease.task)

    def replace_last(self, old: Record, new: Record) -> bool:
        """Put `new` in the place of `old`, if that is the last record that waits. False if it is not."""
        if not self.waiting or self.waiting[-1] is not old:
            return False
        self.waiting[-1] = new
        return True

    async def take_rest(self) -> list[Record]:
        """Take what waits, for the settling transaction. A write that is under way ends first, and what is more than a
        piece is written."""
        if self._bytes > PIECE_BYTES:
            self._start_flush()
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
        rest, self.waiting, self._bytes, self.full = self.waiting, [], 0, False
        return rest

    def _take_piece(self) -> list[Record]:
        """What the next append writes: all that waits, or as much as fits in a piece of a log."""
        batch, self.full = self.waiting, False
        if self._bytes <= PIECE_BYTES:
            self.waiting, self._bytes = [], 0
            return batch
        size = upto = 0
        while upto < len(batch) and (upto == 0 or size + len(batch[upto].raw) <= PIECE_BYTES):
            size += len(batch[upto].raw)
            upto += 1
        self.waiting = batch[upto:]
        self._bytes -= size
        return batch[:upto]

    async def append(self, batch: list[Record]) -> None:
        """Write records now, however long the store is away. Raises `LeaseLost`."""
        task, pause = self.lease.task, 0.05
        while True:
            try:
                await self.log.append(self.lease, batch)
                break
            except Unavailable:
                if self.dead:
                    raise LeaseLost(task) from None
                logger.warning("task %s: the store is away, trying again in %.1f s", task, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
        self._bus.wake(topic(self.lease.scope, task), batch)
        if self.snapshot.seq < batch[-1].seq:
            with suppress(Unavailable):
                self.snapshot = await catch_up(self.log, self.snapshot, batch)

    def _start_flush(self) -> None:
        self._scheduled = False
        if self.waiting and self._flusher is None and not self.dead:
            self._flusher = self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self.waiting and not self.dead:
                await self.append(self._take_piece())
                if self._committed is not None and not self.waiting:
                    self._committed.set_result(None)
                    self._committed = None
        except LeaseLost:
            self.dead = True
            self._stop("lost")
        except Exception as error:
            self.dead, self.broken = True, error
            self._stop("broken")
        finally:
            self._flusher = None
            if self._committed is not None:
                if not self._committed.done():
                    self._committed.set_exception(LeaseLost(self.lease.task))
                    self._committed.exception()
                self._committed = None


async def catch_up(log: Log, snapshot: Snapshot, records: Sequence[Record]) -> Snapshot:
    """`snapshot` with `records`, which are on disk. A store that keeps it has moved it on; one that forgot it has not."""
    if snapshot.seq >= records[-1].seq:
        return snapshot
    if snapshot.seq + 1 < records[0].seq:
        return await log.load(snapshot.task_id)  # somebody else wrote in between
    for record in records:
        snapshot.apply(record)
    return snapshot

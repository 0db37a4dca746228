"""The output of a turn on its way to the log.

Records are buffered while a commit runs, so a burst is one transaction. Readers see a record only when it is on disk, and
nothing is written after the lease is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from dragoman.engine.protocols import Bus, Lease, LeaseLost, Log
from dragoman.engine.records import PIECE_BYTES, PUBLIC, Record, topic
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import Unavailable
from dragoman.model.task import Event

MAX_WAITING_RECORDS, MAX_WAITING_BYTES = 1024, 1 << 20
"""If more records or bytes wait for the disk, the agent's function waits, too."""
MAX_UNFOLDED_BYTES = 1 << 20
"""Bytes of records on disk after which a journal folds them, also if the task is not read."""

MEMORY_WRITE_SECONDS = 0.003
"""Seconds between two writes of a turn to a store in memory. With a disk, output waits for the commit before it, so it is written
together. A store in memory would write, wake the readers and send for each event."""

logger = logging.getLogger("dragoman.turn")


class Journal:
    """Writes the output of one turn."""

    __slots__ = ("_bus", "_bytes", "_committed", "_flusher", "_loop", "_pause", "_scheduled", "_seq", "_interrupt", "_unfolded",
                 "_unfolded_bytes", "_wrote", "broken", "closed", "full", "lease", "loaded", "log", "on_event",
                 "on_question", "waiting")  # fmt: skip

    def __init__(
        self,
        log: Log,
        bus: Bus,
        lease: Lease,
        snapshot: Snapshot,
        interrupt: Callable[[str], object],
        loop: asyncio.AbstractEventLoop,
        pause: float = 0.0,
    ) -> None:
        """`interrupt` is called with the reason when nothing more can be written: `lost`, or `broken`. `pause`: the seconds
        between two writes, unless somebody waits for one.
        """
        self.log, self.lease = log, lease
        self.loaded = snapshot
        """The task, perhaps without the last records of this run. It has all mail that this run knows."""
        self._seq = snapshot.seq
        self._unfolded: list[Record] = []
        """Records on disk up to `_seq` that are not in `loaded`."""
        self._unfolded_bytes = 0
        self.waiting: list[Record] = []
        """Records that are not on disk yet."""
        self._bytes = 0
        """Of `waiting`."""
        self.on_event: Callable[[Event], Any] | None = None
        """Changes an event that peers see, for the extensions of the agent."""
        self.on_question: Callable[[], object] | None = None
        """Called when a question is on disk whose turn goes on, because mail has come."""
        self.full = False
        """Much output waits for the disk: a writer should call `commit`."""
        self.closed = False
        """Nothing more may be written: the lease is lost, or the turn was given up."""
        self.broken: Exception | None = None
        """The error because of which nothing more can be written; None if there was none."""
        self._bus, self._interrupt = bus, interrupt
        self._flusher: asyncio.Task[None] | None = None
        self._scheduled: asyncio.Handle | None = None
        """Starts the next flush."""
        self._committed: asyncio.Future[None] | None = None
        self._loop = loop
        self._pause, self._wrote = pause, 0.0

    @property
    def snapshot(self) -> Snapshot:
        """The task with all records on disk that this run knows."""
        self._fold()
        return self.loaded.share()

    def _fold(self) -> None:
        if self._unfolded:
            self.loaded = self.loaded.after(self._unfolded)
            self._unfolded, self._unfolded_bytes = [], 0

    def listen(self, woken: Callable[[Sequence[Record]], None]) -> AbstractContextManager[object]:
        """Call `woken` when the log gets records: with the records if this run wrote them, with none if a message came."""
        return self._bus.listen(topic(self.lease.scope, self.lease.task), woken)

    def change(self, record: Record) -> Record:
        """The record as the extensions of the agent change it."""
        if self.on_event is None or record.kind not in PUBLIC:
            return record
        return Record(record.kind, self.on_event(record.event))

    def put(self, record: Record) -> None:
        """Queue a record. The flush begins when the function lets the event loop run, so a burst is one commit.

        Raises an error here, in the call of the agent, for a record that has no JSON form.
        """
        if self.closed:
            raise LeaseLost(self.lease.task)
        self._bytes += len(record.encode())
        self.waiting.append(record)
        if len(self.waiting) >= MAX_WAITING_RECORDS or self._bytes >= MAX_WAITING_BYTES:
            self.full = True
        if self._flusher is None and self._scheduled is None:
            early = self._wrote + self._pause - self._loop.time() if self._pause else 0.0
            if early > 0:
                self._scheduled = self._loop.call_later(early, self._start_flush)
            else:
                self._scheduled = self._loop.call_soon(self._start_flush)

    def close(self) -> None:
        """Write nothing more."""
        self.closed = True

    async def commit(self) -> None:
        """Wait until all queued records are on disk."""
        while (self.waiting or self._flusher is not None) and not self.closed:
            if self._committed is None:
                self._committed = self._loop.create_future()
            self._start_flush()
            await asyncio.shield(self._committed)
        if self.closed:
            raise LeaseLost(self.lease.task)

    def replace_last(self, old: Record, new: Record) -> bool:
        """Replace `old`, if it is the last record that waits. False if it is not."""
        if not self.waiting or self.waiting[-1] is not old:
            return False
        self.waiting[-1] = new
        return True

    async def take_rest(self) -> list[Record]:
        """Take the records that wait, for the settling transaction. A write that runs ends first. If more than one piece waits,
        it is written."""
        if self._bytes > PIECE_BYTES:
            self._start_flush()
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        rest, self.waiting, self._bytes, self.full = self.waiting, [], 0, False
        return rest

    def _take_piece(self) -> tuple[list[Record], int]:
        """The records of the next append, at most `PIECE_BYTES` of them, and their bytes."""
        batch, size, self.full = self.waiting, self._bytes, False
        if size <= PIECE_BYTES:
            self.waiting, self._bytes = [], 0
            return batch, size
        size = upto = 0
        while upto < len(batch) and (upto == 0 or size + len(batch[upto].raw) <= PIECE_BYTES):
            size += len(batch[upto].raw)
            upto += 1
        self.waiting = batch[upto:]
        self._bytes -= size
        return batch[:upto], size

    async def append(self, batch: list[Record], size: int) -> None:
        """Write records of `size` bytes now, however long the store is away. Raises `LeaseLost`."""
        task, pause = self.lease.task, 0.05
        while True:
            try:
                await self.log.append(self.lease, batch)
                break
            except Unavailable:
                if self.closed:
                    raise LeaseLost(task) from None
                logger.warning("task %s: the store is away, trying again in %.1f s", task, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
        self._bus.wake(topic(self.lease.scope, task), batch)
        if self.on_question is not None and any(record.kind == "ask" for record in batch):
            self.on_question()
        if batch[0].seq == self._seq + 1:
            self._unfolded += batch
            self._unfolded_bytes += size
            self._seq = batch[-1].seq
            if self._unfolded_bytes >= MAX_UNFOLDED_BYTES:
                self._fold()
        else:  # mail came in between
            with suppress(Unavailable):
                self.loaded = await self.log.load(task)
                self._seq, self._unfolded, self._unfolded_bytes = self.loaded.seq, [], 0

    def _start_flush(self) -> None:
        self._scheduled = None
        if self.waiting and self._flusher is None and not self.closed:
            self._flusher = self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self.waiting and not self.closed:
                await self.append(*self._take_piece())
                if self._pause:
                    self._wrote = self._loop.time()
                if self._committed is not None and not self.waiting:
                    self._committed.set_result(None)
                    self._committed = None
        except LeaseLost:
            self.closed = True
            self._interrupt("lost")
        except Exception as error:
            self.closed, self.broken = True, error
            self._interrupt("broken")
        finally:
            self._flusher = None
            if self._committed is not None:
                if not self._committed.done():
                    self._committed.set_exception(LeaseLost(self.lease.task))
                    self._committed.exception()
                self._committed = None

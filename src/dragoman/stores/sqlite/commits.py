"""Group commit: whatever is ready when a transaction begins shares it.

The statements run on the event loop's thread and the commit on a thread of its own. A statement is microseconds of
work, less than it takes to hand it to another thread, and two threads that pass the interpreter lock back and forth at
every statement slow each other down. Waiting for a disk is what a thread is good at.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from types import NoneType
from typing import Any, TypeVar

from dragoman.engine.protocols import LeaseLost, NewMail, TaskExists
from dragoman.errors import A2AError, Unavailable
from dragoman.model.task import TaskState

T = TypeVar("T")
Finish = Callable[[], T]
"""Runs once the commit is on disk, in the order of the jobs, and returns what the caller waits for."""
NOTHING: Finish[None] = NoneType
"""Of a job that returns nothing."""
Job = Callable[[sqlite3.Connection], Finish[T]]
"""Runs inside the transaction, perhaps more than once. It checks everything before it writes anything."""

ANSWERS = (A2AError, LeaseLost, NewMail, TaskExists)
"""What a job may raise as its answer. Anything else is a fault, and undoes the transaction."""

SEQ_BITS = 28
"""The place of a record among those of all tasks is `key << SEQ_BITS | seq`: next to the others of its own task."""
_LOG = "insert into log (place, body) values (?, ?)"
_COUNT = """
insert into counts (scope, state, n) values (?1, ?2, ?3) on conflict (scope, state) do update set n = n + excluded.n
"""
_DATA_VERSION = "pragma data_version"
"""A number that changes when another connection has written."""
_FEW, _MANY = 2, 10
"""How often the loop comes round between two transactions: those who waited for the first have more to write by then, and
who shares a transaction shares its cost. Where many do, it is worth waiting for all of them."""
MANY_JOBS = 8
"""Jobs in one transaction that are many."""
_LONGEST = 0.005
"""Seconds after which nobody is waited for."""

_Waiting = tuple[Job[Any], "asyncio.Future[Any]", Callable[[Any], None] | None]

_Outcome = tuple["asyncio.Future[Any]", Finish[Any] | None, Exception | None, Callable[[Any], None] | None]

_log = logging.getLogger("dragoman.stores")


class Commits:
    def __init__(
        self, db: sqlite3.Connection, *, patience: float, on_commit: Callable[[float], None] | None = None
    ) -> None:
        self._db = db
        self._on_commit = on_commit
        self._since = 0.0
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._queue: list[_Waiting] = []
        self._alone: deque[_Waiting] = deque()
        """Jobs of a transaction that failed, to be tried one by one: only the culprit shall fail."""
        self._active = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.failing = False
        """The last thing that was to be written could not be."""
        self._shared = 0
        """Jobs in the last transaction."""
        self.records: list[tuple[int, bytes]] = []
        """What this transaction adds to the log: place and body. It is written at the end, all of it together."""
        self.counts: dict[tuple[int, str], int] = {}
        """By how much this transaction changes the number of tasks of a scope in a state. Written at the end, too."""
        self.must_commit = False
        """This transaction changes the file in a way that `total_changes` does not count."""
        self._version: int = db.execute(_DATA_VERSION).fetchone()[0]
        self._reported_version = self._version
        self._thread_jobs: SimpleQueue[
            tuple[Callable[[], object], Callable[[Exception | None], None]] | None
        ] = SimpleQueue()
        self._thread = Thread(target=self._run_thread_jobs, name="dragoman-commits", daemon=True)
        self._thread.start()

    def submit(self, job: Job[T], dropped: Callable[[T], None] | None = None) -> asyncio.Future[T]:
        """Run `job` in the next transaction. The future is done when it is on disk.

        `dropped` gets the result if nobody waits for it any more.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.append((job, future, dropped))
        if not self._active:
            self._active = True
            self._idle.clear()
            self._next()
        return future

    def count(self, scope: int, reply: bool, before: TaskState | None, after: TaskState | None) -> None:
        """In this transaction: a task of the scope goes from one state to another. None: it is new, or it is gone."""
        # What peers do not see is not counted (`transition.visible`).
        hidden = TaskState.SUBMITTED if reply else None
        for state, n in ((before, -1), (after, 1)):
            if state is not None and state is not hidden:
                which = (scope, state.value)
                self.counts[which] = self.counts.get(which, 0) + n

    def changed(self) -> bool:
        """Whether another process has written since this was last asked."""
        if not self._active:
            # Else another thread may have the connection.
            self._version = self._db.execute(_DATA_VERSION).fetchone()[0]
        changed: bool = self._version != self._reported_version
        self._reported_version = self._version
        return changed

    async def close(self) -> None:
        """Finish what was submitted, then stop."""
        self._closed = True
        await self._idle.wait()
        self._thread_jobs.put(None)
        self._thread.join()

    def _next(self) -> None:
        """Begin a transaction soon, if there is something to do."""
        if self._queue or self._alone:
            rounds = _MANY if self._shared >= MANY_JOBS else _FEW
            self._loop.call_soon(self._begin_in, rounds, time.perf_counter() + _LONGEST)
        else:
            self._active = False
            self._idle.set()

    def _begin_in(self, rounds: int, latest: float) -> None:
        if rounds and time.perf_counter() < latest:
            self._loop.call_soon(self._begin_in, rounds - 1, latest)
            return
        try:
            self._start()
        except sqlite3.Error:
            self._thread_jobs.put((self._wait_to_start, self._started))  # another process is writing
        else:
            self._run()

    def _start(self) -> None:
        self._since = time.perf_counter()
        self._db.execute("begin immediate")
        self._version = self._db.execute(_DATA_VERSION).fetchone()[0]

    def _wait_to_start(self) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._start()
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.001)

    def _started(self, error: Exception | None) -> None:
        if error is None:
            self._run()
            return
        self._rollback()
        batch = [*self._alone, *self._queue]
        self._alone.clear()
        self._queue = []
        for _, future, _ in batch:
            self._fail(future, error)
        self._next()

    def _run(self) -> None:
        if self._alone:
            batch = [self._alone.popleft()]
        else:
            batch, self._queue = self._queue, []
        db, self._shared = self._db, len(batch)
        self.records.clear()
        self.counts.clear()
        self.must_commit = False
        before = db.total_changes
        outcomes: list[_Outcome] = []
        for job, future, dropped in batch:
            if future.cancelled():
                continue
            try:
                outcomes.append((future, job(db), None, dropped))
            except ANSWERS as answer:
                outcomes.append((future, None, answer, None))
            except Exception as error:
                self._undo(batch, error)
                return
        try:
            db.executemany(_LOG, self.records)
            for which, n in self.counts.items():
                if n:
                    db.execute(_COUNT, (*which, n))
        except sqlite3.Error as error:
            self._undo(batch, error)
            return
        wrote = db.total_changes != before or self.must_commit
        if wrote:
            committed = partial(self._committed, batch, outcomes, wrote)
            self._thread_jobs.put((partial(db.execute, "commit"), committed))
        else:
            self._rollback()  # there is no disk to wait for
            self._committed(batch, outcomes, wrote, None)

    def _committed(
        self, batch: list[_Waiting], outcomes: list[_Outcome], wrote: bool, error: Exception | None
    ) -> None:
        """The transaction is over: finish its jobs, and give those who wait their answers."""
        if error is not None:
            self._undo(batch, error)
            return
        if wrote:
            self.failing = False
        self.records.clear()  # they may be large, and the next transaction may be long in coming
        if self._on_commit is not None:
            self._on_commit(time.perf_counter() - self._since)
        for future, finish, answer, dropped in outcomes:
            result = None
            if finish is not None:
                try:
                    result = finish()
                except Exception as caught:
                    answer = caught
            if future.cancelled():
                if dropped is not None and answer is None:
                    dropped(result)
            elif answer is None:
                future.set_result(result)
            else:
                future.set_exception(answer)
        self._next()

    def _undo(self, batch: list[_Waiting], error: Exception) -> None:
        self._rollback()
        if len(batch) == 1:
            self._fail(batch[0][1], error)
        else:
            self._alone.extend(batch)
        self._next()

    def _rollback(self) -> None:
        if self._db.in_transaction:
            with suppress(sqlite3.Error):  # a database that cannot even do this says so at the next `begin`
                self._db.execute("rollback")

    def _fail(self, future: asyncio.Future[Any], error: Exception) -> None:
        if isinstance(error, sqlite3.DatabaseError):
            if not self.failing:
                self.failing = True
                _log.error("cannot write to the database: %s", error)
            error = Unavailable("the task store cannot be written to at the moment")
        if not future.cancelled():
            future.set_exception(error)
            if isinstance(error, Unavailable):
                future.exception()  # the log has said it: who does not wait for this need not hear of it again

    def _run_thread_jobs(self) -> None:
        while (thread_job := self._thread_jobs.get()) is not None:
            work, then = thread_job
            error = None
            try:
                work()
            except Exception as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(then, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del (
                thread_job,
                work,
                then,
                error,
            )  # or we would be the one to take the batch apart, and the loop would wait

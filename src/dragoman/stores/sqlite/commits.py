"""Group commit: all jobs that are ready when a transaction begins share it.

The statements run on the event loop's thread, and the commit on a thread of its own. A statement takes microseconds, less than
handing it to another thread, and two threads that pass the interpreter lock back and forth at every statement slow each other
down. Waiting for the disk is the part that a thread is good for.
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
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from dragoman.engine.protocols import LeaseLost, NewMail, TaskExists
from dragoman.errors import A2AError, Unavailable
from dragoman.model.task import TaskState

T = TypeVar("T")
Finish = Callable[[], T]
"""Runs when the commit is on disk, in the order of the jobs, and returns the result for the caller."""
NOTHING: Finish[None] = NoneType
"""The `Finish` of a job without a result."""
Job = Callable[[sqlite3.Connection], Finish[T]]
"""A function that runs in a transaction, perhaps more than once. It makes all its checks before it writes."""

ANSWERS = (A2AError, LeaseLost, NewMail, TaskExists)
"""Exceptions by which a job answers its caller. Any other exception is a fault, and undoes the transaction."""

SEQ_BITS = 28
"""The place of a row in the table `log` is `key << SEQ_BITS | seq`, so the rows of a task are neighbours."""
_LOG = "insert into log (place, body) values (?, ?)"
_COUNT = """
insert into counts (scope, state, n) values (?1, ?2, ?3) on conflict (scope, state) do update set n = n + excluded.n
"""
_DATA_VERSION = "pragma data_version"
"""A number that changes when another connection has written."""
_FEW_ROUNDS, _MANY_ROUNDS = 2, 10
"""Rounds of the event loop between two transactions. Tasks that waited for the first one submit more jobs meanwhile, and jobs that
share a transaction share its cost. After a transaction with many jobs, more rounds are worth it."""
MANY_JOBS = 8
"""Jobs in a transaction after which `_MANY_ROUNDS` apply."""
_MAX_WAIT_SECONDS = 0.005
"""For these rounds together."""


class _Submitted(Struct, Generic[T]):
    """A job in a transaction, and the future for its caller."""

    job: Job[T]
    future: asyncio.Future[T]
    dropped: Callable[[T], None] | None
    """Called with the result if the future was cancelled."""
    wait: Callable[[], bool] | None
    """True if the job costs less in a later transaction. It is asked once."""
    finish: Finish[T] | None = None
    answer: Exception | None = None
    """What the job returned, or one of `ANSWERS`, when it ran last."""


class _ThreadJob(NamedTuple):
    """Work for the thread, and what the event loop calls then, with the error of the work."""

    work: Callable[[], object]
    then: Callable[[Exception | None], None]


_log = logging.getLogger("dragoman.stores")


class Commits:
    """Writes to one file."""

    def __init__(
        self, db: sqlite3.Connection, *, busy_timeout: float, on_commit: Callable[[float], None] | None = None
    ) -> None:
        self._db = db
        self._on_commit = on_commit
        self._began_at = 0.0
        self._busy_timeout = busy_timeout
        self._loop = asyncio.get_running_loop()
        self._queue: list[_Submitted[Any]] = []
        self._batch: list[_Submitted[Any]] = []
        """The jobs of the transaction that begins."""
        self._alone: deque[_Submitted[Any]] = deque()
        """Jobs of a transaction that failed. Each gets a transaction of its own, so that only the job at fault fails."""
        self._active = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.failing = False
        """The last transaction could not be written."""
        self._last_jobs = 0
        """Jobs in the last transaction."""
        self.records: list[tuple[int, bytes]] = []
        """Rows that this transaction adds to the log: place and body. They are written together at its end."""
        self.counts: dict[tuple[int, str], int] = {}
        """Changes of this transaction to the number of tasks of a scope in a state. They are written at its end."""
        self.must_commit = False
        """This transaction changes the file in a way that `total_changes` does not count."""
        self._version: int = db.execute(_DATA_VERSION).fetchone()[0]
        self._reported_version = self._version
        self._thread_jobs: SimpleQueue[_ThreadJob | None] = SimpleQueue()
        """None ends the thread."""
        self._thread = Thread(target=self._run_thread_jobs, name="dragoman-commits", daemon=True)
        self._thread.start()

    def submit(
        self,
        job: Job[T],
        dropped: Callable[[T], None] | None = None,
        *,
        wait: Callable[[], bool] | None = None,
    ) -> asyncio.Future[T]:
        """Run `job` in the next transaction. The future is done when it is on disk.

        `dropped` is called with the result if the future was cancelled. If `wait()` is true when the transaction begins, the job is
        part of the one after it.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.append(_Submitted(job, future, dropped, wait))
        if not self._active:
            self._active = True
            self._idle.clear()
            self._schedule()
        return future

    def count(self, scope: int, reply: bool, before: TaskState | None, after: TaskState | None) -> None:
        """Count a task of the scope whose state changes in this transaction. `before` is None for a new task, `after` for a deleted one."""
        # Tasks that peers do not see are not counted (`transition.visible`).
        hidden = TaskState.SUBMITTED if reply else None
        for state, n in ((before, -1), (after, 1)):
            if state is not None and state is not hidden:
                which = (scope, state.value)
                self.counts[which] = self.counts.get(which, 0) + n

    def changed(self) -> bool:
        """True if another process has written since the last call."""
        if not self._active:  # otherwise the other thread may use the connection
            self._version = self._db.execute(_DATA_VERSION).fetchone()[0]
        changed: bool = self._version != self._reported_version
        self._reported_version = self._version
        return changed

    async def close(self) -> None:
        """Finish the jobs that were submitted, then stop."""
        self._closed = True
        await self._idle.wait()
        self._thread_jobs.put(None)
        self._thread.join()

    def _schedule(self) -> None:
        """Begin a transaction in a few rounds of the event loop, if there are jobs."""
        if self._queue or self._alone:
            rounds = _MANY_ROUNDS if self._last_jobs >= MANY_JOBS else _FEW_ROUNDS
            self._loop.call_soon(self._wait_rounds, rounds, time.perf_counter() + _MAX_WAIT_SECONDS)
        else:
            self._active = False
            self._idle.set()

    def _wait_rounds(self, rounds: int, latest: float) -> None:
        if rounds and time.perf_counter() < latest:
            self._loop.call_soon(self._wait_rounds, rounds - 1, latest)
            return
        if not self._take_jobs():
            self._schedule()
            return
        try:
            self._begin_transaction()
        except sqlite3.Error:  # another process is writing
            self._thread_jobs.put(_ThreadJob(self._wait_for_file, self._run_after_wait))
        else:
            self._run_jobs()

    def _take_jobs(self) -> bool:
        """Choose the jobs of the next transaction. False if all of them wait for the one after it."""
        if self._alone:
            self._batch = [self._alone.popleft()]
            return True
        self._batch, queue, self._queue = [], self._queue, []
        for each in queue:
            wait, each.wait = each.wait, None
            (self._queue if wait is not None and wait() else self._batch).append(each)
        return bool(self._batch)

    def _begin_transaction(self) -> None:
        self._began_at = time.perf_counter()
        self._db.execute("begin immediate")
        self._version = self._db.execute(_DATA_VERSION).fetchone()[0]

    def _wait_for_file(self) -> None:
        """Begin the transaction on the thread, when the file is free."""
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                self._begin_transaction()
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.001)

    def _run_after_wait(self, error: Exception | None) -> None:
        if error is None:
            self._run_jobs()
            return
        self._rollback()
        batch = [*self._batch, *self._alone, *self._queue]
        self._alone.clear()
        self._batch, self._queue = [], []
        for each in batch:
            self._fail(each.future, error)
        self._schedule()

    def _run_jobs(self) -> None:
        """Run the jobs of the transaction, write what they collected, and commit."""
        db, batch, self._batch = self._db, self._batch, []
        self._last_jobs = len(batch)
        self.records.clear()
        self.counts.clear()
        self.must_commit = False
        before = db.total_changes
        ran: list[_Submitted[Any]] = []
        for each in batch:
            if each.future.cancelled():
                continue
            try:
                each.finish, each.answer = each.job(db), None
            except ANSWERS as answer:
                each.finish, each.answer = None, answer
            except Exception as error:
                self._undo(batch, error)
                return
            ran.append(each)
        try:
            db.executemany(_LOG, self.records)
            for (scope, state), n in self.counts.items():
                if n:
                    db.execute(_COUNT, (scope, state, n))
        except sqlite3.Error as error:
            self._undo(batch, error)
            return
        wrote = db.total_changes != before or self.must_commit
        if wrote:
            end = partial(self._end_transaction, batch, ran, wrote)
            self._thread_jobs.put(_ThreadJob(partial(db.execute, "commit"), end))
        else:
            self._rollback()  # there is no disk to wait for
            self._end_transaction(batch, ran, wrote, None)

    def _end_transaction(
        self, batch: list[_Submitted[Any]], ran: list[_Submitted[Any]], wrote: bool, error: Exception | None
    ) -> None:
        """Finish the jobs that ran, and set the results of their futures. With an `error` nothing was written."""
        if error is not None:
            self._undo(batch, error)
            return
        if wrote:
            self.failing = False
        self.records.clear()  # they may be large, and the next transaction may come late
        if self._on_commit is not None:
            self._on_commit(time.perf_counter() - self._began_at)
        for each in ran:
            result, answer, future = None, each.answer, each.future
            if each.finish is not None:
                try:
                    result = each.finish()
                except Exception as caught:
                    answer = caught
            if answer is None and not future.cancelled():
                future.set_result(result)
            elif answer is None:
                if each.dropped is not None:
                    each.dropped(result)
            elif not future.cancelled():
                future.set_exception(answer)
        self._schedule()

    def _undo(self, batch: list[_Submitted[Any]], error: Exception) -> None:
        self._rollback()
        if len(batch) == 1:
            self._fail(batch[0].future, error)
        else:
            self._alone.extend(batch)
        self._schedule()

    def _rollback(self) -> None:
        if self._db.in_transaction:
            with suppress(sqlite3.Error):  # the next `begin` fails, too
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
                future.exception()  # it is logged already, also if nobody awaits the future

    def _run_thread_jobs(self) -> None:
        while (thread_job := self._thread_jobs.get()) is not None:
            error = None
            try:
                thread_job.work()
            except Exception as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(thread_job.then, error)
            except RuntimeError:
                return  # the loop is closed
            # so that a large batch is not freed on this thread, with the interpreter lock
            del thread_job, error

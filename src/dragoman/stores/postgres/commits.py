"""Group commit: whatever is ready when a transaction begins shares it (`postgres/batch.py`).

A transaction costs the same few round trips and one wait for the disk, however many jobs are in it. One transaction runs at a
time. The jobs that come meanwhile are the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from dragoman.errors import Unavailable
from dragoman.stores.postgres.address import PostgresError
from dragoman.stores.postgres.batch import DeliverJob, LogJob, LogResult, perform
from dragoman.stores.postgres.database import Database

MAX_JOBS = 500
"""Jobs in one transaction."""


class _Submitted(Struct):
    """A job in a transaction, and the future for its caller."""

    job: LogJob
    future: asyncio.Future[LogResult]
    dropped: Callable[[LogResult], None] | None
    """Called with the result if the future was cancelled."""


class Commits:
    def __init__(
        self,
        database: Database,
        on_result: Callable[[LogResult], None],
        on_commit: Callable[[float], None] | None = None,
    ) -> None:
        """`on_result` is called with each result, in the order of the commits; `on_commit` with the seconds of each transaction."""
        self._database = database
        self._on_result, self._on_commit = on_result, on_commit
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Submitted] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    def submit(
        self, job: LogJob, dropped: Callable[[LogResult], None] | None = None
    ) -> asyncio.Future[LogResult]:
        """Do `job` in the next transaction. The future is done when it is on disk.

        `dropped` is called with the result if the future was cancelled.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[LogResult] = self._loop.create_future()
        self._queue.append(_Submitted(job, future, dropped))
        if self._worker is None:
            self._worker = self._loop.create_task(self._commit_all(), name="dragoman-commits")
        return future

    async def close(self) -> None:
        """Finish the jobs that were submitted, then stop."""
        self._closed = True
        if self._worker is not None:
            await self._worker

    async def _commit_all(self) -> None:
        try:
            while self._queue:
                batch = self._take_batch()
                if batch:
                    await self._commit(batch)
        finally:
            self._worker = None

    def _take_batch(self) -> list[_Submitted]:
        """The jobs of the next transaction: of those with the same idempotency key only one, because the others repeat it."""
        batch: list[_Submitted] = []
        later: list[_Submitted] = []
        keys: set[tuple[int, str]] = set()
        while self._queue and len(batch) < MAX_JOBS:
            submitted = self._queue.popleft()
            job = submitted.job
            if submitted.future.cancelled():
                continue
            if isinstance(job, DeliverJob) and job.dedupe:
                key = (job.number, job.dedupe)
                if key in keys:
                    later.append(submitted)
                    continue
                keys.add(key)
            batch.append(submitted)
        self._queue.extendleft(reversed(later))
        return batch

    async def _commit(self, batch: Sequence[_Submitted]) -> None:
        since = time.perf_counter()
        try:
            outcomes = await self._database.transact(partial(perform, jobs=[each.job for each in batch]))
        except Unavailable as error:
            for each in batch:
                _fail(each.future, error)
            return
        except Exception as error:
            if len(batch) > 1:  # only the job at fault fails
                for each in batch:
                    await self._commit((each,))
            elif isinstance(error, PostgresError):
                self._database.log_once(error)
                _fail(batch[0].future, Unavailable("the task store cannot be written to at the moment"))
            else:
                _fail(batch[0].future, error)
            return
        if self._on_commit is not None:
            self._on_commit(time.perf_counter() - since)
        for submitted, outcome in zip(batch, outcomes, strict=True):
            self._answer(submitted, outcome)

    def _answer(self, submitted: _Submitted, outcome: LogResult | Exception) -> None:
        future = submitted.future
        if isinstance(outcome, Exception):
            _fail(future, outcome)
            return
        try:
            self._on_result(outcome)
        except Exception as error:
            _fail(future, error)
            return
        if not future.cancelled():
            future.set_result(outcome)
        elif submitted.dropped is not None:
            submitted.dropped(outcome)


def _fail(future: asyncio.Future[LogResult], error: Exception) -> None:
    if not future.cancelled():
        future.set_exception(error)

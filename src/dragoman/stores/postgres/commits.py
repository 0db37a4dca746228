"""Group commit: whatever is ready when a transaction begins shares it (`postgres/batch.py`).

A transaction costs the same few round trips and one wait for the disk, however many have something to write. One at a time
is under way, and what comes meanwhile is the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dragoman.errors import Unavailable
from dragoman.stores.postgres.address import PostgresError
from dragoman.stores.postgres.batch import Job, Outcome, perform
from dragoman.stores.postgres.database import Database

MOST = 500
"""Jobs in one transaction."""

_Waiting = tuple[Job, "asyncio.Future[Any]", Callable[[Any], None] | None]


class Commits:
    def __init__(
        self,
        database: Database,
        done: Callable[[Outcome], None],
        on_commit: Callable[[float], None] | None = None,
    ) -> None:
        """`done` hears what was committed, in the order in which it was; `on_commit`, how long each transaction took."""
        self._database = database
        self._done, self._on_commit = done, on_commit
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Waiting] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, job: Job, dropped: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Do `job` in the next transaction. The future is done when it is on disk.

        `dropped` gets the result if nobody waits for it any more.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append((job, future, dropped))
        if self._worker is None:
            self._worker = self._loop.create_task(self._work(), name="dragoman-commits")
        return future

    async def close(self) -> None:
        """Finish what was submitted, then stop."""
        self._closed = True
        if self._worker is not None:
            await self._worker

    async def _work(self) -> None:
        try:
            while self._queue:
                batch = self._take()
                if batch:
                    await self._commit(batch)
        finally:
            self._worker = None

    def _take(self) -> list[_Waiting]:
        """What shares the next transaction. Of those with the same key one, for it decides what the others are."""
        batch: list[_Waiting] = []
        later: list[_Waiting] = []
        keys: set[tuple[int, str]] = set()
        while self._queue and len(batch) < MOST:
            waiting = self._queue.popleft()
            job, future, _ = waiting
            if future.cancelled():
                continue
            if job.dedupe and (job.number, job.dedupe) in keys:
                later.append(waiting)
                continue
            if job.dedupe:
                keys.add((job.number, job.dedupe))
            batch.append(waiting)
        self._queue.extendleft(reversed(later))
        return batch

    async def _commit(self, batch: Sequence[_Waiting]) -> None:
        since = time.perf_counter()
        jobs = [job for job, _, _ in batch]
        try:
            outcomes = await self._database.transact(partial(perform, jobs=jobs))
        except Unavailable as error:
            for _, future, _ in batch:
                _fail(future, error)
            return
        except Exception as error:
            if len(batch) > 1:  # only the culprit shall fail
                for each in batch:
                    await self._commit((each,))
            elif isinstance(error, PostgresError):
                self._database.log_once(error)
                _fail(batch[0][1], Unavailable("the task store cannot be written to at the moment"))
            else:
                _fail(batch[0][1], error)
            return
        if self._on_commit is not None:
            self._on_commit(time.perf_counter() - since)
        for outcome, (_, future, dropped) in zip(outcomes, batch, strict=True):
            self._answer(outcome, future, dropped)

    def _answer(
        self,
        outcome: Outcome | Exception,
        future: asyncio.Future[Any],
        dropped: Callable[[Any], None] | None,
    ) -> None:
        if isinstance(outcome, Exception):
            _fail(future, outcome)
            return
        try:
            self._done(outcome)
        except Exception as error:
            _fail(future, error)
            return
        if not future.cancelled():
            future.set_result(outcome)
        elif dropped is not None:
            dropped(outcome)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.cancelled():
        future.set_exception(error)

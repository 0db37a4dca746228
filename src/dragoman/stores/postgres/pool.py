"""The connections to one PostgreSQL database that are lent to reads or to writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg

from dragoman.engine.protocols import LeaseLost, NewMail, TaskExists
from dragoman.errors import A2AError, StoreUnavailable, Unavailable
from dragoman.stores.postgres.address import (
    BROKEN_CONNECTION_ERRORS,
    UNAVAILABLE_ERRORS,
    Connection,
    PostgresAddress,
)

MAX_IDLE_SECONDS = 60.0
"""A connection that was not used for longer is not used again. A firewall may have forgotten it, and then nothing comes through."""

ANSWERS = (A2AError, LeaseLost, NewMail, TaskExists)
"""Exceptions by which work answers its caller. Any other exception is a fault."""


class Pool:
    def __init__(self, address: PostgresAddress, size: int, idle: list[tuple[float, Connection]]) -> None:
        """`idle`: connections, and when they were used last. Pools share them: when the database grants no more, each can use those of
        the other."""
        self._address = address
        self._idle = idle
        self._room = asyncio.Semaphore(size)
        self._closed = False
        self._limits: set[asyncio.Timeout] = set()
        """The timeouts of tasks that have a connection or wait for one."""
        self._end: float | None = None

    def end_by(self, when: float) -> None:
        """At this time of the loop's clock, every task with a connection gets a `TimeoutError`."""
        self._end = when
        for limit in self._limits:
            limit.reschedule(when)

    @asynccontextmanager
    async def take(self, timeout: float | None = None) -> AsyncIterator[Connection]:
        """Lend a connection. After an error it is closed and not used again.

        Raises `StoreUnavailable` if none is free within `timeout` seconds.
        """
        async with asyncio.timeout_at(self._end) as limit:
            self._limits.add(limit)
            try:
                async with self._wait_for_place(timeout), self._acquire() as db:
                    yield db
            finally:
                self._limits.discard(limit)

    @asynccontextmanager
    async def _wait_for_place(self, timeout: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout):
                await self._room.acquire()
        except TimeoutError:
            raise StoreUnavailable("the task store does not answer in time at the moment") from None
        try:
            yield
        finally:
            self._room.release()

    @asynccontextmanager
    async def _acquire(self) -> AsyncIterator[Connection]:
        if self._closed:
            raise Unavailable("the store is closed")
        db = self._pop_idle() or await self._address.connect()
        try:
            yield db
        except BROKEN_CONNECTION_ERRORS as error:
            broken = db.is_closed() or isinstance(error, asyncpg.InternalClientError)
            db.terminate()
            if broken:
                raise ConnectionResetError("the connection is gone") from error
            raise
        except ANSWERS:
            raise
        except BaseException:
            db.terminate()
            raise
        finally:
            self._put_back(db)

    def _pop_idle(self) -> Connection | None:
        """The connection that was used last, if it was not idle for too long. Then the others were, too."""
        while self._idle:
            used, db = self._idle.pop()
            if time.monotonic() - used > MAX_IDLE_SECONDS:
                db.terminate()
            elif not db.is_closed():
                return db
        return None

    def _put_back(self, db: Connection) -> None:
        if self._closed:
            db.terminate()
        elif not db.is_closed():
            self._idle.append((time.monotonic(), db))

    async def close(self) -> None:
        self._closed = True
        for _, db in self._idle:
            with suppress(*UNAVAILABLE_ERRORS, *BROKEN_CONNECTION_ERRORS, asyncpg.PostgresError):
                await db.close(timeout=1.0)
        self._idle.clear()

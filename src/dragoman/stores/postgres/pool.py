"""Connections to a PostgreSQL database: made when they are needed, kept, and replaced when they break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg

from dragoman.engine.protocols import LeaseLost, NewMail, TaskExists
from dragoman.errors import A2AError, Unavailable
from dragoman.stores.postgres.address import CONFUSED, GONE, Address, Connection

ANSWERS = (A2AError, LeaseLost, NewMail, TaskExists)
"""What work on a connection may raise as its answer. Anything else is a fault."""


class Pool:
    def __init__(self, address: Address, size: int, idle: list[Connection]) -> None:
        """Pools that share what is `idle` do not keep from each other what the database grants no more of."""
        self._address = address
        self._idle = idle
        self._room = asyncio.Semaphore(size)
        self._closed = False
        self._limits: set[asyncio.Timeout] = set()
        """Of those who have a connection, or wait for one."""
        self._end: float | None = None

    def end_by(self, when: float) -> None:
        """Whoever has a connection then, by the loop's clock, is told that it is gone."""
        self._end = when
        for limit in self._limits:
            limit.reschedule(when)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Connection]:
        """A connection, for a while. One on which something went wrong is not used again."""
        async with asyncio.timeout_at(self._end) as limit:
            self._limits.add(limit)
            try:
                async with self._taken() as db:
                    yield db
            finally:
                self._limits.discard(limit)

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[Connection]:
        async with self._room:
            if self._closed:
                raise Unavailable("the store is closed")
            while self._idle and self._idle[-1].is_closed():
                self._idle.pop()
            db = self._idle.pop() if self._idle else await self._address.connect()
            try:
                yield db
            except CONFUSED as error:
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
                self._back(db)

    def _back(self, db: Connection) -> None:
        if self._closed:
            db.terminate()
        elif not db.is_closed():
            self._idle.append(db)

    async def close(self) -> None:
        self._closed = True
        for db in self._idle:
            with suppress(*GONE, *CONFUSED, asyncpg.PostgresError):
                await db.close(timeout=1.0)
        self._idle.clear()

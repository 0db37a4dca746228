"""Connections to a PostgreSQL database: made when they are needed, kept, and replaced when they break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from dragoman.engine.seams import LeaseLost, NewMail, TaskExists
from dragoman.errors import A2AError, Unavailable

Connection: TypeAlias = asyncpg.Connection
PostgresError = asyncpg.PostgresError

ANSWERS = (A2AError, LeaseLost, NewMail, TaskExists)
"""What work on a connection may raise as its answer. Anything else is a fault."""

GONE = (
    OSError,  # a timeout is one, too
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""The database is away, or is another one now. It may be back in a moment."""

LONGEST = 30.0
"""Seconds after which nobody believes that an answer will come."""

_CACHE = "statement_cache_size"


class Address:
    """A url of a database, as asyncpg takes it, and our own words in it.

    `?statement_cache_size=0` is for a pgbouncer that gives each transaction another connection: nothing is prepared then.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        words = parse_qsl(parts.query, keep_blank_values=True)
        ours = dict(words).get(_CACHE, "100")
        if not ours.isdecimal():
            raise ValueError(f"{_CACHE} is a number")
        self.cache = int(ours)
        rest = [(name, value) for name, value in words if name != _CACHE]
        self.dsn = urlunsplit(parts._replace(query=urlencode(rest, safe="/,:")))

    async def connect(self) -> Connection:
        return await asyncpg.connect(
            self.dsn,
            statement_cache_size=self.cache,
            timeout=LONGEST,
            command_timeout=LONGEST,
            # a pooler in between may not know these
            server_settings={"application_name": "dragoman", "jit": "off"} if self.cache else None,
        )


class Pool:
    def __init__(self, address: Address, size: int) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(size)
        self._closed = False

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Connection]:
        """A connection, for a while. One on which something went wrong is not used again."""
        async with self._room:
            if self._closed:
                raise Unavailable("the store is closed")
            while self._idle and self._idle[-1].is_closed():
                self._idle.pop()
            db = self._idle.pop() if self._idle else await self._address.connect()
            try:
                yield db
            except asyncpg.InterfaceError as error:
                if not db.is_closed():
                    raise
                raise ConnectionResetError("the connection is gone") from error
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
            with suppress(*GONE, asyncpg.PostgresError, asyncpg.InterfaceError):
                await db.close(timeout=1.0)
        self._idle.clear()

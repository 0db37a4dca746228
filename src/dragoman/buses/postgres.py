"""The bus of a PostgreSQL database: NOTIFY says which log to look at, to every node that listens.

A connection does only this: it stays when a pooler shares out all others, and the log's transactions never wait for the
queue of notifications.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from dragoman.buses.relay import Relay
from dragoman.errors import Unavailable
from dragoman.stores.postgres.address import CONFUSED, GONE, Address, Connection, PostgresError

CHANNEL = "dragoman"
_NOTIFY = f"select pg_notify('{CHANNEL}', n) from unnest($1::text[]) as n"
_LAST = 1.0
"""Seconds to pass on what was said before the end."""
_PULSE = 15.0
"""Seconds of silence after which to see whether anybody is there."""

_BROKEN = (*GONE, *CONFUSED, PostgresError)

_log = logging.getLogger("dragoman.buses")


class PostgresBus(Relay):
    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        """`patience` is how long to wait, at the start, for a database that is away."""
        super().__init__()
        self._address = Address(url)
        self._patience = patience
        self._keeper: asyncio.Task[None] | None = None
        self._ending = False

    async def open(self) -> None:
        self._ending = False
        deadline = time.monotonic() + self._patience
        while True:
            try:
                db = await self._connect()
                break
            except _BROKEN as error:
                if time.monotonic() > deadline or not isinstance(error, GONE):
                    raise Unavailable(f"nobody can be told of news: {error}") from error
                await asyncio.sleep(0.1)
        self._keeper = asyncio.create_task(self._keep(db), name="dragoman-bus")
        self._relaying = True

    async def close(self) -> None:
        self._relaying = False
        if self._keeper is not None:
            self._ending = True
            self._news.set()
            await asyncio.wait([self._keeper], timeout=_LAST)
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        await self._local.close()

    async def _connect(self) -> Connection:
        db = await self._address.connect()
        try:
            db.add_termination_listener(lambda _: self._news.set())
            await db.add_listener(CHANNEL, self._hear)
        except BaseException:
            db.terminate()
            raise
        return db

    def _hear(self, db: Connection, sender: int, channel: str, name: Any) -> None:
        if sender != db.get_server_pid():
            self._local.wake(name)

    async def _keep(self, db: Connection) -> None:
        """Pass on what is said here, for as long as we live and whatever happens to the connection."""
        pause = 0.1
        while True:
            try:
                if db is None:
                    db = await self._connect()
                    _log.info("the database is back: everybody looks for what they missed")
                    self._local.wake_all()
                pause = 0.1
                await self._tell(db)
                return
            except _BROKEN as error:
                if pause == 0.1:
                    _log.warning("nobody hears news at the moment: %s", str(error) or type(error).__name__)
            except Exception:
                _log.exception("passing on news failed, and goes on")
            finally:
                if db is not None:
                    db.terminate()
            db = None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _tell(self, db: Connection) -> None:
        """Until we end, or the connection does."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PULSE):
                    await self._news.wait()
            self._news.clear()
            told, self._pending = self._pending, {}
            try:
                await db.execute(_NOTIFY, list(told))
            except BaseException:
                self._pending = told | self._pending
                raise
            if self._ending and not self._pending:
                return

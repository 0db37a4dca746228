"""The bus of a PostgreSQL database: NOTIFY sends topics to every node that listens.

It has a connection of its own, which no pooler may share. So the log's transactions never wait for the queue of notifications.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from dragoman.buses.local import RemoteBus
from dragoman.errors import Unavailable
from dragoman.stores.postgres.address import (
    BROKEN_CONNECTION_ERRORS,
    UNAVAILABLE_ERRORS,
    Connection,
    PostgresAddress,
    PostgresError,
)

CHANNEL = "dragoman"
_NOTIFY = f"select pg_notify('{CHANNEL}', n) from unnest($1::text[]) as n"
_PING_SECONDS = 15.0
"""Without topics to send, after which the connection is checked."""

_BROKEN = (*UNAVAILABLE_ERRORS, *BROKEN_CONNECTION_ERRORS, PostgresError)

_log = logging.getLogger("dragoman.buses")


class PostgresBus(RemoteBus):
    def __init__(self, url: str, *, connect_timeout: float = 5.0) -> None:
        """`connect_timeout`: seconds that `open` waits for a database that does not answer."""
        super().__init__()
        self._address = PostgresAddress(url)
        self._connect_timeout = connect_timeout

    async def open(self) -> None:
        deadline = time.monotonic() + self._connect_timeout
        while True:
            try:
                db = await self._connect()
                break
            except _BROKEN as error:
                if time.monotonic() > deadline or not isinstance(error, UNAVAILABLE_ERRORS):
                    raise Unavailable(f"the bus cannot connect to the database: {error}") from error
                await asyncio.sleep(0.1)
        self._start_sending(self._send_topics(db))

    async def close(self) -> None:
        await self._stop_sending()
        await self._local.close()

    async def _connect(self) -> Connection:
        db = await self._address.connect()
        try:
            db.add_termination_listener(lambda _: self._changed.set())
            await db.add_listener(CHANNEL, self._receive)
        except BaseException:
            db.terminate()
            raise
        return db

    def _receive(self, db: Connection, sender: int, channel: str, name: Any) -> None:
        if sender != db.get_server_pid():
            self._local.wake(name)

    async def _send_topics(self, db: Connection) -> None:
        """Send pending topics until the bus closes. Connects again if the connection breaks."""
        pause = 0.1
        while True:
            try:
                if db is None:
                    db = await self._connect()
                    _log.info("the bus is connected again: every listener reads its log")
                    self._local.wake_all()
                pause = 0.1
                await self._send_on(db)
                return
            except _BROKEN as error:
                if pause == 0.1:
                    _log.warning(
                        "the bus cannot reach other nodes at the moment: %s",
                        str(error) or type(error).__name__,
                    )
            except Exception:
                _log.exception("the bus failed, and continues")
            finally:
                if db is not None:
                    db.terminate()
            db = None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _send_on(self, db: Connection) -> None:
        """Send pending topics until the bus closes or the connection breaks."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PING_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            topics, self._pending = self._pending, {}
            try:
                await db.execute(_NOTIFY, list(topics))
            except BaseException:
                self._pending = topics | self._pending
                raise
            if self._closing and not self._pending:
                return

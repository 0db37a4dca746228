"""The bus of a NATS server: for nodes that say more to each other than a database should carry.

Nothing is kept there. A message is a list of topics to look at, and whoever may have missed one is told to look at
everything.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error

from dragoman.buses.relay import Relay
from dragoman.errors import Unavailable

SUBJECT = "dragoman"
_ALL = "*"
"""Instead of a topic: look at everything."""
_TOGETHER = 200
"""Topics in one message: a server takes up to a megabyte."""
_LAST = 1.0
"""Seconds to pass on what was said before the end."""
_PULSE = 15
"""Seconds between two looks whether anybody is there."""

_BROKEN = (OSError, Error)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode
_log = logging.getLogger("dragoman.buses")


class NatsBus(Relay):
    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        """`nats://host:4222`, or `tls://`; several servers with commas between them; then the subject to speak on, which
        keeps two installations apart: `nats://a,b/shop`. `?credentials=FILE` for those who have one.

        `patience` is how long to wait, at the start, for a server that is away.
        """
        super().__init__()
        self._servers, self._subject, self._options = _address(url)
        self._patience = patience
        self._client = Client()
        self._teller: asyncio.Task[None] | None = None
        self._ending = False
        self._trouble: Exception | None = None

    async def open(self) -> None:
        self._ending, self._client = False, Client()
        try:
            async with asyncio.timeout(self._patience):
                await self._client.connect(
                    self._servers,
                    name="dragoman",
                    no_echo=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    ping_interval=_PULSE,
                    error_cb=self._fails,
                    disconnected_cb=self._lost,
                    reconnected_cb=self._back,
                    **self._options,
                )
                await self._client.subscribe(self._subject, cb=self._hear)
                await self._client.flush()
        except _BROKEN as error:
            await self._leave()
            raise Unavailable(
                f"nobody can be told of news: {self._trouble or error or 'no answer'}"
            ) from error
        self._relaying = True
        self._teller = asyncio.create_task(self._tell(), name="dragoman-bus")

    async def close(self) -> None:
        self._relaying, self._ending = False, True
        if self._teller is not None:
            self._news.set()
            await asyncio.wait([self._teller], timeout=_LAST)
            self._teller.cancel()
            with suppress(asyncio.CancelledError):
                await self._teller
            self._teller = None
            await self._leave()
        await self._local.close()

    async def _leave(self) -> None:
        with suppress(*_BROKEN):
            await self._client.close()

    async def _tell(self) -> None:
        """Pass on what is said here, for as long as we live and whatever happens to the connection."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._client.is_connected:
                told, self._pending = list(self._pending), {}
                try:
                    for i in range(0, len(told), _TOGETHER):
                        await self._client.publish(self._subject, _encode(told[i : i + _TOGETHER]))
                    if self._ending:
                        await self._client.flush(_LAST)  # type: ignore[arg-type]
                except _BROKEN:
                    self._pending = {_ALL: None}
            if self._ending:
                return

    async def _hear(self, message: Msg) -> None:
        try:
            names = _decode(message.data)
        except msgspec.DecodeError:
            _log.warning("somebody speaks of other things on %s", self._subject)
            return
        for name in names:
            if name == _ALL:
                self._local.wake_all()
            else:
                self._local.wake(name)

    async def _fails(self, error: Exception) -> None:
        self._trouble = error

    async def _lost(self) -> None:
        if self._relaying:
            _log.warning("nobody hears news at the moment: %s", self._trouble or "the connection is gone")

    async def _back(self) -> None:
        """What was said meanwhile is lost, here and there."""
        _log.info("the bus is back: everybody looks for what they missed")
        self._local.wake_all()
        self._pending = {_ALL: None}
        self._news.set()


def _address(url: str) -> tuple[list[str], str, dict[str, Any]]:
    """The servers, the subject, and what else to connect with."""
    parts = urlsplit(url)
    subject = parts.path.strip("/") or SUBJECT
    words = dict(parse_qsl(parts.query, keep_blank_values=True))
    credentials = words.pop("credentials", "")
    if words or not parts.hostname or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", subject, re.ASCII):
        raise ValueError("a bus of NATS is nats://host:4222, nats://host/subject, or with ?credentials=FILE")
    servers = [f"{parts.scheme}://{server}" for server in parts.netloc.split(",")]
    return servers, subject, {"user_credentials": credentials} if credentials else {}

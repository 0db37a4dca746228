"""The bus of a NATS server: for nodes that say more to each other than a database should carry.

Nothing is kept there. A message is a list of topics to look at, and whoever may have missed one is told to look at
everything.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, SlowConsumerError

from dragoman.buses.nats_address import Address, Encrypted
from dragoman.buses.relay import Relay
from dragoman.errors import Unavailable, keep_going

_ALL = "*"
"""Instead of a topic: look at everything."""
_TOGETHER = 200
"""Topics in one message: a server takes up to a megabyte."""
_LAST = 1.0
"""Seconds to pass on what was said before the end."""
_PULSE = 15
"""Seconds between two looks whether anybody is there."""
_PAUSE = 1.0
"""Seconds until we ask again to be let in."""

_BROKEN = (OSError, Error)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode
_log = logging.getLogger("dragoman.buses")


class NatsBus(Relay):
    def __init__(self, url: str, *, patience: float = 5.0) -> None:
        """`url` as in `nats_address.py`. `patience` is how long to wait, at the start, for a server that is away."""
        super().__init__()
        self._address = Address(url)
        self._patience = patience
        self._client: Client = Encrypted()
        self._teller: asyncio.Task[None] | None = None
        self._ending = self._missed = False
        self._trouble: Exception | None = None

    async def open(self) -> None:
        self._ending = False
        self._client = await self._connect()
        self._relaying = True
        self._teller = asyncio.create_task(self._tell(), name="dragoman-bus")

    async def _connect(self) -> Client:
        """Raises `Unavailable`."""
        client, self._trouble = Encrypted(), None
        try:
            async with asyncio.timeout(self._patience):
                await client.connect(
                    self._address.servers,
                    name="dragoman",
                    no_echo=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    ping_interval=_PULSE,
                    error_cb=self._fails,
                    disconnected_cb=self._lost,
                    reconnected_cb=self._back,
                    closed_cb=self._closed,
                    **self._address.options,
                )
                self._trouble = None  # with servers before this one
                await client.subscribe(self._address.subject, cb=self._hear)
                await _arrived(client)
            if self._trouble is not None:
                raise self._trouble
        except Exception as error:  # those of its parser, and of files that it reads, are of all kinds
            await _leave(client)
            raise Unavailable(
                f"nobody can be told of news: {self._trouble or str(error) or 'no answer'}"
            ) from error
        except BaseException:
            await _leave(client)
            raise
        return client

    async def close(self) -> None:
        self._relaying, self._ending = False, True
        if self._teller is not None:
            self._news.set()
            await asyncio.wait([self._teller], timeout=_LAST)
            self._teller.cancel()
            with suppress(asyncio.CancelledError):
                await self._teller
            self._teller = None
            await _leave(self._client)
        await self._local.close()

    async def _tell(self) -> None:
        """Pass on what is said here, for as long as we live and whatever happens to the connection."""
        while True:
            await self._news.wait()
            self._news.clear()
            told = False
            with keep_going(_log, "passing on news"):
                await self._publish()
                told = True
            if self._ending:
                return
            if not told:
                self._pending = {_ALL: None}
                await asyncio.sleep(_PAUSE)
                self._news.set()

    async def _publish(self) -> None:
        if self._client.is_closed and not self._ending:
            await self._again()
        if self._client.is_connected:
            told, self._pending = list(self._pending), {}
            try:
                for i in range(0, len(told), _TOGETHER):
                    await self._client.publish(self._address.subject, _encode(told[i : i + _TOGETHER]))
                if self._ending:
                    await _arrived(self._client)
            except _BROKEN:
                self._pending = {_ALL: None}

    async def _again(self) -> None:
        """The library gives up for good when a server shows us the door. We do not: it may let us in later."""
        while not self._ending:
            with suppress(Unavailable):
                self._client = await self._connect()
                await self._back()
                return
            await asyncio.sleep(_PAUSE)

    async def _hear(self, message: Msg) -> None:
        try:
            names = _decode(message.data)
        except msgspec.DecodeError:
            _log.warning("somebody speaks of other things on %s", self._address.subject)
            return
        for name in names:
            if name == _ALL:
                self._local.wake_all()
            else:
                self._local.wake(name)
        if self._missed:
            self._missed = False
            self._local.wake_all()

    async def _fails(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):  # more was said than we could hear
            self._missed = True
        elif (
            self._relaying
            and "permissions violation" in str(error).lower()
            and str(error) != str(self._trouble)
        ):
            _log.warning("nobody hears our news: %s", error)
        self._trouble = error

    async def _lost(self) -> None:
        if self._relaying:
            _log.warning("nobody hears news at the moment: %s", self._trouble or "the connection is gone")

    async def _closed(self) -> None:
        self._news.set()

    async def _back(self) -> None:
        """What was said meanwhile is lost, here and there."""
        _log.info("the bus is back: everybody looks for what they missed")
        self._local.wake_all()
        self._pending = {_ALL: None}
        self._news.set()


async def _arrived(client: Client) -> None:
    """Wait until the server has heard all that was said to it. `flush` alone asks past what is still on its way."""
    while client.pending_data_size and client.is_connected:  # noqa: ASYNC110 (it has no event for that)
        await asyncio.sleep(0)
    await client.flush()


async def _leave(client: Client) -> None:
    with suppress(*_BROKEN, AssertionError):  # it may not even have begun
        await client.close()

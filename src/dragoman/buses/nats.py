"""The bus of a NATS server: for nodes that send more topics than a database should carry.

NATS stores nothing. A message is a list of topics. A node that may have missed one wakes all its listeners.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, SlowConsumerError

from dragoman.buses.local import WAKE_ALL, RemoteBus
from dragoman.errors import Unavailable, keep_going

DEFAULT_SUBJECT = "dragoman"
_URL_HELP = "a bus of NATS is nats://host:4222, nats://host/subject, or with ?credentials=FILE"
_TOPICS_PER_MESSAGE = 200
"""A server takes up to a megabyte."""
_PING_SECONDS = 15
_RECONNECT_SECONDS = 1.0
"""Between two tries to connect again after the server refused us."""

_BROKEN = (OSError, Error)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode
_log = logging.getLogger("dragoman.buses")


class NatsBus(RemoteBus):
    def __init__(self, url: str, *, connect_timeout: float = 5.0) -> None:
        """`url` as for `NatsAddress`. `connect_timeout`: seconds that `open` waits for a server that does not answer."""
        super().__init__()
        self._address = NatsAddress(url)
        self._connect_timeout = connect_timeout
        self._client: Client = TlsClient()
        self._missed = False
        self._last_error: Exception | None = None

    async def open(self) -> None:
        self._closing = False
        self._client = await self._connect()
        self._start_sending(self._send_topics())

    async def _connect(self) -> Client:
        """Raises `Unavailable`."""
        client, self._last_error = TlsClient(), None
        try:
            async with asyncio.timeout(self._connect_timeout):
                await client.connect(
                    self._address.servers,
                    name="dragoman",
                    no_echo=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    ping_interval=_PING_SECONDS,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnect,
                    reconnected_cb=self._on_reconnect,
                    closed_cb=self._on_close,
                    **self._address.options,
                )
                self._last_error = None  # of servers before this one
                await client.subscribe(self._address.subject, cb=self._receive)
                await _flush(client)
            if self._last_error is not None:
                raise self._last_error
        except Exception as error:  # its parser, and the files that it reads, raise errors of all kinds
            await _close(client)
            raise Unavailable(
                f"the bus cannot connect to NATS: {self._last_error or str(error) or 'no answer'}"
            ) from error
        except BaseException:
            await _close(client)
            raise
        return client

    async def close(self) -> None:
        opened = self._sender is not None
        await self._stop_sending()
        if opened:
            await _close(self._client)
        await self._local.close()

    async def _send_topics(self) -> None:
        """Send pending topics until the bus closes, whatever happens to the connection."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            sent = False
            with keep_going(_log, "sending topics to NATS"):
                await self._publish()
                sent = True
            if self._closing:
                return
            if not sent:
                self._pending = {WAKE_ALL: None}
                await asyncio.sleep(_RECONNECT_SECONDS)
                self._changed.set()

    async def _publish(self) -> None:
        if self._client.is_closed and not self._closing:
            await self._reconnect()
        if self._client.is_connected:
            topics, self._pending = list(self._pending), {}
            try:
                for i in range(0, len(topics), _TOPICS_PER_MESSAGE):
                    await self._client.publish(
                        self._address.subject, _encode(topics[i : i + _TOPICS_PER_MESSAGE])
                    )
                if self._closing:
                    await _flush(self._client)
            except _BROKEN:
                self._pending = {WAKE_ALL: None}

    async def _reconnect(self) -> None:
        """Connect again after the server refused us. The library gives up then, but the server may accept us later."""
        while not self._closing:
            with suppress(Unavailable):
                self._client = await self._connect()
                await self._on_reconnect()
                return
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _receive(self, message: Msg) -> None:
        try:
            names = _decode(message.data)
        except msgspec.DecodeError:
            _log.warning("ignored a message that is not ours on the subject %s", self._address.subject)
            return
        self._receive_topics(names)
        if self._missed:
            self._missed = False
            self._local.wake_all()

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):  # messages came faster than we read them
            self._missed = True
        elif (
            self._relaying
            and "permissions violation" in str(error).lower()
            and str(error) != str(self._last_error)
        ):
            _log.warning("NATS does not let the bus send: %s", error)
        self._last_error = error

    async def _on_disconnect(self) -> None:
        if self._relaying:
            _log.warning(
                "the bus cannot reach other nodes at the moment: %s",
                self._last_error or "the connection is gone",
            )

    async def _on_close(self) -> None:
        self._changed.set()

    async def _on_reconnect(self) -> None:
        """Wake everybody: messages sent meanwhile are lost."""
        _log.info("the bus is connected again: every listener reads its log")
        self._local.wake_all()
        self._pending = {WAKE_ALL: None}
        self._changed.set()


async def _flush(client: Client) -> None:
    """Wait until the server has everything that we published. `flush` alone does not wait for what is still buffered."""
    while client.pending_data_size and client.is_connected:  # noqa: ASYNC110 (it has no event for that)
        await asyncio.sleep(0)
    await client.flush()


async def _close(client: Client) -> None:
    with suppress(*_BROKEN, AssertionError):  # it may not have started
        await client.close()


class NatsAddress:
    """`nats://host:4222` or `tls://host`; several servers with commas between them; then the subject, which separates two
    installations: `nats://a,b/shop`. `?credentials=FILE` names a credentials file.

    The user and password are sent to every server, also to those that a cluster announces.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            words = dict(parse_qsl(parts.query, keep_blank_values=True))
            users, hosts = zip(*map(_split_user, parts.netloc.split(",")), strict=True)
            ports = [urlsplit(f"//{host}").port for host in hosts]
        except ValueError:  # its text may show the url, with a password in it
            raise ValueError(_URL_HELP) from None
        self.subject = parts.path.strip("/") or DEFAULT_SUBJECT
        self.servers = [f"{parts.scheme}://{host}" for host in hosts]
        self.options: dict[str, Any] = _identity({*users} - {""})
        if credentials := words.pop("credentials", ""):
            if find_spec("nkeys") is None:
                raise ValueError("credentials of NATS need an extra: pip install 'nats-py[nkeys]'")
            self.options["user_credentials"] = credentials
        named = re.fullmatch(r"[\w-]+(\.[\w-]+)*", self.subject, re.ASCII)
        if (
            words
            or parts.fragment
            or not named
            or 0 in ports
            or not all(urlsplit(f"//{host}").hostname for host in hosts)
        ):
            raise ValueError(_URL_HELP)


def _split_user(text: str) -> tuple[str, str]:
    user, _, host = text.rpartition("@")
    return user, host


def _identity(users: set[str]) -> dict[str, str]:
    if not users:
        return {}
    if len(users) > 1:
        raise ValueError("all servers of a NATS bus take the same user and password")
    user, colon, password = users.pop().partition(":")
    if not colon:
        return {"token": unquote(user)}
    return {"user": unquote(user), "password": unquote(password)}


class TlsClient(Client):
    """A client that requires TLS for `tls://`. The library only asks for it, and lets the server decide."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server is not None and server.uri.scheme == "tls":
            if not (info.get("tls_required") or info.get("tls_available")):
                raise Error("the server does not speak TLS")
            info["tls_required"] = True  # before we send the password
        await super()._process_info(info, initial_connection)

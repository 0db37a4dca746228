"""A `Service` over gRPC, 1.0 or 0.3.

Nothing is repeated or resumed here: `resume.py` does that for every binding. To our own servers we say that we
understand the numbers of events, and they come behind each event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

from grpc import StatusCode, aio

from dragoman.client.authorize import Authorized
from dragoman.client.credentials import Outgoing
from dragoman.client.transport.grpc_channel import open_channel
from dragoman.client.transport.http_exchange import UNARY, headers_of
from dragoman.client.transport.network import AddressGuard, reason
from dragoman.client.transport.transport import NotSent
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.proto import v0_3, v1_0
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.proto.messages import Numbered
from dragoman.dialects.proto.status import DETAILS, read_status
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    InvalidParams,
    Unauthenticated,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model.ops import (
    STREAM,
    SUBSCRIBE,
    Batch,
    Call,
    Op,
    Request,
    SendMessage,
    StreamResponse,
    SubscribeToTask,
)

_CODECS: dict[str, Codec] = {codec.name: codec for codec in (v1_0.CODEC, v0_3.CODEC)}
_HTTP_ONLY = frozenset({"Content-Type", "Accept"})
_RESOLVE_SECONDS = 10.0
_PROBE = "/grpc.health.v1.Health/Check"
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed", "Name or service not known")
_BROKEN_OFF = ("RST_STREAM", "Stream removed", "Connection reset", "GOAWAY")


class Grpc:
    """Speaks one version to one server. After `silence` seconds without an event, a stream is asked whether it lives."""

    def __init__(
        self, transport: Authorized, url: str, dialect: Dialect, *, silence: float | None = None
    ) -> None:
        self.url = url
        self.dialect = dialect
        self.ours = False
        """A Dragoman server: it continues a stream after an event, and knows a repeated idempotency key."""
        self._transport = transport
        self._codec = _CODECS[dialect.name]
        self._silence = silence
        self._probe_timeout = 10.0
        self._addresses: tuple[str, ...] = ()
        """What the guard allowed when the channel was opened."""
        self._recheck = True
        """Ask the guard before the next call: there is no channel yet, or its addresses did not answer."""
        self._channels: WeakSet[aio.Channel] = WeakSet()
        """A channel that nobody uses any more closes by itself."""
        transport.also_close(self._close)
        self._channel = self._open() if transport.guard is None else None

    def _open(self) -> aio.Channel:
        transport = self._transport
        channel = open_channel(
            self.url,
            tls=transport.tls,
            proxy=transport.proxy,
            certificate=transport.certificate_for(self.url),
            addresses=self._addresses,
        )
        self._channels.add(channel)
        return channel

    async def _close(self) -> None:
        for channel in list(self._channels):
            await channel.close()

    async def _ready(self) -> aio.Channel:
        """The channel, to addresses that the guard allows. Raises `NotSent`."""
        guard = self._transport.guard
        if guard is not None and (self._recheck or self._channel is None):
            allowed = await self._allowed(guard)
            if self._channel is None or allowed != self._addresses:
                self._addresses = allowed
                self._channel = self._open()
            self._recheck = False
        assert self._channel is not None
        return self._channel

    async def _allowed(self, guard: AddressGuard) -> tuple[str, ...]:
        parts = urlsplit(self.url)
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                found = await guard.addresses(parts.hostname or "", parts.port or 443)
        except TimeoutError as error:
            raise NotSent(f"cannot reach {self.url}: no address within {_RESOLVE_SECONDS:g} s") from error
        except OSError as error:
            raise NotSent(f"cannot reach {self.url}: {reason(error)}") from error
        except ValueError as error:  # a name that no resolver takes
            raise NotSent(f"cannot reach {self.url}: {error}") from error
        if not found:
            raise NotSent(f"cannot reach {self.url}: its host has no address")
        return tuple(sorted(found))

    async def call(self, call: Call, request: Request) -> Any:
        op = UNARY[type(request)]
        method, body, plain = self._method(op), self._codec.write_request(op, request), self._plain(call)
        shown = await self._transport.shown(plain)
        try:
            answer = await self._ask(method, body, shown)
        except Unauthenticated:
            if (again := await self._transport.renewed(plain, shown)) is None:
                raise
            answer = await self._ask(method, body, again)
        return self._codec.read_result(op, answer)

    async def _ask(self, method: str, body: bytes, shown: Outgoing) -> bytes:
        channel = await self._ready()
        rpc = channel.unary_unary(method)(body, metadata=_metadata(shown))
        try:
            answer: bytes = await rpc
        except aio.AioRpcError as error:
            raise self._error(error) from error
        self._learn(await rpc.trailing_metadata())
        return answer

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        op = SUBSCRIBE if isinstance(request, SubscribeToTask) else STREAM
        method, body, plain = self._method(op), self._codec.write_request(op, request), self._plain(call)
        channel = await self._ready()
        shown = await self._transport.shown(plain)
        rpc = channel.unary_stream(method)(body, metadata=_metadata(shown))
        try:
            try:
                message = await self._hear(rpc, channel)
            except Unauthenticated:
                if (again := await self._transport.renewed(plain, shown)) is None:
                    raise
                rpc = channel.unary_stream(method)(body, metadata=_metadata(again))
                message = await self._hear(rpc, channel)
            self._learn(await rpc.initial_metadata())
            while message is not None:
                seq = Numbered.FromString(message).seq if self.ours else 0
                yield [StreamResponse(self._codec.read_event(message), seq)]
                message = await self._hear(rpc, channel)
        finally:
            rpc.cancel()

    async def _hear(self, rpc: Any, channel: aio.Channel) -> bytes | None:
        """The next message; None at the end of the stream."""
        reading = asyncio.ensure_future(rpc.read())
        try:
            # A timeout would end the call, so we wait beside it.
            while not (await asyncio.wait((reading,), timeout=self._silence))[0]:
                if not await self._lives(channel):
                    if channel is self._channel:  # whoever still hears something over the old one may keep it
                        self._channel = self._open()
                    raise Unreachable(f"nothing was heard from {self.url} for {self._silence:g} s")
            message = reading.result()
        except aio.AioRpcError as error:
            raise self._error(error) from error
        finally:
            reading.cancel()
        return None if message is aio.EOF else message

    async def _lives(self, channel: aio.Channel) -> bool:
        """Whether the server answers at all. Streams are silent while nothing happens, and pings are not ours to see."""
        try:
            await channel.unary_unary(_PROBE)(b"", timeout=self._probe_timeout)
        except aio.AioRpcError as error:
            return error.code() not in (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED)
        return True

    def _method(self, op: Op) -> str:
        name = self._codec.methods.get(op)
        if name is None:
            raise UnsupportedOperation(f"this agent speaks A2A {self._codec.version}, which has no {op.name}")
        return f"/{self._codec.service}/{name}"

    def _plain(self, call: Call) -> Outgoing:
        """What a call says beside its message, without a credential."""
        headers = headers_of(call, self.dialect, "")
        return Outgoing(self.url, {n: value for n, value in headers.items() if n not in _HTTP_ONLY})

    def _learn(self, metadata: Mapping[str, Any] | None) -> None:
        if metadata is not None and "dragoman" in metadata:
            self.ours = True

    def _error(self, error: aio.AioRpcError) -> A2AError:
        trailers = error.trailing_metadata()
        self._learn(trailers)
        details = (trailers.get(DETAILS) if trailers is not None else None) or b""
        code, text = error.code().name, error.details() or ""
        if details:
            return read_status(code, text, details)
        if code == "UNAVAILABLE" and any(words in text for words in _NEVER_SENT):
            self._recheck = True
            return NotSent(f"{self.url} cannot be reached: {text}")
        if "larger than max" in text:
            return (InvalidParams if "SERVER" in text else InvalidAgentResponse)(f"{self.url}: {text}")
        if code in ("INTERNAL", "UNKNOWN") and any(words in text for words in _BROKEN_OFF):
            return Unreachable(f"{self.url} broke off: {text}")
        said = read_status(code, text)
        return Unreachable(f"{self.url}: {text}") if type(said) is Unreachable else said


def _metadata(shown: Outgoing) -> tuple[tuple[str, str], ...]:
    return (*((name.lower(), value) for name, value in shown.headers.items()), ("dragoman", "1"))

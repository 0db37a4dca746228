"""A `Service` over gRPC, 1.0 or 0.3.

Nothing is repeated or resumed here: `resumable_stream.py` does that for every binding. A Dragoman server gets the metadata
`dragoman`, and then adds its number to each event.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import grpc
from grpc import StatusCode, aio

from dragoman.client.authorize import AuthorizedTransport
from dragoman.client.credentials import ClientCertificate, Outgoing
from dragoman.client.transport.http_exchange import UNARY, write_headers
from dragoman.client.transport.network import LOOPBACK_HOSTS, AddressGuard, AddressRefused, describe_os_error
from dragoman.client.transport.tap import END, MESSAGE, REQUEST, RESPONSE, Tap, new_request, report
from dragoman.client.transport.transport import MAX_BODY_BYTES, AddressBlocked, ConnectFailed, NotSent
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.proto import v0_3, v1_0
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.proto.extensions import METHOD, SERVICE, read_body, write_body
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
    ExtensionCall,
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
_NOT_SENT_TEXTS = ("failed to connect to all addresses", "DNS resolution failed", "Name or service not known")
_BROKEN_TEXTS = ("RST_STREAM", "Stream removed", "Connection reset", "GOAWAY")


class Grpc:
    """A `Service` in one version at one server. After `silence` seconds without an event the server is probed."""

    def __init__(
        self, transport: AuthorizedTransport, url: str, dialect: Dialect, *, silence: float | None = None
    ) -> None:
        self.url = url
        self.dialect = dialect
        self.is_dragoman = False
        """A Dragoman server: it continues a stream after an event, and recognizes a repeated idempotency key."""
        self._transport = transport
        self._codec = _CODECS[dialect.name]
        self._silence = silence
        self._probe_timeout = 10.0
        self._addresses: tuple[str, ...] = ()
        """Those that the guard allowed when the channel was opened."""
        self._recheck = True
        """Ask the guard before the next call: there is no channel yet, or its addresses did not answer."""
        self._channels: WeakSet[aio.Channel] = WeakSet()
        """A channel that is no longer used closes by itself."""
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

    async def _open_allowed(self) -> aio.Channel:
        """The channel, to addresses that the guard allows. Raises `NotSent`."""
        guard = self._transport.guard
        if guard is not None and (self._recheck or self._channel is None):
            allowed = await self._allowed_addresses(guard)
            if self._channel is None or allowed != self._addresses:
                self._addresses = allowed
                self._channel = self._open()
            self._recheck = False
        assert self._channel is not None
        return self._channel

    async def _allowed_addresses(self, guard: AddressGuard) -> tuple[str, ...]:
        parts = urlsplit(self.url)
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                found = await guard.addresses(parts.hostname or "", parts.port or 443)
        except TimeoutError as error:
            raise NotSent(f"cannot reach {self.url}: no address within {_RESOLVE_SECONDS:g} s") from error
        except AddressRefused as error:
            raise AddressBlocked(f"cannot reach {self.url}: {error}") from error
        except OSError as error:
            raise NotSent(f"cannot reach {self.url}: {describe_os_error(error)}") from error
        except ValueError as error:  # not a name that can be resolved
            raise NotSent(f"cannot reach {self.url}: {error}") from error
        if not found:
            raise NotSent(f"cannot reach {self.url}: its host has no address")
        return tuple(sorted(found))

    async def _call_method(self, call: Call, request: ExtensionCall) -> Any:
        """Call a method that an extension of the agent adds."""
        document = {"method": request.method, "params": request.params, "tenant": request.tenant}
        sent = await self._transport.add_credential(self._plain(call))
        channel = await self._open_allowed()
        rpc = channel.unary_unary(f"/{SERVICE}/{METHOD}")(write_body(document), metadata=_metadata(sent))
        try:
            answer: bytes = await rpc
        except aio.AioRpcError as error:
            raise self._error(error) from error
        return read_body(answer).get("result")

    async def call(self, call: Call, request: Request) -> Any:
        if isinstance(request, ExtensionCall):
            return await self._call_method(call, request)
        op = UNARY[type(request)]
        method, body, plain = self._method(op), self._codec.write_request(op, request), self._plain(call)
        sent = await self._transport.add_credential(plain)
        try:
            answer = await self._ask(op, method, body, sent)
        except Unauthenticated:
            if (again := await self._transport.renew_credential(plain, sent)) is None:
                raise
            answer = await self._ask(op, method, body, again)
        return self._codec.read_result(op, answer)

    async def _ask(self, op: Op, method: str, body: bytes, sent: Outgoing) -> bytes:
        channel = await self._open_allowed()
        shown = await self._show_request(op, method, body, sent)
        rpc = channel.unary_unary(method)(body, metadata=_metadata(sent))
        try:
            answer: bytes = await rpc
        except aio.AioRpcError as error:
            await shown.end(error)
            raise self._error(error) from error
        await shown.message(self._codec.results[op], answer, await rpc.initial_metadata())
        await shown.end()
        self._learn(await rpc.trailing_metadata())
        return answer

    async def _show_request(self, op: Op, method: str, body: bytes, sent: Outgoing) -> _Shown:
        """Show a request to the tap, if there is one. Returns what shows its answer."""
        shown = _Shown(self._transport.tap, self._codec)
        if shown.tap is not None:
            text, headers = self._codec.show(self._codec.requests[op], body), dict(_metadata(sent))
            await report(
                shown.tap,
                shown.n,
                REQUEST,
                sent=True,
                method=method,
                url=self.url,
                headers=headers,
                body=text,
            )
        return shown

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        op = SUBSCRIBE if isinstance(request, SubscribeToTask) else STREAM
        method, body, plain = self._method(op), self._codec.write_request(op, request), self._plain(call)
        channel = await self._open_allowed()
        sent = await self._transport.add_credential(plain)
        shown = await self._show_request(op, method, body, sent)
        rpc = channel.unary_stream(method)(body, metadata=_metadata(sent))
        try:
            try:
                message = await self._receive(rpc, channel, shown)
            except Unauthenticated:
                if (again := await self._transport.renew_credential(plain, sent)) is None:
                    raise
                shown = await self._show_request(op, method, body, again)
                rpc = channel.unary_stream(method)(body, metadata=_metadata(again))
                message = await self._receive(rpc, channel, shown)
            initial = await rpc.initial_metadata()
            self._learn(initial)
            while message is not None:
                await shown.message(self._codec.event, message, initial)
                seq = Numbered.FromString(message).seq if self.is_dragoman else 0
                yield [StreamResponse(self._codec.read_event(message), seq)]
                message = await self._receive(rpc, channel, shown)
            await shown.end()
        finally:
            rpc.cancel()

    async def _receive(self, rpc: Any, channel: aio.Channel, shown: _Shown) -> bytes | None:
        """The next message; None at the end of the stream."""
        reading = asyncio.ensure_future(rpc.read())
        try:
            # A timeout would end the call, so we wait beside it.
            while not (await asyncio.wait((reading,), timeout=self._silence))[0]:
                if not await self._is_alive(channel):
                    # Calls that still receive something over the old channel may keep it.
                    if channel is self._channel:
                        self._channel = self._open()
                    raise Unreachable(f"nothing came from {self.url} for {self._silence:g} s")
            message = reading.result()
        except aio.AioRpcError as error:
            await shown.end(error)
            raise self._error(error) from error
        finally:
            reading.cancel()
        return None if message is aio.EOF else message

    async def _is_alive(self, channel: aio.Channel) -> bool:
        """True if the server answers at all. A stream is silent while nothing happens, and gRPC does not show pings."""
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
        """The headers of a call, without a credential."""
        headers = write_headers(call, self.dialect, "")
        return Outgoing(self.url, {n: value for n, value in headers.items() if n not in _HTTP_ONLY})

    def _learn(self, metadata: Mapping[str, Any] | None) -> None:
        if metadata is not None and "dragoman" in metadata:
            self.is_dragoman = True

    def _error(self, error: aio.AioRpcError) -> A2AError:
        trailers = error.trailing_metadata()
        self._learn(trailers)
        details = (trailers.get(DETAILS) if trailers is not None else None) or b""
        code, text = error.code().name, error.details() or ""
        if details:
            return read_status(code, text, details)
        if code == "UNAVAILABLE" and any(words in text for words in _NOT_SENT_TEXTS):
            self._recheck = True
            return ConnectFailed(f"{self.url} cannot be reached: {text}")
        if "larger than max" in text:
            return (InvalidParams if "SERVER" in text else InvalidAgentResponse)(f"{self.url}: {text}")
        if code in ("INTERNAL", "UNKNOWN") and any(words in text for words in _BROKEN_TEXTS):
            return Unreachable(f"{self.url} broke off: {text}")
        read = read_status(code, text)
        return Unreachable(f"{self.url}: {text}") if type(read) is Unreachable else read


class _Shown:
    """One gRPC call, as a tap sees it. Without a tap nothing happens."""

    def __init__(self, tap: Tap | None, codec: Codec) -> None:
        self.tap, self._codec = tap, codec
        self.n = new_request() if tap is not None else 0
        self._begun = False

    async def message(self, kind: Any, body: bytes, metadata: Any) -> None:
        if self.tap is None:
            return
        if not self._begun:
            self._begun = True
            await report(self.tap, self.n, RESPONSE, status=0, headers=_texts(metadata))
        await report(self.tap, self.n, MESSAGE, body=self._codec.show(kind, body))

    async def end(self, error: aio.AioRpcError | None = None) -> None:
        if self.tap is None:
            return
        why = f"{error.code().name}: {error.details() or ''}" if error is not None else ""
        headers = _texts(error.trailing_metadata()) if error is not None else {}
        await report(self.tap, self.n, END, error=why, headers=headers)


def _texts(metadata: Any) -> dict[str, str]:
    """Metadata that is text. Binary metadata is shown by its size."""
    return {
        str(name): value if isinstance(value, str) else f"({len(value)} bytes)"
        for name, value in (metadata or ())
    }


def _metadata(sent: Outgoing) -> tuple[tuple[str, str], ...]:
    return (*((name.lower(), value) for name, value in sent.headers.items()), ("dragoman", "1"))


_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_BODY_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # or a new channel would reuse the dead connection of another
    # The caller decides how long to wait before the next attempt; the channel has to be ready then.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def open_channel(
    url: str,
    *,
    tls: ssl.SSLContext | None = None,
    proxy: str | None = None,
    certificate: ClientCertificate | None = None,
    addresses: Sequence[str] = (),
) -> aio.Channel:
    """`grpc://host:port` has no TLS, `grpcs://host:port` has. `tls` has the trusted authorities, `certificate` is ours.

    `proxy` overrides the one of the environment, as over HTTP: "" means none, and none is used for loopback.
    `addresses`: connect to these, without a proxy and without a look-up. TLS still checks the name in `url`.
    """
    parts = urlsplit(url)
    options: list[tuple[str, Any]] = list(_OPTIONS)
    target = f"dns:///{parts.netloc}"  # or a host that is called "unix" would be a file
    if addresses:
        target = _target_of_addresses(addresses, parts.port or 443)
        options += [("grpc.enable_http_proxy", 0), ("grpc.default_authority", parts.netloc)]
        if parts.scheme == "grpcs":
            options.append(("grpc.ssl_target_name_override", parts.hostname))
    elif proxy:
        options.append(("grpc.http_proxy", proxy))
    elif proxy == "" or parts.hostname in LOOPBACK_HOSTS:
        options.append(("grpc.enable_http_proxy", 0))
    if parts.scheme == "grpc":
        return aio.insecure_channel(target, options=options)
    return aio.secure_channel(target, _credentials(tls, certificate), options=options)


def _target_of_addresses(addresses: Sequence[str], port: int) -> str:
    """A target that needs no look-up. A target has one address family, so IPv4 among IPv6 is written as IPv6."""
    parsed = [ip_address(each) for each in addresses]
    if all(each.version == 4 for each in parsed):
        return "ipv4:" + ",".join(f"{each}:{port}" for each in parsed)
    written = (f"::ffff:{each}" if each.version == 4 else str(each) for each in parsed)
    return "ipv6:" + ",".join(f"[{each}]:{port}" for each in written)


def _credentials(tls: ssl.SSLContext | None, certificate: ClientCertificate | None) -> Any:
    key = chain = None
    if certificate is not None:
        if certificate.password is not None:
            raise ValueError("over gRPC the key of a client certificate must not need a password")
        chain = Path(certificate.certificate).read_bytes()
        key = Path(certificate.key).read_bytes() if certificate.key else chain
    return grpc.ssl_channel_credentials(_roots(tls), key, chain)


def _roots(tls: ssl.SSLContext | None) -> bytes | None:
    """The authorities that a context trusts, as PEM; None for the default ones."""
    if tls is None:
        return None
    if tls.verify_mode is not ssl.CERT_REQUIRED:
        raise ValueError("gRPC always checks the server's certificate: trust its authority instead")
    trusted = tls.get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, trusted)).encode() or None

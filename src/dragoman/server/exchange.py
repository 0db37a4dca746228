"""One HTTP request and its response, in bytes: what every binding is given.

A response is complete (`respond`), large (`respond_large`), or a stream (`Streams.serve`). A client may leave before it has
its response: `Waits` stops waiting for an answer that nobody reads, and a stream ends. Tasks go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    MutableMapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs

from dragoman.dialects.sse import KEEP_ALIVE, MEDIA_TYPE
from dragoman.errors import InvalidRequest, Unavailable
from dragoman.model.byte_budget import LARGE_BYTES, ByteBudget
from dragoman.model.card import Interface
from dragoman.model.ops import Principal
from dragoman.server.address import Address
from dragoman.server.limits import Limits, TaskTimeout, Timeout
from dragoman.server.mount import ANONYMOUS, Header, Mount, client_certificate

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")
E = TypeVar("E", contravariant=True)

_PIECE_BYTES = 256 << 10
"""Of a large response, written at a time."""
WATCH_SECONDS = 2.0
"""After this time we watch whether a client that waits for an answer disconnects. Most answers come before."""

JSON: Header = (b"content-type", b"application/json")
DIRECT = "dragoman.direct"
"""The ASGI extension of our own server: a short path for complete requests and responses."""


class Direct(Protocol):
    """A short path for requests that have arrived and responses that are complete (`http1/protocol.py`)."""

    half_closed: bool
    """The client sends nothing more. Only writing shows whether it still reads."""
    gone: bool
    """The client has disconnected."""
    on_gone: Callable[[], object] | None
    """Called when the client disconnects."""

    def body(self) -> bytes | None:
        """The complete body, once; None if it has not arrived."""
        ...

    def respond(self, status: int, headers: Sequence[Header], body: bytes, length: int | None) -> bool:
        """Write a response; `length` is its content-length. False: not possible now, and nothing was written."""
        ...

    def start(self, status: int, headers: list[Header]) -> bool:
        """Begin a response in pieces; names of headers are lower case. False as for `respond`."""
        ...

    def write(self, body: bytes, *, more: bool) -> bool:
        """Write a piece of it; `more` follow. False: not possible now, because the client does not read."""
        ...

    def mark_slow(self) -> None:
        """The response takes long: a client that closes its side from now on has given up."""
        ...


class TooLarge(InvalidRequest):
    http = 413


class TooSlow(InvalidRequest):
    http = 408


class Disconnected(Exception):
    """The client left: nobody reads a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all exchanges of an application share."""

    limits: Limits
    address: Address
    body_timeout: TaskTimeout
    waits: Waits
    streams: Streams
    bodies: ByteBudget
    """Of large request bodies that are being read."""
    large_answers: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a large answer is written."""
    interfaces: Callable[[Mount, str], Sequence[Interface]]
    """The interfaces of a mount's agent, for its card; the URL is that of the mount."""


class Exchange:
    """A request to read and a response to write."""

    __slots__ = ("always", "direct", "headers", "method", "path", "receive", "responding", "scope", "send",
                 "shared")  # fmt: skip

    def __init__(self, scope: AsgiScope, receive: Receive, send: Send, path: str, shared: Shared) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.path = path
        """Below the application, whatever it is mounted in."""
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        """By lower-case name; of a repeated header, the last line."""
        self.shared = shared
        self.responding = False
        self.always: Sequence[Header] = ()
        """Headers of every response that does not set them itself."""
        extensions = scope.get("extensions")
        self.direct: Direct | None = extensions.get(DIRECT) if extensions else None

    def header(self, name: bytes) -> str:
        value = self.headers.get(name)
        return value.decode("latin-1").strip() if value else ""

    def listed(self, *names: bytes) -> tuple[str, ...]:
        """The members of comma-separated headers, over all their lines, each once."""
        if not any(name in self.headers for name in names):
            return ()
        lines = [value.decode("latin-1") for name, value in self.scope["headers"] if name in names]
        return tuple(
            dict.fromkeys(item.strip() for line in lines for item in line.split(",") if item.strip())
        )

    def version(self) -> str:
        """`A2A-Version`, from the header or the query; empty if there is none."""
        value = self.headers.get(b"a2a-version")
        asked = value.decode("latin-1").strip() if value else ""
        if asked and len(self.headers) != len(self.scope["headers"]):
            return ", ".join(self.listed(b"a2a-version"))  # two versions are not supported
        if not asked and b"a2a-version" in (query := self.scope.get("query_string", b"")).lower():
            values = {name.lower(): value for name, value in parse_qs(query.decode("latin-1")).items()}
            asked = values.get("a2a-version", [""])[-1]
        return asked

    async def principal(self, mount: Mount) -> Principal:
        """Who is calling. Raises `Unauthenticated` or `Forbidden`."""
        if mount.authenticator is None:
            return ANONYMOUS
        headers: dict[str, str] = {}
        for name, value in self.scope["headers"]:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return await mount.authenticator.authenticate(
            headers,
            query=self.scope.get("query_string", b"").decode("latin-1"),
            certificate=client_certificate(self.scope),
        )

    async def card_reader(self, mount: Mount) -> Principal:
        """Who is calling. Raises `Unauthenticated` or `Forbidden` if they may not read a private card."""
        principal = await self.principal(mount)
        if mount.check_reader is not None:
            mount.check_reader(principal)
        return principal

    def base_url(self) -> str:
        """The URL under which the client sees the application; no slash at its end."""
        return self.shared.address.base_url(self.scope, self.headers)

    @property
    def local(self) -> bool:
        """True for requests from this machine or this process."""
        client = self.scope.get("client")
        return client is None or client[0] in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "testclient")

    async def body(self) -> bytes:
        """The complete request body. Raises `TooLarge`, `TooSlow` or `Disconnected`.

        A large one waits here until there is memory for it.
        """
        limit = self.shared.limits.max_body
        declared = self.headers.get(b"content-length", b"0")
        if not declared.isdigit():
            declared = declared.strip(b" \t")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > limit:
            raise self._too_large()
        body = self.direct.body() if self.direct is not None else None
        if body is None:
            try:
                with self.shared.body_timeout:
                    body = await self._receive_body(limit)
            except TimeoutError:
                raise TooSlow("the request body did not arrive in time") from None
        if len(body) > limit:
            raise self._too_large()
        if len(body) >= LARGE_BYTES:
            await self.shared.bodies.hold(len(body))
        return body

    async def _receive_body(self, limit: int) -> bytes:
        pieces = bytearray()
        while (message := await self.receive())["type"] == "http.request":
            if not message.get("more_body") and not pieces:
                body: bytes = message.get("body", b"")
                return body
            pieces += message.get("body", b"")
            if len(pieces) > limit:
                raise self._too_large()
            if not message.get("more_body"):
                return bytes(pieces)
        raise Disconnected

    async def body_pieces(self) -> AsyncIterator[bytes]:
        """The request body as it arrives, of any size. Raises `TooSlow` or `Disconnected`."""
        body = self.direct.body() if self.direct is not None else None
        if body is not None:
            yield body
            return
        while True:
            try:
                with self.shared.body_timeout:
                    message = await self.receive()
            except TimeoutError:
                raise TooSlow("the request body did not arrive in time") from None
            if message["type"] != "http.request":
                raise Disconnected
            if piece := message.get("body", b""):
                yield piece
            if not message.get("more_body"):
                return

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request body is larger than {self.shared.limits.max_body} bytes")

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        self.responding = True
        headers = self._with(headers) if self.always else list(headers)
        if self.direct is None or not self.direct.start(status, headers):
            await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Send a piece of a response that was started."""
        if self.direct is None or not self.direct.write(body, more=more):
            await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def respond(self, status: int, body: bytes = b"", headers: Sequence[Header] = (JSON,)) -> None:
        """Send a complete response. Raises `Disconnected`."""
        length = None if status in (204, 304) else len(body)
        if self.method == "HEAD":
            body = b""
        if len(body) >= LARGE_BYTES:
            await self.respond_large(status, (body,), headers)
            return
        if self.direct is not None and self.direct.respond(
            status, self._with(headers) if self.always else headers, body, length
        ):
            self.responding = True
            return
        size = () if length is None else ((b"content-length", b"%d" % length),)
        try:
            await self.start(status, (*headers, *size))
            await self.write(body, more=False)
        except OSError:
            raise Disconnected from None

    async def respond_large(self, status: int, parts: Sequence[bytes], headers: Iterable[Header]) -> None:
        """Send a response of several parts piece by piece, as the client reads it, without copying it all."""
        length = sum(map(len, parts))
        if self.method == "HEAD":
            parts = ()
        try:
            await self.start(status, (*headers, (b"content-length", b"%d" % length)))
            for part in parts:
                view = memoryview(part)
                for at in range(0, len(part), _PIECE_BYTES):
                    await self.write(bytes(view[at : at + _PIECE_BYTES]))
            await self.write(b"", more=False)
        except OSError:
            raise Disconnected from None

    async def respond_pieces(
        self, status: int, pieces: AsyncIterator[bytes], length: int | None, headers: Iterable[Header]
    ) -> None:
        """Send a response whose body comes in pieces, as the client reads it. Raises what `pieces` raises."""
        size = () if length is None else ((b"content-length", b"%d" % length),)
        first = b"" if self.method == "HEAD" else await anext(pieces, b"")  # an error may still be the answer
        try:
            await self.start(status, (*headers, *size))
            if first:
                await self.write(first)
                async for piece in pieces:
                    await self.write(piece)
            await self.write(b"", more=False)
        except OSError:
            raise Disconnected from None

    def _with(self, headers: Iterable[Header]) -> list[Header]:
        """The headers, and those that every response has."""
        listed = list(headers)
        names = {name for name, _ in listed}
        return listed + [header for header in self.always if header[0] not in names or header[0] == b"vary"]


class Waits:
    """Waits for an answer only as long as the client does. Watches those that wait longer than `seconds`.

    `persistent`: what was sent outlives the server.
    """

    def __init__(self, seconds: float = WATCH_SECONDS, *, persistent: bool = True) -> None:
        self.closed = False
        self._refusal = "shutting down; what was sent is kept" if persistent else "shutting down"
        self._timeout = Timeout[asyncio.Task[Any]](seconds, self._start_watching)
        self._waiting: dict[asyncio.Task[Any], Exchange] = {}
        self._watchers: dict[asyncio.Task[Any], asyncio.Task[None]] = {}

    async def wait(self, exchange: Exchange, answer: Coroutine[Any, Any, T]) -> T:
        """Raises `Disconnected` if the client leaves, `Unavailable` if the server stops."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = exchange
        self._timeout.add(task)
        try:
            return await answer
        except asyncio.CancelledError:
            if task in self._waiting:
                raise  # canceled by something else
            task.uncancel()
            if self.closed:
                raise Unavailable(self._refusal, retry_after=1) from None
            raise Disconnected from None
        finally:
            self._waiting.pop(task, None)
            self._timeout.remove(task)
            if self._watchers and (watcher := self._watchers.pop(task, None)):
                watcher.cancel()

    def close(self) -> None:
        """End all waits."""
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            task.cancel()

    def _start_watching(self, task: asyncio.Task[Any]) -> None:
        if task in self._waiting:
            self._watchers[task] = task.get_loop().create_task(self._watch(task, self._waiting[task]))

    async def _watch(self, task: asyncio.Task[Any], exchange: Exchange) -> None:
        if exchange.direct is not None:
            exchange.direct.mark_slow()
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        if self._waiting.pop(task, None):
            task.cancel()


STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
_STARTS_PER_KEEPALIVE, _PROBES_PER_KEEPALIVE = 4, 8
"""A response without an event starts after a quarter of the keep-alive time: until then, an error is sent like that of any other
call. A half-closed client gets a keep-alive every eighth of it: the write fails if the client left."""


class Framing(Protocol[E]):
    """Turns the batches of a stream into bytes."""

    def batch(self, batch: E) -> tuple[bytes, bool]:
        """The frames of a batch; True if the stream ends with it."""
        ...


class Streams:
    """The open streams of an application. Their keep-alives are timeouts, so an idle stream has no timer of its own."""

    def __init__(self, *, keepalive: float = 15.0) -> None:
        self.sends_keep_alives = keepalive > 0
        self._open: set[_Stream] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.unstarted = Timeout[_Stream](keepalive / _STARTS_PER_KEEPALIVE, _Stream.send_keep_alive)
        self.quiet = Timeout[_Stream](keepalive, _Stream.send_keep_alive)
        self.half_closed = Timeout[_Stream](keepalive / _PROBES_PER_KEEPALIVE, _Stream.send_keep_alive)
        self.draining = False

    def __len__(self) -> int:
        return len(self._open)

    async def serve(
        self,
        exchange: Exchange,
        batches: AsyncIterator[E],
        frames: Framing[E],
        *,
        failed: Callable[[Exception], bytes],
        headers: Iterable[Header] = (),
    ) -> None:
        """Write a stream to its end. An error before the first event is raised; a later one is the last frame."""
        if self.draining:
            raise Unavailable("shutting down", retry_after=1)
        stream = _Stream(self, exchange, headers)
        self._open.add(stream)
        self._idle.clear()
        direct, watcher = exchange.direct, None
        if direct is not None:
            direct.on_gone = stream.leave
            if direct.gone:
                stream.leave()
        else:
            watcher = asyncio.create_task(stream.watch())
        try:
            try:
                async for batch in batches:
                    chunk, last = frames.batch(batch)
                    await stream.write(chunk)
                    if last:
                        break
            finally:
                stream.running = False  # the end must not be canceled
        except asyncio.CancelledError:
            if not stream.ended:
                raise
            stream.task.uncancel()
        except Disconnected:
            stream.gone = True
        except Exception as error:
            if not exchange.responding:
                raise
            await stream.write(failed(error))
        finally:
            self._open.discard(stream)
            if not self._open:
                self._idle.set()
            stream.timeout.remove(stream)
            if direct is not None:
                direct.on_gone = None
            if watcher is not None:
                watcher.cancel()
            if (aclose := getattr(batches, "aclose", None)) is not None:
                await aclose()
        if stream.gone:
            return
        if stream.ended and not exchange.responding:
            raise Unavailable("shutting down", retry_after=1)
        with suppress(Disconnected, OSError):
            await stream.write(b"")
            await exchange.write(b"", more=False)

    async def drain(self) -> None:
        """End every stream between two events, and begin no more. Clients continue with `Last-Event-ID`."""
        self.draining = True
        for stream in list(self._open):
            stream.end()
        await self._idle.wait()


class _Stream:
    __slots__ = ("_exchange", "_headers", "_keep_alive", "_streams", "_writing", "ended", "gone", "running", "task",
                 "timeout")  # fmt: skip

    def __init__(self, streams: Streams, exchange: Exchange, headers: Iterable[Header]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[object] = task
        self.running = True
        self.ended = False
        """The stream is to end: the client left (`gone`), or the server stops."""
        self.gone = False
        self._streams = streams
        self._exchange = exchange
        self._headers = headers
        self._writing = False
        self._keep_alive: asyncio.Task[None] | None = None
        """A keep-alive that is being written."""
        self.timeout = streams.unstarted
        """Runs out when a keep-alive is to be sent."""
        if streams.sends_keep_alives:
            self.timeout.add(self)

    async def write(self, chunk: bytes) -> None:
        """Raises `Disconnected`."""
        if self._keep_alive is not None and chunk is not KEEP_ALIVE:
            await asyncio.wait([self._keep_alive])
        self._writing = True
        exchange, streams = self._exchange, self._streams
        try:
            if not exchange.responding:
                await exchange.start(200, (*STREAM_HEADERS, *self._headers))
                self.timeout.remove(self)
                half_closed = exchange.direct is not None and exchange.direct.half_closed
                self.timeout = streams.half_closed if half_closed else streams.quiet
            if chunk:
                await exchange.write(chunk)
        except OSError:
            raise Disconnected from None
        finally:
            self._writing = False
        if streams.sends_keep_alives and self.running:
            self.timeout.add(self)

    def send_keep_alive(self) -> None:
        """Nothing was written for a while."""
        if not self.running:
            return
        direct = self._exchange.direct
        if direct is not None and direct.half_closed:
            self.timeout = self._streams.half_closed
        if self._writing or self._keep_alive is not None:
            self.timeout.add(self)
        else:
            self._keep_alive = self.task.get_loop().create_task(self._write_keep_alive())

    async def _write_keep_alive(self) -> None:
        try:
            await self.write(KEEP_ALIVE)
        except Disconnected:
            pass  # `leave` ends the stream
        finally:
            self._keep_alive = None

    async def watch(self) -> None:
        """Wait for the client to go away."""
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def leave(self) -> None:
        """The client has gone away."""
        self.gone = True
        self.end()

    def end(self) -> None:
        if self.running and not self.ended:
            self.ended = True
            self.task.cancel()

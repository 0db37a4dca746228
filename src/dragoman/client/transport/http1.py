"""One HTTP/1.1 connection: a request out, a response in, again and again.

Written on the bare asyncio protocol because most of the cost of a small call is the HTTP library between us and the
socket (`bench/client.py` shows by how much). httptools parses; the rules are here: a body that breaks off is an error,
a slow reader pauses the peer, and a connection in an unclear state is never used again.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import cast

import httptools

from dragoman.client.transport.gzip_body import Inflater
from dragoman.client.transport.transport import MAX_BODY_BYTES, too_large
from dragoman.errors import Unreachable

_MAX_UNREAD_BYTES = 256 << 10
"""Above this the connection stops reading from the socket."""
_MAX_HEAD_BYTES = 64 << 10
_MAX_KEEP_ALIVE_SECONDS = 60.0
_OVERHEAD_PER_BYTE = 16
"""How many bytes of chunk sizes, extensions and trailers are allowed for each byte of a body."""


class HttpResponse:
    """A response whose body may still be arriving."""

    def __init__(self, connection: HttpConnection, url: str) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.url = url
        self._connection: HttpConnection | None = connection
        """Until the body is complete."""
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._error: Unreachable | None = None
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _MAX_UNREAD_BYTES and self._connection is not None:
            self._connection.pause()
        self._wake()

    def finish(self, error: Unreachable | None = None) -> None:
        """Nothing more comes: the body is complete, or broke off with `error`."""
        self._error, self._connection = error, None
        self._wake()

    def begin(self, status: int) -> None:
        self.status = status
        self._wake()

    async def wait_for_head(self) -> None:
        """Wait for the head."""
        while not self.status:
            if self._connection is None:
                raise self._error or Unreachable(f"{self.url} closed the connection without an answer")
            await self._wait_for_change()

    async def chunks(self) -> AsyncIterator[bytes]:
        packed = self._inflater()
        while True:
            if self._pieces:
                piece = self._take()
                if self._connection is not None:
                    self._connection.resume()
                if packed is None:
                    yield piece
                    continue
                for unpacked in packed.feed(piece):
                    yield unpacked
                    await asyncio.sleep(0)  # other tasks run, however large the output is
            elif self._connection is not None:
                await self._wait_for_change()
            elif self._error is not None:
                raise self._error
            else:
                return

    async def read(self) -> bytes:
        while self._connection is not None:
            if self._size > MAX_BODY_BYTES:
                self._connection.abort()
                raise too_large(self.url)
            self._connection.resume()
            await self._wait_for_change()
        if self._error is not None:
            raise self._error
        packed = self._inflater()
        if packed is None:
            return self._take()
        body = bytearray()
        for unpacked in packed.feed(self._take()):
            body += unpacked
            if len(body) > MAX_BODY_BYTES:
                raise too_large(self.url)
            await asyncio.sleep(0)
        return bytes(body)

    async def close(self) -> None:
        if self._connection is not None:  # the rest is not worth reading
            self._connection.abort()

    def _take(self) -> bytes:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        return body

    def _inflater(self) -> Inflater | None:
        encoding = self.headers.get("content-encoding")
        return Inflater(encoding, self.url) if encoding else None

    async def _wait_for_change(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HttpConnection(asyncio.Protocol):
    """Carries one exchange at a time. Calls `on_idle` when it can carry the next, `on_lost` when it is closed."""

    def __init__(
        self, on_idle: Callable[[HttpConnection], None], on_lost: Callable[[HttpConnection], None]
    ) -> None:
        self.usable = True
        self.extra = b""
        """Headers for the proxy it goes through."""
        self.idle_since = 0.0
        self.keep_alive = 0.0
        """How many seconds it may stay idle, from the peer's `Keep-Alive` header."""
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._response: HttpResponse | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        """The body bytes in the data that is being parsed: one piece, however small its chunks are."""
        self._received = self._body_bytes = 0
        """Bytes of the present answer: all of them, and those of its body."""
        self._until_eof = False
        self._paused = False

    # requests

    def send(self, request: bytes, url: str) -> HttpResponse:
        assert self._response is None and self._transport is not None
        self._response = response = HttpResponse(self, url)
        self._received = self._body_bytes = 0
        self._transport.write(request)
        return response

    def abort(self, why: str = "the connection was closed") -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()
        self._break(why)

    def closed_by_peer(self) -> bool:
        """True if the peer has closed it, or sent data without a request, and the event loop has not noticed yet."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        return sock is None or bool(_readable(sock.fileno()))

    def pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._response is None:  # data without a request
            self.abort()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._feed_response()
            self.abort("it changed to another protocol without being asked")
        except httptools.HttpParserError as error:
            self._feed_response()
            self.abort(f"what came back is not HTTP: {error}")
        else:
            self._feed_response()
        overhead = self._received - self._body_bytes
        if self._response is not None and overhead > _MAX_HEAD_BYTES + _OVERHEAD_PER_BYTE * self._body_bytes:
            has_head = bool(self._response.status)
            self.abort(f"the {'rest' if has_head else 'head'} of its answer has no end")

    def eof_received(self) -> None:
        self.usable = False
        if self._response is not None and self._until_eof:
            response, self._response = self._response, None
            response.finish()

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._on_lost(self)
        self._break("the connection broke" if error is None else f"the connection broke: {error}")

    def _break(self, why: str) -> None:
        if self._response is not None:
            response, self._response = self._response, None
            response.finish(Unreachable(f"{response.url}: {why}"))

    # httptools

    def on_message_begin(self) -> None:
        self._headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._response is not None
        if not self._response.status:  # trailers are not headers
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        assert self._response is not None
        headers = self._response.headers = _join_headers(self._headers)
        self._until_eof = (
            "content-length" not in headers
            and "transfer-encoding" not in headers
            and status not in (204, 304)
        )
        self._response.begin(status)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_bytes += len(body)

    def _feed_response(self) -> None:
        if self._body:
            piece = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body.clear()
            if self._response is not None:
                self._response.feed(piece)

    def on_message_complete(self) -> None:
        if self._response is None or not self._response.status:  # a 1xx: the answer is still to come
            return
        self._feed_response()
        response, self._response = self._response, None
        self.usable = self.usable and bool(self._parser.should_keep_alive())
        self.resume()
        response.finish()
        if self.usable:
            self.keep_alive = _keep_alive(response.headers.get("keep-alive", ""))
            self._on_idle(self)
        elif self._transport is not None:
            self._transport.close()


def _join_headers(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in lower case. Repeated headers are joined."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return {name: each[0] if len(each) == 1 else ", ".join(each) for name, each in values.items()}


def _readable(fd: int) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([fd], [], [], 0)[0])
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _keep_alive(value: str) -> float:
    """`timeout=5, max=100` -> 4.0"""
    for word in value.split(","):
        name, _, number = word.strip().partition("=")
        if name == "timeout" and number.isdecimal():
            seconds = float(number) - 1  # close it before the peer does
            return min(max(0.5, seconds), _MAX_KEEP_ALIVE_SECONDS)
    return 0.0

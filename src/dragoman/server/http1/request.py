"""One request of a connection, and its response.

It is an ASGI request (`receive`, `send`) with a short path for most of them: a request that has arrived and a response that
is complete need no events, no messages and one write (`exchange.Direct`, which this implements).

A head that two readers could understand in two ways is refused (`check_head`): a proxy before us must have seen the same
request as we do, with one host, one end of its body, one target. The parser has refused most other cases: different
lengths, folded lines, wrong line ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

from dragoman.server.exchange import AsgiScope
from dragoman.server.mount import Header

logger = logging.getLogger("dragoman.server")

Message = MutableMapping[str, Any]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
MAX_HEAD_LINES = 256
_PLAIN: Header = (b"content-type", b"text/plain; charset=utf-8")


class State(Protocol):
    """What a request needs of its server."""

    headers: bytes
    """Header lines that every response has."""


class Connection(Protocol):
    """What a request needs of its connection."""

    loop: asyncio.AbstractEventLoop
    blocked: asyncio.Future[None] | None
    """Done when the client has read enough of what was written to it; None if it has."""
    half_closed: bool
    """The client sends nothing more."""
    slow_request: HttpRequest | None
    """A request whose response takes long."""

    paused: bool
    """Nothing is read from the client, because the buffers are full."""

    @property
    def state(self) -> State: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close when everything written is read."""
        ...

    def resume_reading(self) -> None:
        """There is room for more of the body."""
        ...

    def request_finished(self, request: HttpRequest) -> None: ...


class HttpRequest:
    __slots__ = ("_bodiless", "_chunked", "_connection", "_expects", "_left", "_news", "_old", "_waiter", "body_here",
                 "done", "gone", "keep_alive", "more", "started")  # fmt: skip

    def __init__(self, connection: Connection, scope: AsgiScope, *, keep_alive: bool, expects: bool) -> None:
        # The scope is not stored: it refers to this object, and a cycle would wait for the garbage collector.
        self._bodiless, self._old = scope["method"] == "HEAD", scope["http_version"] == "1.0"
        self.keep_alive = keep_alive
        """The connection stays open after the response."""
        self.body_here = bytearray()
        """The part of the body that has arrived and was not read."""
        self.more = True
        """The body has not arrived completely."""
        self.gone = False
        """The client has disconnected."""
        self.started = self.done = False
        self._connection = connection
        self._expects = expects
        """The client waits for `100 Continue`."""
        self._news = False
        self._waiter: asyncio.Future[None] | None = None
        self._chunked = False
        self._left: int | None = None
        """Bytes of a response of known length that are still to be written."""

    async def run(self, app: Asgi, scope: AsgiScope) -> None:
        try:
            await app(scope, self.receive, self.send)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                logger.error("a request failed", exc_info=error)
            self._give_up()
            if not isinstance(error, Exception):
                raise
        else:
            if not self.done and not self.gone:
                logger.error("the response to a request is incomplete")
                self._give_up()

    def _give_up(self) -> None:
        if self.started or self.gone:
            self._connection.close()
        else:
            self.keep_alive = False
            self.respond(500, (_PLAIN,), b"Internal Server Error", 21, now=True)

    # -- the connection ----------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if not self.done:
            self.body_here += data
            self._news = True
            if self._waiter is not None:
                self.wake()

    def complete(self) -> None:
        self.more = self._expects = False
        self._news = True
        if self._waiter is not None:
            self.wake()

    def lose(self) -> None:
        self.gone = True
        self.wake()

    def wake(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the short path (`exchange.Direct`) ---------------------------------------------------------------------

    @property
    def half_closed(self) -> bool:
        return self._connection.half_closed

    def mark_slow(self) -> None:
        if not self.done:
            self._connection.slow_request = self

    def body(self) -> bytes | None:
        if self.more or self.gone or self._expects:
            return None
        body, self._news = bytes(self.body_here), False
        self.body_here.clear()
        if self._connection.paused:
            self._connection.resume_reading()
        return body

    def respond(
        self, status: int, headers: Sequence[Header], body: bytes, length: int | None, *, now: bool = False
    ) -> bool:
        connection = self._connection
        if self.started or (connection.blocked is not None and not now):
            return False
        if self.gone:
            return True
        head = self._head(status, headers)
        if length is not None:
            head += b"content-length: %d\r\n" % length
        connection.write(b"%b\r\n%b" % (head, body))
        self._finish()
        return True

    # -- ASGI --------------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        if self._expects:
            self._expects = False
            self._connection.write(_CONTINUE)
        if self._connection.paused and not self.done:
            self._connection.resume_reading()
        while not self._news and not self.gone and not self.done:
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        self._news = False
        if self.gone or self.done:
            return {"type": "http.disconnect"}
        body = bytes(self.body_here)
        self.body_here.clear()
        return {"type": "http.request", "body": body, "more_body": self.more}

    async def send(self, message: Message) -> None:
        connection = self._connection
        while connection.blocked is not None and not self.gone:
            await asyncio.shield(connection.blocked)
        if self.gone:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], [(bytes(n).lower(), bytes(v)) for n, v in message["headers"]])
        else:
            self._write(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: list[Header]) -> None:
        if self.started:
            raise RuntimeError("the response has already started")
        by_name = dict(headers)
        if b"close" in by_name.get(b"connection", b"").lower():
            self.keep_alive = False
            headers = [header for header in headers if header[0] != b"connection"]
        if b"content-length" in by_name:
            self._left = int(by_name[b"content-length"])
        if status in (204, 304):
            self._bodiless = True
        elif not self._bodiless and self._left is None:
            if self._old:
                self.keep_alive = False  # the end of the connection ends the response
            else:
                self._chunked = True
                headers = [*headers, (b"transfer-encoding", b"chunked")]
        self._connection.write(self._head(status, headers) + b"\r\n")

    def _write(self, body: bytes, *, more: bool) -> None:
        if not self.started or self.done:
            raise RuntimeError("there is no response to continue")
        write = self._connection.write
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            write(chunk if more else chunk + b"0\r\n\r\n")
        elif not self._bodiless:
            if self._left is not None:
                self._left -= len(body)
            if self._left is not None and (self._left < 0 or (self._left and not more)):
                raise RuntimeError("the response differs from its content-length")
            write(body)
        if not more:
            self._finish()

    def _head(self, status: int, headers: Sequence[Header]) -> bytes:
        head = status_and_headers(status, tuple(headers)) + self._connection.state.headers
        self.started = True
        if self._expects:  # the client may send its body anyway, which must not be read as a request
            self._expects = self.keep_alive = self.more = False
        return head if self.keep_alive else head + b"connection: close\r\n"

    def _finish(self) -> None:
        self.done = True
        self.wake()
        self._connection.request_finished(self)


@lru_cache(256)
def status_and_headers(status: int, headers: tuple[Header, ...]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n%b" % (status, phrase.encode(), header_lines(headers))


@lru_cache(256)
def header_lines(headers: tuple[Header, ...]) -> bytes:
    out = b"".join([b"%b: %b\r\n" % header for header in headers])
    if out.count(b"\n") != len(headers) or out.count(b"\r") != len(headers) or b"\0" in out:
        raise ValueError("a header must be one line")
    return out


class BadRequest(Exception):
    """The request is refused with `status`, and nothing more is read."""

    def __init__(self, status: int = 400) -> None:
        self.status = status


def check_head(target: bytes, headers: Sequence[Header], version: str, max_bytes: int) -> None:
    """Raises `BadRequest`."""
    if len(headers) > MAX_HEAD_LINES:
        raise BadRequest(431)
    hosts, size = 0, len(target)
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (value.strip(b" \t").lower() != b"chunked" or version == "1.0"):
            raise BadRequest
    if size > max_bytes:
        raise BadRequest(431)
    if version != "1.1" and version != "1.0":
        raise BadRequest(505)
    if hosts != 1 and (hosts or version != "1.0"):
        raise BadRequest


def check_target(target: bytes, method: bytes, headers: Sequence[Header]) -> None:
    """Check a target that is not just a path: it may be a URL with the host that the head names. Raises `BadRequest`."""
    if target == b"*" and method == b"OPTIONS":
        return
    scheme, _, rest = target.partition(b"://")
    authority = rest.partition(b"/")[0].partition(b"?")[0].lower()
    named = [value.strip(b" \t").lower() for name, value in headers if name == b"host"] or [authority]
    if scheme.lower() not in (b"http", b"https") or authority != named[0] or b"#" in target:
        raise BadRequest


def without_upgrade(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> bytes:
    """The head of a request without its `Upgrade`: else the parser would not read its body."""
    kept = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"])
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), kept)

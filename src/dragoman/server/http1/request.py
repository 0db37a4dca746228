"""One request on a connection of our own server, and its answer.

It is an ASGI request (`receive`, `send`) with a short way for most of them: a request that is all here and an answer that
is whole need no events, no messages and one write (`exchange.Direct`, which this is).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

from dragoman.server.http_exchange import AsgiScope, Header

logger = logging.getLogger("dragoman.server")

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PLAIN: Header = (b"content-type", b"text/plain; charset=utf-8")


class Connection(Protocol):
    """What a request needs of its connection."""

    loop: asyncio.AbstractEventLoop
    blocked: asyncio.Future[None] | None
    """Done when the client has read enough of what was written to it; None if it has."""
    silent: bool
    late: HttpRequest | None
    """Its answer takes long."""

    @property
    def default_headers(self) -> Iterable[Header]: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """End when what was written is read."""
        ...

    def read_on(self) -> None:
        """There is room again for what the client sends."""
        ...

    def answered(self, request: HttpRequest) -> None: ...


class HttpRequest:
    __slots__ = ("_bodiless", "_chunked", "_connection", "_expects", "_left", "_news", "_old", "_waiter", "body_here",
                 "done", "gone", "keep_alive", "more", "started")  # fmt: skip

    def __init__(self, connection: Connection, scope: AsgiScope, *, keep_alive: bool, expects: bool) -> None:
        # The scope is not kept: it holds us, and together we would wait for the collector.
        self._bodiless, self._old = scope["method"] == "HEAD", scope["http_version"] == "1.0"
        self.keep_alive = keep_alive
        """Whether the connection goes on after the answer."""
        self.body_here = bytearray()
        """What has come of the body and was not asked for yet."""
        self.more = True
        """The body is not all here."""
        self.gone = False
        """Nobody is there to read an answer."""
        self.started = self.done = False
        self._connection = connection
        self._expects = expects
        """The client sends its body when it is told to."""
        self._news = False
        self._waiter: asyncio.Future[None] | None = None
        self._chunked = False
        self._left: int | None = None
        """How much of an answer of known length is still to come."""

    async def run(self, app: App, scope: AsgiScope) -> None:
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
                logger.error("a request was not answered to its end")
                self._give_up()

    def _give_up(self) -> None:
        if self.started or self.gone:
            self._connection.close()
        else:
            self.keep_alive = False
            self.answer(500, (_PLAIN,), b"Internal Server Error", 21, now=True)

    # -- the connection ----------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if not self.done:
            self.body_here += data
            self.wake()

    def complete(self) -> None:
        self.more = self._expects = False  # who asks first whether to send its body, and has, does not wait
        self.wake()

    def lose(self) -> None:
        self.gone = True
        self.wake()

    def wake(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the short way (`exchange.Direct`) ---------------------------------------------------------------------

    @property
    def silent(self) -> bool:
        return self._connection.silent

    def late(self) -> None:
        if not self.done:
            self._connection.late = self

    def body(self) -> bytes | None:
        if self.more or self.gone or self._expects:
            return None
        body, self._news = bytes(self.body_here), False
        self.body_here.clear()
        self._connection.read_on()
        return body

    def answer(
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
        if not self.done:
            self._connection.read_on()
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
            raise RuntimeError("this request is answered already")
        said = dict(headers)
        if b"close" in said.get(b"connection", b"").lower():
            self.keep_alive = False
            headers = [header for header in headers if header[0] != b"connection"]
        if b"content-length" in said:
            self._left = int(said[b"content-length"])
        if status in (204, 304):
            self._bodiless = True
        elif not self._bodiless and self._left is None:
            if self._old:
                self.keep_alive = False  # the end of the connection is the end of the answer
            else:
                self._chunked = True
                headers = [*headers, (b"transfer-encoding", b"chunked")]
        self._connection.write(self._head(status, headers) + b"\r\n")

    def _write(self, body: bytes, *, more: bool) -> None:
        if not self.started or self.done:
            raise RuntimeError("there is no answer to go on with")
        write = self._connection.write
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            write(chunk if more else chunk + b"0\r\n\r\n")
        elif not self._bodiless:
            if self._left is not None:
                self._left -= len(body)
            if self._left is not None and (self._left < 0 or (self._left and not more)):
                raise RuntimeError("an answer is as long as its content-length says")
            write(body)
        if not more:
            self._finish()

    def _head(self, status: int, headers: Sequence[Header]) -> bytes:
        head = first_lines(status, tuple(headers)) + lines(tuple(self._connection.default_headers))
        self.started = True
        if self._expects:  # it may send its body all the same, and who knows what that would be taken for
            self._expects = self.keep_alive = self.more = False
        return head if self.keep_alive else head + b"connection: close\r\n"

    def _finish(self) -> None:
        self.done = True
        self.wake()
        self._connection.answered(self)


@lru_cache(256)
def first_lines(status: int, headers: tuple[Header, ...]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n%b" % (status, phrase.encode(), lines(headers))


@lru_cache(256)
def lines(headers: tuple[Header, ...]) -> bytes:
    out = b"".join([b"%b: %b\r\n" % header for header in headers])
    if out.count(b"\n") != len(headers) or out.count(b"\r") != len(headers) or b"\0" in out:
        raise ValueError("a header must be one line")
    return out

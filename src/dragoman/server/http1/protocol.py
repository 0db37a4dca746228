"""Connections of the HTTP server and their requests: HTTP/1.1, read by httptools.

A connection (`HttpProtocol`) does what an A2A server needs: keep-alive, pipelining, chunked bodies, `Expect`, flow control both
ways. Slow clients are disconnected (`limits.py`). A trailer is never a header. The sizes of a head and of what
surrounds a body are limited.

A request (`HttpRequest`) is an ASGI request (`receive`, `send`) with a short path for most of them: a request that has
arrived and a response that is complete need no events, no messages and one write (`asgi.Direct`, which it implements).

A head that two readers could understand in two ways is refused (`check_head`): a proxy before us must have seen the same
request as we do, with one host, one end of its body, one target. The parser has refused most other cases: different
lengths, folded lines, wrong line ends.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextvars import copy_context
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Literal, cast
from urllib.parse import unquote

import httptools

from dragoman.server.asgi import DIRECT, AsgiScope
from dragoman.server.limits import Connections, ConnectionTimeouts, Limits
from dragoman.server.mount import Header

logger = logging.getLogger("dragoman.server")

Message = MutableMapping[str, Any]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Reading = Literal["request", "head", "body", "nothing"]
"""What a connection reads next: a request, or the rest of a head or of a body. Nothing: what the client still sends is ignored."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
MAX_HEAD_LINES = 256
_PLAIN: Header = (b"content-type", b"text/plain; charset=utf-8")
MAX_PATH_BYTES = 8 << 10
MAX_HOST_BYTES = 300
BUFFER_BYTES = 64 << 10
"""Of a request's body that was not read, and of responses that were not handed to the transport."""
MAX_CACHED_TARGET_BYTES = 256
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_LATE_SECONDS = 0.2
"""How long a connection that is accepted while the server stops has to send a request."""


class ServerState:
    """What the connections of a server share. `connections` counts those of gRPC, too."""

    def __init__(self, app: Asgi, limits: Limits, connections: Connections | None = None) -> None:
        self.app = app
        self.limits = limits
        self.connections = connections or Connections(limits.max_connections)
        self.timeouts = ConnectionTimeouts(limits)
        self.open: set[HttpProtocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each request that is not answered."""
        self.idle = asyncio.Event()
        """Set when the last connection closes."""
        self.headers = b""
        """Header lines of every response."""
        self.closing = False
        """The server stops: a connection that was accepted at the last moment has one request, or none."""

    def is_full(self) -> bool:
        return self.connections.full or len(self.tasks) > self.limits.max_connections


class HttpProtocol(asyncio.Protocol):
    __slots__ = ("_bare", "_client", "_context", "_expects", "_head_bytes", "_headers", "_held", "_held_bytes",
                 "_parser", "_reading", "_receiving", "_requests", "_scheme", "_scopes", "_server",
                 "_timeouts", "_tls", "_url", "blocked", "loop", "paused", "slow_request", "state", "transport")  # fmt: skip

    def __init__(self, state: ServerState) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.blocked: asyncio.Future[None] | None = None
        self.slow_request: HttpRequest | None = None
        self.state, self._timeouts = state, state.timeouts
        self._parser = httptools.HttpRequestParser(self)
        self._reading: Reading = "request"
        self._url = b""
        self._headers: list[Header] = []
        self._expects = False
        self._head_bytes = 0
        """Bytes of a head that has not ended, or of what surrounds a body (chunk sizes, a trailer)."""
        self._bare = False
        """The data that is being read has nothing else in it."""
        self._receiving: HttpRequest | None = None
        """The request whose body is read."""
        self._requests: deque[HttpRequest] = deque()
        """Those without a complete response, oldest first; the first is being answered."""
        self._scopes: deque[AsgiScope] = deque()
        """Of the requests that have not begun."""
        self._held: list[bytes] = []
        """Written in this iteration of the loop: one system call sends it all."""
        self._held_bytes = 0
        self.paused = False
        """Reading is paused, because the buffers are full."""
        self._context = copy_context()
        """The context of every request: not that of the request before it."""

    # -- the transport -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.state.open.add(self)
        self.state.connections.count(1)
        server, client = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self._server = server[:2] if isinstance(server, tuple) else None
        self._client = client[:2] if isinstance(client, tuple) else None
        self._tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._scheme = "https" if self._tls is not None else "http"
        self._timeouts.head_expected(self)
        if self.state.closing:
            self.loop.call_later(_LATE_SECONDS, self._close_late)

    def _close_late(self) -> None:
        if self in self.state.open:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timeouts.forget(self)
        self._stop_reading()
        state = self.state
        state.open.discard(self)
        state.connections.count(-1)
        if not state.open:
            state.idle.set()
        if self.blocked is not None:
            self._unblock()
        for request in self._requests:
            request.lose()
        self.slow_request = None
        self._requests.clear()
        self._scopes.clear()
        self.transport.close()
        del self._parser  # it refers to this object

    def data_received(self, data: bytes) -> None:
        unread: list[bytes | memoryview] = [data]
        while unread and self._reading != "nothing":
            piece = unread.pop()
            self._bare = True
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as asked:
                parser = self._parser
                head = without_upgrade(
                    parser.get_method(), self._url, parser.get_http_version(), self._headers
                )
                unread += (memoryview(piece)[asked.args[0] :], head)
            except httptools.HttpParserError as error:
                cause = error.__context__
                self._refuse(cause.status if isinstance(cause, BadRequest) else 400)
            else:
                if self._bare and self._reading in ("head", "body"):
                    self._head_bytes += len(piece)
                    if self._head_bytes > self.state.limits.max_head:
                        self._refuse(431)

    def eof_received(self) -> bool:
        """The client closed its side. If it did so with its request, it still reads. If it waited first, it has given up,
        unless the response has begun: writing shows whether it still reads.
        """
        if self._tls is not None:
            self._flush()
            return False  # TLS in Python cannot be half closed
        for request in self._requests:
            request.half_closed = True
        if self._reading in ("head", "body"):
            self._refuse(400)
        self._stop_reading()
        if self._requests and self._requests[0] is not self.slow_request:
            self._requests[-1].keep_alive = False
            self._timeouts.half_closed(self)
        else:
            self.close()
        return True

    def pause_writing(self) -> None:
        self._timeouts.write_blocked(self)
        if self.blocked is None:
            self.blocked = self.loop.create_future()

    def resume_writing(self) -> None:
        self._timeouts.write_unblocked(self)
        self._unblock()

    def write(self, data: bytes) -> None:
        if not self._held:
            self.loop.call_soon(self._flush)
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        if held and not self.transport.is_closing():
            self.transport.write(held[0] if len(held) == 1 else b"".join(held))

    def _unblock(self) -> None:
        if self.blocked is not None and not self.blocked.done():
            self.blocked.set_result(None)
        self.blocked = None

    def shutdown(self) -> None:
        """Close after the response that is being written."""
        if self._requests:
            self._requests[0].keep_alive = False
        else:
            self.close()

    # -- the parser --------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._reading != "nothing":
            self._reading = "head"
        self._url, self._headers, self._expects = b"", [], False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading == "head":  # not in a trailer
            name = name.lower()
            self._headers.append((name, value))
            if name == b"expect" and value.strip(b" \t").lower() == b"100-continue":
                self._expects = True

    def on_headers_complete(self) -> None:
        # It came together with the end of a body after which the connection closes.
        if self._reading == "nothing":
            return
        parser = self._parser
        method = parser.get_method()
        if parser.should_upgrade():
            if method == b"CONNECT":
                raise BadRequest
            return  # it is read again without the upgrade
        self._timeouts.head_received(self)
        version = parser.get_http_version()
        check_head(self._url, self._headers, version, self.state.limits.max_head)
        self._reading, self._bare, self._head_bytes = "body", False, 0
        target = self._url
        # A query may have a credential in it, which is not to stay in memory.
        cached = len(target) <= MAX_CACHED_TARGET_BYTES and b"?" not in target
        raw, path, query, plain = (_parse_target if cached else _parse_target.__wrapped__)(target)
        if not plain:
            check_target(target, method, self._headers)
        scope: AsgiScope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": method.decode("ascii"),
            "root_path": "",
            "path": path,
            "raw_path": raw,
            "query_string": query,
            "headers": self._headers,
        }
        keep_alive = version != "1.0" and parser.should_keep_alive() and not self.state.closing
        expects = self._expects and version != "1.0"
        request = HttpRequest(self, scope, keep_alive=keep_alive, expects=expects)
        scope["extensions"] = {DIRECT: request}
        if self._tls is not None:
            certificate = self._tls.getpeercert(binary_form=True)
            chain = [ssl.DER_cert_to_PEM_cert(certificate)] if certificate else []
            scope["extensions"]["tls"] = {"client_cert_chain": chain}
        self._receiving = request
        self._requests.append(request)
        if len(self._requests) == 1:
            self._begin(request, scope)
        else:
            self._scopes.append(scope)
            self._pause_or_resume()

    def on_body(self, body: bytes) -> None:
        self._bare, self._head_bytes = False, 0
        request = self._receiving
        if request is not None and not request.done:
            request.body_here += body
            if request.waiter is not None:
                request.wake()
            if len(request.body_here) > BUFFER_BYTES:
                self._pause_or_resume()

    def on_message_complete(self) -> None:
        self._bare, self._head_bytes = False, 0
        request = self._receiving
        if request is not None:
            self._reading, self._receiving = "request", None
            request.more = request.expects = False
            if request.waiter is not None:
                request.wake()
            if request.done and not request.keep_alive:
                self._stop_reading()
                self.close()

    def _stop_reading(self) -> None:
        """Ignore what the client still sends."""
        self._reading, self._receiving = "nothing", None

    # -- requests and responses --------------------------------------------------------------------------------

    def _begin(self, request: HttpRequest, scope: AsgiScope) -> None:
        state = self.state
        full = state.limits.max_connections and state.is_full()
        run = request.run(_refuse_full if full else state.app, scope)
        task = self.loop.create_task(run, context=self._context.copy())
        state.tasks.add(task)
        task.add_done_callback(state.tasks.discard)

    def finish(self, request: HttpRequest) -> None:
        """The response is complete: go on with the next request, or close."""
        request.done = True
        if request.waiter is not None:
            request.wake()
        self._requests.remove(request)
        reading = self._reading != "nothing"
        if request.more and not request.keep_alive and reading and not self._requests:
            # a client that is still sending its body would not read a response that ends with the connection
            self._pause_or_resume()
            self._timeouts.head_expected(self)
        elif not request.keep_alive or not (reading or self._requests):
            self._stop_reading()
            self.close()
        elif self.transport.is_closing():
            return
        elif self._requests:
            self._begin(self._requests[0], self._scopes.popleft())
            self._pause_or_resume()
        else:
            if self.paused:
                self._pause_or_resume()
            self._timeouts.head_expected(self)  # also for the rest of a body: nothing else waits for it

    def resume_reading(self) -> None:
        self._pause_or_resume(room=True)

    def _pause_or_resume(self, *, room: bool = False) -> None:
        """Pause reading while a request waits, or while a body fills its buffer."""
        receiving = self._receiving
        body = receiving.body_here if receiving is not None and not receiving.done else b""
        pause = len(self._requests) > 1 or (len(body) > BUFFER_BYTES and not room)
        if pause != self.paused and not self.transport.is_closing():
            self.paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _refuse(self, status: int) -> None:
        """Refuse what is not a request, or not the body of one. Requests before it get their responses.

        The client may still send what belongs to it. It is read and dropped until the client has closed its side: else the connection
        would be reset, and the client might not get the response.
        """
        receiving = self._receiving
        self._stop_reading()
        if receiving is not None:
            receiving.lose()
            if receiving.started:
                self.close()
                return
            self._requests.remove(receiving)
        if self._requests:
            self._requests[-1].keep_alive = False
            return
        if not self.transport.is_closing():
            phrase = status_and_headers(status, ((b"content-length", b"0"), (b"connection", b"close")))
            self.write(phrase + b"\r\n")
            self._flush()
            reads = status != HTTPStatus.REQUEST_TIMEOUT and not self.transport.get_write_buffer_size()
            if self._tls is not None or not reads:
                self.close()
                return
            if self.paused:
                self.paused = False
                self.transport.resume_reading()
            self.transport.write_eof()
            self._timeouts.head_expected(self)

    # -- `limits.TimedConnection` ------------------------------------------------------------------------------

    def is_responding(self) -> bool:
        return bool(self._requests) and self._requests[0].started

    def unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size() + self._held_bytes

    def end_head(self) -> None:
        if self._reading == "head":
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.close()

    def close(self) -> None:
        self._flush()
        if self.transport.get_write_buffer_size():
            self._timeouts.write_blocked(self)
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()


class HttpRequest:
    __slots__ = ("_bodiless", "_chunked", "_connection", "_left", "_old", "_read_all", "body_here", "done", "expects", "gone",
                 "half_closed", "keep_alive", "more", "on_gone", "started", "waiter")  # fmt: skip

    def __init__(
        self, connection: HttpProtocol, scope: AsgiScope, *, keep_alive: bool, expects: bool
    ) -> None:
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
        self.half_closed = False
        """The client sends nothing more. Only writing shows whether it still reads."""
        self.started = self.done = False
        self._connection = connection
        self.expects = expects
        """The client waits for `100 Continue`."""
        self._read_all = False
        """The end of the body was read."""
        self.waiter: asyncio.Future[None] | None = None
        """Of `receive`."""
        self.on_gone: Callable[[], object] | None = None
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

    def lose(self) -> None:
        self.gone = True
        if self.waiter is not None:
            self.wake()
        if self.on_gone is not None:
            self.on_gone()
            self.on_gone = None

    def wake(self) -> None:
        """Have `receive`, which waits, look again."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    # -- the short path (`asgi.Direct`) ---------------------------------------------------------------------

    def mark_slow(self) -> None:
        if not self.done:
            self._connection.slow_request = self

    def body(self) -> bytes | None:
        if self.more or self.gone or self.expects:
            return None
        body, self._read_all = bytes(self.body_here), True
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
        connection.finish(self)
        return True

    # -- ASGI --------------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        if self.expects:
            self.expects = False
            self._connection.write(_CONTINUE)
        if self._connection.paused and not self.done:
            self._connection.resume_reading()
        while not (self.gone or self.done or self.body_here or (not self.more and not self._read_all)):
            self.waiter = self._connection.loop.create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        if self.gone or self.done:
            return {"type": "http.disconnect"}
        body, self._read_all = bytes(self.body_here), not self.more
        self.body_here.clear()
        return {"type": "http.request", "body": body, "more_body": self.more}

    async def send(self, message: Message) -> None:
        connection = self._connection
        while connection.blocked is not None and not self.gone:
            await asyncio.shield(connection.blocked)
        if self.gone:
            return
        if message["type"] == "http.response.start":
            self.start(message["status"], [(bytes(n).lower(), bytes(v)) for n, v in message["headers"]])
        else:
            self.write(message.get("body", b""), more=message.get("more_body", False))

    # -- a response in pieces, for ASGI and for `asgi.Direct` ------------------------------------------------

    def start(self, status: int, headers: list[Header]) -> bool:
        if self._connection.blocked is not None:
            return False
        if self.started:
            raise RuntimeError("the response has already started")
        if self.gone:
            return True
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
        return True

    def write(self, body: bytes, *, more: bool) -> bool:
        connection = self._connection
        if connection.blocked is not None:
            return False
        if self.gone:
            return True
        if not self.started or self.done:
            raise RuntimeError("there is no response to continue")
        write = connection.write
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
            connection.finish(self)
        return True

    def _head(self, status: int, headers: Sequence[Header]) -> bytes:
        head = status_and_headers(status, tuple(headers)) + self._connection.state.headers
        self.started = True
        if self.expects:  # the client may send its body anyway, which must not be read as a request
            self.expects = self.keep_alive = self.more = False
        return head if self.keep_alive else head + b"connection: close\r\n"


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
            if len(value) > MAX_HOST_BYTES or not _is_host(value.strip(b" \t")):
                raise BadRequest
        elif name == b"transfer-encoding" and (value.strip(b" \t").lower() != b"chunked" or version == "1.0"):
            raise BadRequest
    if size > max_bytes:
        raise BadRequest(431)
    if version != "1.1" and version != "1.0":
        raise BadRequest(505)
    if hosts != 1 and (hosts or version != "1.0"):
        raise BadRequest


_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?")
_is_host = lru_cache(256)(_HOST.fullmatch)
"""A name, an address, perhaps a port; or nothing."""


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
    lines = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"])
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), lines)


async def _refuse_full(scope: Any, receive: Any, send: Any) -> None:
    headers = ((b"content-length", b"0"), (b"connection", b"close"), (b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body"})


@lru_cache(256)
def _parse_target(target: bytes) -> tuple[bytes, str, bytes, bool]:
    """The path as it was sent, the decoded path, the query; True if there is nothing else. Raises `BadRequest`."""
    try:
        url = httptools.parse_url(target)
        raw = url.path or b"/"
        path = raw.decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        raise BadRequest from None
    if len(raw) > MAX_PATH_BYTES:
        raise BadRequest(414)
    plain = target[0] == ord("/") and url.fragment is None
    return raw, unquote(path) if "%" in path else path, url.query or b"", plain

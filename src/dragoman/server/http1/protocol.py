"""Connections of our own server: HTTP/1.1, read by httptools, for uvicorn to serve.

uvicorn's own protocol costs about as much as the rest of a small call. This one does what an A2A server needs: keep-alive,
pipelining, chunked bodies, `Expect`, flow control both ways, and a short way for what is whole (`server/http1/request.py`).
Clients that are too slow to ask or to read are let go (`server/http1/timeouts.py`).

What could be read in two ways is not read at all (`server/http1/validate.py`), and a trailer is never a header. A head has an end,
and so has what is around a body.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from dragoman.server.http1.request import App, HttpRequest, first_lines
from dragoman.server.http1.timeouts import Slow
from dragoman.server.http1.validate import Refused, check_head, check_target, without_upgrade
from dragoman.server.http_exchange import DIRECT, AsgiScope, Header
from dragoman.server.limits import Connections, Limits

_LONGEST = 8 << 10
"""Bytes in a path."""
_ROOM = 64 << 10
"""Bytes of a body that may wait to be asked for."""
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class HttpProtocol(asyncio.Protocol):
    """`slow` is what the connections of a server share; one that comes without is on its own. `connections` counts them,
    together with those of gRPC.
    """

    __slots__ = ("_app", "_bare", "_client", "_connections", "_context", "_deaf", "_expects", "_head", "_headers", "_held", "_holding",
                 "_in_head", "_max_head", "_most", "_parser", "_quiet", "_receiving", "_requests", "_root", "_scheme",
                 "_scopes", "_server", "_slow", "_state", "_url", "blocked", "late", "loop", "silent", "transport")  # fmt: skip

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        slow: Slow | None = None,
        max_head: int = 64 << 10,
        connections: Connections | None = None,
    ) -> None:
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.blocked: asyncio.Future[None] | None = None
        self.silent = False
        self.late: HttpRequest | None = None
        self._app = cast(App, config.loaded_app)
        self._most, self._root = config.limit_concurrency, config.root_path
        self._connections = connections or Connections()
        self._state, self._slow, self._max_head = server_state, slow or Slow(Limits()), max_head
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[Header] = []
        self._expects = self._in_head = False
        self._head = 0
        """Bytes of a head that has not ended, or of what is around a body (a trailer)."""
        self._bare = False
        """What is being read is that, and nothing else."""
        self._receiving: HttpRequest | None = None
        self._requests: deque[HttpRequest] = deque()
        """Those without their whole answer, oldest first; the first is being answered."""
        self._scopes: deque[AsgiScope] = deque()
        """Of those that have not begun."""
        self._held: list[bytes] = []
        """Written, and on its way when the loop comes round: a client that is woken once for many answers costs less
        than one that is woken for each."""
        self._holding = 0
        """Bytes of that."""
        self._quiet = False
        """The client is not listened to, because there is no room for what it sends."""
        self._deaf = False
        """Nothing more that it sends will be read."""
        self._context = copy_context()
        """Every request begins with this one: not with that of the request whose answer let it begin."""

    # -- the transport -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._connections.opened()
        self._server, self._client = get_local_addr(self.transport), get_remote_addr(self.transport)
        self._scheme = "https" if is_ssl(self.transport) else "http"
        self._slow.asked(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._slow.gone(self)
        self._state.connections.discard(self)
        self._connections.closed()
        self._deaf = True
        self._unblock()
        for request in self._requests:
            request.lose()
        self._receiving = self.late = None
        self._requests.clear()
        self._scopes.clear()
        self.transport.close()
        del self._parser  # it holds us

    def data_received(self, data: bytes) -> None:
        unread: list[bytes | memoryview] = [data]
        while unread and not self._deaf:
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
                refused = error.__context__
                self._refuse(refused.status if isinstance(refused, Refused) else 400)
            else:
                if self._bare and (self._in_head or self._receiving is not None):
                    self._head += len(piece)
                    if self._head > self._max_head:
                        self._refuse(431)

    def eof_received(self) -> bool:
        """It says nothing more. Who does so with its request still reads; who waited first has given up, unless it is
        told something meanwhile: then it shows whether it reads.
        """
        self.silent = True
        if self._in_head or self._receiving is not None:
            self._refuse(400)
        self._deaf = True
        if self._requests and self._requests[0] is not self.late:
            self._requests[-1].keep_alive = False
            self._slow.silent(self)
        else:
            self.close()
        return True

    def pause_writing(self) -> None:
        self._slow.blocked(self)
        if self.blocked is None:
            self.blocked = self.loop.create_future()

    def resume_writing(self) -> None:
        self._slow.free(self)
        self._unblock()

    def write(self, data: bytes) -> None:
        if not self._held:
            self.loop.call_soon(self._flush)
        self._held.append(data)
        self._holding += len(data)
        if self._holding > _ROOM:
            self._flush()

    def _flush(self) -> None:
        held, self._held, self._holding = self._held, [], 0
        if held and not self.transport.is_closing():
            self.transport.write(held[0] if len(held) == 1 else b"".join(held))

    def _unblock(self) -> None:
        if self.blocked is not None and not self.blocked.done():
            self.blocked.set_result(None)
        self.blocked = None

    # -- the server --------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End when what is being answered is answered."""
        if self._requests:
            self._requests[0].keep_alive = False  # its body may still be on its way
        else:
            self.close()

    # -- the parser --------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        self._expects, self._in_head = False, True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            name = name.lower()
            self._headers.append((name, value))
            if name == b"expect" and value.strip(b" \t").lower() == b"100-continue":
                self._expects = True

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            if self._parser.get_method() == b"CONNECT":
                raise Refused
            return  # it is read once more, without that wish
        self._slow.sent(self)
        version = self._parser.get_http_version()
        check_head(self._url, self._headers, version, self._max_head)
        self._in_head = self._bare = False
        self._head = 0
        try:
            url = httptools.parse_url(self._url)
            raw = url.path or b"/"
            path = raw.decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            raise Refused from None
        if len(raw) > _LONGEST:
            raise Refused(414)
        if self._url[0] != 47 or url.fragment is not None:  # a slash
            check_target(self._url, self._parser.get_method(), self._headers)
        root = self._root
        scope: AsgiScope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": self._parser.get_method().decode("ascii"),
            "root_path": root,
            "path": root + (unquote(path) if "%" in path else path),
            "raw_path": root.encode() + raw if root else raw,
            "query_string": url.query or b"",
            "headers": self._headers,
        }
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        expects = self._expects and version != "1.0"
        request = HttpRequest(self, scope, keep_alive=keep_alive, expects=expects)
        scope["extensions"] = self._extensions(request)
        self._receiving = request
        self._requests.append(request)
        if len(self._requests) == 1:
            self._begin(request, scope)
        else:
            self._scopes.append(scope)
            self._listen()

    def on_body(self, body: bytes) -> None:
        self._bare, self._head = False, 0
        if self._receiving is not None:
            self._receiving.feed(body)
            if len(self._receiving.body_here) > _ROOM:
                self._listen()

    def on_message_complete(self) -> None:
        self._bare, self._head = False, 0
        request, self._receiving = self._receiving, None
        if request is not None:
            request.complete()
            if request.done and not request.keep_alive:
                self._deaf = True
                self.close()

    def _extensions(self, request: HttpRequest) -> dict[str, Any]:
        return {DIRECT: request}

    # -- requests and answers ----------------------------------------------------------------------------------

    @property
    def default_headers(self) -> Sequence[Header]:
        return self._state.default_headers

    def _begin(self, request: HttpRequest, scope: AsgiScope) -> None:
        tasks, most = self._state.tasks, self._most
        full = most is not None and (
            self._connections.full or len(self._state.connections) >= most or len(tasks) >= most
        )
        run = request.run(_full if full else self._app, scope)
        task = self.loop.create_task(run, context=self._context.copy())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def answered(self, request: HttpRequest) -> None:
        self._state.total_requests += 1
        self._requests.remove(request)
        if request.more and not request.keep_alive and not self._deaf and not self._requests:
            self._listen()
            self._slow.asked(
                self
            )  # who is still speaking would not hear an answer that ends with the connection
        elif not request.keep_alive or (self._deaf and not self._requests):
            self._deaf = True
            self.close()
        elif self.transport.is_closing():
            return
        elif self._requests:
            self._begin(self._requests[0], self._scopes.popleft())
            self._listen()
        else:
            self._listen()
            self._slow.asked(self)  # also if the rest of a body is on its way: nobody else waits for that

    def read_on(self) -> None:
        if self._quiet:
            self._listen(room=True)

    def _listen(self, *, room: bool = False) -> None:
        """Listen to the client, or not: not while a request waits, and not while a body does."""
        receiving = self._receiving
        body = receiving.body_here if receiving is not None and not receiving.done else b""
        quiet = len(self._requests) > 1 or (len(body) > _ROOM and not room)
        if quiet != self._quiet and not self.transport.is_closing():
            self._quiet = quiet
            if quiet:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _refuse(self, status: int) -> None:
        """What came is no request, or no body of one. Answers that are owed are given, if they can be."""
        self._deaf, receiving = True, self._receiving
        if receiving is not None:
            receiving.lose()  # the rest of its body will never come
            if receiving.started:
                self.close()
                return
            self._requests.remove(receiving)
        if self._requests:
            self._requests[-1].keep_alive = False
            return
        if not self.transport.is_closing():
            phrase = first_lines(status, ((b"content-length", b"0"), (b"connection", b"close")))
            self.write(phrase + b"\r\n")
            self.close()

    # -- `slow.Peer` -------------------------------------------------------------------------------------------

    def answering(self) -> bool:
        return bool(self._requests) and self._requests[0].started

    def unread(self) -> int:
        return self.transport.get_write_buffer_size() + self._holding

    def close(self) -> None:
        self._flush()
        if self.unread():
            self._slow.blocked(self)  # who does not read that either is not waited for
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()


async def _full(scope: Any, receive: Any, send: Any) -> None:
    headers = ((b"content-length", b"0"), (b"connection", b"close"), (b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body"})

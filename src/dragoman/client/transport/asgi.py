"""Talk to an ASGI application in this process, without a network and without waiting for the end of a response.

Each request runs the application in a task of its own. What it sends is passed on piece by piece, and it has to wait if
nobody reads, as with a socket. The application's lifespan runs from the first request to `close`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote, urlsplit

from dragoman.client.transport.transport import MAX_BODY_BYTES, too_large
from dragoman.errors import Unreachable

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

_MAX_UNREAD_PIECES = 64
"""How many pieces an application may send ahead of its reader."""


class AsgiTransport:
    """A `Transport` to one application."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._running: set[asyncio.Task[None]] = set()
        self._lifespan: _Lifespan | None = None

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsgiResponse:
        if self._lifespan is None:
            self._lifespan = _Lifespan(self._app)
        await self._lifespan.wait_until_started()
        response = AsgiResponse(url, body)
        task = asyncio.create_task(response.run(self._app, self._scope(method, url, headers, body)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await response.began.wait()
        except asyncio.CancelledError:
            await response.close()
            raise
        if not response.status:
            raise response.failure()
        return response

    async def close(self) -> None:
        """Disconnect every request, wait for the application to notice, and end its lifespan."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        if self._lifespan is not None:
            await self._lifespan.stop()
            self._lifespan = None

    def _scope(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> AsgiScope:
        parts = urlsplit(url)
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        raw.append((b"host", parts.netloc.encode()))
        if body or method not in ("GET", "HEAD", "DELETE"):
            raw.append((b"content-length", str(len(body)).encode()))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": parts.scheme or "http",
            "path": unquote(parts.path) or "/",
            "raw_path": parts.path.encode() or b"/",
            "root_path": "",
            "query_string": parts.query.encode(),
            "headers": raw,
            "client": ("127.0.0.1", 1),
            "server": (parts.hostname or "localhost", parts.port or 80),
            "state": dict(self._lifespan.state) if self._lifespan else {},
        }


class AsgiResponse:
    """A response the application is still writing."""

    def __init__(self, url: str, body: bytes) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.began = asyncio.Event()
        self._error: Exception | None = None
        self._url = url
        self._request: bytes | None = body
        self._pieces: deque[bytes] = deque()
        self._ended = False
        self._complete = False
        self._gone = asyncio.Event()
        self._change = asyncio.Event()
        """Set whenever a piece comes, is taken, or will never come."""

    async def run(self, app: AsgiApp, scope: AsgiScope) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # what the application raises breaks the response, as over a network
            if not self._ended:
                self._error = error
        finally:
            self._ended = True
            self.began.set()
            self._change.set()

    def failure(self) -> Unreachable:
        """The error that ended the answer."""
        if self._error is None:
            return Unreachable("the application did not finish its answer")
        failed = Unreachable(f"the application failed: {self._error!r}")
        failed.__cause__ = self._error
        return failed

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._request is not None:
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message.get("headers", ()):
                key, text = name.decode("latin-1").lower(), value.decode("latin-1")
                self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
            self.began.set()
            return
        if message.get("body"):
            while len(self._pieces) >= _MAX_UNREAD_PIECES and not self._gone.is_set():
                await self._wait_for_change()
            self._pieces.append(bytes(message["body"]))
        if self._gone.is_set():
            raise OSError("the client has disconnected")
        self._ended = self._complete = not message.get("more_body")
        self._change.set()

    async def _wait_for_change(self) -> None:
        self._change.clear()
        await self._change.wait()

    async def chunks(self) -> AsyncIterator[bytes]:
        while not self._gone.is_set():
            if self._pieces:
                piece = self._pieces.popleft()
                self._change.set()
                yield piece
            elif self._ended:
                self._gone.set()
                if not self._complete:
                    raise self.failure()
            else:
                await self._wait_for_change()

    async def read(self) -> bytes:
        body = bytearray()
        async for piece in self.chunks():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                await self.close()
                raise too_large(self._url)
        return bytes(body)

    async def close(self) -> None:
        self._gone.set()
        self._change.set()


class _Lifespan:
    """The application's startup and shutdown, in one task as ASGI requires."""

    def __init__(self, app: AsgiApp) -> None:
        self.state: dict[str, Any] = {}
        self._up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping = asyncio.Event()
        self._asked = False
        self._task = asyncio.create_task(self._run(app))

    async def wait_until_started(self) -> None:
        if not self._up.done():
            await asyncio.shield(self._up)
        self._up.result()

    async def stop(self) -> None:
        self._stopping.set()
        await self._task

    async def _run(self, app: AsgiApp) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        try:
            await app(scope, self._receive, self._send)
        except (
            Exception
        ) as error:  # an application without a lifespan raises; a failed one sends startup.failed
            if self._stopping.is_set():
                raise
            if not self._up.done() and self._failed:
                self._up.set_exception(error)
        finally:
            if not self._up.done():
                self._up.set_result(None)

    _failed = False

    async def _receive(self) -> MutableMapping[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "lifespan.startup"}
        await self._stopping.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "lifespan.startup.complete":
            if not self._up.done():
                self._up.set_result(None)
        elif message["type"] == "lifespan.startup.failed":
            self._failed = True
            if not self._up.done():
                self._up.set_exception(
                    Unreachable(f"the application did not start: {message.get('message', '')}")
                )

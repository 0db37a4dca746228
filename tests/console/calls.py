"""Calls of the console's API that the tests of chat, inspector and log-in share."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from dragoman.client.transport.network import HttpTransport
from dragoman.console import calling_modules
from dragoman.console.access import Access, OperatorToken
from dragoman.console.api import Console
from dragoman.console.login import Logins
from dragoman.dialects.sse import SseReader
from dragoman.push.guard import OutboundGuard
from dragoman.server.app import App
from dragoman.server.http1.server import HttpServer
from tests.console.conftest import TOKEN, Operator
from tests.server.wire import Answer


def events(answer: Answer) -> list[tuple[str, Any]]:
    """The events of a stream so far."""
    return [(frame.event, msgspec.json.decode(frame.data)) for frame in answer.frames()]


def named(answer: Answer, name: str) -> list[Any]:
    return [data for event, data in events(answer) if event == name]


def text(words: str) -> dict[str, Any]:
    return {"parts": [{"text": words}]}


@asynccontextmanager
async def inspector(*, allow_private: bool = True, url: str = "") -> AsyncIterator[Operator]:
    """A console without agents of its own, as `dragoman inspect` has it."""
    guard = OutboundGuard(allow_private=allow_private)
    logins = Logins(guard)
    modules, access = calling_modules(guard, logins, url=url), Access(OperatorToken(TOKEN))
    app = App([], console=Console(access, kind="inspect", features=("talk", "inspect"), modules=modules))
    await app.start()
    try:
        yield Operator(app)
    finally:
        await logins.close()
        await app.stop()


async def serve(site: Any) -> tuple[HttpServer, str]:
    """An ASGI application on a loopback port, and its URL."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = HttpServer(site, listener)
    await server.start()
    return server, f"http://127.0.0.1:{listener.getsockname()[1]}"


class Page:
    """A page in a browser: it has the printed URL."""

    def __init__(self, url: str) -> None:
        self.base, _, self.token = url.partition("/console/#token=")
        self._cookie = ""

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Origin": self.base, "Sec-Fetch-Site": "same-origin", "Cookie": self._cookie}
        data = b"" if body is None else json.dumps(body).encode()
        transport = HttpTransport()  # a new connection: a server that restarts closes those that are idle
        response = await transport.request(method, f"{self.base}/console/api/{path}", headers, data)
        raw = await response.read()
        await transport.close()
        if "set-cookie" in response.headers:
            self._cookie = response.headers["set-cookie"].partition(";")[0]
        return response.status, raw

    async def follow(self, path: str) -> AsyncIterator[tuple[str, Any]]:
        """The events of a stream."""
        headers, transport = {"Cookie": self._cookie}, HttpTransport()
        response = await transport.request("GET", f"{self.base}/console/api/{path}", headers)
        assert response.status == 200
        reader = SseReader()
        async for chunk in response.chunks():
            for frame in reader.feed(chunk):
                yield frame.event, json.loads(frame.data)
        await transport.close()

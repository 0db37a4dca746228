"""A webhook for tests that answers, refuses, waits, disconnects or does not listen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self


class Notification(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document

    @property
    def delivery(self) -> str:
        return self.headers["webhook-id"]

    @property
    def seq(self) -> int:
        return int(self.delivery.rpartition(".")[2])


Answer = int | bytes | None
"""A status, a whole response, or None: hang up."""


class Receiver:
    """`async with Receiver() as webhook:` listens at `webhook.url`; `down` and `up` as often as you like, on the same port."""

    def __init__(self, answer: Callable[[Notification], Awaitable[Answer]] | None = None) -> None:
        self.notifications: list[Notification] = []
        """What it acknowledged, in order."""
        self.refused: list[Notification] = []
        self.answer = answer
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._news = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/webhook"

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait until something is so; looked at whenever somebody came."""
        async with asyncio.timeout(15), self._news:
            await self._news.wait_for(happened)

    async def wait_for(self, count: int) -> list[Notification]:
        await self.until(lambda: len(self.notifications) >= count)
        return self.notifications

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError, EOFError):
            while True:
                received = await _read(reader)
                status: Answer = 204 if self.answer is None else await self.answer(received)
                if status is None:
                    self.refused.append(received)
                    break
                good = status in range(200, 300) if isinstance(status, int) else b" 2" in status[:12]
                response = (
                    status
                    if isinstance(status, bytes)
                    else b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status
                )
                (self.notifications if good else self.refused).append(received)
                writer.write(response if status != 204 else b"HTTP/1.1 204 No Content\r\n\r\n")
                await writer.drain()
                await self._tell()
        self._writers.discard(writer)
        writer.transport.abort()
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


async def _read(reader: asyncio.StreamReader) -> Notification:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    headers = {name.lower(): value for name, value in headers.items()}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Notification(method, path, headers, body)

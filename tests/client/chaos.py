"""A small HTTP proxy that goes wrong on demand.

    chaos = Chaos("http://127.0.0.1:8000")
    chaos.on("SendStreamingMessage", Cut(frames=3))
    async with chaos as url: ...

Each fault strikes one request of the method it was set for; everything else passes. `anonymous` hides that the server
is a Dragoman server: no `Dragoman` header, no event ids. All requests are kept in `seen`.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from dragoman.dialects import paths


@dataclass
class Seen:
    """A request that came through."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def method(self) -> str:
        """The operation, or the HTTP method."""
        verb, target, _ = self.line.split(" ")
        found = paths.find(target.partition("?")[0])
        if found is not None and verb in found.paths:
            return found.paths[verb].op.name
        if not self.body:
            return verb
        return str(json.loads(self.body).get("method", ""))


class Exchange:
    """One request, and what is made of its answer."""

    def __init__(
        self, seen: Seen, upstream: tuple[str, int], writer: asyncio.StreamWriter, anonymous: bool
    ) -> None:
        self.seen = seen
        self._upstream = upstream
        self._writer = writer
        self._anonymous = anonymous

    async def frames(self) -> AsyncIterator[bytes]:
        """Pass on the head of the server's answer, then give its body, frame by frame (or all at once)."""
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            writer.write(_request(self.seen))
            line, headers = await _head(reader)
            hidden = (
                "content-length",
                "transfer-encoding",
                "connection",
                *(("dragoman",) if self._anonymous else ()),
            )
            self.start(line, {name: value for name, value in headers.items() if name not in hidden})
            rest = b""
            async for piece in _body(reader, headers):
                rest += piece
                while b"\n\n" in rest:
                    frame, _, rest = rest.partition(b"\n\n")
                    yield self._hide(frame) + b"\n\n"
            if rest:
                yield rest
        finally:
            writer.close()

    def _hide(self, frame: bytes) -> bytes:
        if not self._anonymous:
            return frame
        return b"\n".join(line for line in frame.split(b"\n") if not line.startswith(b"id:"))

    def start(self, line: str, headers: dict[str, str]) -> None:
        lines = [line, *(f"{name}: {value}" for name, value in headers.items()), "transfer-encoding: chunked"]
        self._writer.write(("\r\n".join([*lines, "connection: close"]) + "\r\n\r\n").encode())

    async def write(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def finish(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        self._writer.close()

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()


class Fault(Protocol):
    async def strike(self, exchange: Exchange) -> None: ...


class Pass:
    """Nothing goes wrong."""

    async def strike(self, exchange: Exchange) -> None:
        async for frame in exchange.frames():
            await exchange.write(frame)
        await exchange.finish()


@dataclass
class Cut:
    """The connection breaks after some frames, `half` way through the next."""

    frames: int
    half: bool = False

    async def strike(self, exchange: Exchange) -> None:
        n = 0
        async for frame in exchange.frames():
            if n == self.frames:
                if self.half:
                    await exchange.write(frame[: len(frame) // 2])
                break
            await exchange.write(frame)
            n += 1
        await asyncio.sleep(0)
        exchange.abort()


@dataclass
class EndEarly:
    """The answer ends after some frames, as if it were complete; perhaps with something else before that."""

    frames: int
    then: bytes = b""

    async def strike(self, exchange: Exchange) -> None:
        n = 0
        async for frame in exchange.frames():
            if n == self.frames:
                break
            await exchange.write(frame)
            n += 1
        if self.then:
            await exchange.write(self.then)
        await exchange.finish()


@dataclass
class Stall:
    """After some frames nothing more comes, and the connection stays."""

    frames: int
    stalled: asyncio.Event = field(default_factory=asyncio.Event)

    async def strike(self, exchange: Exchange) -> None:
        n = 0
        async for frame in exchange.frames():
            if n == self.frames:
                break
            await exchange.write(frame)
            n += 1
        self.stalled.set()
        await asyncio.Event().wait()


class Slow:
    """Byte by byte."""

    async def strike(self, exchange: Exchange) -> None:
        async for frame in exchange.frames():
            for i in range(len(frame)):
                await exchange.write(frame[i : i + 1])
                await asyncio.sleep(0)
        await exchange.finish()


class Lost:
    """The server does its work, and its answer is lost."""

    async def strike(self, exchange: Exchange) -> None:
        async for _ in exchange.frames():
            pass
        exchange.abort()


class Dropped:
    """The connection breaks before an answer; the server never saw the request."""

    async def strike(self, exchange: Exchange) -> None:
        exchange.abort()


@dataclass
class Status:
    """The proxy answers by itself."""

    code: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"<html>no</html>"

    async def strike(self, exchange: Exchange) -> None:
        exchange.start(f"HTTP/1.1 {self.code} No", self.headers)
        await exchange.write(self.body)
        await exchange.finish()


@dataclass
class Raw:
    """The proxy answers with bytes that may be anything."""

    data: bytes

    async def strike(self, exchange: Exchange) -> None:
        await exchange.raw(self.data)
        exchange.abort()


class Chaos:
    def __init__(self, upstream: str, *, anonymous: bool = False) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._anonymous = anonymous
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.seen: list[Seen] = []
        self._serving: set[asyncio.Task[Any]] = set()
        self._more = asyncio.Event()

    async def until(self, method: str, times: int) -> None:
        """Wait until so many requests of `method` have come."""
        while self.methods().count(method) < times:
            self._more.clear()
            await self._more.wait()

    def on(self, method: str, *faults: Fault) -> None:
        """The next requests of `method` meet these, one each."""
        self._faults[method].extend(faults)

    def methods(self) -> list[str]:
        return [seen.method for seen in self.seen]

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            line, headers = await _head(reader)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            seen = Seen(line, headers, body)
            self.seen.append(seen)
            self._more.set()
            faults = self._faults[seen.method]
            fault = faults.popleft() if faults else Pass()
            await fault.strike(Exchange(seen, self._upstream, writer, self._anonymous))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._serving.discard(task)


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    return line, {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif length := int(headers.get("content-length", 0)):
        yield await reader.readexactly(length)


def _request(seen: Seen) -> bytes:
    lines = [
        seen.line,
        *(f"{k}: {v}" for k, v in seen.headers.items() if k != "connection"),
        "connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + seen.body

"""HTTP by hand: a JSON-RPC client that retries nothing, hides nothing and knows nothing of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

V1 = {"A2A-Version": "1.0"}


class StreamEvent(NamedTuple):
    """One event of a stream: its id (0 without one) and the JSON-RPC response in it."""

    seq: int
    document: dict[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.document, self.document
        result: dict[str, Any] = self.document["result"]
        return result


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader


def rpc(method: str, params: Any, id: Any = 1) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


async def get(url: str, **headers: str) -> dict[str, Any]:
    """A JSON document."""
    async with post(url, b"", spelled(headers), method="GET") as response:
        assert response.status == 200, response
        return await _document(response)


@asynccontextmanager
async def post(
    url: str, body: bytes, headers: Mapping[str, str], *, method: str = "POST"
) -> AsyncIterator[Response]:
    """POST `body`; the connection closes with the context, whatever is still to come."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        head = [
            f"{method} {parts.path or '/'}{'?' if parts.query else ''}{parts.query} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        named = dict(line.split(": ", 1) for line in head[1:] if line)
        yield Response(int(head[0].split()[1]), {k.lower(): v for k, v in named.items()}, reader)
    finally:
        writer.close()


async def read(response: Response) -> bytes:
    """All of a body, however it comes; of a stream, what comes before a question."""
    if "content-length" in response.headers:
        return await response.reader.readexactly(int(response.headers["content-length"]))
    if response.status in (204, 304):
        return b""
    heard = []
    async for line in lines(response.reader):
        heard.append(line)
        if not line and any(b"INPUT_REQUIRED" in said or b"input-required" in said for said in heard):
            break  # a stream that goes on when somebody answers
    return b"\n".join(heard)


async def call(url: str, method: str, params: Any, **headers: str) -> dict[str, Any]:
    """The JSON-RPC response to one call."""
    async with post(url, rpc(method, params), spelled(headers)) as response:
        document = await _document(response)
        if response.status != 200:
            raise Refused(response.status, document)
        return document


async def result(url: str, method: str, params: Any, **headers: str) -> Any:
    document = await call(url, method, params, **headers)
    assert "result" in document, document
    return document["result"]


async def stream(url: str, method: str, params: Any, **headers: str) -> AsyncIterator[StreamEvent]:
    """The events of a streaming call, as they come. A broken connection raises, as `OSError` or `EOFError`."""
    async with post(url, rpc(method, params), spelled(headers)) as response:
        if response.headers.get("content-type") != "text/event-stream":
            raise Refused(response.status, await _document(response))
        seq, data = 0, b""
        async for line in lines(response.reader):
            name, _, value = line.partition(b": ")
            if name == b"id":
                seq = int(value)
            elif name == b"data":
                data += value
            elif not line and data:
                yield StreamEvent(seq, json.loads(data))
                seq, data = 0, b""


class Refused(Exception):
    """A stream was asked for and an error came back, or HTTP itself said no."""

    @property
    def status(self) -> int:
        status: int = self.args[0]
        return status

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.args[1]["error"]
        return error


async def _document(response: Response) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        await response.reader.readexactly(int(response.headers["content-length"]))
    )
    return document


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a chunked body. A chunk counts only when all of it has come."""
    rest = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunk = await reader.readexactly(size + 2)
        *lines, rest = (rest + chunk[:-2]).split(b"\n")
        for line in lines:
            yield line


def spelled(headers: Mapping[str, str]) -> dict[str, str]:
    """`last_event_id="5"` is `Last-Event-ID: 5`. 1.0 is spoken unless a version is given; `""` says nothing of it."""
    named = {"a2a-version": "1.0", **{name.replace("_", "-").lower(): v for name, v in headers.items()}}
    return {name: value for name, value in named.items() if value}

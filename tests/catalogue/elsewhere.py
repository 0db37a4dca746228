"""Agents elsewhere, on loopback: honest ones, and such that lie, hang or send too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

CARD: dict[str, Any] = {
    "name": "Currency desk",
    "description": "Exchanges money.",
    "version": "2.1",
    "provider": {"organization": "Acme", "url": "https://acme.example"},
    "supportedInterfaces": [
        {"url": "https://money.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "skills": [
        {
            "id": "convert",
            "name": "Convert currency",
            "description": "Converts an amount.",
            "tags": ["money", "rates"],
            "examples": ["How much is 10 USD in INR?", "Convert 5 EUR"],
        }
    ],
}


class Elsewhere:
    """A server whose answer a test chooses: `answer` gets the path and returns bytes of a response, or None to say nothing."""

    def __init__(self) -> None:
        self.card: dict[str, Any] = CARD
        self.status = b"200 OK"
        self.raw: Callable[[str], bytes] | None = None
        self.hangs = False
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self.come = asyncio.Event()
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            path = head.split(b" ")[1].decode()
            self.asked.append(path)
            self.come.set()
            if self.hangs:
                await reader.read()  # until they give up
                return
            writer.write(self._answer(path))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str) -> bytes:
        if self.raw is not None:
            return self.raw(path)
        if not path.startswith("/.well-known/agent-card.json"):
            return respond(b"{}", b"404 Not Found")
        return respond(msgspec.json.encode(self.card), self.status)


def respond(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    head = (
        b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\n%bcontent-length: %d\r\n\r\n"
    )
    return head % (status, more, len(body)) + body


@asynccontextmanager
async def elsewhere() -> AsyncIterator[Elsewhere]:
    site = Elsewhere()
    server = await asyncio.start_server(site.handle, "127.0.0.1", 0)
    site.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield site
    finally:
        server.close()

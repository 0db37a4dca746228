"""A server that answers with whatever bytes a test wants, and what it may say in A2A 1.0."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tests.waiting import elapse

Answer = Callable[[asyncio.StreamWriter, dict[str, Any]], Awaitable[None]]


def task(id: str = "t1", state: str = "WORKING", **more: Any) -> dict[str, Any]:
    return {"task": {"id": id, "contextId": "c1", "status": {"state": f"TASK_STATE_{state}"}, **more}}


def status(state: str, id: str = "t1") -> dict[str, Any]:
    return {"statusUpdate": {"taskId": id, "contextId": "c1", "status": {"state": f"TASK_STATE_{state}"}}}


def chunk(text: str, id: str = "t1", **more: Any) -> dict[str, Any]:
    artifact = {"artifactId": "a", "parts": [{"text": text}]}
    return {"artifactUpdate": {"taskId": id, "contextId": "c1", "artifact": artifact, "append": True, **more}}


def http(body: bytes, *headers: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def result(document: Any, id: Any = "1") -> bytes:
    return http(json.dumps({"jsonrpc": "2.0", "id": id, "result": document}).encode())


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def frame(document: Any, id: str = "") -> bytes:
    numbered = f"id: {id}\n" if id else ""
    body = json.dumps({"jsonrpc": "2.0", "id": "1", "result": document})
    return f"{numbered}data: {body}\n\n".encode()


def stream(documents: Iterable[Any]) -> bytes:
    return STREAM_HEAD + b"".join(map(frame, documents))


class Liar:
    """A server on loopback that answers with whatever bytes a test wants. `answer` writes them."""

    def __init__(self) -> None:
        self.url = ""
        self.card: Any = {}
        self.card_seconds = 0.0
        """Between two bytes of the card."""
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.left = asyncio.Event()
        """Somebody closed a connection that was being answered."""
        self.answer: Answer = self.write(b"")
        self._server: asyncio.Server | None = None

    def write(self, *pieces: bytes) -> Answer:
        async def answer(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()

        return answer

    def says(self, *pieces: bytes) -> None:
        self.answer = self.write(*pieces)

    async def __aenter__(self) -> Liar:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.card = self.make_card(f"{self.url}/rpc")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    def make_card(self, url: str, **more: Any) -> dict[str, Any]:
        return {
            "name": "Liar",
            "description": "Lies",
            "version": "1",
            "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
            "capabilities": {"streaming": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "lie", "name": "lie", "description": "Lies", "tags": []}],
            **more,
        }

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [body for path, _, body in self.requests if "well-known" not in path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            path = first.split(" ")[1]
            self.requests.append((path, headers, json.loads(body) if body else {}))
            if "well-known" in path:
                await self._write_slowly(writer, http(json.dumps(self.card).encode()))
            elif body:
                await self.answer(writer, json.loads(body))
            else:
                writer.write(http(b"", status="404 Not Found"))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()

    async def _write_slowly(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        for n in range(len(answer) if self.card_seconds else 0):
            writer.write(answer[n : n + 1])
            await elapse(self.card_seconds)
        writer.write(b"" if self.card_seconds else answer)

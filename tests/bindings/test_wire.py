"""What goes out in one write, and what must not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from dragoman.bindings.exchange import AsgiScope, Receive, Send
from dragoman.bindings.wire import HttpProtocol, _Transport
from tests.ports import free_port

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Written:
    """A transport that remembers its writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False
        self.get_extra_info = self.pause_reading = self.resume_reading = self.set_protocol = None

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


@pytest.fixture
async def written() -> Written:
    return Written()


@pytest.fixture
async def transport(written: Written) -> _Transport:
    return _Transport(written, asyncio.get_running_loop())  # type: ignore[arg-type]


async def test_an_answer_is_one_write(transport: _Transport, written: Written) -> None:
    transport.write(HEAD)
    transport.write(b"hello")
    await asyncio.sleep(0)
    assert written.writes == [HEAD + b"hello"]


async def test_an_answer_without_a_body_does_not_wait_for_one(
    transport: _Transport, written: Written
) -> None:
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert written.writes == [HEAD]


async def test_a_stream_is_written_as_it_comes(transport: _Transport, written: Written) -> None:
    transport.write(STREAM)
    transport.write(b"5\r\nhello\r\n")
    assert written.writes == [STREAM, b"5\r\nhello\r\n"]


async def test_an_answer_goes_out_before_its_connection_is_closed(
    transport: _Transport, written: Written
) -> None:
    transport.write(HEAD)
    transport.write(b"hello")
    transport.close()
    await asyncio.sleep(0)
    assert written.writes == [HEAD + b"hello"]
    assert written.closed


async def test_an_answer_to_somebody_who_has_gone_is_forgotten(
    transport: _Transport, written: Written
) -> None:
    transport.write(HEAD)
    written.close()
    await asyncio.sleep(0)
    assert written.writes == []


async def _hello(scope: AsgiScope, receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"5")]
    if scope["path"] == "/last":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def _serving(app: Any) -> AsyncIterator[int]:
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(app, port=port, http=HttpProtocol, lifespan="off", log_level="error")
    )
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield port
    finally:
        server.should_exit = True
        await serving


async def test_answers_follow_each_other_on_a_connection_until_it_is_closed() -> None:
    async with asyncio.timeout(10), _serving(_hello) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        requests = [("HEAD", "/"), ("GET", "/"), ("GET", "/"), ("GET", "/last")]
        for method, path in requests:
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        answers = await reader.read(-1)
        writer.close()
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == len(requests)
    assert answers.count(b"\r\n\r\nhello") == len(requests) - 1
    assert answers.endswith(b"\r\n\r\nhello")

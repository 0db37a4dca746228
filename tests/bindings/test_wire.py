"""The short way of our own server: whole requests and whole answers, past ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn

from dragoman.bindings.exchange import DIRECT, AsgiScope, Receive, Send
from dragoman.bindings.wire import HttpProtocol
from tests.ports import free_port

CLOSE = b"connection: close\r\n"


async def _app(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Says how the body came, and the body."""
    direct = scope["extensions"][DIRECT]
    if scope["path"] == "/odd":
        with pytest.raises(ValueError, match="one line"):
            direct.answer(200, [(b"x", b"1\r\ny: 2")], b"", 0)
    body, way = direct.body(), b"whole: "
    if body is None:
        body, way, more = b"", b"pieces: ", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
    answer = way + body
    assert direct.answer(200, [(b"x", b"1")], b"" if scope["method"] == "HEAD" else answer, len(answer))
    assert not direct.answer(200, [], b"again", 5)


@asynccontextmanager
async def _connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    port = free_port()
    config = uvicorn.Config(_app, port=port, http=HttpProtocol, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


def _request(method: str, path: str, *headers: str, body: str = "", version: str = "1.1") -> bytes:
    lines = (f"{method} {path} HTTP/{version}", "Host: here", *headers)
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


async def test_answers_follow_each_other_on_a_connection_until_it_is_to_be_closed() -> None:
    async with _connected() as (reader, writer):
        body = ("Content-Length: 5",)
        writer.write(_request("HEAD", "/") + _request("POST", "/", *body, body="first"))
        writer.write(_request("POST", "/odd", *body, body="again"))
        writer.write(_request("POST", "/", *body, "Connection: close", body="last."))
        answers = (await reader.read(-1)).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == [
        b"",
        b"whole: first",
        b"whole: again",
        b"whole: last.",
    ]
    assert [b"content-length: 7\r\n" in answer for answer in answers] == [True, False, False, False]
    assert [CLOSE in answer for answer in answers] == [False, False, False, True]
    assert all(b"date: " in answer and b"x: 1\r\n" in answer for answer in answers)


async def test_a_body_that_is_not_all_there_comes_in_pieces() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/", "Content-Length: 10", body="hello"))
        await writer.drain()
        while not _begun():
            await asyncio.sleep(0)
        writer.write(b"world")
        head = await reader.readuntil(b"\r\n\r\n")
        assert (await reader.readexactly(18), head[:15]) == (b"pieces: helloworld", b"HTTP/1.1 200 OK")


def _begun() -> bool:
    """Whether the application has a request."""
    return any("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/", "Content-Length: 5", "Expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(13) == b"pieces: hello"


async def test_an_old_client_gets_its_answer_and_the_end_of_the_connection() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("GET", "/", version="1.0"))
        answer = await reader.read(-1)
    assert CLOSE in answer and answer.endswith(b"\r\n\r\nwhole: ")

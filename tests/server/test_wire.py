"""The short way of our own server: whole requests and whole answers, past ASGI."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from dragoman.server.asgi import DIRECT, AsgiScope, Receive, Send
from dragoman.server.http1.protocol import HttpProtocol, HttpRequest
from dragoman.server.http1.server import HttpServer
from dragoman.server.limits import Limits

CLOSE = b"connection: close\r\n"


heard: list[str] = []
"""What requests heard that had no answer to give."""
about: ContextVar[str] = ContextVar("about", default="nobody")
PIECE = b"x" * 16384
MANY = 1024


async def _app(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Says how the body came, and the body."""
    direct = scope["extensions"][DIRECT]
    match scope["path"]:
        case "/broken":
            raise RuntimeError("this is meant to fail")
        case "/silent":
            return
        case "/no":  # without a look at the body
            assert direct.respond(403, [], b"", 0)
            return
        case "/no-more":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body"})
            return
        case "/heard":
            heard.append("a request")
        case "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"X", b"1")]})
            for piece in (b"one ", b"", b"two"):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})
            return
        case "/flood":  # without a pause of its own
            await send({"type": "http.response.start", "status": 200, "headers": []})
            most = 0
            for _ in range(MANY):
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
                most = max(most, direct._connection.unread_bytes())
            heard.append(f"{most < 1 << 20}")
            await send({"type": "http.response.body"})
            return
        case "/empty":
            await send({"type": "http.response.start", "status": int(scope["query_string"]), "headers": []})
            await send({"type": "http.response.body", "body": b"HTTP/1.1 200 OK\r\n\r\n"})
            return
        case "/about":
            before = about.get().encode()
            about.set("somebody")
            assert direct.respond(200, [], before, len(before))
            return
        case "/late" | "/later":  # for whom everything is said
            if scope["path"] == "/later":
                await receive()
            while not direct.half_closed:
                await asyncio.sleep(0)
        case "/wait":
            while (message := await receive())["type"] == "http.request":
                pass
            heard.append(message["type"])
            return
    if scope["path"] == "/odd":
        with pytest.raises(ValueError, match="one line"):
            direct.respond(200, [(b"x", b"1\r\ny: 2")], b"", 0)
    body, way = direct.body(), b"whole: "
    if body is None:
        body, way, more = b"", b"pieces: ", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
    answer = way + body
    assert direct.respond(200, [(b"x", b"1")], b"" if scope["method"] == "HEAD" else answer, len(answer))
    assert not direct.respond(200, [], b"again", 5)


@asynccontextmanager
async def _connected(**limits: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(_app, listener, limits=Limits(**limits))
    await server.start()
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            await server.stop()


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
    return any("HttpRequest.run" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_body_that_is_on_its_way_when_the_server_stops_still_arrives() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/", "Content-Length: 10", body="hello"))
        while not _begun():
            await asyncio.sleep(0)
        for connection in [each for each in gc.get_objects() if isinstance(each, HttpProtocol)]:
            if hasattr(connection, "transport"):  # not one that another test never connected
                connection.shutdown()
        writer.write(b"world")
        answer = await reader.read(-1)
    assert CLOSE in answer and answer.endswith(b"pieces: helloworld")


async def test_expect_100_continue_is_answered() -> None:
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


async def test_a_stream_is_chunked_and_the_connection_goes_on() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("GET", "/stream") + _request("HEAD", "/stream") + _request("GET", "/no"))
        streamed = await reader.readuntil(b"0\r\n\r\n")
        assert b"x: 1\r\n" in streamed and b"transfer-encoding: chunked\r\n" in streamed
        assert streamed.endswith(b"\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n")
        assert b"chunked" not in await reader.readuntil(b"\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 403 Forbidden\r\n")


async def test_for_an_old_client_the_end_of_the_connection_is_the_end_of_a_stream() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("GET", "/stream", version="1.0"))
        answer = await reader.read(-1)
    assert b"chunked" not in answer and answer.endswith(b"\r\n\r\none two")


@pytest.mark.parametrize("path", ["/broken", "/silent"])
async def test_request_without_an_answer_gets_500(path: str) -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("GET", path))
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n") and CLOSE in answer
    assert b"meant" not in answer


async def test_an_answer_does_not_wait_for_the_rest_of_a_body() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/no", "Content-Length: 10", body="hello"))
        assert b" 403 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"world" + _request("POST", "/", "Content-Length: 5", body="again"))
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(12) == b"whole: again"


async def test_refused_expect_continue_closes_the_connection() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/no", "Content-Length: 5", "Expect: 100-continue"))
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 403 ") and CLOSE in answer


async def test_a_body_that_makes_no_sense_ends_its_request_and_the_connection() -> None:
    heard.clear()
    async with _connected() as (reader, writer):
        writer.write(
            _request("POST", "/wait", "Transfer-Encoding: chunked", body="5\r\nhello\r\nnonsense\r\n")
        )
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 400 ") and CLOSE in answer
    assert heard == ["http.disconnect"]


async def test_requests_before_an_invalid_one_are_answered() -> None:
    async with _connected() as (reader, writer):
        good = _request("POST", "/", "Content-Length: 2", body="me")
        writer.write(good + _request("GET", "/stream") + b"\x00nonsense\r\n\r\n" + good)
        answer = await reader.read(-1)
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"whole: me" in answer and answer.endswith(b"0\r\n\r\n")


async def test_bytes_after_the_last_request_are_ignored() -> None:
    async with _connected() as (reader, writer):
        last = _request("POST", "/", "Content-Length: 2", "Connection: close", body="me")
        writer.write(_request("GET", "/no") + last + _request("GET", "/stream"))
        answer = await reader.read(-1)
    assert answer.count(b"HTTP/1.1 ") == 2 and answer.endswith(b"whole: me")


async def test_upgrade_request_is_answered_over_http_1_1() -> None:
    """As some clients ask with their first request on every connection."""
    asks = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/", *asks, "Content-Length: 2", body="me") + _request("GET", "/no"))
        assert b" 200 OK" in await reader.readuntil(b"whole: me")
        assert b" 403 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(_request("POST", "/", *asks, "Content-Length: 5", body="again"))
        assert b" 200 OK" in await reader.readuntil(b"whole: again")
        writer.write(_request("GET", "/stream", *asks) * 2 + _request("CONNECT", "/stream"))
        answer = await reader.read(-1)
    assert answer.count(b" 200 OK") == 2 and answer.endswith(b"0\r\n\r\n")


async def test_a_request_knows_nothing_of_the_one_before_it() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("GET", "/about") * 2 + _request("GET", "/about", "Connection: close"))
        answer = await reader.read(-1)
    assert answer.count(b"nobody") == 3 and b"somebody" not in answer


async def test_a_stream_waits_for_its_reader_also_if_it_never_pauses() -> None:
    heard.clear()
    async with _connected() as (reader, writer):
        writer.write(_request("GET", "/flood", version="1.0"))
        assert (await reader.read(-1)).count(b"x") == MANY * len(PIECE)
    assert heard == ["True"]


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_gets_none(status: int) -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("GET", f"/empty?{status}") + _request("GET", "/no", "Connection: close"))
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 2 and b"HTTP/1.1 403" in answer


async def test_http_1_0_clients_get_no_100_continue() -> None:
    asks = ("Content-Length: 5", "Expect: 100-continue")
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/", *asks, body="hello", version="1.0"))
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b"whole: hello")


async def test_a_body_that_makes_no_sense_after_its_answer_gets_no_second_one() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/no", "Transfer-Encoding: chunked", body="5\r\nhel"))
        assert b" 403 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"lo\r\nnonsense\r\n")
        assert await reader.read(-1) == b""


async def test_a_large_body_waits_in_the_network_until_it_is_asked_for() -> None:
    size = 4 << 20
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/", f"Content-Length: {size}"))
        writer.write(b"x" * size)
        head = await reader.readuntil(b"\r\n\r\n")
        assert f"content-length: {size + 8}\r\n".encode() in head
        assert (await reader.readexactly(size + 8)).startswith(b"pieces: xxx")


async def test_a_connection_above_the_limit_gets_503() -> None:
    async with _connected(max_connections=1) as (_, first):
        reader, writer = await asyncio.open_connection(*first.get_extra_info("peername"))
        writer.write(_request("GET", "/"))
        answer = await reader.read(-1)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") and CLOSE in answer


async def test_a_request_is_notified_when_its_client_disconnects() -> None:
    heard.clear()
    async with _connected() as (_, writer):
        writer.write(_request("GET", "/wait"))
        while not _begun():
            await asyncio.sleep(0)
        plug = writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # without a farewell
        writer.transport.abort()
        while not heard:
            await asyncio.sleep(0)
    assert heard == ["http.disconnect"]


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_half_closed_client_gets_its_response(version: str) -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/late", "Content-Length: 5", body="first", version=version))
        writer.write_eof()
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"whole: first") and CLOSE in answer


async def test_half_closed_client_gets_all_pipelined_responses() -> None:
    async with _connected() as (reader, writer):
        writer.write(_request("GET", "/no") + _request("GET", "/stream") + _request("GET", "/late"))
        writer.write_eof()
        answers = (await reader.read(-1)).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"403", b"200", b"200"]
    assert answers[1].endswith(b"0\r\n\r\n") and CLOSE in answers[2]


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param("GET / HT", id="in its first line"),
        pytest.param("GET / HTTP/1.1\r\nHost: he", id="in its head"),
        pytest.param("POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nfi", id="in its body"),
    ],
)
async def test_a_request_that_ends_in_the_middle_is_none(cut: str) -> None:
    async with _connected() as (reader, writer):
        writer.write(cut.encode())
        writer.write_eof()
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 400 ") and CLOSE in answer


async def test_connection_closed_without_a_request_gets_no_response() -> None:
    async with _connected() as (reader, writer):
        writer.write_eof()
        assert await reader.read(-1) == b""


async def test_a_request_that_is_answered_leaves_nothing_to_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        async with _connected() as (reader, writer):
            writer.write(_request("GET", "/") + _request("GET", "/stream") + _request("GET", "/no"))
            await reader.readuntil(b" 403 ")
            while _begun():
                await asyncio.sleep(0)
        left = [each for each in gc.get_objects() if isinstance(each, HttpRequest | HttpProtocol)]
    finally:
        gc.enable()
    assert left == []


async def test_a_client_that_sent_a_broken_body_and_then_nothing_more_gets_the_response_before_it() -> None:
    async with _connected() as (reader, writer):
        broken = _request("POST", "/", "Transfer-Encoding: chunked", body="no number\r\n")
        writer.write(_request("GET", "/later") + broken)
        writer.write_eof()
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1") == 1


async def test_a_request_after_a_response_that_closes_the_connection_is_not_processed() -> None:
    heard.clear()
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/no-more", "Content-Length: 5", body="bo"))
        assert CLOSE in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"dy!" + _request("GET", "/heard"))
        assert await reader.read(-1) == b"0\r\n\r\n"
    assert heard == []


async def test_the_body_of_a_refused_request_is_read_and_dropped() -> None:
    """A client that sends everything before it reads would wait for us, and we for it."""
    size = 8 << 20
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/no", f"Content-Length: {size}") + b"x" * (1 << 20))
        while b"403" not in await reader.readuntil(b"\r\n\r\n"):
            pass
        writer.write(b"x" * (size - (1 << 20)))
        await writer.drain()
        writer.write(_request("GET", "/", "Connection: close"))
        assert b"200 OK" in await reader.read(-1)


@pytest.mark.parametrize(("version", "header"), [("1.1", "Connection: close"), ("1.0", "X: 1")])
async def test_response_is_sent_although_the_body_was_not_read(version: str, header: str) -> None:
    size = 8 << 20
    async with _connected() as (reader, writer):
        writer.write(_request("POST", "/no", header, f"Content-Length: {size}", version=version))
        for _ in range(size >> 20):
            writer.write(b"x" * (1 << 20))
            await writer.drain()
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 403 ") and CLOSE in answer

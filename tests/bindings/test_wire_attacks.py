"""Requests that are made to be read in two ways, or to leave something behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from dragoman import Agent, Turn
from dragoman.application import application
from dragoman.auth import ApiKey, hashed
from dragoman.bindings.http import App
from dragoman.bindings.limits import Limits
from dragoman.server import running
from tests.raw import result

KEY = "a key that opens"
LIST = b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{}}'
CHUNKED = b"%x\r\n%b\r\n0\r\n" % (len(LIST), LIST)


def guarded() -> Agent:
    agent = Agent("Guarded", auth=[ApiKey({"ada": hashed(KEY)})])

    @agent.skill
    async def wait(turn: Turn) -> str:
        return await turn.ask("for what?")

    return agent


@pytest.fixture
async def url() -> AsyncIterator[str]:
    app = application(guarded(), store="memory:", limits=Limits(max_head=4096), keepalive=0.05)
    async with running(app) as url:
        yield url


async def answers(url: str, sent: bytes) -> bytes:
    """Everything that comes back until the server closes the connection."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(sent)
    async with asyncio.timeout(10):
        said = await reader.read(-1)
    writer.close()
    return said


def post(*headers: str, body: bytes) -> bytes:
    lines = ["POST / HTTP/1.1", "A2A-Version: 1.0", "Connection: close", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


async def test_what_comes_after_the_body_is_no_header(url: str) -> None:
    trailer = f"X-API-Key: {KEY}\r\n\r\n".encode()
    said = await answers(url, post("Host: here", "Transfer-Encoding: chunked", body=CHUNKED + trailer))
    assert said.startswith(b"HTTP/1.1 401 ")


async def test_a_trailer_does_not_spoil_a_good_request(url: str) -> None:
    head = ("Host: here", f"X-API-Key: {KEY}", "Transfer-Encoding: chunked")
    said = await answers(url, post(*head, body=CHUNKED + b"X-API-Key: another\r\n\r\n"))
    assert said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param((), id="none"),
        pytest.param(("Host: a", "Host: b"), id="two"),
        pytest.param(("Host: a", "host: a"), id="the same twice"),
    ],
)
async def test_a_request_names_one_host(url: str, headers: tuple[str, ...]) -> None:
    said = await answers(url, post(*headers, f"X-API-Key: {KEY}", f"Content-Length: {len(LIST)}", body=LIST))
    assert said.startswith(b"HTTP/1.1 400 ")


async def test_a_request_of_http_1_0_needs_no_host(url: str) -> None:
    assert (await answers(url, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_body_is_chunked_and_nothing_else(url: str) -> None:
    head = ("Host: here", f"X-API-Key: {KEY}", "Transfer-Encoding: gzip, chunked")
    assert (await answers(url, post(*head, body=CHUNKED + b"\r\n"))).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 415), ("/message:send", 400), ("/tasks/t1:cancel", 400), ("/v1/message:send", 415)],
)
async def test_a_web_page_cannot_have_a_browser_call_us_without_asking(
    url: str, path: str, status: int
) -> None:
    """`fetch(url, {mode: "no-cors", body: bytes})` has no type, so a browser does not ask; but it says where from."""
    head = ("Host: here", f"X-API-Key: {KEY}", "Origin: https://evil.example", f"Content-Length: {len(LIST)}")
    said = await answers(url, post(*head, body=LIST).replace(b"POST / ", f"POST {path} ".encode()))
    assert said.startswith(b"HTTP/1.1 %d " % status) and b"content type" in said


@pytest.mark.parametrize("path", ["/", "/message:send"])
async def test_a_request_that_says_it_is_compressed_is_refused_and_not_unpacked(url: str, path: str) -> None:
    head = ("Host: here", f"X-API-Key: {KEY}", "Content-Encoding: gzip", f"Content-Length: {len(LIST)}")
    said = await answers(url, post(*head, body=LIST).replace(b"POST / ", f"POST {path} ".encode()))
    assert said.startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"X: " + b"a" * 5000, id="a line that goes on"),
        pytest.param(b"X: a\r\n" * 500 + b"\r\n", id="five hundred lines"),
    ],
)
async def test_a_head_is_not_endless(url: str, head: bytes) -> None:
    said = await answers(url, b"GET /healthz HTTP/1.1\r\nHost: here\r\n" + head)
    assert said.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"0\r\nX: " + b"a" * 5000, id="a trailer"),
        pytest.param(b"0\r\n" + b"X: a\r\n" * 1000, id="many of them"),
        pytest.param(b"1;" + b"a" * 5000, id="what is said about a chunk"),
    ],
)
async def test_nor_is_what_is_around_a_body(url: str, rest: bytes) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = ("Host: here", f"X-API-Key: {KEY}", "Transfer-Encoding: chunked", "Expect: 100-continue")
    writer.write(post(*head, body=b""))
    async with asyncio.timeout(10):
        await reader.readuntil(b"100 Continue\r\n\r\n")
        writer.write(rest)
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 431 ")
    writer.close()


async def test_many_requests_and_the_beginning_of_one_are_no_large_head(url: str) -> None:
    health = b"GET /healthz HTTP/1.1\r\nHost: here\r\n"
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write((health + b"\r\n") * 300 + health)
    async with asyncio.timeout(10):
        for _ in range(300):
            assert (await reader.readuntil(b'{"status":"ok"}')).startswith(b"HTTP/1.1 200 ")
        writer.write(b"Connection: close\r\n\r\n")
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_large_body_is_no_large_head(url: str) -> None:
    body = LIST + b" " * 100_000
    head = ("Host: here", f"X-API-Key: {KEY}", f"Content-Length: {len(body)}")
    assert (await answers(url, post(*head, body=body))).startswith(b"HTTP/1.1 200 ")


async def test_a_stream_ends_with_its_client_also_if_more_was_asked_behind_it() -> None:
    app: App = application(guarded(), store="memory:", keepalive=0.05)
    async with running(app) as url:
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "wait"}]}
        sent = await result(url, "SendMessage", {"message": message}, x_api_key=KEY)
        body = b'{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"%b"}}' % (
            sent["task"]["id"].encode()
        )
        head = f"POST / HTTP/1.1\r\nHost: here\r\nA2A-Version: 1.0\r\nX-API-Key: {KEY}\r\n"
        asked = head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(asked + b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        await reader.readuntil(b"data: ")
        assert len(app.streams) == 1
        writer.close()
        async with asyncio.timeout(10):
            while len(app.streams):
                await asyncio.sleep(0.01)

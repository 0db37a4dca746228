"""Requests that are made to be read in two ways, or to leave something behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from dragoman import Agent, Turn
from dragoman.auth import ApiKey, hashed
from dragoman.server.app import App
from dragoman.server.application import application
from dragoman.server.limits import Limits
from dragoman.server.runtime import running
from tests.raw import result
from tests.waiting import until

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


async def test_trailer_is_not_a_header(url: str) -> None:
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


@pytest.mark.parametrize(
    "host",
    [
        "a b",
        "a, b",
        "http://a",
        "a/b",
        "a?b",
        "u@a",
        "a:x",
        "a:1:2",
        "[x]",
        "a\\b",
        '"><script>',
        "é",
        "a" * 400,
    ],
)
async def test_a_host_is_a_name_or_an_address(url: str, host: str) -> None:
    said = await answers(url, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a",
        "my_agent:80",
        "a.example.",
        "127.0.0.1:8000",
        "[::1]",
        "[::ffff:1.2.3.4]:80",
        "a:",
        "xn--bcher-kva.ch",
        "a%20b",
    ],
)
async def test_a_name_or_an_address_is_a_host(url: str, host: str) -> None:
    said = await answers(url, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 200 ")


async def test_a_request_of_http_1_0_needs_no_host(url: str) -> None:
    assert (await answers(url, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_body_is_chunked_and_nothing_else(url: str) -> None:
    head = ("Host: here", f"X-API-Key: {KEY}", "Transfer-Encoding: gzip, chunked")
    assert (await answers(url, post(*head, body=CHUNKED + b"\r\n"))).startswith(b"HTTP/1.1 400 ")


async def test_an_old_client_does_not_send_chunks(url: str) -> None:
    """Proxies of its time did not know them, and would see another end of the request."""
    head = ("Host: here", f"X-API-Key: {KEY}", "Transfer-Encoding: chunked")
    sent = post(*head, body=CHUNKED + b"\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
    assert (await answers(url, sent)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("version", ["2.0", "0.9"])
async def test_other_versions_of_http_are_refused(url: str, version: str) -> None:
    said = await answers(url, f"GET /healthz HTTP/{version}\r\nHost: here\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 505 ")


@pytest.mark.parametrize("blank", [" ", "   "])
async def test_blanks_around_a_value_do_not_count(url: str, blank: str) -> None:
    head = (f"Host: here{blank}", f"X-API-Key: {KEY}{blank}", f"Content-Encoding: identity{blank}")
    length, chunks = f"Content-Length: {blank}{len(LIST)}{blank}", f"Transfer-Encoding: {blank}chunked{blank}"
    for framed, body in ((length, LIST), (chunks, CHUNKED + b"\r\n")):
        assert (await answers(url, post(*head, framed, body=body))).startswith(b"HTTP/1.1 200 ")
    asked = f"GET /.well-known/agent-card.json HTTP/1.1\r\nHost: here{blank}\r\nConnection: close\r\n\r\n"
    assert b'"http://here/"' in await answers(url, asked.encode())


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://here/healthz", 200),
        ("HTTP://HERE/healthz", 200),
        ("http://elsewhere/healthz", 400),
        ("http://here:81/healthz", 400),
        ("http://me@here/healthz", 400),
        ("ftp://here/healthz", 400),
        ("/healthz#part", 400),
        ("*", 400),
        ("healthz", 400),
    ],
)
async def test_a_target_is_at_the_host_that_is_named_or_none(url: str, target: str, status: int) -> None:
    said = await answers(url, f"GET {target} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 %d " % status)


async def test_a_path_is_not_endless() -> None:
    async with running(application(guarded(), store="memory:")) as url:
        for length, status in ((8 << 10, 404), ((8 << 10) + 1, 414)):
            target = "/" + "x" * (length - 1) + "?" + "y" * 16_000
            head = "HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
            assert (await answers(url, f"GET {target} {head}".encode())).startswith(b"HTTP/1.1 %d " % status)


async def test_host_and_absolute_target_must_have_the_same_port(url: str) -> None:
    for target, host in (("http://here:81/healthz", "here:81"), ("http://[::1]:81/healthz", "[::1]:81")):
        sent = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        assert (await answers(url, sent.encode())).startswith(b"HTTP/1.1 200 ")


async def test_expect_continue_without_a_body_keeps_the_connection(url: str) -> None:
    health = b"GET /healthz HTTP/1.1\r\nHost: here\r\n%b\r\n"
    said = await answers(url, health % b"Expect: 100-continue\r\n" + health % b"Connection: close\r\n")
    assert said.count(b"HTTP/1.1 200 ") == 2 and b" 100 " not in said


async def test_two_versions_in_one_request_are_refused(url: str) -> None:
    head = ("Host: here", f"X-API-Key: {KEY}", "A2A-Version: 0.3", f"Content-Length: {len(LIST)}")
    said = await answers(url, post(*head, body=LIST))
    assert b"'1.0, 0.3' is not supported" in said


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
        pytest.param(b"X: " + b"a" * 4200 + b"\r\n\r\n", id="a little too long, and whole"),
        pytest.param((b"X: " + b"a" * 1000 + b"\r\n") * 5 + b"\r\n", id="five long lines, and whole"),
    ],
)
async def test_a_head_is_not_endless(url: str, head: bytes) -> None:
    said = await answers(url, b"GET /healthz HTTP/1.1\r\nHost: here\r\n" + head)
    assert said.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: here\r\nX: ", id="a head that does not end"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            id="a chunk that is none",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: here\r\nHost: there\r\nContent-Length: 99999999\r\n\r\n",
            id="two hosts",
        ),
    ],
)
async def test_a_client_that_sends_more_than_it_should_still_gets_the_refusal(url: str, sent: bytes) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as plug:
        plug.settimeout(10)
        await asyncio.to_thread(
            plug.sendall, sent + b"a" * (20 << 20)
        )  # it reads when it has sent everything
        said = await asyncio.to_thread(plug.recv, 1 << 16)
        assert said.startswith(b"HTTP/1.1 4") and b"connection: close" in said
        assert await asyncio.to_thread(plug.recv, 1) == b""


async def test_a_client_that_was_refused_and_does_not_leave_is_disconnected() -> None:
    app = application(guarded(), store="memory:", limits=Limits(head_timeout=0.05))
    async with running(app) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 400 ")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(10):
                while True:
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"0\r\nX: " + b"a" * 5000, id="a trailer"),
        pytest.param(b"0\r\n" + b"X: a\r\n" * 1000, id="many of them"),
        pytest.param(b"1;" + b"a" * 5000, id="what is said about a chunk"),
    ],
)
async def test_size_of_chunk_extensions_and_trailers_is_limited(url: str, rest: bytes) -> None:
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
            await until(lambda: not (len(app.streams)))

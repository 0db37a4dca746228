"""Clients that take their time, on purpose or not: their connection ends, the task does not."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dragoman import Agent, Turn
from dragoman.server.app import App
from dragoman.server.application import application
from dragoman.server.http1.protocol import HttpProtocol, ServerState
from dragoman.server.limits import ConnectionTimeouts, Limits
from dragoman.server.runtime import running
from dragoman.server.tls import server_context
from tests.auth.certificates import Authority
from tests.raw import result, rpc
from tests.serving import Server
from tests.waiting import elapse, until

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
LARGE = 8 << 20
"""More than the buffers of two sockets hold."""


def agent() -> Agent:
    agent = Agent("Slow")

    @agent.skill
    async def say(turn: Turn) -> str:
        artifact = turn.artifact("words")
        for _ in range(16):
            await artifact.write("x" * (LARGE // 16))
        return "all said"

    return agent


def app_of(**limits: Any) -> App:
    return application(agent(), store="memory:", limits=Limits(**limits), keepalive=0)


@asynccontextmanager
async def wire(url: str, *, window: int = 0) -> AsyncIterator[Wire]:
    """A connection. With a `window`, one that takes no more than about so many bytes while nobody reads."""
    parts = urlsplit(url)
    plug = socket.socket()
    plug.setblocking(False)
    if window:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    await asyncio.get_running_loop().sock_connect(plug, (parts.hostname, parts.port))
    reader, writer = await asyncio.open_connection(sock=plug, limit=window or 1 << 16)
    try:
        async with asyncio.timeout(15):
            yield reader, writer
    finally:
        writer.transport.abort()


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, byte: bytes) -> bytes:
    """Send a byte now and then, until the other side has had enough: what it said before it went."""
    said = bytearray()

    async def listen() -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                said.extend(piece)

    hung_up = asyncio.create_task(listen())
    while not hung_up.done():
        writer.write(byte)
        await asyncio.wait([hung_up], timeout=0.01)
    return bytes(said)


def post(body: bytes, length: int | None = None) -> bytes:
    head = f"POST / HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def message(text: str) -> dict[str, Any]:
    return {"message": {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}}


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with running(app_of(head_timeout=0.05)) as url, wire(url) as (reader, _):
        assert await reader.read(-1) == b""


@pytest.mark.parametrize("begun", [b"", b"GET /", b"POST / HTTP/1.1\r\nHost: here\r\nX-Slow: "])
async def test_a_head_that_comes_byte_by_byte_is_not_waited_for(begun: bytes) -> None:
    async with running(app_of(head_timeout=0.1)) as url, wire(url) as (reader, writer):
        writer.write(begun)
        assert await trickle(reader, writer, b"a" if begun else b"\r\n") == (TIMEOUT if begun else b"")


@pytest.mark.parametrize(("begun", "more"), [(b"", b"\r\n"), (b"GET /", b"a")])
async def test_next_head_that_comes_byte_by_byte_is_not_waited_for(begun: bytes, more: bytes) -> None:
    async with running(app_of(head_timeout=0.1)) as url, wire(url) as (reader, writer):
        writer.write(HEALTH)
        await reader.readuntil(b'{"status":"ok"}')
        writer.write(begun)
        assert await trickle(reader, writer, more) == (TIMEOUT if begun else b"")


async def test_many_slow_connections_do_not_delay_others() -> None:
    async with running(app_of(head_timeout=0.2)) as url:
        plugs = [await asyncio.open_connection("127.0.0.1", urlsplit(url).port) for _ in range(100)]
        for _, writer in plugs:
            writer.write(b"GET / HTTP/1.1\r\nX: ")
        async with wire(url) as (reader, writer):
            writer.write(HEALTH)
            await reader.readuntil(b'{"status":"ok"}')
        async with asyncio.timeout(15):
            assert [await reader.read(-1) for reader, _ in plugs] == [TIMEOUT] * 100
        for _, writer in plugs:
            writer.close()


async def test_client_of_a_slow_answer_is_not_disconnected() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    patient = Agent("Patient")

    @patient.skill
    async def wait(turn: Turn) -> str:
        asked.set()
        await answer.wait()
        return "here"

    app = application(patient, store="memory:", limits=Limits(head_timeout=0.05))
    async with running(app) as url, wire(url) as (reader, writer):
        async with wire(url) as (other, _):
            writer.write(post(rpc("SendMessage", message("now"))))
            await asked.wait()
            await other.read(-1)  # by now, somebody who came later was let go
        answer.set()
        await reader.readuntil(b"TASK_STATE_COMPLETED")


async def test_over_tls_it_is_the_same(tmp_path: Path) -> None:
    authority = Authority()
    tls = server_context(*authority.write(tmp_path, "server"))
    trusting = ssl.create_default_context(cafile=authority.ca(tmp_path))
    async with running(app_of(head_timeout=0.1), tls=tls) as url:
        port = urlsplit(url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        async with asyncio.timeout(15):
            assert await trickle(reader, writer, b"a") == TIMEOUT
        writer.close()


async def test_connection_without_a_tls_handshake_is_closed(tmp_path: Path) -> None:
    tls = server_context(*Authority().write(tmp_path, "server"))
    async with running(app_of(head_timeout=0.1), tls=tls) as url, wire(url) as (reader, _):
        async with asyncio.timeout(15):  # it would be a minute
            assert await reader.read() == b""


async def test_a_body_that_comes_byte_by_byte_is_refused_and_then_not_waited_for() -> None:
    app = app_of(body_timeout=0.1, head_timeout=0.1)
    async with running(app) as url, wire(url) as (reader, writer):
        writer.write(post(b'{"jsonrpc": "2.0", "id": 1, ', length=LARGE // 2))
        said = await trickle(reader, writer, b" ")
        error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == -32600 and "did not arrive in time" in error["message"]


async def test_the_rest_of_a_refused_body_is_not_waited_for() -> None:
    async with running(app_of(head_timeout=0.1)) as url, wire(url) as (reader, writer):
        writer.write(post(b"x", length=LARGE * 2))
        assert b"larger than" in await trickle(reader, writer, b"x")


async def test_an_unread_stream_ends_and_its_task_continues() -> None:
    app = app_of(write_timeout=0.1)
    async with running(app) as url, wire(url, window=4096) as (reader, writer):
        writer.write(post(rpc("SendStreamingMessage", message("go"))))
        event = await reader.readuntil(b"TASK_STATE_SUBMITTED")
        id = json.loads(b'"' + event.partition(b'"id":"')[2].partition(b'"')[0] + b'"')
        await until(lambda: not len(app.streams))
        task = await until(
            lambda: result(url, "GetTask", {"id": id}),
            lambda task: task["status"]["state"] == "TASK_STATE_COMPLETED",
        )
        assert sum(len(part["text"]) for part in task["artifacts"][0]["parts"]) >= LARGE


async def test_an_unread_answer_ends_its_connection() -> None:
    app = app_of(write_timeout=0.05, head_timeout=0.3)
    async with running(app) as url, wire(url, window=4096) as (reader, writer):
        writer.write(post(rpc("SendMessage", message("go"))))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert length >= LARGE
        async with wire(url) as (later, _):
            await later.read(-1)  # who came after us was given more time than we are, and it is over
        writer.write(HEALTH)  # to somebody who is no longer there
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(length)


class Reader:
    """A connection with so many bytes to read."""

    def __init__(self, *unread: int) -> None:
        self._unread = list(unread)
        self.ended = asyncio.Event()

    def unread_bytes(self) -> int:
        return self._unread.pop(0) if len(self._unread) > 1 else self._unread[0]

    def is_responding(self) -> bool:
        return True

    def close(self) -> None:
        raise AssertionError("nobody asked")

    def end_head(self) -> None:
        raise AssertionError("nobody asked")

    def abort(self) -> None:
        self.ended.set()


async def test_slow_reader_is_not_disconnected_while_it_reads() -> None:
    slow = ConnectionTimeouts(Limits(write_timeout=0.02, read_rate=500))  # ten bytes in that time
    steady, stuck = Reader(30, 20, 10), Reader(30)
    slow.write_blocked(steady)
    slow.write_blocked(stuck)
    await stuck.ended.wait()
    assert not steady.ended.is_set()
    await steady.ended.wait()
    assert steady.unread_bytes() == 10


async def test_reader_below_the_read_rate_is_disconnected() -> None:
    slow = ConnectionTimeouts(Limits(write_timeout=0.02, read_rate=500))
    nibbling, last = Reader(30, 29, 28), Reader(5, 0)
    slow.write_blocked(nibbling)
    slow.write_blocked(last)
    await nibbling.ended.wait()
    assert nibbling.unread_bytes() == 28
    assert not last.ended.is_set()  # there was not more to read


async def test_a_stream_whose_reader_nibbles_is_ended() -> None:
    app = app_of(write_timeout=0.2, read_rate=1 << 20)
    async with running(app) as url, wire(url, window=4096) as (reader, writer):
        writer.write(post(rpc("SendStreamingMessage", message("go"))))
        await reader.readuntil(b"TASK_STATE_SUBMITTED")
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while len(app.streams):
                await reader.readexactly(1)
                await elapse(0.005)
    assert not len(app.streams)


async def test_an_operator_says_how_long_we_wait(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "from dragoman import Agent\nagent = Agent('A')\n@agent.skill\ndef a(x: str) -> str: return x\n"
    )
    options = ("--head-timeout", "0.2", "--body-timeout", "0.2", "--max-body", "1000")
    async with Server(file, options=options) as server:
        async with wire(server.url) as (reader, _):
            assert await reader.read(-1) == b""
        async with wire(server.url) as (reader, writer):
            writer.write(post(b"x", length=500))
            assert b"did not arrive in time" in await reader.read(-1)
        async with wire(server.url) as (reader, writer):
            writer.write(post(b"x" * 2000))
            assert b"larger than 1000 bytes" in await reader.read(-1)


class Full(asyncio.Transport):
    """To somebody who reads nothing more. It does not hold enough to say that it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False
        self.ended = asyncio.Event()

    def write(self, data: Any) -> None: ...
    def write_eof(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 100

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.ended.set()


async def test_the_last_answer_on_a_connection_is_dropped_if_it_is_not_read() -> None:
    full, limits = Full(), Limits(write_timeout=0.02)
    connection = HttpProtocol(ServerState(app_of(), limits))
    connection.connection_made(full)
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(20):
        await full.ended.wait()
    assert full.closing

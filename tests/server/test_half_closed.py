"""Clients that end their half of a connection with their request, as `nc -N` does: they still listen. Or they left."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dragoman import Agent, Turn
from dragoman.model.task import TaskState
from dragoman.server.application import application
from dragoman.server.http1.protocol import HttpRequest
from dragoman.server.limits import Limits
from dragoman.server.runtime import running
from tests.raw import rpc
from tests.server.wire import Scripted, app_of, status
from tests.serving import Server
from tests.waiting import until

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HELLO = {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}


def post(method: str) -> bytes:
    body = rpc(method, HELLO)
    head = (
        f"POST / HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    return head.encode() + b"A2A-Version: 1.0\r\n\r\n" + body


class Patient(Agent):
    """Waits until it may answer."""

    def __init__(self) -> None:
        super().__init__("Patient")
        self.asked, self.go = asyncio.Event(), asyncio.Event()

        @self.skill
        async def wait(turn: Turn) -> str:
            await turn.status("waiting")
            self.asked.set()
            await self.go.wait()
            return "here you are"


@asynccontextmanager
async def half_closed(url: str, sent: bytes) -> AsyncIterator[Wire]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(sent)
    writer.write_eof()
    try:
        async with asyncio.timeout(15):
            yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_half_closed_client_gets_the_end_of_its_stream(method: str) -> None:
    agent = Patient()
    app = application(agent, store="memory:", drain=0.0, keepalive=0.08)
    async with running(app) as url, half_closed(url, post(method)) as (reader, _):
        await agent.asked.wait()
        if method == "SendStreamingMessage":
            for _ in range(3):  # it is asked more than once whether it is there
                await reader.readuntil(b": keep-alive")
        agent.go.set()
        assert b"here you are" in await reader.read(-1)


@pytest.mark.parametrize("batches", [0, 1])
async def test_a_stream_on_our_own_server_ends_when_its_client_disconnects(batches: int) -> None:
    service = Scripted(*[[status(TaskState.WORKING, 1)]] * batches)
    service.hold = asyncio.Event()
    app = app_of(service)
    async with running(app) as url, asyncio.timeout(15):
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(post("SendStreamingMessage"))
        if batches:
            await reader.readuntil(b"TASK_STATE_WORKING")
        else:
            await until(lambda: bool(service.calls))
        reset = struct.pack("ii", 1, 0)  # not the end of its half: both directions are closed
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        await service.closed.wait()
        await until(lambda: len(app.streams) == 0)


async def test_request_of_a_client_that_left_ends_before_its_task() -> None:
    agent = Patient()
    app = application(agent, store="memory:", drain=0.0, limits=Limits(write_timeout=0.05))
    async with running(app) as url, half_closed(url, post("SendMessage")) as (reader, _):
        await agent.asked.wait()
        with suppress(ConnectionResetError):
            assert await reader.read(-1) == b""


async def test_client_that_half_closes_after_a_long_wait_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, noticed = Patient(), asyncio.Event()
    app = application(agent, store="memory:", drain=0.0)
    monkeypatch.setattr(app._waits._timeout, "_interval", 0.001)
    mark_slow = HttpRequest.mark_slow

    def notice(request: HttpRequest) -> None:
        mark_slow(request)
        noticed.set()

    monkeypatch.setattr(HttpRequest, "mark_slow", notice)
    async with running(app) as url, asyncio.timeout(15):
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(post("SendMessage"))
        await noticed.wait()
        writer.write_eof()
        assert await reader.read(-1) == b""
        writer.close()


async def test_stream_of_a_half_closed_client_that_left_ends() -> None:
    agent = Patient()
    app = application(agent, store="memory:", drain=0.0, keepalive=0.08)
    async with running(app) as url:
        async with half_closed(url, post("SendStreamingMessage")) as (reader, _):
            await reader.readuntil(b"waiting")
            assert len(app.streams) == 1
        async with asyncio.timeout(10):
            await until(lambda: not (len(app.streams)))


async def test_half_closed_clients_are_served_on_uvloop(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "import asyncio\nfrom dragoman import Agent\nagent = Agent('A')\n@agent.skill\n"
        "async def a(x: str) -> str:\n    work_seconds = 0.2\n    await asyncio.sleep(work_seconds)\n"
        "    return 'here you are'\n"
    )
    async with Server(file) as server:
        said: list[Any] = []
        for method in ("SendMessage", "SendStreamingMessage"):
            async with half_closed(server.url, post(method)) as (reader, _):
                said.append(b"here you are" in await reader.read(-1))
        assert said == [True, True]

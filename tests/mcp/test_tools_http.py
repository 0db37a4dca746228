"""MCP servers with a URL: they are restarted, lie, redirect, send too much, or are where they may not be."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

pytest.importorskip("mcp")

from mcp.server.transport_security import TransportSecuritySettings

from dragoman.client.transport.network import AddressRefused
from dragoman.mcp import mcp
from dragoman.mcp.connection import MAX_RESPONSE_BYTES
from dragoman.push import Guard
from tests.mcp import tool_server
from tests.mcp.test_tools import connected
from tests.ports import free_port
from tests.waiting import until


@asynccontextmanager
async def serving(app: Any, port: int) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started or running.done())
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def tools_at(port: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> AsyncIterator[str]:
    monkeypatch.setattr(tool_server, "FOLDER", folder)
    any_host = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    async with serving(tool_server.server.streamable_http_app(transport_security=any_host), port) as url:
        yield url


async def used(client: Any, tool: str, **arguments: Any) -> Any:
    return (await client({"tool": tool, "arguments": arguments}, skill="handle")).data


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_server_that_was_restarted_is_connected_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legacy: bool
) -> None:
    port = free_port()
    async with connected(mcp(f"http://127.0.0.1:{port}/mcp", legacy=legacy, timeout=10)) as client:
        away = await used(client, "pay", amount=1)
        assert away["why"] == "unreachable" and not (tmp_path / "pay").exists()
        async with tools_at(port, monkeypatch, tmp_path):
            assert (await used(client, "pay", amount=1))["text"] == "paid 1"
        away = await used(client, "pay", amount=1)
        assert away["why"] == "unreachable" and "may have run" not in away["message"]
        async with tools_at(port, monkeypatch, tmp_path):
            assert (await used(client, "pay", amount=2))["text"] == "paid 2"
    assert (tmp_path / "pay").read_text() == "called\ncalled\n"


async def test_headers_are_sent_and_never_to_another_origin() -> None:
    seen: list[tuple[str, bytes]] = []

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(("elsewhere", dict(scope["headers"]).get(b"x-key", b"")))
            await _answer(send, 404)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(("here", dict(scope["headers"]).get(b"x-key", b"")))
            await _answer(send, 307, (b"location", target.encode()))

    async with serving(elsewhere, free_port()) as target, serving(app, free_port()) as url:
        async with connected(mcp(url, headers={"X-Key": "secret"}, timeout=5)) as client:
            assert (await used(client, "add", a=1, b=1))["why"] == "unreachable"
    assert ("here", b"secret") in seen and not [each for each in seen if each[0] == "elsewhere"]


@pytest.mark.parametrize("kind", ["bomb", "endless"])
async def test_an_answer_that_is_too_large_is_not_read(kind: str) -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        if scope["type"] != "http":
            return
        headers = [(b"content-type", b"application/json")]
        if kind == "bomb":
            headers.append((b"content-encoding", b"gzip"))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": gzip.compress(b" " * (64 << 20))})
            return
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        piece = b" " * 65_536
        while sent < 8 * MAX_RESPONSE_BYTES:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            sent += len(piece)
            if await _disconnected(receive):
                return

    async with serving(app, free_port()) as url, connected(mcp(url, timeout=10)) as client:
        assert (await used(client, "add", a=1, b=1))["why"] == "unreachable"
    assert sent < 6 * MAX_RESPONSE_BYTES


@pytest.mark.parametrize("legacy", [False, True])
async def test_an_answer_that_cannot_be_read_does_not_end_the_calls_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legacy: bool
) -> None:
    async with tools_at(free_port(), monkeypatch, tmp_path) as url:
        async with connected(mcp(url, legacy=legacy, timeout=20)) as client:
            slow = await client.send({"tool": "slow_pay"}, skill="handle", wait=False)
            await until((tmp_path / "slow_pay").exists)
            large = await used(client, "long", characters=MAX_RESPONSE_BYTES + 1)
            assert large["why"] in ("unreachable", "error")
            (tmp_path / "go").touch()
            ended = await until(lambda: client.get(slow.id), lambda task: task.state.settled)
            assert ended.artifacts[0].parts[0].data["text"] == "paid"


async def test_an_address_that_the_guard_refuses_is_not_connected_to() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["10.0.0.7"] if host == "inner.example.com" else ["93.184.216.34"]

    async def connect(address: str, port: int) -> socket.socket:
        raise AssertionError("nothing may be connected to")

    guard = Guard(resolve=resolve, connect=connect)
    async with connected(mcp("https://inner.example.com/mcp", guard=guard, start_timeout=10)) as client:
        assert (await used(client, "add", a=1, b=1))["why"] == "unreachable"
    async with connected(mcp("http://127.0.0.1:1/mcp", guard=guard, start_timeout=10)) as client:
        assert (await used(client, "add", a=1, b=1))["why"] == "unreachable"


async def test_a_name_is_resolved_once_and_the_checked_address_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Rebinding:
        """Says another address the second time it is asked for a request, as a name server of an attacker does."""

        async def addresses(self, host: str, port: int) -> Sequence[str]:
            asked.append(host)
            if host != "tools.example.com":
                raise AddressRefused("its host is not allowed")
            return ["127.0.0.1"]

        async def dial(self, host: str, port: int) -> socket.socket:
            raise AssertionError

    port = free_port()
    async with tools_at(port, monkeypatch, tmp_path):
        server = mcp(f"http://tools.example.com:{port}/mcp", guard=Rebinding(), timeout=10)
        async with connected(server) as client:
            answered = await used(client, "pay", amount=3)
    assert answered["text"] == "paid 3"  # the name is in no name server: only the guard has its address
    assert set(asked) == {"tools.example.com"}


async def _answer(send: Any, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Any) -> bool:
    try:
        async with asyncio.timeout(0):
            return bool((await receive())["type"] == "http.disconnect")
    except TimeoutError:
        return False

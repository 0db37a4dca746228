"""Hostile arguments and hostile answers of agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman import Agent, connect, errors
from dragoman.client import Client
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.client.fakes import Site, page

SMUGGLED = "x\r\nX-Admin: yes"
BINDINGS = ["JSONRPC", "HTTP+JSON"]


class RecordingApp:
    """Records the requests to an application."""

    def __init__(self, app: Any) -> None:
        self.app, self.limits, self.connections = app, app.limits, app.connections
        self.start, self.stop = app.start, app.stop
        self.asked: list[tuple[str, bytes, dict[bytes, bytes]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.asked.append((scope["method"], scope["raw_path"], dict(scope["headers"])))
        await self.app(scope, receive, send)


@asynccontextmanager
async def serving(binding: str, **more: Any) -> AsyncIterator[tuple[RecordingApp, Client]]:
    agent = Agent("Echo")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    app = RecordingApp(application(agent, store="memory:"))
    async with running(app) as url, connect(url, binding=binding, **more) as client:  # type: ignore[arg-type]
        app.asked.clear()
        yield app, client


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("given", [{"key": SMUGGLED}, {"extensions": [SMUGGLED]}])
async def test_a_key_or_an_extension_smuggles_no_header(binding: str, given: Any) -> None:
    async with serving(binding) as (app, client):
        with pytest.raises(ValueError, match="line break"):
            await client.send("hello", **given)
        assert app.asked == []


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_secret_smuggles_no_header(binding: str) -> None:
    headers = {"Authorization": "Bearer " + SMUGGLED}
    with pytest.raises(ValueError, match="line break"):
        async with serving(binding, headers=headers):
            pass


IDS = [
    "../../metrics",
    "..",
    "a/../../b",
    "x?admin=1",
    "x#y",
    "x:cancel",
    "x\r\nX-Admin: yes",
    "%2e%2e%2f",
    "\x00",
]


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_id_with_path_characters_stays_an_id(binding: str, id: str) -> None:
    async with serving(binding) as (app, client):
        with pytest.raises((errors.TaskNotFound, errors.InvalidParams)):
            await client.get(id)
        for method, path, headers in app.asked:
            assert b"x-admin" not in headers
            assert (method, path) == ("POST", b"/") or (method == "GET" and path.startswith(b"/tasks/"))
            assert path.count(b"/") <= 2 and b"?" not in path and not path.endswith(b":cancel")


@pytest.mark.parametrize("deep", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
async def test_an_answer_nested_beyond_reason_is_an_error_like_any_other(deep: str) -> None:
    card = {"name": "Deep", "version": "1", "url": "http://deep.example/", "protocolVersion": "0.3.0"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": "@"}).replace('"@"', deep)
    site = Site({"/.well-known/agent-card.json": page(card), "/": (200, {}, body.encode())})
    async with asyncio.timeout(10), connect(site, url="http://deep.example/") as client:
        with pytest.raises(errors.A2AError):
            await client.get("t1")

"""A server with a console in this process, and an operator who calls its API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import Agent, Turn
from dragoman.console import AgentConsole
from dragoman.server.app import App
from dragoman.server.application import application
from tests import postgres
from tests.server.wire import Answer, envelope, open_request

HOST = "127.0.0.1:8000"
TOKEN = "op_0123456789abcdef0123456789abcdef"


class Operator:
    """Calls the operator API; `key` is the bearer token, `cookie` what a browser would send."""

    def __init__(self, app: App, token: str = TOKEN) -> None:
        self.app, self.token, self.cookie = app, token, ""

    def open(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        path, _, query = path.partition("?")
        given = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self.token:
            given.setdefault("authorization", f"Bearer {self.token}")
        if self.cookie:
            given.setdefault("cookie", self.cookie)
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        full = path if path.startswith("/console") else f"/console/api{path}"
        return open_request(self.app, method, full, raw, headers=given, query=query)

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.open(method, path, body, **headers).end()

    async def get(self, path: str, **headers: str) -> Any:
        answer = await self("GET", path, **headers)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json

    async def send(self, text: str, agent: str = "", **more: Any) -> dict[str, Any]:
        """Send a message to an agent, and return the task."""
        message = {"messageId": f"m-{text[:50]}", "role": "ROLE_USER", "parts": [{"text": text}], **more}
        answer = open_request(
            self.app,
            "POST",
            f"/{agent}",
            envelope("SendMessage", {"message": message}),
            headers={"host": HOST, "a2a-version": "1.0", "content-type": "application/json"},
        )
        result = (await answer.end()).json["result"]
        task: dict[str, Any] = result.get("task") or result
        return task


def make_agents() -> list[Agent]:
    agent = Agent("Hello", "Says hello.")

    @agent.skill
    async def hello(turn: Turn) -> str:
        """Says hello."""
        await turn.step("roll", lambda: 4)
        await turn.data({"password": "hunter2hunter2", "x": 1})
        if "ask" in turn.text:
            return "in " + await turn.ask("Which city?")
        if "fail" in turn.text:
            raise RuntimeError("no")
        return f"hi {turn.text}"

    return [agent]


@asynccontextmanager
async def console_app(
    *agents: Agent,
    store: str = "memory:",
    token: str = TOKEN,
    url: str = f"http://{HOST}",
    allow_private: bool = False,
    **options: Any,
) -> AsyncIterator[tuple[App, list[str]]]:
    """An application with a console, and the lines that it prints."""
    console = AgentConsole(token, allow_private=allow_private)
    lines = list(
        console.prepare(host="127.0.0.1", url=url, store=store, public_url="", tls=url.startswith("https"))
    )
    app = application(*(agents or make_agents()), store=store, console=console, **options)
    await app.start()
    try:
        yield app, lines
    finally:
        await app.stop()


@pytest.fixture(params=["memory", "sqlite", *(["postgres"] if postgres.available() else [])])
async def operator(request: Any, tmp_path: Path) -> AsyncIterator[Operator]:
    store = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/tasks.db"}.get(request.param, "")
    store = store or postgres.server().fresh(tmp_path)
    async with console_app(store=store) as (app, _):
        yield Operator(app)

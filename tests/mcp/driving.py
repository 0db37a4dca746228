"""An agent to call, and the official MCP client connected to it in four ways: two transports, two eras of MCP."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp import Client, StdioServerParameters, types

from dragoman import Agent, Part, Turn, connect
from dragoman.mcp.clients import Clients
from dragoman.mcp.http_server import HttpEndpoint
from dragoman.mcp.server import AgentServer, McpOptions
from dragoman.server.http1.server import HttpServer
from dragoman.server.runtime import running

ERAS = ("legacy", "2026-07-28")
ACCEPT = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
LIST_TOOLS = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}


@dataclass
class Desk:
    """An agent whose slow work the test lets go on."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    booked: list[dict[str, Any]] = field(default_factory=list)
    runs: int = 0

    def agent(self, **options: Any) -> Agent:
        agent = Agent("Travel Desk", "Books trips.", version="2.1", **options)

        @agent.skill
        async def book(turn: Turn, city: str, days: int = 1) -> dict[str, Any]:
            """Book a trip."""
            self.runs += 1
            await turn.status(f"looking for a hotel in {city}")
            people = await turn.ask("How many people?", int)
            if not await turn.approve("Pay 300 EUR?"):
                turn.reject("not paid")
            trip = {"city": city, "days": days, "people": people}
            self.booked.append(trip)
            return trip

        @agent.skill
        async def chat(turn: Turn) -> str:
            """Talk about trips."""
            return f"you said {turn.text}"

        @agent.skill
        async def plan(turn: Turn) -> str:
            """Plan a long trip."""
            self.runs += 1
            await turn.status("reading maps")
            self.began.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.stopped.set()
                raise
            return "the plan is ready"

        @agent.skill(output_modes=["image/png", "text/plain"])
        async def ticket(turn: Turn) -> list[Part]:
            """Print a ticket."""
            return [
                Part(text="two files"),
                Part(raw=b"\x89PNG", filename="ticket.png", media_type="image/png"),
                Part(raw=b"x" * 2_000_000, filename="map.bin", media_type="application/octet-stream"),
            ]

        @agent.skill
        async def visa(turn: Turn) -> str:
            """Ask for a visa."""
            await turn.need_auth("Allow this at https://consulate.example/allow")
            return "granted"

        return agent


@asynccontextmanager
async def serve_endpoint(endpoint: HttpEndpoint) -> AsyncIterator[str]:
    """The endpoint on a loopback port; yields its URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = HttpServer(endpoint, listener, startup=endpoint.start, drain=endpoint.stop)
    await server.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        await server.stop()


def agent_server(url: Any, **options: Any) -> AgentServer:
    return AgentServer(Clients(lambda headers: connect(url, headers=headers)), McpOptions(**options))


def command(url: str, *options: str) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=["-m", "dragoman.cli", "mcp", url, *options])


@asynccontextmanager
async def client_of(
    url: str, transport: str, era: str, *options: str, **callbacks: Any
) -> AsyncIterator[Client]:
    """The official client, over `stdio` (a process of `dragoman mcp`) or `http`. `options` are of the command line."""
    if transport == "stdio":
        async with Client(command(url, *options), mode=era, **callbacks) as client:
            yield client
        return
    wait = {"wait": float(options[options.index("--wait") + 1])} if "--wait" in options else {}
    async with serve_endpoint(HttpEndpoint(agent_server(url, **wait))) as where:
        async with Client(where, mode=era, **callbacks) as client:
            yield client


@asynccontextmanager
async def served(agent: Agent, **options: Any) -> AsyncIterator[str]:
    async with running(agent.app(store="memory:", **options)) as url:
        yield url


class User:
    """Fills in forms."""

    def __init__(self, *answers: dict[str, Any] | None) -> None:
        self._answers = list(answers)
        self.asked: list[Any] = []

    async def __call__(self, context: Any, params: Any) -> Any:
        self.asked.append(params)
        answer = self._answers.pop(0)
        if answer is None:
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content=answer)


def texts(result: Any) -> list[str]:
    return [block.text for block in result.content if block.type == "text"]


def task_id(result: Any) -> str:
    return str(result.meta["dragoman/taskId"])


class Progress:
    """What was reported, and a way to wait for a text."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.numbers: list[float] = []
        self._more = asyncio.Condition()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        async with self._more:
            self.numbers.append(progress)
            self.said.append(message or "")
            self._more.notify_all()

    async def wait_for(self, text: str) -> None:
        async with self._more:
            await self._more.wait_for(lambda: text in self.said)


def names(listed: Any) -> Sequence[str]:
    return [tool.name for tool in listed.tools]

"""A streamed send whose answer was lost is repeated while the agent works: earlier statuses are passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from dragoman import Agent, Turn, connect
from dragoman.client import Policy
from dragoman.client.transport.asgi import AsgiResponse, AsgiTransport
from dragoman.errors import Unreachable
from dragoman.model.task import TaskState
from tests.waiting import until

HASTY = Policy(shortest=0.001, longest=0.002)


class Losing(AsgiTransport):
    """Passes streamed sends on, and loses the answer to one when `broken` is set."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.broken = asyncio.Event()
        self.loses = False
        self.sends = 0

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsgiResponse:
        response = await super().request(method, url, headers, body)
        if headers.get("Accept") == "text/event-stream":
            self.sends += 1
            if self.loses:
                self.loses = False
                await self.broken.wait()
                await response.close()
                raise Unreachable("the connection broke")
        return response


class Reporting:
    """An agent that reports, writes, and waits to be let on."""

    def __init__(self) -> None:
        self.agent = agent = Agent("Reporting", description="Says what it does")
        self.said, self.go_on, self.finished = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.turns = 0

        @agent.skill
        async def work(turn: Turn) -> AsyncIterator[str]:
            """Works."""
            if turn.message.text == "ask":
                await turn.status("before")
                yield "earlier "
                await turn.ask("Which?")
            self.turns += 1
            await turn.status("one")
            yield "half "
            await turn.status("two")
            self.said.set()
            await self.go_on.wait()
            await turn.status("three")
            yield "whole"
            self.finished.set()


async def read(stream: Any) -> tuple[list[str], str]:
    pieces = [piece async for piece in stream]
    return [piece.status for piece in pieces if piece.status], "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.1"])
@pytest.mark.parametrize("asked", [False, True], ids=["new", "answer"])
@pytest.mark.parametrize("late", [False, True], ids=["at work", "finished"])
async def test_statuses_from_before_the_retry_are_passed_on(version: str, asked: bool, late: bool) -> None:
    reporting = Reporting()
    transport = Losing(reporting.agent.app(store="memory:"))
    options: dict[str, Any] = {"transport": transport, "version": version, "policy": HASTY}
    async with asyncio.timeout(20), connect("http://agent.test", **options) as agent:
        reply = await agent("ask") if asked else ""
        transport.loses, transport.sends = True, 0
        stream = agent.stream("go", task=reply)
        reading = asyncio.create_task(read(stream))
        await reporting.said.wait()
        if late:
            reporting.go_on.set()
            await reporting.finished.wait()
        transport.broken.set()
        if not late:
            await until(lambda: transport.sends >= 2)
            reporting.go_on.set()
        reports, text = await reading
    assert (reports, text) == (["one", "two", "three"], "half whole")
    assert stream.reply.state is TaskState.COMPLETED
    assert (transport.sends, reporting.turns) == (2, 1)

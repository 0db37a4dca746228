"""An agent that counts, and stores how often it was started.

`count:N` writes N chunks and a status after every fifth; `hold:N` waits at the Nth until `gate` opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from dragoman import Agent, Turn
from dragoman.client import Piece, Policy
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task
from dragoman.server.application import application
from dragoman.server.runtime import running

HASTY = Policy(shortest=0.01, longest=0.05, patience=5.0, silence=0.3)


def text(n: int) -> str:
    return "".join(f"{i} " for i in range(n))


class Counter:
    def __init__(self) -> None:
        self.url = ""
        self.agent = Agent("Counter", description="Counts")
        self.agent.skill(self.count)
        self.forget()

    def forget(self) -> None:
        """As if nothing had happened yet."""
        self.runs: list[str] = []
        self.gate = asyncio.Event()
        self.holding = asyncio.Event()

    async def count(self, turn: Turn) -> str | None:
        """Counts."""
        self.runs.append(turn.text)
        kind, _, number = turn.text.partition(":")
        if kind == "ask":
            return f"You said {await turn.ask('How many?')}"
        if kind == "fail":
            raise RuntimeError("cannot count")
        out = turn.artifact("numbers")
        for i in range(int(number or 3)):
            if kind == "hold" and i == int(number) // 2:
                self.holding.set()
                await self.gate.wait()
            await out.write(f"{i} ")
            if i % 5 == 4:
                await turn.status(f"at {i}")
            await asyncio.sleep(0)  # so that not everything is one batch
        return None

    async def release(self, when: Coroutine[Any, Any, None] | None = None) -> None:
        """Let the counting go on once it holds and `when` has come."""
        await self.holding.wait()
        if when is not None:
            await when
        self.gate.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Counter]:
        async with running(application(self.agent, store="memory:")) as self.url:
            yield self


def rebuild(pieces: list[Piece]) -> tuple[str, list[str]]:
    """What was told: the text as the events build it up, and the reports."""
    parts: dict[str, str] = {}
    reports = []
    for piece in pieces:
        event = piece.event
        if isinstance(event, ArtifactUpdate):
            id = event.artifact.artifact_id
            parts[id] = parts.get(id, "") + event.artifact.text if event.append else event.artifact.text
        elif isinstance(event, Task):
            assert not parts, "the task was told again"
            parts = {artifact.artifact_id: artifact.text for artifact in event.artifacts}
        elif isinstance(event, StatusUpdate) and event.status.message is not None:
            reports.append(event.status.message.text)
    return "".join(parts.values()), reports

"""An agent with everything that a bridge has to carry, served in any version, and a bridge in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from dragoman import Agent, Part, Turn
from dragoman.bridge.application import Bridge, make_bridge
from dragoman.bridge.settings import make_one_route
from dragoman.client import Client, connect
from dragoman.errors import InvalidParams
from dragoman.model.content import Message
from dragoman.model.ops import SendMessage
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task
from dragoman.server.app import App
from dragoman.server.application import application
from dragoman.server.runtime import running


class Crew:
    """The agent. `seen` are the messages that it got, in order; `gate` holds back the skill `slow`."""

    def __init__(self, **options: Any) -> None:
        self.agent = Agent("Crew", description="Does what it is told", authorize=self._accept, **options)
        self.seen: list[Message] = []
        self.accepted: list[Message] = []
        self.depths: list[int] = []
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.canceled = asyncio.Event()
        self.finished = asyncio.Event()
        agent = self.agent

        @agent.skill(default=True)
        async def echo(turn: Turn) -> str:
            """Says it again."""
            self._note(turn)
            return turn.text.upper()

        @agent.skill(reply=True)
        async def greet(turn: Turn) -> str:
            """Answers with a message."""
            self._note(turn)
            return f"hello from {turn.context_id}"

        @agent.skill
        async def stream(turn: Turn) -> None:
            """Streams two artifacts and says what it does."""
            self._note(turn)
            await turn.status("reading", metadata={"page": 1})
            report = turn.artifact("report", id="r-1", metadata={"lang": "en"})
            for word in ("one ", "two ", "three"):
                await report.write(word, last=word == "three")
            await turn.status("almost", metadata={"page": 2})
            await turn.data({"sum": 6}, name="totals")
            file = turn.artifact("file", media_type="image/png")
            await file.write(Part(raw=b"\x89PNG", media_type="image/png", filename="x.png"), last=True)

        @agent.skill
        async def slow(turn: Turn) -> None:
            """Writes one chunk, and the other when the gate is open."""
            self._note(turn)
            out = turn.artifact("out")
            await turn.status("waiting")
            await out.write("before ")
            self.begun.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.canceled.set()
                raise
            await turn.status("went on")
            await out.write("after", last=True)
            self.finished.set()

        @agent.skill
        async def endless(turn: Turn) -> None:
            """Does not stop by itself."""
            out = turn.artifact("out")
            try:
                while True:
                    await out.write("x" * 100_000)
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.canceled.set()
                raise

        @agent.skill
        async def ask(turn: Turn) -> str:
            """Asks for a city."""
            self._note(turn)
            city = await turn.ask("Which city?")
            self.seen.append(turn.mail.message)
            return f"to {city}"

        @agent.skill
        async def grant(turn: Turn) -> str:
            """Needs an authorisation."""
            self._note(turn)
            await turn.need_auth("Log in first")
            return "granted"

        @agent.skill
        async def reject(turn: Turn) -> None:
            """Rejects."""
            turn.reject("not my work")

        @agent.skill
        async def fail(turn: Turn) -> None:
            """Fails."""
            raise InvalidParams("it broke")

    def _accept(self, principal: Any, request: Any) -> bool:
        if isinstance(request, SendMessage):
            self.accepted.append(request.message)
        return True

    def delivered(self, text: str) -> bool:
        """True if the server of the agent has this message, whether the agent has seen it or not."""
        return any(message.text == text for message in self.accepted)

    def _note(self, turn: Turn) -> None:
        self.seen.append(turn.mail.message)
        self.depths.append(turn.mail.depth)


def as_stranger(app: App) -> App:
    """The application of a server that says of itself nothing that another one would not."""
    for mount in app._mounts.values():
        object.__setattr__(mount, "deduplicates", lambda: False)
    return app


@asynccontextmanager
async def bridged(
    upstream: App | str,
    *,
    store: str = "memory:",
    stranger: bool = False,
    server: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[str, Bridge]]:
    """A bridge to `upstream`, an application or its URL; yields its URL."""
    async with AsyncExitStack() as stack:
        if not isinstance(upstream, str):
            app = as_stranger(upstream) if stranger else upstream
            upstream = await stack.enter_async_context(running(app))
        bridge = make_bridge(make_one_route(upstream, **settings))
        url = await stack.enter_async_context(running(bridge.app(store=store, **(server or {}))))
        yield url, bridge


@asynccontextmanager
async def caller_of(url: str, **options: Any) -> AsyncIterator[Client]:
    async with connect(url, **options) as client:
        yield client


def crew_app(crew: Crew, **options: Any) -> App:
    return application(crew.agent, store="memory:", **options)


def shape(event: Event) -> Any:
    """An event without what differs between two tasks: ids that servers choose, and times."""
    match event:
        case ArtifactUpdate():
            artifact = event.artifact
            return (
                artifact.artifact_id, artifact.name, artifact.metadata, artifact.parts, event.append, event.last_chunk
            )  # fmt: skip
        case StatusUpdate():
            said = event.status.message.parts if event.status.message else None
            return event.status.state.word, said, event.metadata
        case Task():
            said = event.status.message.parts if event.status.message else None
            return "task", event.status.state.word, said, event.artifacts
        case Message():
            return "message", event.parts
    raise AssertionError(event)

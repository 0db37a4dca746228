"""An agent elsewhere as a tool of a framework (`agent_as_tool` of the adapters): one message, one outcome."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypedDict, Unpack

from dragoman.client.client import connect
from dragoman.client.connection import ConnectOptions
from dragoman.engine.recorded import digest
from dragoman.engine.turn import Turn, record_of
from dragoman.model.task import TaskState

run_scope: ContextVar[str] = ContextVar("run_scope", default="")
"""The turn that a run belongs to: ids of tool calls are unique within it. Empty outside of `wrap`."""
run_turn: ContextVar[Turn | None] = ContextVar("run_turn", default=None)
CANCEL_SECONDS = 5.0
"""How long the cancel of a task elsewhere may take when we are cancelled."""


class Outcome(TypedDict):
    """How things stand at the other agent after a message. As JSON, so that a framework can store it."""

    text: str
    task: str
    asks: bool


class RemoteAgent:
    """An agent elsewhere: whatever `connect` takes, with its options."""

    def __init__(
        self, agent: Any, name: str = "", description: str = "", **options: Unpack[ConnectOptions]
    ) -> None:
        self._agent, self._options = agent, options
        called = name or (agent if isinstance(agent, str) else "agent").rstrip("/").rpartition("/")[2]
        self.name = re.sub(r"\W+", "_", called).strip("_") or "agent"
        self.description = description or f"Ask the agent {called}. Send it a message in plain words."

    async def send(self, text: str, *, task: str = "", call: str = "") -> Outcome:
        """Send a message, as the answer to a question if `task` asked one, and wait until the agent is done or asks.

        `call` is the id of the tool call: a run that is repeated sends its message once, if the agent there understands
        idempotency keys. If we are cancelled, so is the task.
        """
        scope = run_scope.get()
        more: dict[str, Any] = {"task": task} if task else {}
        if scope and call:
            more["key"] = f"{scope}/{call}/{digest(text.encode())}"
        async with connect(self._agent, **self._options) as agent:
            stream = agent.stream(text, **more)
            known = asyncio.Event()

            async def read() -> None:
                try:
                    async for _ in stream:
                        known.set()
                finally:
                    known.set()

            reading = asyncio.create_task(read())
            try:
                await asyncio.shield(reading)
            except asyncio.CancelledError:
                with suppress(Exception):
                    async with asyncio.timeout(CANCEL_SECONDS):
                        await known.wait()  # the message may have arrived, and its task has no name here yet
                        if begun := task or (stream.task.id if stream.task is not None else ""):
                            await agent.cancel(begun)
                raise
            finally:
                reading.cancel()
                await asyncio.wait([reading])
            reply = stream.reply
        if (turn := run_turn.get()) is not None:
            record_of(turn).add_usage_of_called(f"{self.name} {reply.id or call}", reply.usage)
        said = str(reply)
        if reply.state not in (TaskState.COMPLETED, TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED):
            said = f"The agent could not do it ({reply.state.name.lower()}). {said}".strip()
        elif not said and reply.data is not None:
            said = str(reply.data)
        return Outcome(text=said, task=reply.id, asks=reply.asks)

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
    """What a message to the other agent led to: an answer or a question. As JSON, so that a framework can store it."""

    text: str
    task: str
    asks: bool


class RemoteAgent:
    """An agent elsewhere: whatever `connect` takes, with its options."""

    def __init__(
        self, agent: Any, name: str = "", description: str = "", **options: Unpack[ConnectOptions]
    ) -> None:
        self._agent, self._options = agent, options
        label = name or (agent if isinstance(agent, str) else "agent").rstrip("/").rpartition("/")[2]
        self.name = re.sub(r"\W+", "_", label).strip("_") or "agent"
        self.description = description or f"Ask the agent {label}. Send it a message in plain words."

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
            started = asyncio.Event()

            async def read() -> None:
                try:
                    async for _ in stream:
                        started.set()
                finally:
                    started.set()

            reading = asyncio.create_task(read())
            try:
                await asyncio.shield(reading)
            except asyncio.CancelledError:
                with suppress(Exception):
                    async with asyncio.timeout(CANCEL_SECONDS):
                        await started.wait()  # the message may have arrived, and its task has no id here yet
                        if task_id := task or (stream.task.id if stream.task is not None else ""):
                            await agent.cancel(task_id)
                raise
            finally:
                reading.cancel()
                await asyncio.wait([reading])
            reply = stream.reply
        if (turn := run_turn.get()) is not None:
            record_of(turn).add_usage_of_called(f"{self.name} {reply.id or call}", reply.usage)
        answer = str(reply)
        if reply.state not in (TaskState.COMPLETED, TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED):
            answer = f"The agent could not do it ({reply.state.name.lower()}). {answer}".strip()
        elif not answer and reply.data is not None:
            answer = str(reply.data)
        return Outcome(text=answer, task=reply.id, asks=reply.asks)

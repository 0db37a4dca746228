"""What callers in mode `pass` are told of a task after a cancel that the agent undid, refused, or came too late with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.bridge import answers
from dragoman.client import Client
from dragoman.errors import TaskNotCancelable
from dragoman.model.task import TaskState
from tests.bridge.bridging import bridged, caller_of
from tests.bridge.liar import Liar, http, task
from tests.waiting import until


class Canceling(Liar):
    """An agent with one task, whose state is `now` whenever it is asked for. `canceled`: how often it was told to cancel it."""

    def __init__(self, *, undoes: int = 0, refuses: bool = False) -> None:
        super().__init__()
        self.undoes, self.refuses, self.now, self.canceled = undoes, refuses, "WORKING", 0
        self.answer = self._answer

    async def _answer(self, writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        said: dict[str, Any] = {"result": task(state=self.now)["task"]}
        if request["method"] == "CancelTask":
            self.canceled += 1
            said = {"result": task(state="CANCELED")["task"]}
            if self.refuses:
                said = {"error": {"code": -32002, "message": "not now"}}
            elif self.canceled > self.undoes:
                self.now = "CANCELED"
        writer.write(http(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}).encode()))


@asynccontextmanager
async def passing(agent: Canceling) -> AsyncIterator[Client]:
    async with agent, bridged(agent.url, mode="pass") as (url, _), caller_of(url) as caller:
        yield caller


async def test_a_cancel_that_the_agent_undoes_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_CHECK_SECONDS", (0.05, 0.05, 0.05))
    async with passing(agent := Canceling(undoes=2)) as caller:
        assert (await caller.cancel("t1")).state is TaskState.CANCELED
        assert (await caller.get("t1")).state is TaskState.CANCELED
        await until(lambda: agent.now == "CANCELED")
        assert agent.canceled == 3
        assert (await caller.get("t1")).state is TaskState.CANCELED


async def test_an_agent_that_undoes_every_cancel_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_CHECK_SECONDS", (0.01, 0.01))
    async with passing(agent := Canceling(undoes=100)) as caller:
        await caller.cancel("t1")
        await until(lambda: caller.get("t1"), lambda found: found.state is TaskState.WORKING)
        assert agent.canceled == 3


async def test_a_task_that_ended_otherwise_is_shown_as_it_ended() -> None:
    async with passing(agent := Canceling(undoes=1)) as caller:
        await caller.cancel("t1")
        agent.now = "COMPLETED"
        assert (await caller.get("t1")).state is TaskState.COMPLETED


async def test_a_cancel_that_is_refused_changes_nothing() -> None:
    async with passing(agent := Canceling(refuses=True)) as caller:
        with pytest.raises(TaskNotCancelable, match="not now"):
            await caller.cancel("t1")
        assert (await caller.get("t1")).state is TaskState.WORKING
        assert agent.canceled == 1

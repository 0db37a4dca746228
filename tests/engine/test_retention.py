"""Finished tasks past their age are forgotten; nothing else is."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.engine import push_configs, retention
from dragoman.engine.engine import Engine
from dragoman.engine.turn import Turn
from dragoman.errors import TaskNotFound, Unavailable
from dragoman.model.ids import timestamp
from dragoman.model.ops import GetTask, ListTasks
from dragoman.model.task import TaskState
from tests.engine.conftest import Start, call, say
from tests.requirements import requirement
from tests.waiting import until


@pytest.fixture(autouse=True)
def _clock_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the machine may have been set since this process began, and age is counted from that."""
    monkeypatch.setattr(push_configs, "_BEGAN", time.time() - time.monotonic())


def talker() -> Agent:
    agent = Agent("a")

    @agent.skill(default=True)
    async def talk(turn: Turn) -> str:
        return await turn.ask("well?") if turn.text == "ask" else turn.text

    @agent.skill(reply=True)
    async def reply(turn: Turn) -> str:
        return "hi"

    return agent


async def until_deleted(engine: Engine, task: str) -> None:
    async def is_gone() -> bool:
        try:
            await engine.call(call(), GetTask(id=task))
        except TaskNotFound:
            return True
        return False

    await until(is_gone)


async def later() -> None:
    """Until the clock of timestamps has moved on."""
    now = timestamp()
    await until(lambda: timestamp() > now)


@requirement(227)
async def test_an_engine_forgets_finished_tasks_past_their_age_and_keeps_open_ones(start: Start) -> None:
    first = await start(talker())
    done = [await first.call(call(), say(f"t{i}")) for i in range(3)]
    waiting = await first.call(call(), say("ask"))
    assert waiting.state is TaskState.INPUT_REQUIRED
    await first.stop(drain=0)
    await later()
    second = await start(talker(), retain=0.0)
    for task in done:
        await until_deleted(second, task.id)
    assert (await second.call(call(), GetTask(id=waiting.id))) == waiting
    page = await second.call(call(), ListTasks())
    assert [task.id for task in page.tasks] == [waiting.id] and page.total_size == 1
    answered = await second.call(call(), say("yes", task=waiting.id))
    assert answered.text == "yes"


async def test_tasks_are_not_deleted_before_their_age_or_without_the_option(start: Start) -> None:
    first = await start(talker())
    task = await first.call(call(), say("x"))
    for options in ({}, {"retain": 3600.0}):
        engine = await start(talker(), **options)
        await engine.call(call(), say("y"))  # time enough for a look around
        assert await engine.call(call(), GetTask(id=task.id)) == task


async def test_a_clock_that_is_set_ahead_makes_nothing_older(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await start(talker())
    task = await first.call(call(), say("x"))
    year = 365 * 86_400
    monkeypatch.setattr(time, "time", lambda wall=time.time: wall() + year)
    second = await start(talker(), retain=3600.0)
    await second.call(call(), say("y"))  # time enough for a look around
    assert await second.call(call(), GetTask(id=task.id)) == task


async def test_replies_without_a_task_are_deleted_as_well(start: Start) -> None:
    engine = await start(talker())
    for _ in range(5):
        await engine.call(call(), say("x", skill="reply"))
    await later()
    store: Any = engine._store
    assert await store.purge(timestamp(), limit=100) == 5
    assert await store.purge(timestamp(), limit=100) == 0


async def test_a_store_that_is_away_for_a_moment_does_not_end_the_forgetting(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start(talker())
    task = await engine.call(call(), say("x"))
    await later()
    purge, calls = engine._store.purge, 0

    async def moody(before: str, *, limit: int, unfinished: bool) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("not now")
        return await purge(before, limit=limit, unfinished=unfinished)

    monkeypatch.setattr(engine._store, "purge", moody)
    monkeypatch.setattr(retention, "PURGE_SECONDS", 0.001)
    forgetting = asyncio.create_task(retention.purge_old(engine._store, 0.0, None))
    await until_deleted(engine, task.id)
    forgetting.cancel()
    await asyncio.wait([forgetting])

"""A caller may leave at any moment. What it has said is dealt with all the same."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from dragoman import Agent, Turn
from dragoman.engine.engine import Engine
from dragoman.model.ops import CancelTask, ListTasks, TaskPage
from dragoman.model.task import Task
from tests.engine.conftest import Start, call, say
from tests.waiting import until

MOMENTS = 40


def echo() -> Agent:
    agent = Agent("a")

    @agent.skill
    async def echo(turn: Turn) -> str:
        """Echoes."""
        if turn.text == "wait":
            await asyncio.Event().wait()
        return turn.text

    return agent


async def steps(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_message_whose_sender_leaves_while_it_is_delivered_is_answered(
    start: Start, streams: bool
) -> None:
    engine = await start(echo())

    async def read() -> None:
        async with aclosing(engine.stream(call(), say("hello"))) as batches:  # type: ignore[type-var]
            async for _ in batches:
                pass

    for n in range(MOMENTS):
        sending = asyncio.create_task(read() if streams else engine.call(call(), say("hello")))
        await steps(n)
        sending.cancel()
        await asyncio.wait((sending,))
        await engine.call(call(), say("stay"))  # the store has nothing else to do when the next one leaves
    await until(lambda: listed(engine), lambda tasks: all(task.state.terminal for task in tasks))
    tasks = await listed(engine)
    assert len(tasks) > MOMENTS and {task.state.word for task in tasks} == {"completed"}


async def test_a_cancel_whose_sender_leaves_while_it_is_delivered_is_done(start: Start) -> None:
    engine = await start(echo())
    for n in range(MOMENTS):
        task = await engine.call(call(), say("wait", return_immediately=True))
        canceling = asyncio.create_task(engine.call(call(), CancelTask(id=task.id)))
        await steps(n + 3)
        canceling.cancel()
        await asyncio.wait((canceling,))
    # Whoever left too early to be heard has canceled nothing; nobody has left a task that can no longer be canceled.
    async with asyncio.timeout(10):
        for task in await listed(engine):
            assert (await engine.call(call(), CancelTask(id=task.id))).state.word == "canceled"


async def listed(engine: Engine) -> tuple[Task, ...]:
    page: TaskPage = await engine.call(call(), ListTasks(page_size=100))
    return page.tasks

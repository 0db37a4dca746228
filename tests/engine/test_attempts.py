"""A task whose node dies again and again is given up, unless it gets on."""

from __future__ import annotations

import asyncio

from dragoman import Agent, Turn
from dragoman.engine.engine import Engine
from dragoman.engine.run import GAVE_UP
from dragoman.engine.turn import record_of
from dragoman.model.ops import GetTask, ListTasks, SubscribeToTask
from dragoman.model.task import Task, TaskState
from tests.engine.conftest import Start, call, say

MANY = 8
"""More attempts than a task has that does not get on."""


async def die(engine: Engine) -> None:
    """End a node as a crash does: what it ran is not given back by itself, only found to have no node."""
    for run in list(engine.runner._runs):
        run.interrupt("lost")
    await engine.stop(drain=0)


async def ended(engine: Engine, task: str) -> Task:
    async with asyncio.timeout(10):
        async for _ in engine.stream(call(reads_finished=True), SubscribeToTask(id=task)):
            pass
    known: Task = await engine.call(call(), GetTask(id=task))
    return known


async def test_a_turn_with_progress_between_crashes_is_not_given_up(start: Start) -> None:
    agent, reached = Agent("a"), asyncio.Event()
    done: list[int] = []

    @agent.skill
    async def work(turn: Turn) -> str:
        for n in range(MANY):
            if record_of(turn).steps.get(f"step/{n}") is None:
                await turn.step(f"step/{n}", done.append, n)
                reached.set()
                await asyncio.Event().wait()
        return "whole"

    engine = await start(agent)
    task = await engine.call(call(), say("go", return_immediately=True))
    for _ in range(MANY):
        await asyncio.wait_for(reached.wait(), 10)
        reached.clear()
        await die(engine)
        engine = await start(agent)
    assert (await ended(engine, task.id)).text == "whole"
    assert done == list(range(MANY))


async def test_a_turn_that_does_not_get_on_is_given_up(start: Start) -> None:
    agent, began, attempts = Agent("a"), asyncio.Event(), []

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.step("first", lambda: 1)
        attempts.append(turn.attempt)
        await turn.status(f"this is attempt {turn.attempt}")
        began.set()
        await asyncio.Event().wait()

    engine = await start(agent)
    task = await engine.call(call(), say("go", return_immediately=True))
    for _ in range(5):
        await asyncio.wait_for(began.wait(), 10)
        began.clear()
        await die(engine)
        engine = await start(agent)
    given_up = await ended(engine, task.id)
    assert given_up.state is TaskState.FAILED and given_up.status.message is not None
    assert given_up.status.message.text == GAVE_UP
    assert attempts == [1, 2, 3, 4, 5]


async def test_a_task_is_not_given_up_while_another_works_for_it(start: Start) -> None:
    parent, child, reached = Agent("a"), Agent("b"), asyncio.Event()
    runs: list[int] = []

    @parent.skill
    async def ask_b(turn: Turn) -> str:
        return (await turn.call("b", "go")).text

    @child.skill
    async def work(turn: Turn) -> str:
        for n in range(2 * MANY):
            if record_of(turn).steps.get(f"step/{n}") is None:
                await turn.step(f"step/{n}", runs.append, n)
                reached.set()
                await asyncio.Event().wait()
        return "whole"

    engine = await start(parent, child)
    task = await engine.call(call(), say("go", return_immediately=True))
    for _ in range(2 * MANY):
        await asyncio.wait_for(reached.wait(), 10)
        reached.clear()
        await die(engine)
        engine = await start(parent, child)
    assert (await ended(engine, task.id)).text == "whole"
    assert runs == list(range(2 * MANY))
    assert (await engine.call(call("b"), ListTasks())).total_size == 1


async def test_a_task_has_all_its_attempts_when_the_one_it_waited_for_is_over(start: Start) -> None:
    parent, child, began, got_on, go = Agent("a"), Agent("b"), *(asyncio.Event() for _ in range(3))
    attempts = []

    @parent.skill
    async def ask_b(turn: Turn) -> None:
        async for _ in turn.stream("b", "go"):
            attempts.append(turn.attempt)
            await record_of(
                turn
            ).journal.commit()  # that the peer works on it is progress, once it is on disk
            began.set()
            await asyncio.Event().wait()

    @child.skill
    async def work(turn: Turn) -> str:
        await turn.step(f"attempt/{record_of(turn).journal.snapshot.seq}", lambda: 1)
        got_on.set()
        await go.wait()
        return turn.text

    engine = await start(parent, child)
    task = await engine.call(call(), say("go", return_immediately=True))
    for _ in range(MANY):
        for each in (began, got_on):
            await asyncio.wait_for(each.wait(), 10)
            each.clear()
        await die(engine)
        engine = await start(parent, child)
    assert set(attempts[1:]) == {2}
    go.set()
    (other,) = (await engine.call(call("b"), ListTasks())).tasks
    async with asyncio.timeout(10):
        async for _ in engine.stream(call("b", reads_finished=True), SubscribeToTask(id=other.id)):
            pass
    for _ in range(5):
        await asyncio.wait_for(began.wait(), 10)
        began.clear()
        await die(engine)
        engine = await start(parent, child)
    assert (await ended(engine, task.id)).state is TaskState.FAILED
    assert attempts[-4:] == [2, 3, 4, 5]

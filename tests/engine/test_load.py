"""A node that is full says so, exactly, and counts what waits as well as what runs."""

from __future__ import annotations

import asyncio
from multiprocessing import get_context

import pytest

from dragoman import Agent, Turn
from dragoman.engine.engine import Engine
from dragoman.engine.load import Load
from dragoman.errors import Unavailable
from dragoman.model.ops import CancelTask, GetTask
from dragoman.model.task import Task, TaskState
from tests.engine.conftest import Start, call, say
from tests.waiting import until


class Gate:
    def __init__(self) -> None:
        self.agent, self.go, self.began = Agent("a"), asyncio.Event(), 0

        @self.agent.skill
        async def wait(turn: Turn) -> str:
            self.began += 1
            await self.go.wait()
            return "done"


async def burst(engine: Engine, many: int) -> list[Task]:
    """Send so many messages at once: the tasks of those that were taken."""
    sends = [engine.call(call(), say("x", return_immediately=True)) for _ in range(many)]
    said = await asyncio.gather(*sends, return_exceptions=True)
    refused = [each for each in said if isinstance(each, BaseException)]
    assert all(isinstance(each, Unavailable) and each.retry_after == 1 for each in refused), refused
    return [each for each in said if isinstance(each, Task)]


async def ended(engine: Engine, task: Task) -> TaskState:
    known: Task = await until(
        lambda: engine.call(call(), GetTask(id=task.id)), lambda found: found.state.settled
    )
    return known.state


@pytest.mark.parametrize("options", [{"queue": 10}, {"max_running": 10}, {"max_running": 4, "queue": 10}])
async def test_a_burst_is_taken_up_to_the_limit_and_no_further(start: Start, options: dict[str, int]) -> None:
    gate = Gate()
    engine = await start(gate.agent, **options)
    tasks = await burst(engine, 25)
    assert len(tasks) == 10 and engine.runner.full
    assert await burst(engine, 5) == []
    assert engine.runner.running <= options.get("max_running", 10)
    gate.go.set()
    assert {await ended(engine, task) for task in tasks} == {TaskState.COMPLETED}
    async with asyncio.timeout(10):
        while engine.runner.load.total:
            await asyncio.sleep(0)
    assert len(await burst(engine, 10)) == 10


async def test_waiting_tasks_count_until_they_end_or_another_node_takes_them(start: Start) -> None:
    gate, elsewhere = Gate(), Gate()
    engine = await start(gate.agent, max_running=2, queue=5, ttl=600)
    tasks = await burst(engine, 5)
    assert engine.runner.running == 2 and engine.runner.load.waiting == 3
    other = await start(elsewhere.agent, ttl=600)
    async with asyncio.timeout(10):
        while other.runner.running < 3:
            await asyncio.sleep(0)
    assert engine.runner.full  # it has not heard of it yet
    await engine.runner.beat()
    assert engine.runner.load.total == 2
    tasks += await burst(engine, 4)
    assert len(tasks) == 8
    gate.go.set()
    elsewhere.go.set()
    assert {await ended(engine, task) for task in tasks} == {TaskState.COMPLETED}


async def test_an_agent_that_calls_another_is_not_refused_by_a_full_node_and_does_not_wait_for_itself(
    start: Start,
) -> None:
    parent, child = Agent("a"), Agent("b")

    @parent.skill
    async def ask(turn: Turn) -> str:
        return (await turn.call("b", "go")).text

    @child.skill
    async def answer() -> str:
        return "yes"

    engine = await start(parent, child, max_running=1)
    async with asyncio.timeout(10):
        assert (await engine.call(call(), say("x"))).text == "yes"
    assert engine.runner.load.total == 0


async def test_a_task_that_waits_can_be_canceled_on_a_full_node(start: Start) -> None:
    gate = Gate()
    engine = await start(gate.agent, max_running=1, queue=2)
    tasks = await burst(engine, 2)
    async with asyncio.timeout(10):
        while not gate.began:
            await asyncio.sleep(0)
        for task in reversed(tasks):  # the one that waits first: it begins as soon as the other ends
            assert (await engine.call(call(), CancelTask(id=task.id))).state is TaskState.CANCELED
        while engine.runner.running:
            await asyncio.sleep(0)
        await engine.runner.beat()
    assert gate.began == 1 and not engine.runner.full


async def test_a_message_that_is_not_stored_gives_its_place_back(start: Start) -> None:
    gate = Gate()
    engine = await start(gate.agent, queue=1)
    for _ in range(3):
        with pytest.raises(Exception, match="was not found"):
            await engine.call(call(), say("x", task="nobody's"))
    assert engine.runner.load.total == 0
    assert len(await burst(engine, 2)) == 1


def _enter(load: Load, worker: int, limit: int, go: object, entered: object) -> None:
    mine = load.for_worker(worker)
    go.wait()  # type: ignore[attr-defined]
    entered.put(sum(mine.enter(limit) for _ in range(limit)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_count_at_the_same_time_never_exceed_the_limit(workers: int) -> None:
    fork = get_context("fork")
    load, limit = Load(workers), 20_000
    go, entered = fork.Event(), fork.Queue()
    jobs = [fork.Process(target=_enter, args=(load, n, limit, go, entered)) for n in range(workers)]
    for job in jobs:
        job.start()
    go.set()
    total = sum(entered.get(timeout=30) for _ in jobs)
    for job in jobs:
        job.join()
    assert total == load.running <= limit
    assert total >= limit - workers

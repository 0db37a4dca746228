"""What happens at the same time, or at the wrong time."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dragoman import errors
from dragoman.agent.agent import Agent
from dragoman.buses.local import LocalBus
from dragoman.engine import run as run_module
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import MAIL_TOPIC, Lease
from dragoman.engine.recorded import Recorded, open_record
from dragoman.engine.records import Cancel, Record
from dragoman.engine.run import Run
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.turn import Turn
from dragoman.errors import StoreUnavailable
from dragoman.model.ops import (
    CancelTask,
    Configuration,
    GetTask,
    ListTasks,
    SendMessage,
    SubscribeToTask,
)
from dragoman.model.task import TaskState
from dragoman.stores.sqlite.store import SqliteStore
from tests.engine.conftest import Start, call, events, say
from tests.waiting import elapse, until


async def opened(path: str, *agents: Agent, keep: int = 1000, **options: Any) -> Engine:
    """An engine on a store of its own, as another process would have one."""
    by_id = {agent.id: agent for agent in agents}
    engine = Engine(
        SqliteStore(path, cached_snapshots=keep), LocalBus(), lambda scope: by_id.get(scope.agent), **options
    )
    await engine.start()
    return engine


class Gates:
    """An agent whose tasks wait, each at a gate named by its text."""

    def __init__(self) -> None:
        self.agent = Agent("a")
        self.gates: dict[str, asyncio.Event] = {}
        self.waiting: dict[str, asyncio.Event] = {}
        self.cancelled: list[str] = []

        @self.agent.skill
        async def wait(turn: Turn) -> str:
            name = turn.text
            self.at(name).set()
            try:
                await self.gate(name).wait()
            except asyncio.CancelledError:
                if turn.cancelled:
                    self.cancelled.append(name)
                raise
            return f"{name} done"

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    def at(self, name: str) -> asyncio.Event:
        return self.waiting.setdefault(name, asyncio.Event())


async def test_a_task_that_is_not_in_memory_gets_its_mail(
    tmp_path: Any,
) -> None:
    gates = Gates()
    engine = await opened(f"{tmp_path}/tasks.db", gates.agent, keep=1)
    tasks = [await engine.call(call(), say(f"t{i}", return_immediately=True)) for i in range(4)]
    for i in range(4):
        await gates.at(f"t{i}").wait()
    more = [
        asyncio.create_task(engine.call(call(), say(f"more {i}", task=task.id, return_immediately=True)))
        for i, task in enumerate(tasks)
    ]
    await asyncio.gather(*more)
    for i, task in enumerate(tasks):
        gates.gate(f"t{i}").set()
        await gates.at(f"more {i}").wait()
        gates.gate(f"more {i}").set()
        await events(engine.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
        done = await engine.call(call(), GetTask(id=task.id))
        assert done.state is TaskState.COMPLETED
        assert [a.text for a in done.artifacts] == [f"t{i} done", f"more {i} done"]


async def test_a_task_that_is_not_in_memory_can_be_canceled(
    tmp_path: Any,
) -> None:
    gates = Gates()
    engine = await opened(f"{tmp_path}/tasks.db", gates.agent, keep=1)
    tasks = [await engine.call(call(), say(f"t{i}", return_immediately=True)) for i in range(4)]
    for i in range(4):
        await gates.at(f"t{i}").wait()
    for task in tasks:
        assert (await engine.call(call(), CancelTask(id=task.id))).state is TaskState.CANCELED
    assert gates.cancelled == ["t0", "t1", "t2", "t3"]


async def test_a_message_from_another_process_in_the_middle_of_a_turn_is_answered(tmp_path: Any) -> None:
    """Each process has its own memory of a task. Mail that the other one delivered must not confuse the first."""
    gates = Gates()
    first, second = [await opened(f"{tmp_path}/tasks.db", gates.agent) for _ in range(2)]
    try:
        task = await first.call(call(), say("one", return_immediately=True))
        await gates.at("one").wait()
        await second.call(call(), say("two", task=task.id, return_immediately=True))
        gates.gate("one").set()
        await gates.at("two").wait()
        gates.gate("two").set()
        await events(first.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
        done = await first.call(call(), GetTask(id=task.id))
        assert done.state is TaskState.COMPLETED
        assert [a.text for a in done.artifacts] == ["one done", "two done"]
    finally:
        await first.stop(drain=0)
        await second.stop(drain=0)


async def test_a_busy_node_renews_its_lease(start: Start) -> None:
    gates = Gates()
    busy = await start(gates.agent, ttl=0.3)
    task = await busy.call(call(), say("x", return_immediately=True))
    await gates.at("x").wait()
    other = await start(gates.agent, ttl=0.3)
    for _ in range(100):  # more than its time to live
        busy._bus.wake(MAIL_TOPIC)
        await elapse(0.01)
    other._bus.wake(MAIL_TOPIC)
    await elapse(0.05)
    assert other.runner.running == 0
    gates.gate("x").set()
    await events(busy.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
    assert (await busy.call(call(), GetTask(id=task.id))).state is TaskState.COMPLETED


@pytest.mark.parametrize("turns", range(12))
async def test_a_caller_that_gives_up_while_its_message_is_stored_leaves_no_stuck_task(
    start: Start, turns: int
) -> None:
    """It gives up after so many turns of the loop: before, while or after its message goes to disk."""
    gates = Gates()
    engine = await start(gates.agent)
    gates.gate("x").set()
    sending = asyncio.create_task(engine.call(call(), say("x")))
    for _ in range(turns):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    await engine.call(call(), say("x"))  # as much time as a whole task takes, at least
    async with asyncio.timeout(20):
        for task in (await engine.call(call(), ListTasks())).tasks:
            if not task.state.terminal:
                await events(engine.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
    page = await engine.call(call(), ListTasks())
    assert {task.state for task in page.tasks} == {TaskState.COMPLETED}


class Odd:
    """Has no JSON form."""


def oddities() -> list[Callable[[Turn], Any]]:
    async def metadata(turn: Turn) -> None:
        await turn.status("x", metadata={"odd": Odd()})

    async def surrogate(turn: Turn) -> None:
        await turn.status("\ud800")

    async def artifact(turn: Turn) -> None:
        await turn.artifact("a").write("\ud800")

    async def question(turn: Turn) -> None:
        await turn.ask("\ud800")

    async def question_metadata(turn: Turn) -> None:
        await turn.ask("x", metadata={"odd": Odd()})

    async def finish(turn: Turn) -> None:
        turn.show()
        turn.finish(TaskState.COMPLETED, "\ud800")

    async def reject(turn: Turn) -> None:
        turn.reject("\ud800")

    async def error(turn: Turn) -> None:
        raise errors.InvalidParams("\ud800")

    async def step(turn: Turn) -> None:
        await turn.step("x", Odd)

    async def result(turn: Turn) -> Odd:
        return Odd()

    return [
        metadata,
        surrogate,
        artifact,
        question,
        question_metadata,
        finish,
        reject,
        error,
        step,
        result,
    ]


@pytest.mark.parametrize("function", oddities(), ids=lambda f: f.__name__)
@pytest.mark.parametrize("reply", [False, True])
async def test_output_that_cannot_be_stored_raises_at_the_call_and_fails_the_task(
    start: Start, function: Any, reply: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent, runs = Agent("a"), 0

    @agent.skill(reply=reply)
    async def odd(turn: Turn) -> Any:
        nonlocal runs
        runs += 1
        return await function(turn)

    engine = await start(agent)
    async with asyncio.timeout(20):
        task = await engine.call(call(), say("x"))
    assert task.state is TaskState.FAILED and msgspec.json.encode(task)
    assert runs == 1
    assert "could not be run" not in caplog.text


async def test_a_skill_may_ask_from_within_a_task_group(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def both(turn: Turn) -> str:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(turn.ask("well?"))
        return asked.result()

    engine = await start(agent)
    async with asyncio.timeout(20):
        task = await engine.call(call(), say("x"))
        assert task.state is TaskState.INPUT_REQUIRED
        task = await engine.call(call(), say("yes", task=task.id))
    assert task.text == "yes"


@pytest.mark.parametrize("error", [SystemExit(3), BaseExceptionGroup("two", [SystemExit(1), ValueError()])])
async def test_a_skill_that_exits_ends_its_task_and_nothing_else(start: Start, error: BaseException) -> None:
    agent = Agent("a")

    @agent.skill
    async def leave(turn: Turn) -> None:
        raise error

    engine = await start(agent)
    async with asyncio.timeout(20):
        task = await engine.call(call(), say("x"))
    assert task.state is TaskState.FAILED


async def test_a_generator_skill_that_is_canceled_tidies_up_before_the_task_is_canceled(start: Start) -> None:
    agent, tidied, written = Agent("a"), [], asyncio.Event()

    @agent.skill
    async def chunks(turn: Turn) -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * 100
                written.set()
        finally:
            tidied.append(turn.cancelled)

    engine = await start(agent)
    task = await engine.call(call(), say("x", return_immediately=True))
    await written.wait()
    assert (await engine.call(call(), CancelTask(id=task.id))).state is TaskState.CANCELED
    assert tidied == [True]


async def test_a_blocking_send_does_not_outlive_the_engine(start: Start) -> None:
    gates = Gates()
    engine = await start(gates.agent)
    sending = asyncio.create_task(engine.call(call(), say("x")))
    await gates.at("x").wait()
    async with asyncio.timeout(20):
        await engine.stop(drain=0)
        with pytest.raises(errors.Unavailable):
            await sending


async def test_a_stream_does_not_outlive_the_engine(start: Start) -> None:
    gates = Gates()
    engine = await start(gates.agent)
    streaming = asyncio.create_task(events(engine.stream(call(), say("x"))))
    await gates.at("x").wait()
    async with asyncio.timeout(20):
        await engine.stop(drain=0)
        with pytest.raises(errors.Unavailable):
            await streaming


AWAY = StoreUnavailable("the database is away")


@pytest.mark.parametrize("error", [AWAY, ExceptionGroup("two", [ValueError(), AWAY])])
async def test_a_turn_that_meets_a_database_that_is_away_runs_again(start: Start, error: Exception) -> None:
    agent, runs, steps = Agent("a"), 0, 0

    @agent.skill
    async def look(turn: Turn) -> str:
        nonlocal runs, steps

        async def step() -> int:
            nonlocal steps
            steps += 1
            return steps

        runs += 1
        await turn.step("once", step)
        if runs < 3:
            raise error
        return "found"

    engine = await start(agent)
    task = await engine.call(call(), say("x"))
    assert task.state is TaskState.COMPLETED
    assert (runs, steps) == (3, 1)


async def test_no_step_begins_if_the_lease_is_lost_before_the_function_runs(start: Start) -> None:
    agent, go, steps = Agent("a"), asyncio.Event(), []

    @agent.skill
    async def work(turn: Turn) -> str:
        await go.wait()
        await turn.step("one", lambda: steps.append("one"))
        return "done"

    engine = await start(agent)
    go.set()
    await events(engine.stream(call(), say("first")))
    go.clear()
    await engine.call(call(), say("second", return_immediately=True))
    (run,) = engine.runner._runs
    run.lose_lease()
    go.set()
    await asyncio.wait([run.asyncio_task])
    assert steps == ["one"]


async def test_a_task_that_is_canceled_before_it_begins_needs_no_heartbeat_to_end(start: Start) -> None:
    gates = Gates()
    engine = await start(gates.agent, ttl=3600.0)
    gates.gate("first").set()
    await events(engine.stream(call(), say("first")))
    task = await engine.call(call(), say("x", return_immediately=True))
    async with aclosing(engine.stream(call(), SubscribeToTask(id=task.id))) as stream:  # type: ignore[type-var]
        await anext(stream)
    async with asyncio.timeout(60):
        canceled = await engine.call(call(), CancelTask(id=task.id))
    assert canceled.state is TaskState.CANCELED


async def test_a_finished_task_leaves_no_bus_listener(start: Start) -> None:
    gates = Gates()
    engine = await start(gates.agent)
    bus = engine._bus
    gates.gate("x").set()
    await engine.call(call(), say("x"))
    await events(engine.stream(call(), say("x")))
    task = await engine.call(call(), say("y", return_immediately=True))
    async with aclosing(engine.stream(call(), SubscribeToTask(id=task.id))) as stream:  # type: ignore[type-var]
        await anext(stream)
    await engine.call(call(), CancelTask(id=task.id))
    assert isinstance(bus, LocalBus)
    while engine.runner.running:
        await asyncio.sleep(0)
    assert list(bus._listeners) == [MAIL_TOPIC]


async def test_a_reader_that_does_not_read_holds_nothing_in_memory(start: Start) -> None:
    agent, ready = Agent("a"), asyncio.Event()

    @agent.skill
    async def flood(turn: Turn) -> AsyncIterator[str]:
        await ready.wait()
        for i in range(6_000):
            yield f"{i} "

    engine = await start(agent)
    stream = engine.stream(call(), say("x"))
    (first,) = await anext(stream)
    (working,) = await anext(stream)
    ready.set()
    await events(engine.stream(call(reads_finished=True), SubscribeToTask(id=first.event.id)))  # type: ignore[union-attr]
    (reader,) = engine.readers
    assert len(reader._records) <= 2000
    rest = [response async for batch in stream for response in batch]
    assert [r.seq for r in rest] == list(range(rest[0].seq, rest[0].seq + len(rest)))
    assert len(rest) == 6_001 and rest[0].seq == working.seq + 1


async def test_an_answer_needs_not_say_which_skill_asked(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def one(turn: Turn) -> str:
        return "one"

    @agent.skill
    async def two(turn: Turn) -> str:
        return f"two {await turn.ask('well?')}"

    engine = await start(agent)
    chosen = SendMessage(message=say("x").message, metadata={"skillId": "two"})
    task = await engine.call(call(), chosen)
    task = await engine.call(call(), say("yes", task=task.id))
    assert task.text == "two yes"


async def test_a_message_in_the_middle_of_a_turn_goes_to_the_skill_of_its_task(start: Start) -> None:
    agent, begun, go = Agent("a"), asyncio.Event(), asyncio.Event()

    @agent.skill
    async def one(turn: Turn) -> str:
        return "one"

    @agent.skill
    async def two(turn: Turn) -> str:
        begun.set()
        await go.wait()
        return f"two {turn.text}"

    engine = await start(agent)
    first = SendMessage(
        message=say("x").message,
        metadata={"skillId": "two"},
        configuration=Configuration(return_immediately=True),
    )
    task = await engine.call(call(), first)
    await begun.wait()
    second = asyncio.create_task(engine.call(call(), say("y", task=task.id)))
    while len((await engine.call(call(), GetTask(id=task.id))).history) < 2:
        await asyncio.sleep(0)
    go.set()
    assert [a.text for a in (await second).artifacts] == ["two x", "two y"]


async def test_a_thousand_tasks_leave_nothing_behind(tmp_path: Any) -> None:
    agent = Agent("a")

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.status("working")
        await turn.step("step", int)
        if turn.text == "wait":
            await asyncio.Event().wait()
        return await turn.ask("well?") if turn.text == "ask" else turn.text

    engine = await opened(f"{tmp_path}/tasks.db", agent, keep=10, grace=600)

    async def one(n: int) -> None:
        match n % 5:
            case 0:
                await engine.call(call(), say("x"))
            case 4:
                task = await engine.call(call(), say("wait", return_immediately=True))
                while len((await engine.call(call(), GetTask(id=task.id))).history) < 1:
                    await asyncio.sleep(0)
                await engine.call(call(), CancelTask(id=task.id))
            case 1:
                await events(engine.stream(call(), say("x")))
            case 2:
                task = await engine.call(call(), say("ask"))
                await engine.call(call(), CancelTask(id=task.id))
            case 3:
                async with aclosing(engine.stream(call(), say("x"))) as stream:  # type: ignore[type-var]
                    await anext(stream)

    async def left() -> Counter[str]:
        """What there is of tasks in memory, once all of them have ended."""
        while engine.runner.running:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        kinds = (Snapshot, Turn, Run, asyncio.Task)
        return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds))

    await asyncio.gather(*(one(n) for n in range(50)))
    before = await left()
    for _ in range(20):
        await asyncio.gather(*(one(n) for n in range(50)))
    assert await left() <= before
    assert isinstance(engine._bus, LocalBus) and list(engine._bus._listeners) == [MAIL_TOPIC]
    assert not engine.readers and not engine.runner._orphans and not engine.runner._unchecked
    await engine.stop(drain=0)


async def test_tasks_of_an_agent_that_is_not_here_wait_for_one_that_has_it(start: Start) -> None:
    gates = Gates()
    first = await start(gates.agent)
    task = await first.call(call(), say("x", return_immediately=True))
    await gates.at("x").wait()
    await first.stop(drain=0)
    stranger = Agent("b")

    @stranger.skill
    async def other(text: str) -> str:
        return text

    second = await start(stranger)
    assert (await second.call(call("b"), say("y"))).state is TaskState.COMPLETED
    gates.gate("x").set()
    third = await start(gates.agent)
    async with asyncio.timeout(20):
        await events(third.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
    assert (await third.call(call(), GetTask(id=task.id))).state is TaskState.COMPLETED


async def test_a_store_outage_between_two_turns_loses_no_task(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates()
    engine = await start(gates.agent)
    task = await engine.call(call(), say("one", return_immediately=True))
    await gates.at("one").wait()
    await engine.call(call(), say("two", task=task.id, return_immediately=True))
    log = type(engine._store.scope(call().scope))
    load, away = log.load, [True]

    async def moody(self: Any, task: str, **options: Any) -> Snapshot:
        if away:
            away.clear()
            raise errors.Unavailable("not now")
        return await load(self, task, **options)

    monkeypatch.setattr(log, "load", moody)
    gates.gate("one").set()
    async with asyncio.timeout(20):
        await gates.at("two").wait()
    gates.gate("two").set()
    async with asyncio.timeout(20):
        await events(engine.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
    done = await engine.call(call(), GetTask(id=task.id))
    assert done.state is TaskState.COMPLETED and [a.text for a in done.artifacts] == ["one done", "two done"]


async def test_a_cancel_during_a_store_outage_is_found_afterwards(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates()
    engine = await start(gates.agent)
    task = await engine.call(call(), say("x", return_immediately=True))
    await gates.at("x").wait()
    scope = engine._store.scope(call().scope)
    await scope.deliver(task.id, Cancel())  # by another node
    log = type(scope)
    load, away = log.load, [True]

    async def moody(self: Any, task: str, **options: Any) -> Snapshot:
        if away:
            away.clear()
            raise errors.Unavailable("not now")
        return await load(self, task, **options)

    monkeypatch.setattr(log, "load", moody)
    for run in engine.runner._runs:
        engine.runner.check_for_cancel(run)
    async with asyncio.timeout(20):
        await until(lambda: not (engine.runner.running))
    assert not away and gates.cancelled == ["x"]
    assert (await engine.call(call(), GetTask(id=task.id))).state is TaskState.CANCELED


async def test_a_task_that_could_be_neither_run_nor_given_back_is_run_later(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates()
    engine = await start(gates.agent)
    gates.gate("x").set()
    await engine.call(call(), say("x"))  # the node has nothing else to look at
    store, away = type(engine._store), ["record", "release"]
    release = store.release

    def broken(*args: Any, **options: Any) -> Recorded:
        if "record" in away:
            away.remove("record")
            raise RuntimeError("not now")
        return open_record(*args, **options)

    async def moody(self: Any, lease: Lease, **how: bool) -> None:
        if "release" in away:
            away.remove("release")
            raise errors.Unavailable("not now")
        await release(self, lease, **how)

    monkeypatch.setattr(run_module, "open_record", broken)
    monkeypatch.setattr(store, "release", moody)
    async with asyncio.timeout(20):
        assert (await engine.call(call(), say("x"))).state is TaskState.COMPLETED
    assert not away


async def test_a_task_that_cannot_be_read_keeps_no_other_from_being_run(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates()
    first = await start(gates.agent)
    tasks = []
    for text in ("one", "two"):
        tasks.append(await first.call(call(), say(text, return_immediately=True)))
        await gates.at(text).wait()
    await first.stop(drain=0)
    log = type(first._store.scope(call().scope))
    load = log.load

    async def illegible(self: Any, task: str, **options: Any) -> Snapshot:
        if task == tasks[0].id:
            raise ValueError("what is this?")
        return await load(self, task, **options)

    monkeypatch.setattr(log, "load", illegible)
    gates.gate("two").set()
    second = await start(gates.agent)
    async with asyncio.timeout(20):
        await events(second.stream(call(reads_finished=True), SubscribeToTask(id=tasks[1].id)))
    assert (await second.call(call(), GetTask(id=tasks[1].id))).state is TaskState.COMPLETED


def who_do_not_wait() -> list[Callable[[Turn], Any]]:
    async def swallows(turn: Turn) -> str:
        try:
            return await turn.ask("well?")
        except:  # noqa: E722
            return "nobody asked"

    async def translates(turn: Turn) -> str:
        try:
            return await turn.ask("well?")
        except BaseException as error:
            raise RuntimeError("it broke") from error

    async def gathers(turn: Turn) -> str:
        (answer,) = await asyncio.gather(turn.ask("well?"), return_exceptions=True)
        return str(answer)

    return [swallows, translates, gathers]


@pytest.mark.parametrize("function", who_do_not_wait(), ids=lambda f: f.__name__)
async def test_a_question_waits_for_its_answer_also_if_the_function_does_not(
    start: Start, function: Any
) -> None:
    agent = Agent("a")

    @agent.skill
    async def ask(turn: Turn) -> Any:
        return await function(turn)

    engine = await start(agent)
    task = await engine.call(call(), say("x"))
    assert task.state is TaskState.INPUT_REQUIRED and task.status.message.text == "well?"
    assert (await engine.call(call(), say("yes", task=task.id))).artifacts[-1].text == "yes"


class Stuck:
    """An agent whose function does not stop when it is told to; `rescued` is the same one, elsewhere, and gets on."""

    def __init__(self) -> None:
        self.agent, self.rescued = Agent("a"), Agent("a")
        self.begun, self.leave = asyncio.Event(), asyncio.Event()

        @self.agent.skill
        async def stuck(turn: Turn) -> str:
            self.begun.set()
            while not self.leave.is_set():
                try:
                    await self.leave.wait()
                except asyncio.CancelledError:
                    continue
            return "late"

        @self.agent.skill
        async def free(turn: Turn) -> str:
            return "done"

        @self.rescued.skill(id="stuck")
        async def rescue(turn: Turn) -> str:
            return "done elsewhere"


@pytest.mark.parametrize("cancels", [False, True], ids=["told so", "canceled meanwhile"])
async def test_a_blocking_send_gets_the_result_of_a_task_that_another_node_took_over(
    start: Start, cancels: bool
) -> None:
    stuck = Stuck()
    engine = await start(stuck.agent, grace=0.01)
    await engine.call(call(), say("first", skill="free"))  # the runner has looked for work, and found none
    sending = asyncio.create_task(engine.call(call(), say("x", skill="stuck")))
    await stuck.begun.wait()
    while (await engine.call(call(), ListTasks())).total_size < 2:
        await asyncio.sleep(0)  # it began before it was on disk
    await engine._store.leave(engine.runner.node)
    other = await start(stuck.rescued)
    try:
        async with asyncio.timeout(10):
            await until(
                lambda: other.call(call(), ListTasks()),
                lambda found: found.tasks[0].state is TaskState.COMPLETED,
            )
            if cancels:
                for run in engine.runner._runs:
                    run.cancel()
            else:
                await engine.runner.beat()
            assert (await sending).text == "done elsewhere"
    finally:
        stuck.leave.set()


async def test_a_waiting_task_starts_when_a_stuck_function_is_given_up(start: Start) -> None:
    stuck = Stuck()
    engine = await start(stuck.agent, grace=0.01, max_running=1, queue=2, ttl=600)
    first = await engine.call(call(), say("x", skill="stuck", return_immediately=True))
    await stuck.begun.wait()
    waiting = asyncio.create_task(engine.call(call(), say("y", skill="free")))
    try:
        async with asyncio.timeout(10):
            while (await engine.call(call(), ListTasks())).total_size < 2:
                await asyncio.sleep(0)
            await engine.call(call(), CancelTask(id=first.id))
            assert (await waiting).text == "done"
    finally:
        stuck.leave.set()


async def test_a_stopped_engine_ends_the_streams_of_its_readers(start: Start) -> None:
    gates = Gates()
    engine = await start(gates.agent)
    task = await engine.call(call(), say("x", return_immediately=True))
    await gates.at("x").wait()
    await engine.stop(drain=0)
    with pytest.raises(errors.Unavailable):
        async with asyncio.timeout(10):
            await events(engine.stream(call(), SubscribeToTask(id=task.id)))


async def test_a_task_whose_output_cannot_be_written_is_given_back_though_its_function_returned(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, failures = Agent("a"), [RuntimeError("a bug of the store")]
    engine = await start(agent)
    log, released = type(engine._store.scope(call().scope)), asyncio.Event()
    append, release = log.append, type(engine._store).release

    async def write(self: Any, lease: Lease, records: Sequence[Record]) -> Any:
        if failures:
            raise failures.pop()
        return await append(self, lease, records)

    async def note(self: Any, lease: Lease, **how: bool) -> None:
        await release(self, lease, **how)
        assert how == {"failed": True}
        released.set()

    monkeypatch.setattr(log, "append", write)
    monkeypatch.setattr(type(engine._store), "release", note)

    @agent.skill
    async def stubborn(turn: Turn) -> None:
        turn.say("x")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    await engine.call(call(), say("go", return_immediately=True))
    async with asyncio.timeout(20):
        await released.wait()


async def test_a_message_that_is_sent_twice_at_once_with_one_key_creates_its_task_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates()
    engine = await start(gates.agent)
    log = type(engine._store.scope(call().scope))
    find_delivered, sent = log.find_delivered, asyncio.Event()
    keyed = call(idempotency_key="k", names_tasks=True)

    def message(context: str) -> SendMessage:
        request = say("x", return_immediately=True)
        return replace(request, message=replace(request.message, task_id="t", context_id=context))

    async def late(self: Any, key: str) -> Any:
        found = await find_delivered(self, key)
        if not sent.is_set():  # the other message is stored right after this look
            sent.set()
            await engine.call(keyed, message("one"))
        return found

    monkeypatch.setattr(log, "find_delivered", late)
    assert (await engine.call(keyed, message("two"))).context_id == "one"
    gates.gate("x").set()


async def test_tasks_that_a_dead_node_left_waiting_do_not_make_room_for_more_than_the_queue(
    start: Start,
) -> None:
    gates = Gates()
    first = await start(gates.agent, max_running=0, queue=9)
    for _ in range(3):
        await first.call(call(), say("x", return_immediately=True))
    await first.stop(drain=0)
    second = await start(gates.agent, queue=9)
    await until(lambda: second.runner.running == 3)
    await until(lambda: second.runner.load.counted == 0)
    assert second.runner.load.total == 3

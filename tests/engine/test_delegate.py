"""Agents that call agents."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.agent.agent import Agent
from dragoman.engine.records import Cancel, Differs
from dragoman.engine.turn import Turn
from dragoman.errors import InvalidParams, Unreachable
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import CancelTask, GetTask, ListTasks, Scope, Service, SubscribeToTask
from dragoman.model.task import Task, TaskState
from tests.engine.conftest import Start, call, events, say
from tests.waiting import until


def pair() -> tuple[Agent, Agent, list[str]]:
    runs: list[str] = []
    parent, child = Agent("a"), Agent("b")

    @parent.skill
    async def ask_b(turn: Turn) -> str:
        answer = await turn.call("b", f"{turn.text}?")
        more = await turn.ask("go on?")
        return f"{answer.text} {more}"

    @child.skill
    async def reply(text: str) -> str:
        runs.append(text)
        return text.upper()

    return parent, child, runs


async def test_a_delegation_is_a_step_that_runs_once_however_often_the_turn_is_replayed(start: Start) -> None:
    parent, child, runs = pair()
    engine = await start(parent, child)
    task = await engine.call(call(), say("x"))
    assert task.state is TaskState.INPUT_REQUIRED
    task = await engine.call(call(), say("yes", task=task.id))
    assert task.text == "X? yes"
    assert runs == ["x?"]
    assert (await engine.call(call("b"), ListTasks())).total_size == 1


@pytest.mark.parametrize("parts", [(), (Part(),), (Part(text="a", url="b"),)])
async def test_a_malformed_message_to_another_agent_is_refused_before_it_is_sent(
    start: Start, parts: tuple[Part, ...]
) -> None:
    parent, child, runs = pair()
    refused = []

    @parent.skill(id="send", default=True)
    async def send(turn: Turn) -> None:
        try:
            await turn.call("b", Message(message_id="m", role=Role.USER, parts=parts))
        except InvalidParams as error:
            refused.append(error.message)

    engine = await start(parent, child)
    await engine.call(call(), say("x"))
    assert len(refused) == 1 and not runs


async def test_canceling_the_parent_cancels_the_child(start: Start) -> None:
    parent, child = Agent("a"), Agent("b")
    started, ended = asyncio.Event(), asyncio.Event()

    @parent.skill
    async def ask_b(turn: Turn) -> str:
        return (await turn.call("b", "go")).text

    @child.skill
    async def forever(turn: Turn) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    engine = await start(parent, child)
    task = await engine.call(call(), say("x", return_immediately=True))
    await started.wait()
    # the child is on record before it can be canceled
    inner = (await engine.call(call("b"), ListTasks())).tasks[0]
    assert (await engine.call(call(), CancelTask(id=task.id))).state is TaskState.CANCELED
    await ended.wait()
    await events(engine.stream(call("b", reads_finished=True), SubscribeToTask(id=inner.id)))
    assert (await engine.call(call("b"), GetTask(id=inner.id))).state is TaskState.CANCELED


async def test_a_parent_canceled_while_no_node_ran_it_cancels_its_child(start: Start) -> None:
    parent, child, elsewhere = Agent("a"), Agent("b"), Agent("c")
    started = asyncio.Event()

    @parent.skill
    async def ask_both(turn: Turn) -> str:
        await turn.call("c", "first")
        return (await turn.call("b", "go")).text

    @child.skill
    async def forever(turn: Turn) -> None:
        started.set()
        await asyncio.Event().wait()

    @elsewhere.skill
    async def done(text: str) -> str:
        return text

    engine = await start(parent, child, elsewhere)
    task = await engine.call(call(), say("x", return_immediately=True))
    await started.wait()
    store = engine._store
    scope = store.scope(call().scope)
    await until(lambda: scope.load(task.id), lambda known: len(known.children) == 2)  # both are on record
    await engine.stop(drain=0)
    await store.open()
    await store.scope(call().scope).deliver(task.id, Cancel())
    await store.close()
    engine = await start(parent, child, elsewhere)
    await events(engine.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
    assert (await engine.call(call(), GetTask(id=task.id))).state is TaskState.CANCELED
    inner = (await engine.call(call("b"), ListTasks())).tasks[0]
    async with asyncio.timeout(10):
        await events(engine.stream(call("b", reads_finished=True), SubscribeToTask(id=inner.id)))
    assert (await engine.call(call("b"), GetTask(id=inner.id))).state is TaskState.CANCELED
    (other,) = (await engine.call(call("c"), ListTasks())).tasks
    assert other.state is TaskState.COMPLETED


async def test_a_skill_of_another_agent_is_called_with_data(start: Start) -> None:
    parent, child = Agent("a"), Agent("b")

    @parent.skill
    async def plan(turn: Turn) -> dict[str, int]:
        found = await turn.call("b", {"city": "Rome", "days": 2}, skill="price")
        return {"eur": found.data["eur"]}

    @child.skill
    async def price(city: str, days: int) -> dict[str, int]:
        return {"eur": len(city) * days}

    @child.skill
    async def other(text: str) -> str:
        return text

    task = await (await start(parent, child)).call(call(), say("x"))
    assert task.data == {"eur": 8}


class SlowPeers:
    """`Peers` that find nobody before `go_on` is set."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        self.asked.set()
        await self.go_on.wait()
        raise Unreachable("nobody is there")

    async def close(self) -> None:
        pass


async def test_a_cancel_that_comes_before_the_function_runs_again_is_not_missed(start: Start) -> None:
    parent, child = Agent("a"), Agent("b")

    @parent.skill
    async def ask_b(turn: Turn) -> str:
        await turn.call("b", "go")
        await asyncio.Event().wait()
        return ""

    @child.skill
    async def forever() -> None:
        await asyncio.Event().wait()

    engine = await start(parent, child)
    task = await engine.call(call(), say("x", return_immediately=True))
    scope = engine._store.scope(call().scope)
    await until(lambda: scope.load(task.id), lambda known: len(known.children) == 1)
    await engine.stop(drain=0)
    peers = SlowPeers()
    engine = await start(parent, peers=peers)
    scope = engine._store.scope(call().scope)
    async with asyncio.timeout(20):
        await peers.asked.wait()  # whether the child still works, before the function runs
        canceling = asyncio.create_task(engine.call(call(), CancelTask(id=task.id)))
        await until(lambda: scope.load(task.id), lambda known: known.canceling is not None)
        peers.go_on.set()
        assert (await canceling).state is TaskState.CANCELED


async def test_a_circle_of_agents_ends(start: Start) -> None:
    one = Agent("a")

    @one.skill
    async def again(turn: Turn) -> str:
        answer = await turn.call("a", turn.text)
        return answer.text

    task = await (await start(one)).call(call(), say("x"))
    assert task.state in (TaskState.COMPLETED, TaskState.FAILED)


async def test_the_stream_of_a_delegation_passes_on_each_piece(start: Start) -> None:
    parent, child = Agent("a"), Agent("b")

    @parent.skill
    async def relay(turn: Turn):
        async for event in turn.stream("b", turn.text):
            artifact = getattr(event, "artifact", None)
            if artifact is not None and artifact.text:
                yield artifact.text + "!"

    @child.skill
    async def words(turn: Turn):
        for word in turn.text.split():
            yield word

    task = await (await start(parent, child)).call(call(), say("one two"))
    assert [p.text for p in task.artifacts[0].parts] == ["one!", "two!"]


async def test_the_result_of_a_call_does_not_go_to_another_that_was_put_before_it(start: Start) -> None:
    runs: list[str] = []

    def agents(*received: str) -> tuple[Agent, Agent]:
        parent, child = Agent("a"), Agent("b")

        @parent.skill
        async def ask_b(turn: Turn) -> str:
            said = [(await turn.call("b", text)).text for text in received]
            return " ".join([*said, await turn.ask("go on?")])

        @child.skill
        async def reply(text: str) -> str:
            runs.append(text)
            return text.upper()

        return parent, child

    engine = await start(*agents("x", "x"))
    task = await engine.call(call(), say("go"))
    await engine.stop(drain=0)
    engine = await start(*agents("y", "x", "x"))
    assert (await engine.call(call(), say("yes", task=task.id))).text == "Y X X yes"
    assert runs == ["x", "x", "y"]


async def test_a_call_that_is_not_made_again_is_reported(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def agents(text: str, key: str = "") -> tuple[Agent, Agent]:
        parent, child = Agent("a"), Agent("b")

        @parent.skill
        async def ask_b(turn: Turn) -> str:
            answer = await turn.call("b", text, key=key)
            return f"{answer.text} {await turn.ask('go on?')}"

        @child.skill
        async def reply(text: str) -> str:
            return text.upper()

        return parent, child

    async def differences(*deployed: tuple[Agent, Agent]) -> tuple[str, list[Differs]]:
        engine = await start(*deployed[0])
        task = await engine.call(call(), say("go"))
        await engine.stop(drain=0)
        engine = await start(*deployed[1])
        done = await engine.call(call(), say("yes", task=task.id))
        records = await engine._store.scope(call().scope).read(task.id)
        return done.text, [record.body for record in records if isinstance(record.body, Differs)]

    text, [found] = await differences(agents("x"), agents("y"))
    assert text == "Y yes" and found.what == "call" and found.recorded.startswith("b, task ")
    assert "did not repeat the call of b" in caplog.text
    assert await differences(agents("x", "k"), agents("y", "k")) == ("X yes", [])


async def test_a_call_inside_a_recorded_step_is_not_missed(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    parent, child = Agent("a"), Agent("b")

    @parent.skill
    async def ask_b(turn: Turn) -> str:
        async def outer() -> str:
            return (await turn.call("b", "x")).text

        return f"{await turn.step('outer', outer)} {await turn.ask('go on?')}"

    @child.skill
    async def reply(text: str) -> str:
        return text.upper()

    engine = await start(parent, child)
    task = await engine.call(call(), say("go"))
    assert (await engine.call(call(), say("yes", task=task.id))).text == "X yes"
    records = await engine._store.scope(call().scope).read(task.id)
    assert [record.kind for record in records if record.kind in ("child", "differs")] == ["child"]
    assert "did not repeat the call" not in caplog.text


class Broken:
    """`Peers` whose agents cannot be reached, at an address that is nobody's business."""

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        raise Unreachable("http://10.1.2.3:8080/inner: HTTP 502")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("caught", [False, True])
async def test_the_error_of_a_failed_call_has_no_addresses_and_is_logged(
    start: Start, caught: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("a")

    @agent.skill
    async def work(turn: Turn) -> str:
        if not caught:
            return (await turn.call("http://10.1.2.3:8080/inner", "go")).text
        try:
            await turn.call("http://10.1.2.3:8080/inner", "go")
        except Unreachable as error:
            return f"I know why: {'502' in error.message}"
        return ""

    engine = await start(agent, peers=Broken())
    task = await engine.call(call(), say("go"))
    assert isinstance(task, Task) and "10.1.2.3" not in str(task) and "HTTP" not in str(task)
    if caught:
        assert task.text == "I know why: True"
    else:
        assert task.status.message is not None
        assert task.status.message.text == "An agent that this task needs could not do its part."
    (line,) = [r.getMessage() for r in caplog.records if "the call of" in r.getMessage()]
    assert (
        task.id in line and "http://10.1.2.3:8080/inner failed: http://10.1.2.3:8080/inner: HTTP 502" in line
    )

"""Mode `durable`: a task here follows a task there, and says the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman.bridge.application import make_bridge
from dragoman.bridge.settings import make_one_route
from dragoman.client import Client, connect
from dragoman.client.reply import TaskFailed
from dragoman.errors import A2AError
from dragoman.model.content import Message
from dragoman.model.task import ArtifactUpdate, TaskState
from dragoman.server.runtime import running
from tests.bridge.bridging import Crew, bridged, caller_of, crew_app, shape
from tests.ports import free_port
from tests.waiting import until

VERSIONS = ("1.0", "0.3", "0.2", "0.1")


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture
async def client(crew: Crew) -> AsyncIterator[Client]:
    async with bridged(crew_app(crew)) as (url, _), caller_of(url) as client:
        yield client


@pytest.mark.parametrize("stranger", [False, True], ids=["dragoman", "stranger"])
@pytest.mark.parametrize("upstream", VERSIONS)
async def test_a_caller_of_any_version_reaches_an_agent_of_any_version(upstream: str, stranger: bool) -> None:
    crew = Crew(versions=(upstream,))
    async with bridged(crew_app(crew), stranger=stranger) as (url, _):
        for version in VERSIONS:
            async with connect(url, version=version) as client:
                assert (await client(f"hi {version}")).text == f"HI {version}"
    assert len(crew.seen) == len(VERSIONS)


async def events_of(client: Client, skill: str, text: str = "go") -> list[Any]:
    return [shape(piece.event) async for piece in client.stream(text, skill=skill)]


async def test_a_stream_has_the_events_that_the_agent_sent(crew: Crew) -> None:
    app = crew_app(crew)
    async with running(app) as direct, bridged(direct) as (url, _):
        async with connect(direct) as there, connect(url) as here:
            expected = await events_of(there, "stream")
            assert await events_of(here, "stream") == expected
    assert sum(1 for each in expected if each[-1] is True) >= 2


async def test_the_task_in_the_end_is_the_one_of_the_agent(crew: Crew) -> None:
    async with running(crew_app(crew)) as direct, bridged(direct) as (url, _):
        async with connect(direct) as there, connect(url) as here:
            theirs = (await there("go", skill="stream")).task
            ours = (await here("go", skill="stream")).task
            assert theirs is not None and ours is not None
            assert ours.artifacts == theirs.artifacts
            assert ours.metadata == theirs.metadata
            assert [m.parts for m in ours.history] == [m.parts for m in theirs.history]


async def test_an_event_is_not_held_back(crew: Crew, client: Client) -> None:
    async with client.stream("go", skill="slow") as stream:
        async for piece in stream:
            if isinstance(piece.event, ArtifactUpdate):
                break
        assert not crew.gate.is_set()
        crew.gate.set()
        async for _ in stream:
            pass
    assert stream.reply.text == "before after"


async def test_an_answer_without_a_task_stays_one(crew: Crew, client: Client) -> None:
    reply = await client("hi", skill="greet")
    assert reply.task is None
    assert isinstance(reply.message, Message)
    assert reply.text.startswith("hello from ")
    assert [task async for task in client.list()] == []


async def test_the_next_message_of_a_conversation_without_tasks_is_in_the_same_context(
    crew: Crew, client: Client
) -> None:
    first = await client("hi", skill="greet")
    second = await client("hi", skill="greet", context=first.message.context_id)  # type: ignore[union-attr]
    third = await client("hi", skill="greet", context=second.message.context_id)  # type: ignore[union-attr]
    assert first.text == second.text == third.text
    assert len({message.context_id for message in crew.seen}) == 1


async def test_a_question_goes_up_and_the_answer_goes_down_to_the_same_task(
    crew: Crew, client: Client
) -> None:
    asked = await client("go", skill="ask")
    assert asked.asks and asked.text == "Which city?"
    answered = await client("Rome", task=asked)
    assert answered.text == "to Rome"
    assert answered.id == asked.id
    assert len({message.task_id for message in crew.seen}) == 1
    task = await client.get(asked.id)
    assert [m.text for m in task.history if m.text] == ["go", "Which city?", "Rome"]


async def test_auth_required_goes_up_and_the_answer_goes_down(crew: Crew, client: Client) -> None:
    asked = await client("go", skill="grant")
    assert asked.state is TaskState.AUTH_REQUIRED
    assert (await client("done", task=asked)).text == "granted"


@pytest.mark.parametrize(
    ("skill", "state", "text"),
    [("reject", TaskState.REJECTED, "not my work"), ("fail", TaskState.FAILED, "it broke")],
)
async def test_how_a_task_ended_badly_is_passed_on(
    client: Client, skill: str, state: TaskState, text: str
) -> None:
    with pytest.raises(TaskFailed) as failed:
        await client("go", skill=skill)
    assert failed.value.task.state is state
    assert failed.value.task.text == text


async def test_a_message_that_the_agent_refuses_is_rejected_with_its_reason(client: Client) -> None:
    with pytest.raises(TaskFailed) as failed:
        await client("go", skill="nothing-like-it")
    assert failed.value.task.state is TaskState.REJECTED
    assert "there is no skill" in failed.value.task.text


async def test_a_cancel_goes_down(crew: Crew, client: Client) -> None:
    reply = await client.send("go", skill="slow", wait=False)
    await crew.begun.wait()
    assert (await client.cancel(reply.id)).state is TaskState.CANCELED
    assert crew.canceled.is_set()


async def test_a_second_task_of_a_context_is_in_the_agents_context_also_after_a_restart(
    crew: Crew, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'bridge.db'}"
    async with running(crew_app(crew)) as direct:
        async with bridged(direct, store=store) as (url, _), connect(url) as client:
            first = await client("one", skill="echo")
            assert first.task is not None
            context = first.task.context_id
            await client("two", skill="echo", context=context)
        async with bridged(direct, store=store) as (url, _), connect(url) as client:
            await client("three", skill="echo", context=context)
            await client("other", skill="echo")
    contexts = [message.context_id for message in crew.seen]
    assert contexts[0] == contexts[1] == contexts[2] != contexts[3]
    assert context not in contexts


async def test_the_bridge_adds_lists_and_idempotency_to_an_agent_that_has_none(crew: Crew) -> None:
    old = Crew(versions=("0.3",))
    async with bridged(crew_app(old), stranger=True) as (url, _), connect(url) as client:
        one = await client.send("hi", skill="echo", key="once")
        again = await client.send("hi", skill="echo", key="once")
        assert one.id == again.id
        assert [task.id async for task in client.list()] == [one.id]
    assert len(old.seen) == 1


async def test_a_bridge_starts_while_its_agent_is_away_and_waits_for_it(crew: Crew) -> None:
    port = free_port()
    async with bridged(f"http://127.0.0.1:{port}") as (url, _):
        with pytest.raises(A2AError):
            async with connect(url):
                pass
        async with running(crew_app(crew), port=port):

            async def connects() -> bool:
                try:
                    async with connect(url) as client:
                        return (await client("hi")).text == "HI"
                except A2AError:
                    return False

            await until(connects)


async def test_an_agent_that_never_comes_fails_the_task_without_its_address(crew: Crew) -> None:
    async with running(crew_app(crew)) as direct:
        away = bridged(direct, wait=0.3)
        url, _ = await away.__aenter__()
        client = await connect(url).open()
        assert (await client("hi")).text == "HI"
    try:
        with pytest.raises(TaskFailed) as failed:
            await client("hi")
        assert "cannot be reached" in failed.value.task.text
        assert "127.0.0.1" not in str(failed.value.task)
    finally:
        await client.close()
        await away.__aexit__(None, None, None)


async def test_calls_of_a_bridge_are_one_deeper(crew: Crew, client: Client) -> None:
    await client("hi")
    assert crew.depths == [1]


@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_two_bridges_that_call_each_other_end(mode: str) -> None:
    port = free_port()
    settings: dict[str, Any] = {"mode": mode, "wait": 0.2}
    async with AsyncExitStack() as here:
        async with running(crew_app(Crew()), port=port) as there:
            url, _ = await here.enter_async_context(bridged(there, **settings))
            async with connect(url) as client:
                assert (await client("hi")).text == "HI"
        back = make_bridge(make_one_route(url, **settings))  # where the agent was is now a bridge to us
        await here.enter_async_context(running(back.app(store="memory:"), port=port))
        async with connect(url) as client:
            with pytest.raises((TaskFailed, A2AError)):
                await client("hi")
        if mode == "durable":
            async with connect(url) as client:
                assert len([task async for task in client.list()]) == 1 + 5


@pytest.mark.parametrize("stranger", [False, True], ids=["dragoman", "stranger"])
async def test_a_message_for_a_task_that_works_is_passed_on_at_once(crew: Crew, stranger: bool) -> None:
    async with bridged(crew_app(crew), stranger=stranger) as (url, _), connect(url) as client:
        reply = await client.send("go", skill="slow", wait=False)
        await crew.begun.wait()
        assert (await client.send("and this", task=reply.id, wait=False)).id == reply.id
        await until(lambda: crew.delivered("and this"))  # while the first turn waits
        assert not crew.gate.is_set()
        crew.gate.set()
        await until(lambda: len(crew.seen) == 2)
        task = (await client.wait(reply.id)).task
        assert task is not None
        assert task.state is TaskState.COMPLETED
    assert [message.text for message in crew.seen] == ["go", "and this"]
    assert len({message.task_id for message in crew.seen}) == 1


async def test_an_agent_that_does_not_stop_is_stopped(crew: Crew) -> None:
    async with bridged(crew_app(crew), max_task_mb=1) as (url, _), connect(url) as client:
        reply = await client.send("go", skill="endless")
        assert reply.state is TaskState.FAILED
        assert "more than one task may store" in (await client.get(reply.id)).status.message.text  # type: ignore[union-attr]
        await crew.canceled.wait()

"""An agent is changed while tasks wait: each turn knows which version of the code began it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn, version_key
from dragoman.errors import InvalidParams
from dragoman.model.ops import ListTasks
from dragoman.model.task import TaskState
from tests.engine.conftest import Start, call, say


def first_version() -> Agent:
    agent = Agent("a", version="1.9.0")

    @agent.skill(default=True)
    async def plan(turn: Turn) -> str:
        city = await turn.ask("Which city?")
        return f"one {city} {turn.version}"

    @agent.skill
    async def gone(turn: Turn) -> str:
        return f"still here, {await turn.ask('Who?')}"

    return agent


def second_version(*earlier: Agent) -> Agent:
    agent = Agent("a", version="1.10.0", earlier=earlier)

    @agent.skill
    async def plan(turn: Turn) -> str:
        if not turn.began_before("1.10"):
            country = await turn.ask("Which country?")
            return f"two {country} {turn.version}"
        city = await turn.ask("Which city?")
        return f"two, as before: {city} {turn.version}"

    return agent


async def test_a_turn_that_waited_knows_the_version_that_began_it(start: Start) -> None:
    engine = await start(first_version())
    waiting = await engine.call(call(), say("go"))
    await engine.stop(drain=0)
    engine = await start(second_version())
    done = await engine.call(call(), say("Rome", task=waiting.id))
    assert done.text == "two, as before: Rome 1.9.0"
    new = await engine.call(call(), say("go"))
    assert new.status.message.text == "Which country?"
    assert (await engine.call(call(), say("Italy", task=new.id))).text == "two Italy 1.10.0"


async def test_an_earlier_agent_finishes_the_turns_that_it_began(start: Start) -> None:
    engine = await start(first_version())
    waiting = await engine.call(call(), say("go"))
    for_gone = await engine.call(call(), say("go", skill="gone"))
    await engine.stop(drain=0)
    engine = await start(second_version(first_version()))
    assert (await engine.call(call(), say("Rome", task=waiting.id))).text == "one Rome 1.9.0"
    assert (await engine.call(call(), say("Ada", task=for_gone.id))).text == "still here, Ada"
    with pytest.raises(InvalidParams, match="no skill 'gone'"):  # not for new tasks
        await engine.call(call(), say("go", skill="gone"))
    assert (await engine.call(call(), ListTasks())).total_size == 2


async def test_a_recorded_result_that_does_not_fit_fails_the_task_and_the_log_says_why(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def agent_with(kind: type) -> Agent:
        agent = Agent("a")

        def count() -> str:
            return "three"

        count.__annotations__["return"] = kind

        @agent.skill
        async def work(turn: Turn) -> str:
            counted = await turn.step("count", count)
            await turn.ask("Go on?")
            return str(counted)

        return agent

    engine = await start(agent_with(str))
    waiting = await engine.call(call(), say("go"))
    await engine.stop(drain=0)
    engine = await start(agent_with(int))
    done = await engine.call(call(), say("yes", task=waiting.id))
    assert done.state is TaskState.FAILED
    assert "step 'count'" in caplog.text and "Give the changed work another key" in caplog.text


def test_versions_are_compared_by_their_numbers() -> None:
    in_order = ["", "draft", "0.9", "1.0.0-beta", "1.0.0", "1.9", "1.10.0", "2"]
    assert all(version_key(one) < version_key(next) for one, next in pairwise(in_order))
    assert version_key("v1") == version_key("1.0.0") == version_key("1.0.0+build7")


def test_two_agents_of_one_version_cannot_stand_for_each_other() -> None:
    with pytest.raises(ValueError, match="version of its own"):
        Agent("a", earlier=[Agent("a")])

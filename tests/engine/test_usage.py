"""Tokens and money of a task: in its metadata, once, whatever was interrupted, and in the metrics."""

from __future__ import annotations

import pytest

from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from dragoman.model.ops import CancelTask, GetTask
from dragoman.model.task import TaskState
from dragoman.model.usage import TaskUsage, usage_in, usage_of_called
from tests.engine.conftest import Start, call, say


def counting() -> Agent:
    agent = Agent("a")

    @agent.skill(default=True)
    async def count(turn: Turn) -> str:
        turn.usage("small", input_tokens=10, output_tokens=2, cost=0.1)
        turn.usage("small", input_tokens=10, output_tokens=2, cost=0.1)  # a second call that used the same
        answer = await turn.ask("Go on?")
        turn.usage("large", input_tokens=5, output_tokens=1, cached_tokens=4, reasoning_tokens=1, calls=2)
        return f"{answer} {turn.used.total_tokens}"

    @agent.skill
    async def again(turn: Turn) -> None:
        turn.usage(input_tokens=1)
        turn.finish(TaskState.INPUT_REQUIRED, "More?")

    @agent.skill(reply=True)
    async def bare(turn: Turn) -> str:
        turn.usage("small", output_tokens=3)
        return "hi"

    @agent.skill
    async def fail(turn: Turn) -> None:
        turn.usage("small", output_tokens=4)
        raise ValueError

    return agent


async def test_the_sum_is_in_the_task_and_a_run_after_a_question_counts_nothing_twice(start: Start) -> None:
    engine = await start(counting())
    asked = await engine.call(call(), say("go"))
    used = usage_in(asked.metadata)
    assert used is not None
    assert (used.calls, used.input_tokens, used.output_tokens, used.cost) == (2, 20, 4, {"USD": 0.2})
    done = await engine.call(call(), say("yes", task=asked.id))
    assert done.text == "yes 30"
    used = usage_in(done.metadata)
    assert used is not None and (used.calls, used.input_tokens, used.output_tokens) == (4, 25, 5)
    assert used.models["large"] == TaskUsage(
        calls=2, input_tokens=5, output_tokens=1, cached_tokens=4, reasoning_tokens=1
    )
    assert set(used.models) == {"small", "large"} and used.cost == {"USD": 0.2}


async def test_later_turns_add_to_what_the_earlier_ones_used(start: Start) -> None:
    engine = await start(counting())
    task = await engine.call(call(), say("go", skill="again"))
    for n in (2, 3):
        task = await engine.call(call(), say("go", task=task.id))
        used = usage_in(task.metadata)
        assert used is not None and used.input_tokens == n


async def test_a_bare_message_and_a_failed_and_a_canceled_task_say_what_they_used(start: Start) -> None:
    engine = await start(counting())
    message = await engine.call(call(), say("go", skill="bare"))
    used = usage_in(message.metadata)
    assert message.text == "hi" and used is not None and used.output_tokens == 3
    failed = await engine.call(call(), say("go", skill="fail"))
    used = usage_in(failed.metadata)
    assert failed.state is TaskState.FAILED and used is not None and used.output_tokens == 4
    asked = await engine.call(call(), say("go"))
    await engine.call(call(), CancelTask(id=asked.id))
    canceled = await engine.call(call(), GetTask(id=asked.id))
    used = usage_in(canceled.metadata)
    assert canceled.state is TaskState.CANCELED and used is not None and used.input_tokens == 20


async def test_negative_numbers_are_refused(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def wrong(turn: Turn) -> str:
        with pytest.raises(ValueError, match="not negative"):
            turn.usage(input_tokens=-1)
        return "ok"

    assert (await (await start(agent)).call(call(), say("go"))).text == "ok"


async def test_the_client_and_the_metrics_have_it_in_every_version() -> None:
    from dragoman.client import connect

    app = counting().app(store="memory:", metrics=True)
    async with connect(app) as client:
        stream = client.stream("go")
        async for _ in stream:
            pass
        assert stream.reply.usage is not None and stream.reply.usage.input_tokens == 20
    for version in ("0.1", "0.3", "1.0"):
        async with counting().test(version=version) as client:
            asked = await client("go")
            assert asked.usage is not None and asked.usage.input_tokens == 20


def three_levels() -> tuple[Agent, Agent, Agent]:
    """`a` calls `b` twice, which calls `c`, which asks in between."""
    top, middle, bottom = Agent("a"), Agent("b"), Agent("c")

    @top.skill
    async def begin(turn: Turn) -> str:
        turn.usage("big", input_tokens=1, output_tokens=1, cost=1.0)
        first = await turn.call("b", "first", ask="pass")
        return first.text

    @middle.skill
    async def pass_on(turn: Turn) -> str:
        turn.usage("small", input_tokens=10, output_tokens=10)
        return (await turn.call("c", turn.text, ask="pass")).text

    @bottom.skill
    async def answer(turn: Turn) -> str:
        turn.usage("tiny", input_tokens=100, output_tokens=100, cost=0.5, currency="EUR")
        said = await turn.ask("Which?")
        turn.usage("tiny", input_tokens=100, output_tokens=100, cost=0.5, currency="EUR")
        return said

    return top, middle, bottom


async def test_what_called_agents_used_is_beside_the_own_usage_and_counted_once(start: Start) -> None:
    engine = await start(*three_levels())
    asked = await engine.call(call(), say("go"))
    used = usage_in(asked.metadata)
    assert asked.state is TaskState.INPUT_REQUIRED and used is not None
    assert (used.calls, used.input_tokens, used.children) == (
        1,
        1,
        TaskUsage(calls=2, input_tokens=110, output_tokens=110, cost={"EUR": 0.5}),
    )
    done = await engine.call(call(), say("this", task=asked.id))
    assert done.text == "this"
    used = usage_in(done.metadata)
    assert used is not None and (used.calls, used.input_tokens, set(used.models)) == (1, 1, {"big"})
    assert used.children == TaskUsage(calls=3, input_tokens=210, output_tokens=210, cost={"EUR": 1.0})
    assert used.with_children == TaskUsage(
        calls=4, input_tokens=211, output_tokens=211, cost={"USD": 1.0, "EUR": 1.0}
    )
    again = await engine.call(call(), GetTask(id=done.id))
    assert usage_in(again.metadata) == used


def test_a_called_agent_cannot_report_less_than_nothing() -> None:
    assert usage_of_called("t", TaskUsage(input_tokens=-5)) == []
    assert usage_of_called("t", TaskUsage(cost={"USD": -1.0})) == []

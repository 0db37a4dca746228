"""The conversation of a context: who said what, in all of its tasks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from dragoman.model.task import TaskState
from tests.engine.conftest import Start, call, say

seen: list[list[tuple[str, str]]] = []


def talking() -> Agent:
    agent = Agent("a")
    seen.clear()

    @agent.skill(default=True)
    async def talk(text: str, turn: Turn) -> AsyncIterator[str]:
        seen.append([(entry.role.word, entry.text) for entry in await turn.conversation()])
        await turn.status("thinking")
        yield f"re: {text} "
        if "?" in text:
            yield f"({await turn.ask('Which one?')})"

    @agent.skill(reply=True)
    async def greet(text: str) -> str:
        return f"hello {text}"

    @agent.skill
    async def refuse(text: str, turn: Turn) -> None:
        turn.finish(TaskState.INPUT_REQUIRED, "Say more")

    @agent.skill
    async def remember(text: str, turn: Turn) -> str:
        entries = await turn.conversation(3, characters=30)
        return " | ".join(entry.text for entry in entries)

    return agent


async def test_a_conversation_has_every_task_of_the_context_and_no_status_lines(start: Start) -> None:
    engine = await start(talking())
    first = await engine.call(call(), say("one", context="c"))
    asked = await engine.call(call(), say("two?", context="c"))
    await engine.call(call(), say("this", task=asked.id))
    await engine.call(call(), say("elsewhere", context="d"))
    await engine.call(call(), say("three", context="c"))
    assert first.state is TaskState.COMPLETED
    expected = [
        ("user", "one"), ("agent", "re: one "),
        ("user", "two?"), ("agent", "re: two? "), ("agent", "Which one?"), ("user", "this"), ("agent", "(this)"),
        ("user", "three"),
    ]  # fmt: skip
    assert seen[-1] == expected
    assert seen[1] == seen[2] == expected[:3]  # the turn that ran again after its question got the same
    assert seen[3] == [("user", "elsewhere")]


async def test_exchanges_without_a_task_are_in_it(start: Start) -> None:
    engine = await start(talking())
    await engine.call(call(), say("one", context="c"))
    await engine.call(call(), say("Ada", skill="greet", context="c"))
    await engine.call(call(), say("Bob", skill="greet", context="d"))
    await engine.call(call(), say("two", context="c"))
    expected = [
        ("user", "one"), ("agent", "re: one "), ("user", "Ada"), ("agent", "hello Ada"), ("user", "two"),
    ]  # fmt: skip
    assert seen[-1] == expected


async def test_many_exchanges_without_a_task_are_all_in_it_in_order(start: Start) -> None:
    engine = await start(talking())
    for n in range(45):
        await engine.call(call(), say(str(n), skill="greet", context="c"))
    await engine.call(call(), say("done", context="c"))
    assert [text for role, text in seen[-1] if role == "user"] == [*map(str, range(45)), "done"]


async def test_earlier_turns_of_the_same_task_are_in_it(start: Start) -> None:
    engine = await start(talking())
    task = await engine.call(call(), say("first", skill="refuse", context="c"))
    assert task.state is TaskState.INPUT_REQUIRED
    await engine.call(call(), say("second", task=task.id, skill="talk"))
    assert seen[-1] == [("user", "first"), ("agent", "Say more"), ("user", "second")]


async def test_the_oldest_entries_are_left_out(start: Start) -> None:
    engine = await start(talking())
    for n in range(4):
        await engine.call(call(), say(f"message {n}", context="c"))
    received = await engine.call(call(), say("now", context="c", skill="remember"))
    assert received.text == "message 3 | re: message 3  | now"
    await engine.call(call(), say("x" * 40, context="c"))
    received = await engine.call(call(), say("again", context="c", skill="remember"))
    assert received.text == "again"


async def test_a_long_context_costs_no_more_than_a_short_one(start: Start) -> None:
    agent, costs = Agent("a"), list[float]()

    @agent.skill
    async def talk(text: str, turn: Turn) -> str:
        if text == "measure":
            began = time.thread_time()
            assert len(await turn.conversation(20)) == 20
            costs.append(time.thread_time() - began)
        return "ok"

    engine = await start(agent)
    for context, messages in (("short", 20), ("long", 160)):
        for n in range(messages):
            await engine.call(call(), say(f"{n}", context=context))
    for _ in range(8):  # they take turns, so that a machine that is slow for a while is slow for both
        for context in ("short", "long"):
            await engine.call(call(), say("measure", context=context))
    assert min(costs[1::2]) < 3 * min(costs[::2])

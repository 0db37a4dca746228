"""What a task leaves behind in memory."""

from __future__ import annotations

import gc

from dragoman.agent.agent import Agent
from tests.engine.conftest import Start, call, events, say


async def test_a_task_that_ended_leaves_nothing_for_the_garbage_collector(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    engine = await start(agent)
    for _ in range(3):  # what is made once
        await engine.call(call(), say("warm up"))
        await events(engine.stream(call(), say("warm up")))
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await engine.call(call(), say("hello"))
            await events(engine.stream(call(), say("hello")))
        assert gc.collect() < 40  # not one cycle per task
    finally:
        gc.enable()

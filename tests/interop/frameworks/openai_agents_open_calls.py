"""Runs that leave calls of agents elsewhere open. Prints how many of their outcomes the process still has afterwards."""

import asyncio
import gc
import json
import sys
from itertools import count

from agents import Agent, Runner, set_tracing_disabled

from dragoman import wrap
from dragoman.adapters import openai_agents, remote_agent
from dragoman.client import TaskFailed
from dragoman.errors import Unreachable

from .openai_agents_agent import ScriptedModel

set_tracing_disabled(True)
RUNS, MAX_OPEN_CALLS = 20, 5


class Said(dict):
    """An outcome that can be counted."""


class Desk(remote_agent.RemoteAgent):
    """Asks for a day, or is not there."""

    async def send(self, text, *, task="", call=""):
        if text == "another ticket":
            raise Unreachable("nobody is there")
        return Said(text="Which day?", task="t", asks=text == "ticket")


class Model(ScriptedModel):
    """Gives each call an id of its own, as real models do."""

    ids = count()

    async def stream_response(self, *args, **more):
        async for event in super().stream_response(*args, **more):
            for item in event.response.output if event.type == "response.completed" else ():
                if item.type == "function_call":
                    item.call_id = f"call-{next(self.ids)}"
            yield event


def outcomes():
    gc.collect()
    return sum(type(each) is Said for each in gc.get_objects())


async def fail_between_two_calls():
    """The first call has its outcome, and the run fails before the tool returns it."""
    async with wrap(agent).test() as client:
        for _ in range(RUNS):
            try:
                await client("both")
            except TaskFailed:
                continue
            raise AssertionError("the run did not fail")


async def ask_without_an_answer():
    openai_agents.MAX_OPEN_CALLS = MAX_OPEN_CALLS
    for _ in range(RUNS):
        run = Runner.run_streamed(agent, "remote ticket")
        async for _ in run.stream_events():
            pass
        (item,) = run.interruptions
        assert openai_agents.question_of(item) == "Which day?"
        state = run.to_state()
    assert await openai_agents.answer_to(state, item, "Monday") == ""
    run = Runner.run_streamed(agent, state)
    async for _ in run.stream_events():
        pass
    assert run.final_output == "Which day?"


if __name__ == "__main__":
    openai_agents.RemoteAgent = Desk
    agent = Agent(name="Travel", model=Model(), tools=[openai_agents.agent_as_tool("desk")])
    left = {}
    for way in (fail_between_two_calls, ask_without_an_answer):
        asyncio.run(way())
        left[way.__name__] = outcomes()
    json.dump(left, sys.stdout)

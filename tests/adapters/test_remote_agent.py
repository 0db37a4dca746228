"""An agent elsewhere as the tools of frameworks use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from dragoman import Agent, TaskState, Turn, connect
from dragoman.adapters.remote_agent import RemoteAgent, run_scope
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.waiting import until

desk = Agent("Desk")
runs: list[str] = []
begins: list[Callable[[], object]] = []
"""Called when the agent begins to hang."""


@desk.skill
async def sell(turn: Turn) -> str:
    runs.append(turn.task_id)
    match turn.text:
        case "fail":
            raise RuntimeError("as it was told")
        case "hang":
            for begin in begins:
                begin()
            await asyncio.Event().wait()
        case "ticket":
            return f"a ticket for {await turn.ask('Which day?')}"
    return turn.text.upper()


@pytest.fixture
async def url() -> AsyncIterator[str]:
    runs.clear()
    begins.clear()
    async with running(application(desk, store="memory:")) as url:
        yield url


@pytest.fixture
def remote(url: str) -> RemoteAgent:
    return RemoteAgent(url, "the desk")


async def test_a_question_comes_back_with_its_task_and_the_answer_goes_there(remote: RemoteAgent) -> None:
    outcome = await remote.send("ticket")
    assert (outcome["text"], outcome["asks"]) == ("Which day?", True)
    again = await remote.send("Monday", task=outcome["task"])
    assert again == {"text": "a ticket for Monday", "task": outcome["task"], "asks": False}


async def test_the_model_is_told_that_the_agent_failed(remote: RemoteAgent) -> None:
    outcome = await remote.send("fail")
    assert outcome["text"].startswith("The agent could not do it (failed).")


async def test_a_repeated_tool_call_of_a_run_sends_its_message_once(remote: RemoteAgent) -> None:
    token = run_scope.set("task/1")
    try:
        first, second = await remote.send("hi", call="a"), await remote.send("hi", call="a")
        other = await remote.send("hi", call="b")
    finally:
        run_scope.reset(token)
    assert first == second and other["task"] != first["task"]
    assert len(runs) == 2


@pytest.mark.parametrize("known", [True, False])
async def test_cancelling_the_tool_cancels_the_task_of_the_other_agent(url: str, known: bool) -> None:
    """Also if the other agent has begun, and its first event has not come yet."""
    sending = asyncio.create_task(RemoteAgent(url).send("hang"))
    if known:
        await until(lambda: runs)
        async with connect(url) as client:
            await until(lambda: client.get(runs[0]), lambda task: task.state is TaskState.WORKING)
        sending.cancel()
    else:
        begins.append(sending.cancel)
    with pytest.raises(asyncio.CancelledError):
        await sending
    async with connect(url) as client:
        task = await until(lambda: client.get(runs[0]), lambda task: task.state.terminal)
    assert task.state is TaskState.CANCELED


def test_a_tool_has_a_name_that_models_accept() -> None:
    assert RemoteAgent("https://example.com/my-desk/").name == "my_desk"
    assert RemoteAgent("https://example.com", "Currency desk").name == "Currency_desk"

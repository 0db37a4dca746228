"""The client without `await`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dragoman import Agent, Client, Reply, Turn, connect_sync
from dragoman.client.sync import SyncClient, SyncReply
from dragoman.errors import TaskNotFound
from dragoman.model.task import TaskState

agent = Agent("Helper", description="Helps")


@agent.skill
async def do(turn: Turn) -> str:
    """Helps."""
    if turn.text == "ask":
        return f"you said {await turn.ask('What?')}"
    if turn.text == "wait":
        await asyncio.Event().wait()
    return turn.text.upper()


def test_calling_streaming_and_listing_need_no_await() -> None:
    with connect_sync(agent) as it:
        answer = it("hello")
        assert (answer, answer.state) == ("HELLO", TaskState.COMPLETED)
        assert isinstance(answer, SyncReply)
        stream = it.stream("stream")
        assert "".join(piece.text for piece in stream) == "STREAM" == stream.reply
        assert {task.id for task in it.list()} == {answer.id, stream.reply.id}
        assert it.get(answer.id).text == "HELLO"
        assert it.card.name == "Helper"


def test_replies_are_answered_waited_for_and_canceled_without_await() -> None:
    with connect_sync(agent) as it:
        question = it("ask")
        assert question.asks
        assert question.answer("this") == "you said this"
        left = it.send("wait", wait=False)
        assert left.cancel().state is TaskState.CANCELED
        assert left.wait().state is TaskState.CANCELED


def test_errors_are_raised_by_the_sync_client() -> None:
    with connect_sync(agent) as it, pytest.raises(TaskNotFound):
        it.get("nothing")
    with pytest.raises(RuntimeError, match="not connected"):
        it("hello")


async def test_the_sync_client_works_inside_a_running_loop() -> None:
    with connect_sync(agent) as it:
        assert it("notebook") == "NOTEBOOK"


def test_threads_that_open_a_client_at_the_same_time_share_what_is_opened() -> None:
    client = connect_sync(agent)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda text: client.open()(text), ["a", "b", "c", "d"]))
    assert answers == ["A", "B", "C", "D"]
    assert len({task.id for task in client.list()}) == 4
    client.close()


INTERNAL = {"remember_question", "service", "timeout_message"}
METHODS = sorted(
    name for name, member in vars(Client).items() if name[0] != "_" and inspect.isfunction(member)
)


@pytest.mark.parametrize("name", ["__call__", *(name for name in METHODS if name not in INTERNAL)])
def test_both_clients_take_the_same_options(name: str) -> None:
    assert parameters(getattr(SyncClient, name)) == parameters(getattr(Client, name))


@pytest.mark.parametrize("name", ["answer", "cancel", "wait"])
def test_replies_of_both_clients_take_the_same_options(name: str) -> None:
    assert parameters(getattr(SyncReply, name)) == parameters(getattr(Reply, name))


def test_a_wrong_option_of_a_message_or_a_connection_is_refused_with_a_suggestion() -> None:
    wrong = "a message: there is no option 'contxt'; did you mean 'context'"
    with connect_sync(agent) as it:
        methods: list[Callable[..., Any]] = [it, it.send, it.stream]
        for send in methods:
            with pytest.raises(TypeError, match=wrong):
                send("hello", contxt="c")
    wrong = "connect: there is no option 'credental'; did you mean 'credentials'"
    with pytest.raises(TypeError, match=wrong):
        connect_sync("http://localhost", credental="s3cret")  # type: ignore[call-arg]


@pytest.mark.parametrize("takes_options", [Client.send, Reply.answer])
def test_options_are_typed(takes_options: Callable[..., Any]) -> None:
    assert parameters(takes_options)[-1].startswith("**options: 'Unpack[")


def parameters(method: Callable[..., Any]) -> list[str]:
    """The parameters of a method, with their types and defaults."""
    return [str(each) for each in inspect.signature(method).parameters.values()]

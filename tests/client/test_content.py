"""The forms of content and options that a caller may give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from dragoman import Agent, Turn, connect, connect_sync
from dragoman.client.content import build_request
from dragoman.engine.delegate import make_request
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import SendMessage
from dragoman.model.task import TaskState
from tests.requirements import requirement

agent = Agent("Clerk", description="Takes things down")


@agent.skill
async def take(turn: Turn) -> str | dict[str, int]:
    """Takes things down."""
    if turn.text == "weather":
        return {"high": 21, "low": 9}
    if turn.text == "words":
        return '{"high": 20, "low": 8}'
    return f"{turn.text}, {await turn.ask('From when?')}"


def send_request(*content: Any, **options: Any) -> SendMessage:
    return build_request(content, None, **options)[1]


@pytest.mark.parametrize("one", [str, Path], ids=["text", "path"])
def test_one_file_needs_no_list(tmp_path: Path, one: Callable[[Path], Any]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"hello")
    parts = send_request("look", files=one(path)).message.parts
    assert [part.filename for part in parts] == ["", "a.txt"]
    assert send_request(files=b"raw").message.parts[0].raw == b"raw"
    assert send_request(files=Part(raw=b"x")).message.parts == (Part(raw=b"x"),)


def test_one_output_mode_or_extension_needs_no_list() -> None:
    request = send_request("x", accept="application/json", extensions="https://e.example/1")
    assert request.configuration.accepted_output_modes == ("application/json",)
    assert request.message.extensions == ("https://e.example/1",)


@requirement(128)
async def test_a_task_can_be_named_by_a_reply_or_by_itself() -> None:
    async with connect(agent) as client:
        reply = await client("note")
        assert (await client("today", task=reply)).text == "note, today"
        task = await client.get(reply)
        assert (task.id, task.state) == (reply.id, TaskState.COMPLETED)
        assert await client.wait(task) == "note, today"
        again = await client("more", context=reply)
        assert again.context_id == reply.context_id
        assert (await client.cancel(again)).state is TaskState.CANCELED


@dataclass
class Weather:
    high: int
    low: int


class Struct(msgspec.Struct):
    high: int
    low: int


class Model(BaseModel):
    high: int
    low: int


@pytest.mark.parametrize("kind", [Weather, Struct, Model])
@pytest.mark.parametrize("question", ["weather", "words"])
async def test_a_reply_can_be_had_as_a_type(kind: Any, question: str) -> None:
    async with connect(agent) as client:
        weather = (await client(question)).to(kind)
    assert isinstance(weather, kind)
    assert weather.high - weather.low == 12


async def test_a_reply_that_does_not_fit_a_type_says_so() -> None:
    async with connect(agent) as client:
        reply = await client("weather")
        assert reply.to(dict[str, int]) == {"high": 21, "low": 9}
        with pytest.raises(ValueError, match="bool"):
            reply.to(dict[str, bool])


def test_a_client_can_be_kept_open_between_the_cells_of_a_notebook() -> None:
    client = connect_sync(agent).open()
    try:
        assert client("note").asks
        with client.stream("note") as stream:
            assert any(piece.state is TaskState.INPUT_REQUIRED for piece in stream)
    finally:
        client.close()


async def test_an_async_client_can_be_kept_open_between_the_cells_of_a_notebook() -> None:
    client = await connect(agent).open()
    try:
        assert (await client("note")).asks
    finally:
        await client.close()


async def test_a_state_that_there_is_not_is_named_with_those_there_are() -> None:
    async with connect(agent) as client:
        with pytest.raises(ValueError, match=r"no state 'busy': .*working"):
            async for _ in client.list(state="busy"):
                pass


# --- a message that is made already


def test_options_are_added_to_a_message(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"hello")
    made = Message(
        message_id="m", role=Role.USER, parts=(Part(text="look"),), metadata={"a": 1}, extensions=("x:1",)
    )
    sent = send_request(
        made,
        files=path,
        data={"n": 1},
        task="t",
        context="c",
        skill="s",
        metadata={"b": 2},
        extensions="x:2",
    ).message
    assert (sent.message_id, sent.task_id, sent.context_id) == ("m", "t", "c")
    assert sent.metadata == {"a": 1, "b": 2, "skillId": "s"} and sent.extensions == ("x:1", "x:2")
    assert [(part.text, part.filename) for part in sent.parts[:2]] == [("look", ""), (None, "a.txt")]
    assert sent.parts[2].data == {"n": 1}
    assert [part.text for part in send_request("before", made, "after").message.parts] == [
        "before",
        "look",
        "after",
    ]
    assert send_request(made).message is made
    assert send_request(replace(made, task_id="t"), task="t", metadata={"a": 1}).message.task_id == "t"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"task": "other"}, "the message says task_id='t', and task='other' was given with it"),
        ({"context": "other"}, "the message says context_id='c', and context='other'"),
        ({"metadata": {"a": 2}}, "the message has 'a' in its metadata"),
        ({"skill": "other"}, "the message has 'skillId' in its metadata"),
    ],
)
def test_options_that_contradict_a_message_are_refused(options: dict[str, Any], why: str) -> None:
    made = Message(
        message_id="m",
        role=Role.USER,
        parts=(Part(text="x"),),
        task_id="t",
        context_id="c",
        metadata={"a": 1, "skillId": "s"},
    )
    with pytest.raises(ValueError, match=why):
        send_request(made, **options)
    with pytest.raises(ValueError, match="one message can be sent at a time"):
        send_request(made, made)


def test_a_delegated_message_goes_on_with_the_task_that_is_named() -> None:
    made = Message(message_id="m", role=Role.USER, parts=(Part(text="x"),))
    sent = make_request(made, task="t", context="c").message
    assert (sent.task_id, sent.context_id) == ("t", "c")
    with pytest.raises(ValueError, match="task='u' was given with it"):
        make_request(sent, task="u")

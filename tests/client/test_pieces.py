"""The pieces of a stream add up to the answer, and mark what they replace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Turn, connect
from dragoman.client import Piece, Policy, Reply
from dragoman.model.content import Part
from dragoman.model.task import Task, TaskState
from tests.client.fakes import Answer, Asked
from tests.client.test_odd_streams import agent_of, event_stream, report
from tests.serving import Server


def texts(pieces: list[Piece]) -> dict[str, str]:
    """The text of each artifact, as a reader of `text` and `replaces` has it."""
    out: dict[str, str] = {}
    for piece in pieces:
        if piece.replaces and isinstance(piece.event, Task):
            out.clear()
        id = piece.artifact.artifact_id if piece.artifact is not None else ""
        out[id] = piece.text if piece.replaces else out.get(id, "") + piece.text
    return {id: text for id, text in out.items() if text}


async def test_after_a_crash_the_incomplete_artifact_is_replaced(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    server = Server(
        Path(__file__).with_name("changing.py"), store=tmp_path / "tasks.db", env={"MARK": str(mark)}
    )
    async with (
        asyncio.timeout(60),
        server,
        connect(server.url, policy=Policy(shortest=0.05, longest=0.2)) as agent,
    ):
        pieces: list[Piece] = []
        stream = agent.stream("go")
        async for piece in stream:
            pieces.append(piece)
            if piece.text and server.lives == 1:
                assert piece.text == "first, half an answer"
                await server.kill()
                mark.touch()
                await server.start()
    assert [piece.replaces for piece in pieces if piece.text].count(True) == 1
    assert list(texts(pieces).values()) == ["second, all of it"] == [stream.reply.text]


def art(text: str, *, id: str = "a", append: bool = False, **members: Any) -> dict[str, Any]:
    artifact = {"artifactId": id, "parts": [{"text": text, **members}]}
    return {"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": artifact, "append": append}}


def task(*texts: str, state: str = "WORKING", says: str = "") -> dict[str, Any]:
    artifacts = [{"artifactId": "abc"[n], "parts": [{"text": text}]} for n, text in enumerate(texts)]
    status = report(state, says)["statusUpdate"]["status"]
    return {"task": {"id": "t", "contextId": "c", "status": status, "artifacts": artifacts}}


DONE = report("COMPLETED")
STORIES: list[tuple[list[dict[str, Any]], list[tuple[str, bool]], str]] = [
    ([art("one "), art("two", append=True)], [("one ", False), ("two", False)], "one two"),
    ([art("half"), art("whole")], [("half", False), ("whole", True)], "whole"),
    ([art("half"), art("ha")], [("half", False), ("ha", True)], "ha"),
    ([art("one "), art("one two")], [("one ", False), ("two", False)], "one two"),
    ([art("same"), art("same")], [("same", False)], "same"),
    ([art(""), art("late")], [("late", False)], "late"),
    ([art("x"), art("y", id="b"), art("z")], [("x", False), ("y", False), ("z", True)], "z\ny"),
    ([art("x"), art("x", mediaType="text/html")], [("x", False), ("x", True)], "x"),
    ([art("x"), art("z"), art("!", append=True)], [("x", False), ("z", True), ("!", False)], "z!"),
    ([task("one "), task("one two")], [("one ", False), ("two", False)], "one two"),
    ([task("one"), task("one", "two")], [("one", False), ("two", False)], "one\ntwo"),
    ([task("one", "x"), task("two", "x")], [("one\nx", False), ("two\nx", True)], "two\nx"),
    ([art("one "), task("one two", state="COMPLETED")], [("one ", False), ("two", False)], "one two"),
    ([task("one"), art("two")], [("one", False), ("two", True)], "two"),
]


@pytest.mark.parametrize(("story", "pieces", "whole"), STORIES)
async def test_pieces_have_new_text_and_mark_replaced_text(
    story: list[dict[str, Any]], pieces: list[tuple[str, bool]], whole: str
) -> None:
    async with agent_of(event_stream(*story, DONE)) as (agent, _):
        stream = agent.stream("go")
        heard = [piece async for piece in stream]
        assert [(piece.text, piece.replaces) for piece in heard if piece.text or piece.replaces] == pieces
        assert stream.reply.text == whole
        assert all(
            "".join(part.text or "" for part in piece.parts) == piece.text.replace("\n", "")
            for piece in heard
        )


async def test_the_parts_of_a_piece_are_those_that_it_adds() -> None:
    data = {"artifactId": "a", "parts": [{"text": "x"}, {"data": {"n": 1}}]}
    more = {**data, "parts": [*data["parts"], {"data": {"n": 2}}]}
    pictures = [{"task": {**task()["task"], "artifacts": [each]}} for each in (data, more)]
    async with agent_of(event_stream(*pictures, DONE)) as (agent, _):
        heard = [piece.parts async for piece in agent.stream("go")]
    assert heard == [(Part(text="x"), Part(data={"n": 1})), (Part(data={"n": 2}),), ()]


# --- going on with a task

asking = Agent("Asking", description="Asks twice")


@asking.skill
async def journey(turn: Turn) -> AsyncIterator[str]:
    """Plans a journey."""
    yield "Planning. "
    yield f"To {await turn.ask('Where?')}. "
    yield f"On {await turn.ask('When?')}."


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.2", "0.1", "arbiter"])
async def test_an_answer_to_a_question_does_not_repeat_earlier_text(version: str) -> None:
    async with connect(asking, version=version) as agent:
        reply: Reply | str = ""
        said = []
        for words in ("go", "Rome", "Monday"):
            stream = agent.stream(words, task=reply)
            pieces = [piece async for piece in stream]
            said.append("".join(piece.text for piece in pieces))
            assert not any(piece.replaces for piece in pieces)
            reply = stream.reply
    assert said == ["Planning. Where?", "To Rome. When?", "On Monday."]
    assert reply == "Planning. To Rome. On Monday."


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.2"])
async def test_a_task_that_is_named_by_its_id_does_not_repeat_what_it_had(version: str) -> None:
    """As `dragoman send --task` names it."""
    async with connect(asking, version=version) as agent:
        asked = await agent("go")
        assert (
            "".join([piece.text async for piece in agent.stream("Rome", task=asked.id)]) == "To Rome. When?"
        )


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.2", "0.1", "arbiter"])
async def test_a_question_of_a_stream_can_be_answered_by_the_id_of_its_task(version: str) -> None:
    """As `dragoman chat` does."""
    async with connect(asking, version=version) as agent:
        task, said = "", []
        for words in ("go", "Rome", "Monday"):
            stream = agent.stream(words, task=task)
            said.append("".join([piece.text async for piece in stream]))
            task = stream.reply.id
    assert said == ["Planning. Where?", "To Rome. When?", "On Monday."]


QUESTION = report("INPUT_REQUIRED", "Where?")
ANSWERED: list[tuple[list[dict[str, Any]], str, str]] = [
    # a stream that begins with the task as it was, its question included
    ([task("before ", state="INPUT_REQUIRED", says="Where?"), art("after", append=True)], "after", "before after"),
    # one that says nothing of the past
    ([art("after", append=True)], "after", "before after"),
    # one that ends with the whole
    ([art("after", append=True), task("before after", state="COMPLETED")], "after", "before after"),
    # no stream at all
    ([task("before after", state="COMPLETED")], "after", "before after"),
    # another answer instead
    ([task("before "), art("instead")], "instead", "instead"),
]  # fmt: skip


@pytest.mark.parametrize(("story", "text", "whole"), ANSWERED)
async def test_a_continued_task_of_another_server_comes_once(
    story: list[dict[str, Any]], text: str, whole: str
) -> None:
    def rpc(asked: Asked) -> Answer:
        if asked.json["params"]["message"]["parts"][0]["text"] == "go":
            return event_stream(task(), art("before "), QUESTION)
        return event_stream(*story, *([] if "COMPLETED" in str(story) else [DONE]))

    async with agent_of(rpc) as (agent, _):
        reply = await agent("go")
        assert (reply, reply.state) == ("Where?", TaskState.INPUT_REQUIRED)
        stream = agent.stream("Rome", task=reply)
        pieces = [piece async for piece in stream]
        assert "".join(piece.text for piece in pieces) == text
        assert any(piece.replaces for piece in pieces) is (whole == "instead")
        assert stream.reply == whole
        assert await reply.answer("Rome") == whole

"""Structured questions: a schema beside the text, approvals, several at once, and questions of called agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pydantic
import pytest

from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from dragoman.model.content import Message, Part
from dragoman.model.ops import CancelTask, GetTask, ListTasks, SendMessage
from dragoman.model.questions import Approval, Ask, questions_in
from dragoman.model.task import Task, TaskState
from tests.engine.conftest import Start, call, say


@dataclass
class Trip:
    city: str
    days: int = 3


class Hotel(pydantic.BaseModel):
    stars: int


def give(data: Any, task: Task) -> SendMessage:
    return SendMessage(message=Message(parts=(Part(data=data),), task_id=task.id))


def questions_of(task: Task) -> list[str]:
    message = task.status.message
    assert task.state is TaskState.INPUT_REQUIRED and message is not None
    return [each.key for each in questions_in(message.metadata)]


def text(task: Task) -> str:
    return task.status.message.text if task.status.message is not None else ""


async def test_a_question_for_a_type_has_its_schema_beside_the_text(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def plan(turn: Turn) -> str:
        trip = await turn.ask("Where to?", Trip, key="trip")
        hotel = await turn.ask("Which hotel?", Hotel)
        size = await turn.ask("Which size?", Literal["small", "large"])  # type: ignore[call-overload]
        name = await turn.ask("Your name?")
        return f"{trip.city} {trip.days} {hotel.stars} {size} {name}"

    engine = await start(agent)
    task = await engine.call(call(), say("go"))
    message = task.status.message
    (question,) = questions_in(message.metadata)
    assert (question.key, question.text, message.text) == ("trip", "Where to?", "Where to?")
    assert question.schema == {
        "title": "Trip",
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
        "required": ["city"],
    }
    task = await engine.call(call(), give({"city": "Rome"}, task))
    (question,) = questions_in(task.status.message.metadata)
    assert question.schema is not None and question.schema["properties"]["stars"]["type"] == "integer"
    task = await engine.call(call(), give({"stars": 4}, task))
    (question,) = questions_in(task.status.message.metadata)
    assert question.schema == {"enum": ["large", "small"]}
    task = await engine.call(call(), say("Small.", task=task.id))
    assert questions_in(task.status.message.metadata) == ()  # any text will do
    done = await engine.call(call(), say("Ada", task=task.id))
    assert done.text == "Rome 3 4 small Ada"


@pytest.mark.parametrize(
    ("answer", "approved", "comment"),
    [
        ("y", True, ""), ("OK", True, ""), ("Ja, gerne", True, ""), ("nein", False, ""),
        ("No, too expensive", False, "too expensive"), (True, True, ""), (False, False, ""),
        ({"approved": False, "comment": "later"}, False, "later"),
    ],
)  # fmt: skip
async def test_an_approval_is_read_as_people_give_it(
    start: Start, answer: Any, approved: bool, comment: str
) -> None:
    agent = Agent("a")

    @agent.skill
    async def pay(turn: Turn) -> str:
        said = await turn.approve("Pay 300 EUR?", details={"to": "ACME"})
        return f"{bool(said)} {said.comment}"

    engine = await start(agent)
    task = await engine.call(call(), say("go"))
    message = task.status.message
    (question,) = questions_in(message.metadata)
    assert question.approval and question.schema == {"type": "boolean"} and question.details == {"to": "ACME"}
    assert message.text == "Pay 300 EUR?" and message.data == {"to": "ACME"}
    given = say(answer, task=task.id) if isinstance(answer, str) else give(answer, task)
    assert (await engine.call(call(), given)).text == f"{approved} {comment}"


async def test_an_unclear_approval_is_asked_for_again_with_one_hint(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def pay(turn: Turn) -> str:
        return str(bool(await turn.approve("Pay 300 EUR?")))

    engine = await start(agent)
    task = await engine.call(call(), say("go"))
    for answer in ("yes, but only 200", "well"):
        task = await engine.call(call(), say(answer, task=task.id))
        assert text(task) == "Pay 300 EUR? (Please answer yes or no.)"
        (question,) = questions_in(task.status.message.metadata)
        assert question.text == "Pay 300 EUR?"
    assert (await engine.call(call(), say("yes please", task=task.id))).text == "True"


def asking_all(runs: list[int]) -> Agent:
    agent = Agent("a")

    @agent.skill
    async def plan(turn: Turn) -> str:
        runs.append(1)
        answers = await turn.ask_all(
            {
                "city": "Which city?",
                "days": Ask("How many days?", int),
                "pay": Ask("Pay?", Approval, {"eur": 3}),
            }
        )
        return f"{answers['city']} {answers['days']} {bool(answers['pay'])}"

    return agent


async def test_several_questions_are_answered_by_key_in_one_message(start: Start) -> None:
    engine = await start(asking_all([]))
    task = await engine.call(call(), say("go"))
    assert questions_of(task) == ["city", "days", "pay"]
    assert text(task) == "1. Which city?\n2. How many days?\n3. Pay?"
    assert task.status.message.data == {"pay": {"eur": 3}}
    done = await engine.call(call(), give({"city": "Rome", "days": 3, "pay": "ok"}, task))
    assert done.text == "Rome 3 True"


async def test_several_questions_are_answered_with_one_text_after_the_other(start: Start) -> None:
    engine = await start(asking_all([]))
    task = await engine.call(call(), say("go"))
    task = await engine.call(call(), say("Rome", task=task.id))
    assert questions_of(task) == ["days", "pay"] and text(task) == "1. How many days?\n2. Pay?"
    task = await engine.call(call(), say("some", task=task.id))
    hinted = "1. How many days? (Please answer with a whole number.)\n2. Pay?"
    assert questions_of(task) == ["days", "pay"] and text(task) == hinted
    task = await engine.call(call(), give({"pay": False, "days": "many"}, task))  # one of two fits
    assert (
        questions_of(task) == ["days"] and text(task) == "How many days? (Please answer with a whole number.)"
    )
    done = await engine.call(call(), say("3", task=task.id))
    assert done.text == "Rome 3 False"


def levels(ended: list[str]) -> tuple[Agent, Agent, Agent]:
    top, middle, leaf = Agent("a"), Agent("b"), Agent("c")

    @top.skill
    async def begin(turn: Turn) -> str:
        answer = await turn.call("b", turn.text, ask="pass")
        assert isinstance(answer, Task)
        return f"{answer.state.word}: {answer.text}"

    @middle.skill
    async def between(turn: Turn) -> str:
        return (await turn.call("c", turn.text, ask="pass")).text

    @leaf.skill
    async def work(text: str, turn: Turn) -> str:
        trip = await turn.ask("Where to?", Trip)
        agreed = await turn.approve(f"Book {trip.city}?")
        ended.append(text)
        return f"{trip.city}: {bool(agreed)}"

    return top, middle, leaf


async def test_a_question_passes_up_two_levels_and_the_answer_back_down(start: Start) -> None:
    ended: list[str] = []
    engine = await start(*levels(ended))
    task = await engine.call(call(), say("go"))
    (question,) = questions_in(task.status.message.metadata)
    assert text(task) == "Where to?" and question.schema is not None and question.schema["title"] == "Trip"
    await engine.stop(drain=0)
    engine = await start(*levels(ended))  # nothing waits in memory
    task = await engine.call(call(), give({"city": "Rome"}, task))
    assert text(task) == "Book Rome?"
    done = await engine.call(call(), say("hm", task=task.id))
    assert text(done) == "Book Rome? (Please answer yes or no.)"
    done = await engine.call(call(), say("nein", task=task.id))
    assert done.text == "completed: Rome: False" and ended == ["go"]
    for agent in ("b", "c"):
        assert (await engine.call(call(agent), ListTasks())).total_size == 1


async def test_canceling_at_a_question_that_was_passed_up_cancels_the_agent_that_asked(start: Start) -> None:
    engine = await start(*levels([]))
    task = await engine.call(call(), say("go"))
    assert (await engine.call(call(), CancelTask(id=task.id))).state is TaskState.CANCELED
    for agent in ("b", "c"):
        (inner,) = (await engine.call(call(agent), ListTasks())).tasks
        found = await engine.call(call(agent), GetTask(id=inner.id))
        assert found.state is TaskState.CANCELED


async def test_our_client_reads_the_questions_in_every_version() -> None:
    for version in ("0.1", "0.3", "1.0"):
        async with asking_all([]).test(version=version) as client:
            reply = await client("go")
            assert [(each.key, each.approval) for each in reply.questions] == [
                ("city", False), ("days", False), ("pay", True),
            ]  # fmt: skip
            done = await reply.answer(data={"city": "Rome", "days": 2, "pay": True})
            assert done.text == "Rome 2 True" and done.questions == ()

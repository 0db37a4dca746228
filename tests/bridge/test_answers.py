"""What a bridge refuses of the answers of an agent, beyond what every client refuses."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.bridge.answers import check_same_task
from dragoman.errors import InvalidAgentResponse
from dragoman.model.content import Message
from dragoman.model.ops import SendMessage
from dragoman.model.task import StatusUpdate, Task, TaskState, TaskStatus

WORKING = TaskStatus(state=TaskState.WORKING)


def task(id: str) -> Task:
    return Task(id=id, context_id="c", status=WORKING)


def update(id: str) -> StatusUpdate:
    return StatusUpdate(task_id=id, context_id="c", status=WORKING)


@pytest.mark.parametrize("answer", [task("t2"), update("t2"), task("")])
def test_an_answer_that_begins_another_task_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidAgentResponse, match="another task"):
        check_same_task(SendMessage(message=Message("hi", task_id="t1")), answer)


@pytest.mark.parametrize("answer", [task("t1"), update("t1"), Message("a bare message")])
def test_an_answer_that_continues_the_task_is_passed_on(answer: Any) -> None:
    check_same_task(SendMessage(message=Message("hi", task_id="t1")), answer)
    check_same_task(SendMessage(message=Message("hi")), answer)

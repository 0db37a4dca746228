"""An answer or an event about something else than what was asked for is refused, and so is what comes after the end of a task."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.client.answers import MAX_BATCHES_AFTER_END, StreamCheck, check_answer
from dragoman.errors import InvalidAgentResponse
from dragoman.model.content import Artifact, Message
from dragoman.model.ops import (
    CancelTask,
    CreatePushConfig,
    GetPushConfig,
    GetTask,
    PushConfig,
    Request,
    SendMessage,
    StreamResponse,
    SubscribeToTask,
)
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState, TaskStatus


def task(id: str, state: TaskState = TaskState.WORKING) -> Task:
    return Task(id=id, context_id="c", status=TaskStatus(state=state))


def push_config(task: str) -> PushConfig:
    return PushConfig(id="p", task_id=task, url="https://a.example/hook")


def status(id: str, state: TaskState = TaskState.WORKING) -> StatusUpdate:
    return StatusUpdate(task_id=id, context_id="c", status=TaskStatus(state=state))


def artifact(id: str) -> ArtifactUpdate:
    return ArtifactUpdate(task_id=id, context_id="c", artifact=Artifact(artifact_id="a", parts=()))


def read(check: StreamCheck, *events: Any) -> tuple[list[Any], str]:
    """The events of a batch that are passed on, and the error after them."""
    passed, error = check.read([StreamResponse(event) for event in events])
    return [each.event for each in passed], str(error or "")


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        (SendMessage(message=Message("hi")), task("")),
        (GetTask(id="t1"), task("t2")),
        (CancelTask(id="t1"), task("t2")),
        (GetPushConfig(task_id="t1", id="p"), push_config("t2")),
        (CreatePushConfig(config=push_config("t1")), push_config("t2")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_answer_about_another_task_is_refused(request_: Request, result: Any) -> None:
    with pytest.raises(InvalidAgentResponse):
        check_answer(request_, result)


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        (SendMessage(message=Message("hi")), task("t1")),
        (SendMessage(message=Message("hi", task_id="t1")), task("t2")),
        (SendMessage(message=Message("hi")), Message("a bare message")),
        (GetTask(id="t1"), task("t1")),
        (GetPushConfig(task_id="t1", id="p"), push_config("t1")),
        (GetPushConfig(task_id="t1", id="p"), push_config("")),
        (CreatePushConfig(config=push_config("")), push_config("t1")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_answer_about_the_task_that_was_asked_for_is_passed_on(request_: Request, result: Any) -> None:
    check_answer(request_, result)


def test_a_stream_is_about_its_first_task_alone() -> None:
    check = StreamCheck(SendMessage(message=Message("hi")))
    assert read(check, task("t1"), artifact("t1")) == ([task("t1"), artifact("t1")], "")
    refused = "the agent sent an event of another task"
    assert read(check, status("t1"), artifact("t2"), status("t1")) == ([status("t1")], refused)
    assert read(check, artifact("")) == ([], refused)
    assert read(StreamCheck(SubscribeToTask(id="t1")), task("t2")) == ([], refused)
    assert read(StreamCheck(SendMessage(message=Message("hi"))), artifact("")) == ([], refused)


@pytest.mark.parametrize(
    "end",
    [task("t1", TaskState.COMPLETED), status("t1", TaskState.FAILED), Message("done")],
    ids=lambda each: type(each).__name__,
)
def test_nothing_after_the_end_of_a_task_is_passed_on(end: Any) -> None:
    check = StreamCheck(SubscribeToTask(id="t1"))
    assert read(check, status("t1"), end, artifact("t1")) == ([status("t1"), end], "")
    for _ in range(MAX_BATCHES_AFTER_END):
        assert (read(check, artifact("t1")), check.is_over) == (([], ""), False)
    assert (read(check, status("t1")), check.is_over) == (([], ""), True)

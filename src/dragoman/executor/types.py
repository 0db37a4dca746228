"""The SDK's types: its constructors in every spelling it has had (`contextId`, `context_id`), giving values of our model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.executor.parts import Part
from dragoman.executor.spoken import Kind, Made, as_spoken, each_of, members, read_as
from dragoman.model import content, task
from dragoman.model.ids import new_id
from dragoman.model.task import ArtifactUpdate, StatusUpdate

_IDS = ("task_id", "context_id", "kind", "final")
"""Of an update: the engine knows them."""


class TaskState(metaclass=Kind):
    """`TaskState.input_required`, as 1.0 spells it, and by its word: `TaskState("input-required")`."""

    made = task.TaskState

    submitted = SUBMITTED = TASK_STATE_SUBMITTED = task.TaskState.SUBMITTED
    working = WORKING = TASK_STATE_WORKING = task.TaskState.WORKING
    completed = COMPLETED = TASK_STATE_COMPLETED = task.TaskState.COMPLETED
    failed = FAILED = TASK_STATE_FAILED = task.TaskState.FAILED
    canceled = CANCELED = TASK_STATE_CANCELED = task.TaskState.CANCELED
    input_required = INPUT_REQUIRED = TASK_STATE_INPUT_REQUIRED = task.TaskState.INPUT_REQUIRED
    rejected = REJECTED = TASK_STATE_REJECTED = task.TaskState.REJECTED
    auth_required = AUTH_REQUIRED = TASK_STATE_AUTH_REQUIRED = task.TaskState.AUTH_REQUIRED
    unknown = UNSPECIFIED = TASK_STATE_UNSPECIFIED = task.TaskState.UNSPECIFIED

    def __new__(cls, value: str) -> Any:
        for state in task.TaskState:
            if value in (state, state.word):
                return state
        raise ValueError(f"there is no state {value!r:.80}")

    @staticmethod
    def Name(state: task.TaskState) -> str:
        """As protobuf's enums are asked."""
        return str(state.value)


class Role(metaclass=Kind):
    made = content.Role

    user = USER = ROLE_USER = content.Role.USER
    agent = AGENT = ROLE_AGENT = content.Role.AGENT

    def __new__(cls, value: str) -> Any:
        return content.Role(value)

    @staticmethod
    def Name(role: content.Role) -> str:
        return str(role.value)


class Message(Made):
    made = content.Message
    also = ("kind",)

    def __new__(cls, role: content.Role | str, parts: Sequence[Any], **given: Any) -> Any:
        given = {"message_id": new_id()} | members(content.Message, given, cls.also)
        return as_spoken(content.Message(role=Role(role), parts=tuple(each_of(Part, parts)), **given))


class Artifact(Made):
    made = content.Artifact

    def __new__(cls, parts: Sequence[Any], **given: Any) -> Any:
        given = {"artifact_id": new_id()} | members(content.Artifact, given)
        return as_spoken(content.Artifact(parts=tuple(each_of(Part, parts)), **given))


class Task(Made):
    made = task.Task
    also = ("kind",)

    def __new__(cls, id: str, status: Any, **given: Any) -> Any:
        given = members(task.Task, given, cls.also)
        for name, kind in (("history", Message), ("artifacts", Artifact)):
            given[name] = tuple(each_of(kind, given.get(name)))
        return as_spoken(task.Task(id=id, status=read_as(TaskStatus, status), **given))


class TaskStatus(Made):
    made = task.TaskStatus

    def __new__(cls, state: task.TaskState | str, message: Any = None, **given: Any) -> Any:
        members(task.TaskStatus, given)  # the moment is when it is put on record
        return as_spoken(task.TaskStatus(state=TaskState(state), message=read_as(Message, message)))


class TaskStatusUpdateEvent(Made):
    made = StatusUpdate
    also = _IDS

    def __new__(cls, status: Any, **given: Any) -> Any:
        given = members(StatusUpdate, given, cls.also)
        return as_spoken(StatusUpdate(task_id="", context_id="", status=read_as(TaskStatus, status), **given))


class TaskArtifactUpdateEvent(Made):
    made = ArtifactUpdate
    also = _IDS

    def __new__(cls, artifact: Any, **given: Any) -> Any:
        given = members(ArtifactUpdate, given, cls.also)
        return as_spoken(
            ArtifactUpdate(task_id="", context_id="", artifact=read_as(Artifact, artifact), **given)
        )


Event = Message | Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
"""What may be put on a queue; for annotations, and for `isinstance`."""

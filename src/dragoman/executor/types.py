"""The SDK's types: its constructors in every spelling it has had (`contextId`, `context_id`), giving values of our model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.executor.spoken import Made, as_spoken, members
from dragoman.model import content, task
from dragoman.model.ids import new_id
from dragoman.model.task import ArtifactUpdate, StatusUpdate

_IDS = ("task_id", "context_id", "kind", "final")
"""Of an update: the engine knows them."""


class TaskState:
    """`TaskState.input_required`, and as 1.0 spells it."""

    submitted = SUBMITTED = TASK_STATE_SUBMITTED = task.TaskState.SUBMITTED
    working = WORKING = TASK_STATE_WORKING = task.TaskState.WORKING
    completed = COMPLETED = TASK_STATE_COMPLETED = task.TaskState.COMPLETED
    failed = FAILED = TASK_STATE_FAILED = task.TaskState.FAILED
    canceled = CANCELED = TASK_STATE_CANCELED = task.TaskState.CANCELED
    input_required = INPUT_REQUIRED = TASK_STATE_INPUT_REQUIRED = task.TaskState.INPUT_REQUIRED
    rejected = REJECTED = TASK_STATE_REJECTED = task.TaskState.REJECTED
    auth_required = AUTH_REQUIRED = TASK_STATE_AUTH_REQUIRED = task.TaskState.AUTH_REQUIRED
    unknown = UNSPECIFIED = TASK_STATE_UNSPECIFIED = task.TaskState.UNSPECIFIED


class Role:
    user = USER = ROLE_USER = content.Role.USER
    agent = AGENT = ROLE_AGENT = content.Role.AGENT


class Message(Made):
    made = content.Message

    def __new__(cls, role: content.Role, parts: Sequence[content.Part], **given: Any) -> Any:
        given = {"message_id": new_id()} | members(content.Message, given, ("kind",))
        return as_spoken(content.Message(role=role, parts=tuple(parts), **given))


class Artifact(Made):
    made = content.Artifact

    def __new__(cls, parts: Sequence[content.Part], **given: Any) -> Any:
        given = {"artifact_id": new_id()} | members(content.Artifact, given)
        return as_spoken(content.Artifact(parts=tuple(parts), **given))


class Task(Made):
    made = task.Task

    def __new__(cls, id: str, status: task.TaskStatus, **given: Any) -> Any:
        return as_spoken(task.Task(id=id, status=status, **members(task.Task, given, ("kind",))))


class TaskStatus(Made):
    made = task.TaskStatus

    def __new__(cls, state: task.TaskState, message: content.Message | None = None, **given: Any) -> Any:
        members(task.TaskStatus, given)  # the moment is when it is put on record
        return as_spoken(task.TaskStatus(state=state, message=message))


class TaskStatusUpdateEvent(Made):
    made = StatusUpdate

    def __new__(cls, status: task.TaskStatus, **given: Any) -> Any:
        given = members(StatusUpdate, given, _IDS)
        return as_spoken(StatusUpdate(task_id="", context_id="", status=status, **given))


class TaskArtifactUpdateEvent(Made):
    made = ArtifactUpdate

    def __new__(cls, artifact: content.Artifact, **given: Any) -> Any:
        given = members(ArtifactUpdate, given, _IDS)
        return as_spoken(ArtifactUpdate(task_id="", context_id="", artifact=artifact, **given))

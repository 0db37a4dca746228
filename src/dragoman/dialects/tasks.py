"""Tasks and events as the versions before 1.0 have them: flat, with a word for the state."""

from __future__ import annotations

from typing import Any

from dragoman.dialects.parts import (
    Form,
    named,
    read_artifact,
    read_message,
    write_artifact,
    write_message,
)
from dragoman.dialects.reading import (
    Malformed,
    an_object,
    flag,
    identifier,
    mapping,
    needed,
    needed_object,
    sequence,
    text,
    under,
)
from dragoman.model.content import Message, Role
from dragoman.model.ids import timestamp
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

_STATES: dict[str, TaskState] = {
    **{state.word: state for state in TaskState},
    **{state.value: state for state in TaskState},
    "cancelled": TaskState.CANCELED,
    "unknown": TaskState.UNSPECIFIED,
}


# --- reading


def read_status(document: dict[str, Any], path: str, form: Form) -> TaskStatus:
    status = needed_object(document, "status", path)
    path = under(path, "status")
    word = status.get("state")
    state = _STATES.get(word) if type(word) is str else None
    if state is None:
        raise Malformed(under(path, "state"), f"has the unknown value {str(word)[:40]!r}")
    message = None
    if "message" in status:
        message = named(read_message(status["message"], under(path, "message"), form, default=Role.AGENT))
    return TaskStatus(state=state, message=message, timestamp=text(status, "timestamp", path))


def read_task(document: Any, path: str, form: Form) -> Task:
    document = an_object(document, path)
    artifacts, history = sequence(document, "artifacts", path), sequence(document, "history", path)
    where = under(path, "artifacts"), under(path, "history")
    return Task(
        id=needed(document, "id", path),
        context_id=identifier(document, "contextId", path) or identifier(document, "sessionId", path),
        status=read_status(document, path, form),
        artifacts=tuple(
            [read_artifact(each, f"{where[0]}[{n}]", form, position=n) for n, each in enumerate(artifacts)]
        ),
        history=tuple(
            [
                named(read_message(each, f"{where[1]}[{n}]", form, default=Role.AGENT))
                for n, each in enumerate(history)
            ]
        ),
        metadata=mapping(document, "metadata", path),
    )


def read_event(document: Any, path: str, form: Form) -> Event:
    """A task, a message or an update: what its `kind` says, else what its members say."""
    document = an_object(document, path)
    kind = document.get("kind") or document.get("type") or _infer(document)
    if kind == "task":
        return read_task(document, path, form)
    if kind == "message":
        return named(read_message(document, path, form, default=Role.AGENT))
    if kind == "status-update":
        return StatusUpdate(
            task_id=_task_id(document, path),
            context_id=identifier(document, "contextId", path),
            status=read_status(document, path, form),
            metadata=mapping(document, "metadata", path),
        )
    if kind == "artifact-update":
        artifact = needed_object(document, "artifact", path)
        return ArtifactUpdate(
            task_id=_task_id(document, path),
            context_id=identifier(document, "contextId", path),
            artifact=read_artifact(artifact, under(path, "artifact"), form),
            append=flag(document, "append", path) or flag(artifact, "append", path),
            last_chunk=flag(document, "lastChunk", path) or flag(artifact, "lastChunk", path),
            metadata=mapping(document, "metadata", path),
        )
    raise Malformed(path or "it", "is neither a task nor a message nor an update")


def _task_id(document: dict[str, Any], path: str) -> str:
    return identifier(document, "taskId", path) or needed(document, "id", path)


def _infer(document: dict[str, Any]) -> str:
    if "artifact" in document:
        return "artifact-update"
    if "status" in document:
        return "status-update" if "taskId" in document or "final" in document else "task"
    return "message" if "parts" in document else ""


# --- writing


def write_status(status: TaskStatus, form: Form) -> dict[str, Any]:
    out: dict[str, Any] = {"state": form.state(status.state)}
    if status.message is not None:
        out["message"] = write_message(status.message, form)
    if status.timestamp:
        out["timestamp"] = status.timestamp
    return out


def write_task(task: Task, form: Form) -> dict[str, Any]:
    out = {**form.tagged("task"), "id": task.id, "contextId": task.context_id}
    out["status"] = write_status(task.status, form)
    if task.artifacts:
        out["artifacts"] = [write_artifact(artifact, form) for artifact in task.artifacts]
    if task.history:
        out["history"] = [write_message(message, form) for message in task.history]
    if task.metadata:
        out["metadata"] = task.metadata
    return out


def write_event(event: Event, form: Form, *, last: bool) -> dict[str, Any]:
    if isinstance(event, Task):
        return write_task(event, form)
    if isinstance(event, Message):
        return write_message(event, form)
    ids = {"taskId": event.task_id, "contextId": event.context_id}
    out: dict[str, Any]
    if isinstance(event, StatusUpdate):
        out = {**form.tagged("status-update"), **ids}
        out["status"] = write_status(event.status, form)
        out["final"] = last
    else:
        out = {**form.tagged("artifact-update"), **ids}
        out["artifact"] = write_artifact(event.artifact, form)
        out["append"] = event.append
        out["lastChunk"] = event.last_chunk
    if event.metadata:
        out["metadata"] = event.metadata
    return out


def task_of(answer: Message, asked: Message | None) -> Task:
    """A completed task around a bare message, for versions in which every answer is a task."""
    task_id = answer.task_id or (asked.task_id if asked else "") or answer.message_id
    context_id = answer.context_id or (asked.context_id if asked else "")
    return Task(
        id=task_id,
        context_id=context_id or task_id,
        status=TaskStatus(state=TaskState.COMPLETED, message=answer, timestamp=timestamp()),
        history=(asked, answer) if asked else (answer,),
    )


def status_of(task: Task) -> StatusUpdate:
    """A task's status, as an update."""
    return StatusUpdate(
        task_id=task.id, context_id=task.context_id, status=task.status, metadata=task.metadata
    )

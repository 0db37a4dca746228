"""Messages, artifacts, tasks and events in protobuf. 0.3 and 1.0 differ in a few names and in what a part looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dragoman.dialects.legacy_values import REFERENCE_TASK_IDS, add_lists, take_lists
from dragoman.dialects.proto.values import read_moment, read_struct, write_moment, write_struct
from dragoman.dialects.reading import Malformed
from dragoman.model.content import NOTHING, Artifact, Message, Part, Role
from dragoman.model.ops import MAX_PARTS, TOO_MANY_PARTS
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

_ROLES = list(Role)
_STATES = list(TaskState)  # both in the order of their protobuf numbers
_ROLE_NUMBERS = {role: number for number, role in enumerate(_ROLES)}
STATE_NUMBERS = {state: number for number, state in enumerate(_STATES)}


class Shape(NamedTuple):
    """What distinguishes the versions."""

    parts: str
    """The field in which a message has its parts."""
    message_field: str
    """The field in which a status has its message."""
    message: str
    """The field in which an answer is a message."""
    references: bool
    """Messages name other tasks."""
    read_part: Callable[[Any, str], Part]
    write_part: Callable[[Any, Part], None]


# --- reading


def read_message(message: Any, path: str, shape: Shape) -> Message:
    metadata = read_metadata(message, path)
    references: tuple[str, ...] = ()
    if shape.references:
        references = tuple(message.reference_task_ids)
    elif metadata:
        metadata, (references,) = take_lists(metadata, REFERENCE_TASK_IDS)
    return Message(
        message_id=message.message_id,
        role=_read_role(message.role, path),
        parts=_read_parts(getattr(message, shape.parts), path, shape),
        context_id=message.context_id,
        task_id=message.task_id,
        metadata=metadata,
        extensions=tuple(message.extensions),
        reference_task_ids=references,
    )


def read_sent(message: Any, path: str, shape: Shape) -> Message:
    """Read a message of a request, after a check of its size."""
    if len(getattr(message, shape.parts)) > MAX_PARTS:
        raise Malformed(f"{path}.{shape.parts}", TOO_MANY_PARTS)
    return read_message(message, path, shape)


def read_artifact(message: Any, path: str, shape: Shape) -> Artifact:
    return Artifact(
        artifact_id=message.artifact_id,
        parts=_read_parts(message.parts, path, shape),
        name=message.name,
        description=message.description,
        metadata=read_metadata(message, path),
        extensions=tuple(message.extensions),
    )


def read_status(message: Any, shape: Shape) -> TaskStatus:
    return TaskStatus(
        state=read_state(message.state, "status.state"),
        message=read_message(getattr(message, shape.message_field), "status.message", shape)
        if message.HasField(shape.message_field)
        else None,
        timestamp=read_moment(message.timestamp, "status.timestamp") if message.HasField("timestamp") else "",
    )


def read_task(message: Any, shape: Shape) -> Task:
    return Task(
        id=message.id,
        context_id=message.context_id,
        status=read_status(message.status, shape),
        artifacts=tuple([read_artifact(each, "artifacts", shape) for each in message.artifacts]),
        history=tuple([read_message(each, "history", shape) for each in message.history]),
        metadata=read_metadata(message, "task"),
    )


def read_event(message: Any, shape: Shape) -> Event:
    """What is in a StreamResponse, or in the answer to a send."""
    kind = message.WhichOneof("payload")
    if kind == "artifact_update":
        update = message.artifact_update
        return ArtifactUpdate(
            task_id=update.task_id,
            context_id=update.context_id,
            artifact=read_artifact(update.artifact, "artifact", shape),
            append=update.append,
            last_chunk=update.last_chunk,
            metadata=read_metadata(update, "artifactUpdate"),
        )
    if kind == "status_update":
        update = message.status_update
        return StatusUpdate(
            task_id=update.task_id,
            context_id=update.context_id,
            status=read_status(update.status, shape),
            metadata=read_metadata(update, "statusUpdate"),
        )
    if kind == "task":
        return read_task(message.task, shape)
    if kind == shape.message:
        return read_message(getattr(message, kind), "message", shape)
    raise Malformed("it", "is neither a task nor a message nor an update")


def read_metadata(message: Any, path: str) -> dict[str, Any]:
    if not message.HasField("metadata"):
        return NOTHING
    return read_struct(message.metadata, f"{path}.metadata") or NOTHING


def read_state(number: int, path: str) -> TaskState:
    if not 0 <= number < len(_STATES):
        raise Malformed(path, f"has the unknown value {number}")
    return _STATES[number]


def _read_role(number: int, path: str) -> Role:
    if not 0 <= number < len(_ROLES):
        raise Malformed(f"{path}.role", f"has the unknown value {number}")
    return _ROLES[number]


def _read_parts(parts: Any, path: str, shape: Shape) -> tuple[Part, ...]:
    read = shape.read_part
    return tuple([read(part, f"{path}.parts[{n}]") for n, part in enumerate(parts)])


# --- writing


def write_message(message: Any, value: Message, shape: Shape) -> None:
    message.message_id = value.message_id
    message.role = _ROLE_NUMBERS[value.role]
    _write_parts(getattr(message, shape.parts), value.parts, shape)
    if value.context_id:
        message.context_id = value.context_id
    if value.task_id:
        message.task_id = value.task_id
    metadata = value.metadata
    if value.reference_task_ids:
        if shape.references:
            message.reference_task_ids.extend(value.reference_task_ids)
        else:
            metadata = add_lists(metadata, (REFERENCE_TASK_IDS, value.reference_task_ids))
    if metadata:
        write_struct(message.metadata, metadata)
    if value.extensions:
        message.extensions.extend(value.extensions)


def write_artifact(message: Any, value: Artifact, shape: Shape) -> None:
    message.artifact_id = value.artifact_id
    _write_parts(message.parts, value.parts, shape)
    if value.name:
        message.name = value.name
    if value.description:
        message.description = value.description
    if value.metadata:
        write_struct(message.metadata, value.metadata)
    if value.extensions:
        message.extensions.extend(value.extensions)


def write_status(message: Any, value: TaskStatus, shape: Shape) -> None:
    message.state = STATE_NUMBERS[value.state]
    if value.message is not None:
        write_message(getattr(message, shape.message_field), value.message, shape)
    if value.timestamp:
        write_moment(message.timestamp, value.timestamp)


def write_task(message: Any, value: Task, shape: Shape) -> None:
    message.id = value.id
    message.context_id = value.context_id
    write_status(message.status, value.status, shape)
    for artifact in value.artifacts:
        write_artifact(message.artifacts.add(), artifact, shape)
    for each in value.history:
        write_message(message.history.add(), each, shape)
    if value.metadata:
        write_struct(message.metadata, value.metadata)


def write_event(message: Any, value: Event, shape: Shape) -> None:
    if isinstance(value, Task):
        write_task(message.task, value, shape)
        return
    if isinstance(value, Message):
        write_message(getattr(message, shape.message), value, shape)
        return
    update = message.status_update if isinstance(value, StatusUpdate) else message.artifact_update
    update.task_id = value.task_id
    update.context_id = value.context_id
    if isinstance(value, StatusUpdate):
        write_status(update.status, value.status, shape)
    else:
        write_artifact(update.artifact, value.artifact, shape)
        update.append = value.append
        update.last_chunk = value.last_chunk
    if value.metadata:
        write_struct(update.metadata, value.metadata)


def _write_parts(parts: Any, values: tuple[Part, ...], shape: Shape) -> None:
    write, add = shape.write_part, parts.add
    for value in values:
        write(add(), value)

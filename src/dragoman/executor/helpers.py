"""The SDK's functions that create and read parts, messages, artifacts, tasks and updates.

Those of 0.3 are `new_agent_text_message` and the like; 1.0 has one for each kind of content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from dragoman.executor.missing import find_in_package
from dragoman.executor.sdk_aliases import to_sdk
from dragoman.executor.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.model import content, task
from dragoman.model.ids import new_id

# parts


def new_text_part(text: str, media_type: str | None = None) -> Any:
    return Part(text=text, media_type=media_type)


def new_data_part(data: Any, media_type: str | None = None) -> Any:
    return Part(data=data, media_type=media_type)


def new_raw_part(raw: bytes, media_type: str | None = None, filename: str | None = None) -> Any:
    return Part(raw=raw, media_type=media_type, filename=filename)


def new_url_part(url: str, media_type: str | None = None, filename: str | None = None) -> Any:
    return Part(url=url, media_type=media_type, filename=filename)


def get_text_parts(parts: Sequence[content.Part]) -> list[str]:
    return [part.text for part in parts if part.text is not None]


def get_data_parts(parts: Sequence[content.Part]) -> list[Any]:
    return [part.data for part in parts if part.data is not UNSET]


def get_raw_parts(parts: Sequence[content.Part]) -> list[bytes]:
    return [part.raw for part in parts if part.raw is not None]


def get_url_parts(parts: Sequence[content.Part]) -> list[str]:
    return [part.url for part in parts if part.url is not None]


def get_file_parts(parts: Sequence[content.Part]) -> list[Any]:
    return [to_sdk(part) for part in parts if part.raw is not None or part.url is not None]


# messages


def new_message(
    parts: Sequence[content.Part],
    context_id: str | None = None,
    task_id: str | None = None,
    role: content.Role = Role.AGENT,
) -> Any:
    return Message(role, parts, context_id=context_id, task_id=task_id)


def new_agent_parts_message(
    parts: Sequence[content.Part], context_id: str | None = None, task_id: str | None = None
) -> Any:
    return new_message(parts, context_id, task_id)


def new_agent_text_message(text: str, context_id: str | None = None, task_id: str | None = None) -> Any:
    return new_message([Part(text=text)], context_id, task_id)


def new_text_message(text: str, media_type: str | None = None, *ids: Any, **more: Any) -> Any:
    return new_message([new_text_part(text, media_type)], *ids, **more)


def new_data_message(data: Any, media_type: str | None = None, *ids: Any, **more: Any) -> Any:
    return new_message([new_data_part(data, media_type)], *ids, **more)


def new_raw_message(
    raw: bytes, media_type: str | None = None, filename: str | None = None, *ids: Any, **more: Any
) -> Any:
    return new_message([new_raw_part(raw, media_type, filename)], *ids, **more)


def new_url_message(
    url: str, media_type: str | None = None, filename: str | None = None, *ids: Any, **more: Any
) -> Any:
    return new_message([new_url_part(url, media_type, filename)], *ids, **more)


def get_message_text(message: content.Message, delimiter: str = "\n") -> str:
    return delimiter.join(get_text_parts(message.parts))


# artifacts


def new_artifact(
    parts: Sequence[content.Part], name: str, description: str | None = None, artifact_id: str | None = None
) -> Any:
    return Artifact(parts, name=name, description=description, artifact_id=artifact_id)


def new_text_artifact(
    name: str, text: str, description: str | None = None, *, media_type: str | None = None, **more: Any
) -> Any:
    return new_artifact([new_text_part(text, media_type)], name, description, **more)


def build_text_artifact(text: str, artifact_id: str) -> Any:
    return new_artifact([new_text_part(text)], "", artifact_id=artifact_id)


def new_data_artifact(
    name: str, data: Any, description: str | None = None, *, media_type: str | None = None, **more: Any
) -> Any:
    return new_artifact([new_data_part(data, media_type)], name, description, **more)


def new_raw_artifact(
    name: str, raw: bytes, media_type: str | None = None, filename: str | None = None, **more: Any
) -> Any:
    return new_artifact([new_raw_part(raw, media_type, filename)], name, **more)


def new_url_artifact(
    name: str, url: str, media_type: str | None = None, filename: str | None = None, **more: Any
) -> Any:
    return new_artifact([new_url_part(url, media_type, filename)], name, **more)


def get_artifact_text(artifact: content.Artifact, delimiter: str = "\n") -> str:
    return delimiter.join(get_text_parts(artifact.parts))


# tasks and updates


def new_task(
    request: content.Message | str,
    context_id: str = "",
    state: task.TaskState = TaskState.SUBMITTED,
    artifacts: Sequence[content.Artifact] | None = None,
    history: Sequence[content.Message] | None = None,
) -> Any:
    """A new task for a message (0.3), or with an id (1.0)."""
    if isinstance(request, content.Message):
        return new_task_from_user_message(request)
    return Task(
        request,
        TaskStatus(state),
        context_id=context_id,
        artifacts=tuple(artifacts or ()),
        history=tuple(history or ()),
    )


def new_task_from_user_message(user_message: content.Message) -> Any:
    message = user_message
    return new_task(message.task_id or new_id(), message.context_id, history=(message,))


def completed_task(
    task_id: str,
    context_id: str,
    artifacts: Sequence[content.Artifact],
    history: Sequence[content.Message] | None = None,
) -> Any:
    """A completed task with its artifacts."""
    return new_task(task_id, context_id, TaskState.COMPLETED, artifacts, history)


def new_text_status_update_event(task_id: str, context_id: str, state: task.TaskState, text: str) -> Any:
    return TaskStatusUpdateEvent(TaskStatus(state, new_agent_text_message(text, context_id, task_id)))


def new_text_artifact_update_event(task_id: str, context_id: str, name: str, text: str, **more: Any) -> Any:
    return _update(new_text_part(text), name, **more)


def new_data_artifact_update_event(
    task_id: str, context_id: str, name: str, data: Any, media_type: str | None = None, **more: Any
) -> Any:
    return _update(new_data_part(data, media_type), name, **more)


def new_raw_artifact_update_event(
    task_id: str,
    context_id: str,
    name: str,
    raw: bytes,
    media_type: str | None = None,
    filename: str | None = None,
    **more: Any,
) -> Any:
    return _update(new_raw_part(raw, media_type, filename), name, **more)


def new_url_artifact_update_event(
    task_id: str,
    context_id: str,
    name: str,
    url: str,
    media_type: str | None = None,
    filename: str | None = None,
    **more: Any,
) -> Any:
    return _update(new_url_part(url, media_type, filename), name, **more)


def _update(
    part: content.Part,
    name: str,
    append: bool = False,
    last_chunk: bool = False,
    artifact_id: str | None = None,
) -> Any:
    artifact = new_artifact([part], name, artifact_id=artifact_id)
    return TaskArtifactUpdateEvent(artifact, append=append, last_chunk=last_chunk)


__getattr__ = find_in_package

"""What a user says: text, files and data as parts, and the whole of it as a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from dragoman.client.reply import Reply
from dragoman.model.content import NOTHING, Message, Part, Role
from dragoman.model.ids import new_id
from dragoman.model.ops import Call, Configuration, PushConfig, SendMessage
from dragoman.model.task import Task
from dragoman.model.values import file_part, plain


def part_of(content: Any) -> Part:
    """Text is text, a path is a file, bytes are bytes; anything else is data."""
    if isinstance(content, Part):
        return content
    if isinstance(content, str):
        return Part(text=str(content))
    if isinstance(content, Path | bytes | bytearray):
        return file(content)
    return Part(data=plain(content), media_type="application/json")


file = file_part


def parts_of(content: Iterable[Any], files: Any = (), data: Any = msgspec.UNSET) -> tuple[Part, ...]:
    parts = [part_of(each) for each in content]
    parts += [each if isinstance(each, Part) else file(each) for each in several(files)]
    if data is not msgspec.UNSET:
        parts.append(part_of(plain(data)) if not isinstance(data, str | bytes) else Part(data=plain(data)))
    if not parts:
        raise TypeError("there is nothing to send: give some text, files or data")
    return tuple(parts)


def id_of(task: str | Task) -> str:
    """The id of a task, which may be named by itself, or by a reply."""
    return task.id if isinstance(task, Task | Reply) else task


def task_of(task: str | Task) -> Task | None:
    """The task as its user knows it; None if only its id is known."""
    return task.task if isinstance(task, Reply) else task if isinstance(task, Task) else None


def context_of(context: str | Task) -> str:
    """The id of a conversation, which may be named by a task in it, or by a reply."""
    return context.context_id if isinstance(context, Task | Reply) else context


def several(given: Any) -> tuple[Any, ...]:
    """One thing is as good as a list of one."""
    return (given,) if isinstance(given, str | bytes | bytearray | PathLike | Part) else tuple(given)


def sending(
    content: Sequence[Any],
    deadline: float | None,
    tenant: str,
    *,
    files: Any = (),
    data: Any = msgspec.UNSET,
    task: str | Task = "",
    context: str | Task = "",
    skill: str = "",
    metadata: Mapping[str, Any] | None = None,
    accept: str | Sequence[str] = (),
    history: int | None = None,
    wait: bool = True,
    push: PushConfig | None = None,
    key: str = "",
    extensions: str | Sequence[str] = (),
) -> tuple[Call, SendMessage]:
    """The options of `Client.send` as a request, and the call it goes with."""
    if len(content) == 1 and isinstance(content[0], Message):
        message = content[0]
    else:
        message = Message(
            message_id=new_id(),
            role=Role.USER,
            parts=parts_of(content, files, data),
            task_id=id_of(task),
            context_id=context_of(context),
            metadata={**(metadata or {}), **({"skillId": skill} if skill else {})} or NOTHING,
            extensions=several(extensions),
        )
    configuration = Configuration(
        accepted_output_modes=several(accept),
        task_push_notification_config=push,
        history_length=history,
        return_immediately=not wait,
    )
    call = Call(deadline=deadline, idempotency_key=key or new_id(), extensions=several(extensions))
    return call, SendMessage(message=message, configuration=configuration, tenant=tenant)

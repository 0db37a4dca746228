"""Build requests from what a user gives: text, files and data as parts of a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.client.reply import AnswerOptions, Reply
from dragoman.model.content import Message, Part, Role, file_part, plain
from dragoman.model.ids import new_id
from dragoman.model.ops import Call, Configuration, PushConfig, SendMessage
from dragoman.model.task import Task


class SendOptions(AnswerOptions, total=False):
    """The options of `Client.send`, so that an editor knows them."""

    task: str | Task
    context: str | Task


def to_part(content: Any) -> Part:
    """Text is text, a path is a file, bytes are bytes; anything else is data."""
    if isinstance(content, Part):
        return content
    if isinstance(content, str):
        return Part(text=str(content))
    if isinstance(content, Path | bytes | bytearray):
        return file(content)
    return Part(data=plain(content), media_type="application/json")


file = file_part


def to_parts(content: Iterable[Any], files: Any = (), data: Any = msgspec.UNSET) -> tuple[Part, ...]:
    parts = [to_part(each) for each in content]
    parts += [each if isinstance(each, Part) else file(each) for each in as_tuple(files)]
    if data is not msgspec.UNSET:
        parts.append(to_part(plain(data)) if not isinstance(data, str | bytes) else Part(data=plain(data)))
    if not parts:
        raise TypeError("there is nothing to send: give some text, files or data")
    return tuple(parts)


def id_of(task: str | Task) -> str:
    """The id of a task that is given as an id, a task or a reply."""
    return task.id if isinstance(task, Task | Reply) else task


def task_of(task: str | Task) -> Task | None:
    """The task, as far as the caller has it; None if only its id was given."""
    return task.task if isinstance(task, Reply) else task if isinstance(task, Task) else None


def context_of(context: str | Task) -> str:
    """The id of a conversation that is given as an id, or as a task or a reply in it."""
    return context.context_id if isinstance(context, Task | Reply) else context


def as_tuple(given: Any) -> tuple[Any, ...]:
    """A tuple of the things given: one thing or several."""
    return (given,) if isinstance(given, str | bytes | bytearray | PathLike | Part) else tuple(given)


def _parts_with(message: Message, content: Sequence[Any], files: Any, data: Any) -> tuple[Part, ...]:
    """The parts of a message and of what was given with it, in order."""
    if sum(isinstance(each, Message) for each in content) > 1:
        raise ValueError("one message can be sent at a time")
    spread = [part for each in content for part in (each.parts if each is message else (each,))]
    return to_parts(spread, files, data)


def _merge(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name in own and own[name] != value:
            raise ValueError(f"the message has {name!r} in its metadata, and another one was given with it")
    return {**own, **given}


def build_request(
    content: Sequence[Any],
    deadline: float | None,
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
    """The request of `Client.send` for these options, and its `Call`.

    A `Message` among the content gets what the options add. Raises `ValueError` where they contradict it.
    """
    about = {**(metadata or {}), **({"skillId": skill} if skill else {})}
    message = next((each for each in content if isinstance(each, Message)), None)
    if message is None:
        message = Message(message_id=new_id(), role=Role.USER, parts=to_parts(content, files, data))
    elif len(content) > 1 or as_tuple(files) or data is not msgspec.UNSET:
        message = replace(message, parts=_parts_with(message, content, files, data))
    message = message.for_task(id_of(task), context_of(context))
    if about:
        message = replace(message, metadata=_merge(message.metadata, about))
    if extensions:
        used = dict.fromkeys((*message.extensions, *as_tuple(extensions)))
        message = replace(message, extensions=tuple(used))
    configuration = Configuration(
        accepted_output_modes=as_tuple(accept),
        task_push_notification_config=push,
        history_length=history,
        return_immediately=not wait,
    )
    call = Call(deadline=deadline, idempotency_key=key or new_id(), extensions=as_tuple(extensions))
    return call, SendMessage(message=message, configuration=configuration)

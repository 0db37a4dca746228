"""Arbiter's dialect: the wire of 0.3 under the label 1.0, with habits of its own.

* Every answer is a task, and what matters in it is `status.message`: its clients read nothing else. Where an agent only
  made artifacts, the status message has their text as well.
* A stream has no task in it. It begins with a `working` update, closes each text with an empty last chunk, and ends with
  the status, `final: true`. Its clients do not see errors in a stream, so `fail` ends one with a failed status.
* The bytes of a `text/plain` file are the text itself. Texts of several chunks are joined when they are sent again.
* It takes ids by the letter: strings, not numbers that could have been.
* No push notifications and no extended card; errors are a code and a sentence; its own code for a wrong version.
* SSE frames are named: `event: message`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.dialects.dialect import EventWriter
from dragoman.dialects.legacy_values import JsonForm, status_of, task_of
from dragoman.dialects.v0_3 import V0_3, encode
from dragoman.errors import A2AError
from dragoman.model import ops
from dragoman.model.content import Artifact, Message, Part, Role, text_of
from dragoman.model.ids import timestamp
from dragoman.model.ops import Op, Request, StreamResponse, refuse
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus


class Resubscribe(ops.SubscribeToTask, frozen=True, kw_only=True):
    """With `sinceSeq`: only events after that one. Other clients send it in a header."""

    since: int


class Arbiter(V0_3):
    name = family = "arbiter"
    version = "1.0"
    always_waits = True
    cancel_error_is_invalid_request = True
    subscription_repeats = True
    sse_event = "message"
    subscribe_errors_as_events = False
    requires_jsonrpc_member = True
    refuses_push = True
    checks_version_first = True

    form = JsonForm(plain_files=True)
    methods = {op: V0_3.methods[op] for op in (ops.SEND, ops.STREAM, ops.GET, ops.CANCEL, ops.SUBSCRIBE)}

    def read_request(self, op: Op, params: bytes) -> Request:
        request = super().read_request(op, params)
        document = msgspec.json.decode(params)
        message = document.get("message")
        if isinstance(request, ops.SendMessage) and isinstance(message, dict):
            _check(message, "message.", ("messageId", "contextId", "taskId"))
            return request
        _check(document, "", ("id",))
        since = document.get("sinceSeq")
        if not isinstance(request, ops.SubscribeToTask) or since is None:
            return request
        if type(since) is not int or since < 0:
            refuse("sinceSeq", "must be the number of an event")
        return Resubscribe(id=request.id, since=since)

    def check_strictly(self, params: bytes) -> None:
        """Every part of a message says its kind, which other agents of 0.3 do not insist on. Raises `InvalidParams`."""
        message = msgspec.json.decode(params).get("message")
        parts = message.get("parts") if isinstance(message, dict) else None
        for n, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and "kind" not in part:
                refuse(f"message.parts[{n}].kind", "is missing")

    def refuse_strictly(self, error: A2AError, status: int, body: bytes) -> tuple[int, bytes]:
        """Errors of JSON-RPC have the status 200, except 401. Too many calls get 429 and a body that is no JSON-RPC, because
        Arbiter counts calls before it reads them.
        """
        if status == 429:
            after = max(1, round(error.retry_after or 0))
            reason = error.metadata.get("reason", "")
            body = encode({"error": error.message, "reason": reason, "retry_after_seconds": after})
        return status if status in (401, 429) else 200, body

    def write_result(self, op: Op, result: Any, request: Request | None = None) -> bytes:
        if isinstance(result, Message):
            result = task_of(result, request.message if isinstance(request, ops.SendMessage) else None)
        if isinstance(result, Task):
            status = with_reply(result.status, result.text, result.id, result.context_id)
            result = replace(
                result,
                status=status,
                artifacts=tuple(_join_texts(artifact) for artifact in result.artifacts),
                history=_extend_history(result.history, status, request),
            )
        return super().write_result(op, result, request)

    def writer(self, request: Request | None = None) -> EventWriter:
        return ArbiterWriter(self, request.message if isinstance(request, ops.SendMessage) else None)


def _check(document: dict[str, Any], path: str, names: tuple[str, ...]) -> None:
    """What is there is a string. Raises `InvalidParams`."""
    for name in names:
        if not isinstance(document.get(name, ""), str | None):
            refuse(path + name, "must be a string")


def _join_texts(artifact: Artifact) -> Artifact:
    """With neighbouring texts as one: they are the pieces in which an answer came."""
    parts: list[Part] = []
    for part in artifact.parts:
        if parts and part == Part(text=part.text) and parts[-1] == Part(text=parts[-1].text):
            parts[-1] = Part(text=f"{parts[-1].text}{part.text}")
        else:
            parts.append(part)
    return replace(artifact, parts=tuple(parts))


def _extend_history(
    history: tuple[Message, ...], status: TaskStatus, request: Request | None
) -> tuple[Message, ...]:
    """The history with the last message, and no more of it than was asked for."""
    reply = status.message
    if reply is not None and status.state is TaskState.COMPLETED and reply not in history:
        history = (*history, reply)
    length = getattr(getattr(request, "configuration", request), "history_length", None)
    return history if length is None else history[max(0, len(history) - length) :]


def with_reply(status: TaskStatus, text: str, task_id: str, context_id: str) -> TaskStatus:
    """The status with the artifacts' text as its message, if it has none."""
    if status.message is not None or status.state is not TaskState.COMPLETED or not text:
        return status
    return _say(status, text, f"{task_id}-r", task_id, context_id)


def _say(status: TaskStatus, text: str, id: str, task_id: str, context_id: str) -> TaskStatus:
    """The status with a message."""
    parts = (Part(text=text),)
    message = Message(message_id=id, role=Role.AGENT, parts=parts, context_id=context_id, task_id=task_id)
    return replace(status, message=message)


_WHY = {
    TaskState.CANCELED: "The task was canceled.",
    TaskState.REJECTED: "The task was rejected.",
    TaskState.FAILED: "The task failed.",
}
"""The text of a failed stream without a reason."""


class ArbiterWriter:
    """Stores the texts of the stream, and which are still open."""

    def __init__(self, dialect: Arbiter, asked: Message | None) -> None:
        self._dialect = dialect
        self._asked = asked
        self._task_id = self._context_id = ""
        self._began = False
        self._whole = False
        """We know the task from its beginning; not on a stream that goes on after an event."""
        self._texts: dict[str, str] = {}
        self._open: dict[str, None] = {}

    def write(self, response: StreamResponse, *, last: bool) -> list[bytes]:
        events = list(self._events(response.event, last=last))
        return [
            encode(self._dialect.write_event(event, last=last and event is events[-1])) for event in events
        ]

    def fail(self, error: A2AError) -> list[bytes]:
        """The end of a stream that broke."""
        status = self._failing(TaskStatus(state=TaskState.FAILED, timestamp=timestamp()), error.message)
        update = StatusUpdate(task_id=self._task_id, context_id=self._context_id, status=status)
        return [encode(self._dialect.write_event(update, last=True))]

    def _failing(self, status: TaskStatus, why: str) -> TaskStatus:
        return _say(status, why, f"{self._task_id}-err", self._task_id, self._context_id)

    def _events(self, event: Event, *, last: bool) -> list[Event]:
        if isinstance(event, Message):
            event = task_of(event, self._asked)
        if isinstance(event, Task):
            self._task_id, self._context_id, self._whole = event.id, event.context_id, True
            return self._snapshot(event, last=last)
        self._task_id, self._context_id = event.task_id, event.context_id
        if isinstance(event, ArtifactUpdate):
            self._note(event)
            return [*self._beginning(), event]
        return self._status(event, last=last)

    def _snapshot(self, task: Task, *, last: bool) -> list[Event]:
        update = status_of(task)
        if last and self._asked is None:
            status = with_reply(task.status, task.text, task.id, task.context_id)
            return [*([] if task.state.terminal else self._beginning()), replace(update, status=status)]
        artifacts = [
            ArtifactUpdate(
                task_id=task.id,
                context_id=task.context_id,
                artifact=_join_texts(artifact),
                last_chunk=not text_of(artifact.parts),
            )
            for artifact in task.artifacts
        ]
        for artifact in artifacts:
            self._note(artifact)
        beginning = [*self._beginning("" if last else task.status.timestamp), *artifacts]
        # A repeated message gets all events again.
        return [*beginning, *self._status(update, last=True)] if last else beginning

    def _status(self, update: StatusUpdate, *, last: bool) -> list[Event]:
        status = update.status
        if status.state.terminal or last:
            text = "\n".join(each for each in self._texts.values() if each)
            if self._whole:
                status = with_reply(status, text, update.task_id, update.context_id)
            if status.message is None and (why := _WHY.get(status.state)):
                status = self._failing(status, why)
            return [*self._closing(), replace(update, status=status)]
        if status.message is None and not update.metadata:
            return self._beginning(status.timestamp)
        self._began = not status.state.interrupted  # after the answer it works again
        return [update]

    def _beginning(self, at: str = "") -> list[Event]:
        if self._began:
            return []
        self._began = True
        status = TaskStatus(state=TaskState.WORKING, timestamp=at)
        return [StatusUpdate(task_id=self._task_id, context_id=self._context_id, status=status)]

    def _closing(self) -> list[Event]:
        """An empty last chunk for each text that had none."""
        still_open, self._open = list(self._open), {}
        return [
            ArtifactUpdate(
                task_id=self._task_id,
                context_id=self._context_id,
                artifact=Artifact(artifact_id=artifact_id, parts=(Part(text=""),)),
                append=True,
                last_chunk=True,
            )
            for artifact_id in still_open
        ]

    def _note(self, update: ArtifactUpdate) -> None:
        artifact_id, text = update.artifact.artifact_id, text_of(update.artifact.parts)
        self._texts[artifact_id] = self._texts.get(artifact_id, "") + text if update.append else text
        if update.last_chunk:
            self._open.pop(artifact_id, None)
        elif text:
            self._open[artifact_id] = None

"""A2A 0.1.0, and the draft of April 2025 that came before it.

How they differ from 0.3:

* Methods are `tasks/send` and `tasks/sendSubscribe`. The client chooses the task's id; `sessionId` groups tasks.
* Messages and artifacts have no ids. An artifact has an `index`, its place in the task, and carries `append` and
  `lastChunk` itself; parts say `type`.
* Every answer is a task: a bare message becomes a completed one. A stream has status and artifact events, never a task,
  so a snapshot is written as its status and its artifacts.
* No state for `rejected` and `auth-required`: they are written `failed` and `input-required`, with the true one in the
  metadata under `a2a.state`.
* History is sent only when asked for; one push config per task, whose credentials are not shown again, and which is
  taken back by setting it to `null`.
* Its own error codes. The draft has fewer of them, always an `authentication` in the card, and is otherwise the same.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.dialects.dialect import EventWriter
from dragoman.dialects.legacy_values import (
    JsonForm,
    read_config,
    read_event,
    read_message,
    read_task,
    read_task_config,
    status_of,
    task_of,
    without_empty,
    write_artifact,
    write_config,
    write_message,
    write_status,
)
from dragoman.dialects.reading import (
    identifier,
    mapping,
    needed_object,
    number,
    read_params,
    strings,
    task_id_of,
)
from dragoman.dialects.v0_3 import V0_3, encode
from dragoman.model import ops
from dragoman.model.content import NOTHING, Artifact, Message
from dragoman.model.ids import new_id
from dragoman.model.ops import Op, Request, StreamResponse
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

E = TypeVar("E", bound=Event)

STATE = "a2a.state"
"""Metadata: the state that this version has no word for."""
ONLY = "default"
"""The id of the one push config a task can have."""

_FORM = JsonForm(tag="type", named=False, arrays=True, references=True)
_CONFIG = "pushNotificationConfig"
_NEAREST = {TaskState.REJECTED: TaskState.FAILED, TaskState.AUTH_REQUIRED: TaskState.INPUT_REQUIRED}
_TRUE: dict[Any, TaskState] = {state.word: state for state in _NEAREST}


class V0_1(V0_3):
    name = family = "0.1"
    version = ""
    names_tasks = True
    always_waits = True
    resumable = False  # a stream that begins without the task could not number its artifacts
    subscribe_errors_as_events = False

    form = _FORM
    names: ClassVar[dict[str, str]] = {
        "message.taskId": "id",
        "message.contextId": "sessionId",
        "configuration.historyLength": "historyLength",
        "configuration.acceptedOutputModes": "acceptedOutputModes",
        "taskId": "id",
    }
    methods: ClassVar[dict[Op, str]] = {
        ops.SEND: "tasks/send",
        ops.STREAM: "tasks/sendSubscribe",
        ops.GET: "tasks/get",
        ops.CANCEL: "tasks/cancel",
        ops.SUBSCRIBE: "tasks/resubscribe",
        ops.PUSH_CREATE: "tasks/pushNotification/set",
        ops.PUSH_GET: "tasks/pushNotification/get",
    }

    def read_request(self, op: Op, params: bytes) -> Request:
        document = read_params(params)
        # `document` is empty if there are no params, or if they are null
        if (
            op is ops.PUSH_CREATE
            and document
            and _CONFIG not in document
            and _CONFIG in msgspec.json.decode(params)
        ):
            document[_CONFIG] = None  # it differs from absent, and `read_params` leaves it out
        return self.from_document(op, document)

    def _read_request(self, op: Op, document: dict[str, Any]) -> Request:
        if op is ops.PUSH_CREATE and document.get(_CONFIG, "") is None:
            return ops.DeletePushConfig(task_id=task_id_of(document), id=ONLY)
        if op is ops.PUSH_CREATE:
            return ops.CreatePushConfig(config=replace(read_task_config(document, ""), id=ONLY))
        if op is ops.PUSH_GET:
            return ops.GetPushConfig(task_id=task_id_of(document))
        return super()._read_request(op, document)

    def _read_length(self, document: dict[str, Any], path: str = "") -> int | None:
        return number(document, "historyLength", path) or 0

    def _read_send(self, document: dict[str, Any]) -> ops.SendMessage:
        task_id = task_id_of(document)
        message = read_message(needed_object(document, "message", ""), "message", _FORM)
        push = mapping(document, "pushNotification", "")
        config = replace(read_config(push, "pushNotification"), id=ONLY) if push else None
        return ops.SendMessage(
            message=replace(
                message,
                message_id=message.message_id or new_id(),
                task_id=task_id,
                context_id=identifier(document, "sessionId", ""),
            ),
            configuration=ops.Configuration(
                accepted_output_modes=strings(document, "acceptedOutputModes", ""),
                history_length=self._read_length(document),
                task_push_notification_config=config,
            ),
            metadata=mapping(document, "metadata", ""),
        )

    def to_document(self, request: Request, *, blocking: bool) -> dict[str, Any]:
        if isinstance(request, ops.GetPushConfig):
            return {"id": request.task_id}
        if isinstance(request, ops.GetTask) and not request.history_length:
            return {"id": request.id}
        return super().to_document(request, blocking=blocking)

    def _write_send(self, request: ops.SendMessage, *, blocking: bool) -> dict[str, Any]:
        message, settings = request.message, request.configuration
        push = settings.task_push_notification_config
        return {
            "id": message.task_id or new_id(),
            **without_empty(sessionId=message.context_id),
            "message": write_message(message, _FORM),
            **without_empty(
                acceptedOutputModes=settings.accepted_output_modes,
                historyLength=settings.history_length,
                pushNotification=push and write_config(push, named=False),
                metadata=request.metadata,
            ),
        }

    def _write_task_config(self, config: ops.PushConfig, *, secrets: bool = True) -> dict[str, Any]:
        written = write_config(config, named=False, secrets=secrets)
        return {"id": config.task_id, _CONFIG: written}

    def result_from_document(self, op: Op, document: Any) -> Any:
        if op in (ops.PUSH_CREATE, ops.PUSH_GET):
            return replace(read_task_config(document, ""), id=ONLY)
        return _read_event(document) if op.streams else _true_state(read_task(document, "", _FORM))

    def write_result(self, op: Op, result: Any, request: Request | None = None) -> bytes:
        if isinstance(request, ops.DeletePushConfig):
            return encode({"id": request.task_id, _CONFIG: None})
        if isinstance(result, Message):
            result = task_of(result, request.message if isinstance(request, ops.SendMessage) else None)
        return super().write_result(op, result, request)

    def result_to_document(self, op: Op, result: Any) -> Any:
        if isinstance(result, Task):
            return _write_task(result)
        if isinstance(result, ops.PushConfig):
            return self._write_task_config(result, secrets=False)  # 0.1 allows to leave them out
        return super().result_to_document(op, result)

    def writer(self, request: Request | None = None) -> EventWriter:
        return _Writer(request.message if isinstance(request, ops.SendMessage) else None)


class Draft(V0_1):
    name = "draft"


# --- tasks and events


def _read_event(document: Any) -> Event:
    if (
        type(document) is dict
        and "status" in document
        and not document.keys() & {"sessionId", "artifacts", "history"}
    ):
        document = {"kind": "status-update", **document}  # `final` may be missing
    return _true_state(read_event(document, "", _FORM))


def _true_state(event: E) -> E:
    """Undo what writing does to a state that this version has no word for."""
    state = _TRUE.get(event.metadata.get(STATE))
    if state is None or not isinstance(event, Task | StatusUpdate):
        return event
    metadata = {name: value for name, value in event.metadata.items() if name != STATE}
    return replace(event, status=replace(event.status, state=state), metadata=metadata or NOTHING)


def _write_task(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        **without_empty(sessionId=task.context_id),
        "status": _write_nearest(task.status),
        **without_empty(
            artifacts=[_write_artifact(artifact, n) for n, artifact in enumerate(task.artifacts)],
            history=[write_message(message, _FORM) for message in task.history],
            metadata={**task.metadata, **_note_state(task.state)},
        ),
    }


def _write_artifact(artifact: Artifact, index: int) -> dict[str, Any]:
    return {**write_artifact(artifact, _FORM), "index": index}


def _write_nearest(status: TaskStatus) -> dict[str, Any]:
    """The status, in the nearest state that this version has a word for."""
    return write_status(replace(status, state=_NEAREST.get(status.state, status.state)), _FORM)


def _note_state(state: TaskState) -> dict[str, Any]:
    return {STATE: state.word} if state in _NEAREST else {}


class _Writer:
    """Remembers which artifact has which index."""

    def __init__(self, asked: Message | None) -> None:
        self._asked = asked
        self._indexes: dict[str, int] = {}

    def write(self, response: StreamResponse, *, last: bool) -> list[bytes]:
        event = response.event
        match event:
            case StatusUpdate():
                return [encode(_write_status(event, last=last))]
            case ArtifactUpdate():
                return [encode(self._write_artifact(event))]
            case Message():
                return [encode(_write_status(status_of(task_of(event, self._asked)), last=last))]
            case Task():
                status = encode(_write_status(status_of(event), last=last))
                artifacts = [
                    encode(
                        self._write_artifact(
                            ArtifactUpdate(task_id=event.id, context_id=event.context_id, artifact=artifact)
                        )
                    )
                    for artifact in event.artifacts
                ]
                return [*artifacts, status] if last else [status, *artifacts]

    def _write_artifact(self, update: ArtifactUpdate) -> dict[str, Any]:
        index = self._indexes.setdefault(update.artifact.artifact_id, len(self._indexes))
        artifact = _write_artifact(update.artifact, index)
        artifact |= {"append": update.append, "lastChunk": update.last_chunk}
        return {"id": update.task_id, "artifact": artifact, **without_empty(metadata=update.metadata)}


def _write_status(update: StatusUpdate, *, last: bool) -> dict[str, Any]:
    metadata = {**update.metadata, **_note_state(update.status.state)}
    return {
        "id": update.task_id,
        "status": _write_nearest(update.status),
        "final": last,
        **without_empty(metadata=metadata),
    }

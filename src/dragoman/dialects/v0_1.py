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

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.dialects import cards, errors
from dragoman.dialects.dialect import Dialect, EventReader, EventWriter
from dragoman.dialects.legacy_values import (
    JsonForm,
    read_config,
    read_event,
    read_message,
    read_task,
    read_task_config,
    status_of,
    task_of,
    write_artifact,
    write_config,
    write_message,
    write_status,
)
from dragoman.dialects.reading import (
    Malformed,
    check_as,
    identifier,
    mapping,
    needed_object,
    normalize,
    number,
    read_params,
    strings,
    task_id_of,
)
from dragoman.errors import A2AError, InvalidAgentResponse
from dragoman.model import ops
from dragoman.model.card import AgentCard
from dragoman.model.content import NOTHING, Artifact, Message, Part
from dragoman.model.ids import new_id
from dragoman.model.ops import Op, Request, StreamResponse, refuse
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState

E = TypeVar("E", bound=Event)

encode = msgspec.json.Encoder().encode

STATE = "a2a.state"
"""Metadata: the state that this version has no word for."""
ONLY = "default"
"""The id of the one push config a task can have."""

_NAMES = {
    "message.taskId": "id",
    "message.contextId": "sessionId",
    "configuration.historyLength": "historyLength",
    "configuration.acceptedOutputModes": "acceptedOutputModes",
    "taskId": "id",
}
"""Members that are called otherwise than in 1.0."""
_FORM = JsonForm(tag="type", named=False, arrays=True, references=True)
_NEAREST = {TaskState.REJECTED: TaskState.FAILED, TaskState.AUTH_REQUIRED: TaskState.INPUT_REQUIRED}
_TRUE: dict[Any, TaskState] = {state.word: state for state in _NEAREST}


class V0_1(Dialect):
    name = family = "0.1"
    version = ""
    names_tasks = True
    always_waits = True
    resumable = False  # a stream that begins without the task could not number its artifacts

    methods: ClassVar[dict[Op, str]] = {
        ops.SEND: "tasks/send",
        ops.STREAM: "tasks/sendSubscribe",
        ops.GET: "tasks/get",
        ops.CANCEL: "tasks/cancel",
        ops.SUBSCRIBE: "tasks/resubscribe",
        ops.PUSH_CREATE: "tasks/pushNotification/set",
        ops.PUSH_GET: "tasks/pushNotification/get",
    }

    def method(self, op: Op) -> str:
        return self.methods.get(op, "")

    def read_request(self, op: Op, params: bytes) -> Request:
        document = read_params(params)
        try:
            if op is ops.PUSH_CREATE and _is_cleared(params, document):
                return ops.DeletePushConfig(task_id=task_id_of(document), id=ONLY).check()
            return check_as(_read_request(op, document), _NAMES)
        except Malformed as wrong:
            refuse(wrong.path, wrong.why)

    def write_request(self, op: Op, request: Request) -> bytes:
        return encode(_write_request(request))

    def read_result(self, op: Op, result: Any) -> Any:
        try:
            if op in (ops.PUSH_CREATE, ops.PUSH_GET):
                return replace(read_task_config(normalize(result), ""), id=ONLY)
            return (
                _read_event(normalize(result))
                if op.streams
                else _true_state(read_task(normalize(result), "", _FORM))
            )
        except (Malformed, RecursionError) as wrong:
            raise InvalidAgentResponse(f"the peer's answer makes no sense: {wrong}") from None

    def write_result(self, op: Op, result: Any, request: Request | None = None) -> bytes:
        match result:
            case Message():
                asked = request.message if isinstance(request, ops.SendMessage) else None
                return encode(_write_task(task_of(result, asked)))
            case Task():
                return encode(_write_task(result))
            case ops.PushConfig():
                return encode(_write_task_config(result, secrets=False))  # 0.1 allows to leave them out
            case AgentCard():
                return encode(cards.write_card(result, self.name))
        if isinstance(request, ops.DeletePushConfig):
            return encode({"id": request.task_id, "pushNotificationConfig": None})
        return b"null"

    def write_parts(self, parts: Sequence[Part]) -> bytes:
        return encode([_FORM.write_part(part) for part in parts])

    def writer(self, request: Request | None = None) -> EventWriter:
        return _Writer(request.message if isinstance(request, ops.SendMessage) else None)

    def reader(self) -> EventReader:
        return _Reader(self)

    def read_error(self, error: Any, *, http: int = 200) -> A2AError:
        return errors.read_error(error, self.name, http=http)

    def write_error(self, error: A2AError) -> dict[str, Any]:
        return errors.write_error(error, self.name)


class Draft(V0_1):
    name = "draft"


# --- requests


def _is_cleared(params: bytes, tidied: dict[str, Any]) -> bool:
    """True if the config is `null`, which differs from absent."""
    name = "pushNotificationConfig"
    return name not in tidied and name in (msgspec.json.decode(params or b"null") or ())


def _read_request(op: Op, document: dict[str, Any]) -> Request:
    if op is ops.PUSH_CREATE:
        config = read_task_config(document, "")
        return ops.CreatePushConfig(config=replace(config, id=ONLY))
    task_id = task_id_of(document)
    if op in (ops.SEND, ops.STREAM):
        return _read_send(task_id, document)
    if op is ops.GET:
        return ops.GetTask(id=task_id, history_length=number(document, "historyLength", "") or 0)
    if op is ops.CANCEL:
        return ops.CancelTask(id=task_id, metadata=mapping(document, "metadata", ""))
    if op is ops.SUBSCRIBE:
        return ops.SubscribeToTask(id=task_id)
    assert op is ops.PUSH_GET
    return ops.GetPushConfig(task_id=task_id)


def _read_send(task_id: str, document: dict[str, Any]) -> ops.SendMessage:
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
            history_length=number(document, "historyLength", "") or 0,
            task_push_notification_config=config,
        ),
        metadata=mapping(document, "metadata", ""),
    )


def _write_request(request: Request) -> dict[str, Any]:
    match request:
        case ops.SendMessage():
            return _write_send(request)
        case ops.GetTask():
            return {
                "id": request.id,
                **({"historyLength": request.history_length} if request.history_length else {}),
            }
        case ops.CancelTask():
            return {"id": request.id, **({"metadata": request.metadata} if request.metadata else {})}
        case ops.SubscribeToTask():
            return {"id": request.id}
        case ops.CreatePushConfig():
            return _write_task_config(request.config)
        case ops.GetPushConfig():
            return {"id": request.task_id}
    return {}


def _write_send(request: ops.SendMessage) -> dict[str, Any]:
    message, settings = request.message, request.configuration
    out: dict[str, Any] = {"id": message.task_id or new_id()}
    if message.context_id:
        out["sessionId"] = message.context_id
    out["message"] = write_message(message, _FORM)
    if settings.accepted_output_modes:
        out["acceptedOutputModes"] = settings.accepted_output_modes
    if settings.history_length:
        out["historyLength"] = settings.history_length
    if settings.task_push_notification_config is not None:
        out["pushNotification"] = write_config(settings.task_push_notification_config, named=False)
    if request.metadata:
        out["metadata"] = request.metadata
    return out


def _write_task_config(config: ops.PushConfig, *, secrets: bool = True) -> dict[str, Any]:
    written = write_config(config, named=False, secrets=secrets)
    return {"id": config.task_id, "pushNotificationConfig": written}


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
    out: dict[str, Any] = {"id": task.id}
    if task.context_id:
        out["sessionId"] = task.context_id
    metadata = {**task.metadata, **_unsaid(task.state)}
    out["status"] = write_status(replace(task.status, state=_NEAREST.get(task.state, task.state)), _FORM)
    if task.artifacts:
        out["artifacts"] = [_write_artifact(artifact, n) for n, artifact in enumerate(task.artifacts)]
    if task.history:
        out["history"] = [write_message(message, _FORM) for message in task.history]
    if metadata:
        out["metadata"] = metadata
    return out


def _write_artifact(artifact: Artifact, index: int) -> dict[str, Any]:
    out = write_artifact(artifact, _FORM)
    out["index"] = index
    return out


def _unsaid(state: TaskState) -> dict[str, Any]:
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
        artifact["append"] = update.append
        artifact["lastChunk"] = update.last_chunk
        out: dict[str, Any] = {"id": update.task_id, "artifact": artifact}
        if update.metadata:
            out["metadata"] = update.metadata
        return out


def _write_status(update: StatusUpdate, *, last: bool) -> dict[str, Any]:
    state = update.status.state
    out: dict[str, Any] = {"id": update.task_id}
    out["status"] = write_status(replace(update.status, state=_NEAREST.get(state, state)), _FORM)
    out["final"] = last
    metadata = {**update.metadata, **_unsaid(state)}
    if metadata:
        out["metadata"] = metadata
    return out


class _Reader:
    def __init__(self, dialect: V0_1) -> None:
        self._dialect = dialect

    def read(self, result: Any) -> list[Event]:
        return [self._dialect.read_result(ops.STREAM, result)]

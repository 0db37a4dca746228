"""A2A 0.3 over HTTP+JSON, which is the JSON of its protobuf definition, and unlike its JSON-RPC.

How it differs from 0.3 over JSON-RPC:

* A message has its parts in `content`; no `kind` anywhere, a wrapper says what an answer is. States and roles are
  spelled as in 1.0, except for `TASK_STATE_CANCELLED`.
* A message has no `referenceTaskIds`, and readers of protobuf's JSON refuse members they do not know; so these ids are in
  the metadata.
* A request names a resource (`tasks/{id}`, `tasks/{id}/pushNotificationConfigs/{id}`), not an id.
* `configuration.blocking` is false by default; without a `configuration` the caller waits. A history
  length of 0 means all of it.
* A file's bytes are base64 of base64: the Python and Go SDKs put text where bytes belong. JavaScript's does not, so
  what arrives is decoded once more only if it is base64 (of text, only if what comes out is text again).
"""

from __future__ import annotations

from base64 import b64encode
from binascii import a2b_base64
from typing import Any, ClassVar

from dragoman.dialects.legacy_values import (
    REFERENCE,
    JsonForm,
    add_labels,
    box,
    read_config,
    read_event,
    read_message,
    read_task,
    take_labels,
    unbox,
    with_id,
    without_empty,
    write_config,
    write_event,
)
from dragoman.dialects.reading import (
    Malformed,
    an_object,
    flag,
    identifier,
    mapping,
    needed_object,
    number,
    read_base64,
    sequence,
    text,
    under,
)
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import EVENT_MEMBERS
from dragoman.model import ops
from dragoman.model.content import Part, Role
from dragoman.model.ops import Op, Request
from dragoman.model.task import Event, TaskState

_TASKS, _CONFIGS = "tasks/", "/pushNotificationConfigs/"
WHOLE_HISTORY = 2**31 - 1
"""A history length that means all of it, as 0 does. Some peers (a2a-js) read 0 as none of it."""


class ProtoForm(JsonForm, frozen=True, kw_only=True):
    """Content as protobuf has it."""

    tag: str = ""
    content: str = "content"
    related: bool = False

    def role(self, role: Role) -> str:
        return role.value

    def state(self, state: TaskState) -> str:
        return "TASK_STATE_CANCELLED" if state is TaskState.CANCELED else state.value

    def read_part(self, document: dict[str, Any], path: str) -> Part:
        if "kind" in document or "type" in document:
            return super().read_part(document, path)  # as over JSON-RPC
        metadata = mapping(document, "metadata", path)
        found = [member for member in ("text", "file", "data") if member in document]
        match found:
            case ["text"]:
                return take_labels(Part(text=text(document, "text", path), metadata=metadata))
            case ["file"]:
                return _read_file(needed_object(document, "file", path), metadata, under(path, "file"))
            case ["data"]:
                data = needed_object(document, "data", path)
                return unbox(an_object(data.get("data") or {}, under(path, "data.data")), metadata)
        raise Malformed(path, "must have exactly one of text, file and data")

    def write_part(self, part: Part) -> dict[str, Any]:
        metadata = part.metadata
        out: dict[str, Any]
        if part.text is not None:
            out, metadata = {"text": part.text}, add_labels(part)
        elif part.raw is not None or part.url is not None:
            out = {"file": _write_file(part)}
        else:
            boxed = box(part)
            out, metadata = {"data": {"data": boxed.data}}, add_labels(boxed)
        return {**out, **without_empty(metadata=metadata)}


def _read_file(file: dict[str, Any], metadata: dict[str, Any], path: str) -> Part:
    filename, media_type = text(file, "name", path), text(file, "mimeType", path)
    if "fileWithBytes" in file and file.get("fileWithUri"):
        raise Malformed(path, "must not have both fileWithBytes and fileWithUri")
    if "fileWithBytes" in file:
        once = file["fileWithBytes"]
        try:
            if type(once) is not bytes:  # protobuf has them
                once = read_base64(text(file, "fileWithBytes", path))
        except ValueError:
            raise Malformed(under(path, "fileWithBytes"), "is not base64") from None
        return Part(
            raw=file_bytes(once, media_type), filename=filename, media_type=media_type, metadata=metadata
        )
    if "fileWithUri" in file:
        url = text(file, "fileWithUri", path)
        return Part(url=url, filename=filename, media_type=media_type, metadata=metadata)
    reference = {name: file[name] for name in ("name", "mimeType") if file.get(name)}
    return Part(data={"file": reference}, metadata={**metadata, REFERENCE: True})


def file_bytes(content: bytes, media_type: str) -> bytes:
    """The content of a file, decoded if it is encoded. Text is decoded only if the result is text."""
    if len(content) % 4 or not content.isascii():
        return content
    try:
        decoded = a2b_base64(content, strict_mode=True)
        if media_type.startswith("text/"):
            decoded.decode()
    except ValueError:
        return content
    return decoded


def _write_file(part: Part) -> dict[str, Any]:
    out = without_empty(name=part.filename, mimeType=part.media_type)
    if part.raw is None:
        out["fileWithUri"] = part.url
    else:
        out["fileWithBytes"] = b64encode(part.raw)  # encoded again, as all bytes are, when it becomes JSON
    return out


class V0_3Proto(V0_3):
    name = "0.3-proto"
    names_configs = True
    gets_configs_by_id = True
    subscribe_errors_as_events = False

    form = ProtoForm()
    push_member = "pushNotification"
    names: ClassVar[dict[str, str]] = {"message.parts": "message.content"}
    methods: ClassVar[dict[Op, str]] = {
        ops.SEND: "SendMessage",
        ops.STREAM: "SendStreamingMessage",
        ops.GET: "GetTask",
        ops.CANCEL: "CancelTask",
        ops.SUBSCRIBE: "TaskSubscription",
        ops.PUSH_CREATE: "CreateTaskPushNotificationConfig",
        ops.PUSH_GET: "GetTaskPushNotificationConfig",
        ops.PUSH_LIST: "ListTaskPushNotificationConfig",
        ops.PUSH_DELETE: "DeleteTaskPushNotificationConfig",
        ops.EXTENDED_CARD: "GetAgentCard",
    }
    """The names of the operations; over HTTP+JSON it is their paths that count."""

    def _read_request(self, op: Op, document: dict[str, Any]) -> Request:
        if op in (ops.SEND, ops.STREAM, ops.EXTENDED_CARD):
            return super()._read_request(op, document)
        if op is ops.PUSH_CREATE:
            return ops.CreatePushConfig(config=_read_created(document))
        if op is ops.PUSH_LIST:
            return ops.ListPushConfigs(
                task_id=_split_name(document, "parent")[0],
                page_size=number(document, "pageSize", "") or None,
                page_token=text(document, "pageToken", ""),
            )
        if op in (ops.PUSH_GET, ops.PUSH_DELETE):
            task_id, id = _split_name(document, "name")
            if op is ops.PUSH_GET:
                return ops.GetPushConfig(task_id=task_id, id=id)
            return ops.DeletePushConfig(task_id=task_id, id=id)
        task_id = identifier(document, "name", "").removeprefix(_TASKS)
        if op is ops.GET:
            return ops.GetTask(id=task_id, history_length=self._read_length(document))
        return ops.CancelTask(id=task_id) if op is ops.CANCEL else ops.SubscribeToTask(id=task_id)

    def _read_send(self, document: dict[str, Any]) -> ops.SendMessage:
        if "message" not in document and "request" in document:  # the field's own name
            document = {**document, "message": document["request"]}
        return super()._read_send(document)

    def _read_length(self, document: dict[str, Any], path: str = "") -> int | None:
        length = number(document, "historyLength", path)
        return length if length is not None and length != 0 and length < WHOLE_HISTORY else None

    def _returns_immediately(self, document: dict[str, Any], settings: dict[str, Any]) -> bool:
        return "configuration" in document and not flag(settings, "blocking", "configuration")

    def to_document(self, request: Request, *, blocking: bool) -> dict[str, Any]:
        match request:
            case ops.GetTask():
                length = request.history_length
                return {"name": _TASKS + request.id, **({} if length is None else {"historyLength": length})}
            case ops.CancelTask() | ops.SubscribeToTask():
                return {"name": _TASKS + request.id}
            case ops.CreatePushConfig():
                config = request.config
                created = {"parent": _TASKS + config.task_id, "config": self._write_task_config(config)}
                return {**created, **without_empty(configId=config.id)}
            case ops.GetPushConfig() | ops.DeletePushConfig():
                return {"name": f"{_TASKS}{request.task_id}{_CONFIGS if request.id else ''}{request.id}"}
            case ops.ListPushConfigs():
                page = without_empty(pageSize=request.page_size, pageToken=request.page_token)
                return {"parent": _TASKS + request.task_id, **page}
        return super().to_document(request, blocking=True)

    def result_from_document(self, op: Op, document: Any) -> Any:
        if op in (ops.GET, ops.CANCEL):
            return super().result_from_document(op, document)
        document = an_object(document, "")
        if op in (ops.PUSH_CREATE, ops.PUSH_GET):
            return _read_stored(document, "")
        if op is ops.PUSH_LIST:
            configs = sequence(document, "configs", "")
            return ops.PushConfigPage(
                configs=tuple([_read_stored(each, f"configs[{n}]") for n, each in enumerate(configs)]),
                next_page_token=text(document, "nextPageToken", ""),
            )
        return self._event_from_document(document)

    def _event_from_document(self, document: dict[str, Any]) -> Event:
        for member in ("task", "message", "msg", "statusUpdate", "artifactUpdate"):
            if member in document:
                inner = an_object(document[member], member)
                if member == "task":
                    return read_task(inner, member, self.form)
                if member in ("message", "msg"):
                    return with_id(read_message(inner, member, self.form, default=Role.AGENT))
                kind = "status-update" if member == "statusUpdate" else "artifact-update"
                return read_event({**inner, "kind": kind}, member, self.form)
        raise Malformed("it", "has none of task, message, statusUpdate and artifactUpdate")

    def result_to_document(self, op: Op, result: Any) -> Any:
        if op is ops.SEND:
            return self.write_event(result, last=True)
        document = super().result_to_document(op, result)
        if not isinstance(result, ops.PushConfigPage):
            return document
        return {"configs": document, **without_empty(nextPageToken=result.next_page_token)}

    def _write_task_config(self, config: ops.PushConfig) -> dict[str, Any]:
        name = f"{_TASKS}{config.task_id}{_CONFIGS}{config.id}"
        return {"name": name, "pushNotificationConfig": write_config(config)}

    def write_event(self, event: Event, *, last: bool) -> dict[str, Any]:
        return {EVENT_MEMBERS[type(event)]: write_event(event, self.form, last=last)}


def _split_name(document: dict[str, Any], member: str) -> tuple[str, str]:
    """The ids of the task and of the push config in the name of a resource. A name without its collection is a task's id."""
    name = identifier(document, member, "").removeprefix(_TASKS)
    task_id, found, id = name.rpartition(_CONFIGS)
    return (task_id, id) if found else (name.removesuffix(_CONFIGS[:-1]), "")


def _read_created(document: dict[str, Any]) -> ops.PushConfig:
    """What is to be created: wrapped as the request has it, as what is stored, or the bare config. Peers differ."""
    stored = mapping(document, "config", "") or document
    inner = mapping(stored, "pushNotificationConfig", "") or stored
    task_id, id = _split_name(stored, "name")
    id = identifier(document, "configId", "") or inner.get("id") or id
    task_id = _split_name(document, "parent")[0] or task_id
    return read_config({**inner, "id": id}, "pushNotificationConfig", task_id=task_id)


def _read_stored(document: Any, path: str) -> ops.PushConfig:
    document = an_object(document, path)
    task_id, id = _split_name(document, "name")
    inner = needed_object(document, "pushNotificationConfig", path)
    inner = {**inner, "id": inner.get("id") or id}
    return read_config(inner, under(path, "pushNotificationConfig"), task_id=task_id)

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
    boxed,
    label_metadata,
    labelled,
    named,
    read_config,
    read_event,
    read_message,
    read_task,
    unboxed,
    write_config,
    write_event,
    write_message,
    write_task,
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
    strings,
    text,
    under,
)
from dragoman.dialects.v0_3 import V0_3, encode
from dragoman.model import ops
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Op, Request
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState

_TASKS, _CONFIGS = "tasks/", "/pushNotificationConfigs/"
_WRAPPERS: dict[type[Event], str] = {
    Task: "task",
    Message: "message",
    StatusUpdate: "statusUpdate",
    ArtifactUpdate: "artifactUpdate",
}


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
                return labelled(Part(text=text(document, "text", path), metadata=metadata))
            case ["file"]:
                return _read_file(needed_object(document, "file", path), metadata, under(path, "file"))
            case ["data"]:
                data = needed_object(document, "data", path)
                return unboxed(an_object(data.get("data") or {}, under(path, "data.data")), metadata)
        raise Malformed(path, "must have exactly one of text, file and data")

    def write_part(self, part: Part) -> dict[str, Any]:
        metadata = part.metadata
        out: dict[str, Any]
        if part.text is not None:
            out, metadata = {"text": part.text}, label_metadata(part)
        elif part.raw is not None or part.url is not None:
            out = {"file": _write_file(part)}
        else:
            box = boxed(part)
            out, metadata = {"data": {"data": box.data}}, label_metadata(box)
        return {**out, "metadata": metadata} if metadata else out


def _read_file(file: dict[str, Any], metadata: dict[str, Any], path: str) -> Part:
    filename, media_type = text(file, "name", path), text(file, "mimeType", path)
    if "fileWithBytes" in file and file.get("fileWithUri"):
        raise Malformed(path, "must not have both fileWithBytes and fileWithUri")
    if "fileWithBytes" in file:
        try:
            once = read_base64(text(file, "fileWithBytes", path))
        except ValueError:
            raise Malformed(under(path, "fileWithBytes"), "is not base64") from None
        return Part(
            raw=file_bytes(once, media_type), filename=filename, media_type=media_type, metadata=metadata
        )
    if "fileWithUri" in file:
        url = text(file, "fileWithUri", path)
        return Part(url=url, filename=filename, media_type=media_type, metadata=metadata)
    reference = {name: file[name] for name in ("name", "mimeType") if name in file}
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
    out: dict[str, Any] = {"name": part.filename} if part.filename else {}
    if part.media_type:
        out["mimeType"] = part.media_type
    if part.raw is None:
        out["fileWithUri"] = part.url
    else:
        out["fileWithBytes"] = b64encode(part.raw)  # encoded again, as all bytes are, when it becomes JSON
    return out


class V0_3Proto(V0_3):
    name = "0.3-proto"
    names_configs = True
    subscribe_errors_as_events = False

    form = ProtoForm()
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
        if op in (ops.SEND, ops.STREAM):
            return self._read_send(document)
        if op is ops.EXTENDED_CARD:
            return ops.GetExtendedCard()
        if op is ops.PUSH_CREATE:
            return ops.CreatePushConfig(config=_read_created(document))
        if op is ops.PUSH_LIST:
            return ops.ListPushConfigs(
                task_id=_task_of(document, "parent"),
                page_size=number(document, "pageSize", "") or None,
                page_token=text(document, "pageToken", ""),
            )
        if op in (ops.PUSH_GET, ops.PUSH_DELETE):
            task_id, _, id = _task_of(document, "name").rpartition(_CONFIGS)
            if op is ops.PUSH_GET:
                return ops.GetPushConfig(task_id=task_id, id=id)
            return ops.DeletePushConfig(task_id=task_id, id=id)
        task_id = _task_of(document, "name")
        if op is ops.GET:
            return ops.GetTask(id=task_id, history_length=number(document, "historyLength", "") or None)
        return ops.CancelTask(id=task_id) if op is ops.CANCEL else ops.SubscribeToTask(id=task_id)

    def _read_send(self, document: dict[str, Any]) -> ops.SendMessage:
        if "message" not in document and "request" in document:  # the field's own name
            document = {**document, "message": document["request"]}
        settings = mapping(document, "configuration", "")
        push = mapping(settings, "pushNotification", "configuration")
        return ops.SendMessage(
            message=read_message(needed_object(document, "message", ""), "message", self.form),
            configuration=ops.Configuration(
                accepted_output_modes=strings(settings, "acceptedOutputModes", "configuration"),
                history_length=number(settings, "historyLength", "configuration") or None,
                return_immediately="configuration" in document
                and not flag(settings, "blocking", "configuration"),
                task_push_notification_config=read_config(push, "configuration.pushNotification")
                if push
                else None,
            ),
            metadata=mapping(document, "metadata", ""),
        )

    def _write_request(self, request: Request, *, blocking: bool) -> dict[str, Any]:
        match request:
            case ops.SendMessage():
                return self._write_send(request, blocking=blocking)
            case ops.GetTask():
                length = request.history_length
                return {"name": _TASKS + request.id, **({} if length is None else {"historyLength": length})}
            case ops.CancelTask() | ops.SubscribeToTask():
                return {"name": _TASKS + request.id}
            case ops.CreatePushConfig():
                config = request.config
                created = {"parent": _TASKS + config.task_id, "config": self._write_task_config(config)}
                return {**created, "configId": config.id} if config.id else created
            case ops.GetPushConfig() | ops.DeletePushConfig():
                return {"name": f"{_TASKS}{request.task_id}{_CONFIGS}{request.id}"}
            case ops.ListPushConfigs():
                page = {"pageSize": request.page_size, "pageToken": request.page_token}
                return {
                    "parent": _TASKS + request.task_id,
                    **{name: each for name, each in page.items() if each},
                }
        return {}

    def _write_send(self, request: ops.SendMessage, *, blocking: bool) -> dict[str, Any]:
        out: dict[str, Any] = {"message": write_message(request.message, self.form)}
        stated = request.configuration
        settings: dict[str, Any] = {"blocking": not stated.return_immediately}
        if stated.accepted_output_modes:
            settings["acceptedOutputModes"] = stated.accepted_output_modes
        if stated.history_length is not None:
            settings["historyLength"] = stated.history_length
        if stated.task_push_notification_config is not None:
            settings["pushNotification"] = write_config(stated.task_push_notification_config)
        out["configuration"] = settings
        if request.metadata:
            out["metadata"] = request.metadata
        return out

    def _read_result(self, op: Op, document: Any) -> Any:
        if op in (ops.GET, ops.CANCEL):
            return read_task(document, "", self.form)
        document = an_object(document, "")
        if op in (ops.PUSH_CREATE, ops.PUSH_GET):
            return _read_stored(document, "")
        if op is ops.PUSH_LIST:
            configs = sequence(document, "configs", "")
            return ops.PushConfigPage(
                configs=tuple([_read_stored(each, f"configs[{n}]") for n, each in enumerate(configs)]),
                next_page_token=text(document, "nextPageToken", ""),
            )
        return self._read_event(document)

    def _read_event(self, document: dict[str, Any]) -> Event:
        for member in ("task", "message", "msg", "statusUpdate", "artifactUpdate"):
            if member in document:
                inner = an_object(document[member], member)
                if member == "task":
                    return read_task(inner, member, self.form)
                if member in ("message", "msg"):
                    return named(read_message(inner, member, self.form, default=Role.AGENT))
                kind = "status-update" if member == "statusUpdate" else "artifact-update"
                return read_event({**inner, "kind": kind}, member, self.form)
        raise Malformed("it", "has none of task, message, statusUpdate and artifactUpdate")

    def write_result(self, op: Op, result: Any, request: Request | None = None) -> bytes:
        if op is ops.SEND:
            return encode(self.write_event(result, last=True))
        if isinstance(result, Task):
            return encode(write_task(result, self.form))
        if isinstance(result, ops.PushConfigPage):
            page: dict[str, Any] = {"configs": [self._write_task_config(each) for each in result.configs]}
            return encode(
                {**page, "nextPageToken": result.next_page_token} if result.next_page_token else page
            )
        return super().write_result(op, result, request)

    def _write_task_config(self, config: ops.PushConfig) -> dict[str, Any]:
        name = f"{_TASKS}{config.task_id}{_CONFIGS}{config.id}"
        return {"name": name, "pushNotificationConfig": write_config(config)}

    def write_event(self, event: Event, *, last: bool) -> dict[str, Any]:
        return {_WRAPPERS[type(event)]: write_event(event, self.form, last=last)}


def _task_of(document: dict[str, Any], member: str) -> str:
    """The id in a resource's name; a name without its collection is taken for the id."""
    return identifier(document, member, "").removeprefix(_TASKS)


def _read_created(document: dict[str, Any]) -> ops.PushConfig:
    """What is to be created: wrapped as the request has it, as what is stored, or the bare config. Peers differ."""
    stored = mapping(document, "config", "") or document
    inner = mapping(stored, "pushNotificationConfig", "") or stored
    id = identifier(document, "configId", "")
    if not id:
        _, _, id = text(stored, "name", "").rpartition(_CONFIGS)
    config = read_config({**inner, "id": inner.get("id") or id}, "pushNotificationConfig")
    task_id = _task_of(document, "parent") or _task_of(stored, "name").rpartition(_CONFIGS)[0]
    return ops.PushConfig(
        id=config.id,
        task_id=task_id,
        url=config.url,
        token=config.token,
        authentication=config.authentication,
    )


def _read_stored(document: Any, path: str) -> ops.PushConfig:
    document = an_object(document, path)
    task_id, _, id = text(document, "name", path).removeprefix(_TASKS).rpartition(_CONFIGS)
    inner = needed_object(document, "pushNotificationConfig", path)
    inner = {**inner, "id": inner.get("id") or id}
    return read_config(inner, under(path, "pushNotificationConfig"), task_id=task_id)

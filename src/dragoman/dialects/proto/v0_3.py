"""A2A 0.3 in protobuf: `a2a.v1`.

How it differs from 1.0:

* A request names a resource, `tasks/{id}` or `tasks/{id}/pushNotificationConfigs/{id}`, not an id.
* A file is a part with a `file` in it; data is always an object (anything else is boxed).
* A file's bytes are base64 inside a field that could have held the bytes themselves: the Python and Go SDKs do that.
  JavaScript's does not, so what arrives is only decoded if it is base64.
* `configuration.blocking` is false by default; without a `configuration` the caller waits.
* A history length of 0 means all of it. Some peers (a2a-js) read it as none of it, so all of it is asked for with the largest
  number.
* The last status update of a stream says `final`.
"""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import Any

from dragoman.dialects.legacy_values import REFERENCE, boxed, label_metadata, labelled, unboxed
from dragoman.dialects.proto import cards, tasks
from dragoman.dialects.proto.codec import Codec, MessageForm
from dragoman.dialects.proto.messages import V0_3, Empty
from dragoman.dialects.proto.tasks import Shape, read_metadata
from dragoman.dialects.proto.values import read_struct, write_struct
from dragoman.dialects.reading import Malformed
from dragoman.dialects.v0_3_proto import V0_3Proto, file_bytes
from dragoman.model import ops
from dragoman.model.content import Part

# --- parts


def _read_part(message: Any, path: str) -> Part:
    metadata = read_metadata(message, path)
    kind = message.WhichOneof("part")
    if kind == "text":
        return labelled(Part(text=message.text, metadata=metadata))
    if kind == "file":
        return _read_file(message.file, metadata)
    if kind == "data":
        return unboxed(read_struct(message.data.data, f"{path}.data"), metadata)
    raise Malformed(path, "must have one of text, file and data")


def _read_file(file: Any, metadata: dict[str, Any]) -> Part:
    match file.WhichOneof("file"):
        case "file_with_uri":
            return Part(
                url=file.file_with_uri, filename=file.name, media_type=file.mime_type, metadata=metadata
            )
        case "file_with_bytes":
            raw = file_bytes(file.file_with_bytes, file.mime_type)
            return Part(raw=raw, filename=file.name, media_type=file.mime_type, metadata=metadata)
    stated = {"name": file.name, "mimeType": file.mime_type}
    reference = {name: value for name, value in stated.items() if value}
    return Part(data={"file": reference}, metadata={**metadata, REFERENCE: True})


def _write_part(message: Any, value: Part) -> None:
    metadata = value.metadata
    if value.text is not None:
        message.text = value.text
        metadata = label_metadata(value)
    elif value.raw is not None or value.url is not None:
        file = message.file
        if value.raw is not None:
            file.file_with_bytes = b64encode(value.raw)
        else:
            file.file_with_uri = value.url
        file.mime_type, file.name = value.media_type, value.filename
    else:
        box = boxed(value)
        message.data.data.SetInParent()  # an empty object, too, is there
        write_struct(message.data.data, box.data)
        metadata = label_metadata(box)
    if metadata:
        write_struct(message.metadata, metadata)


SHAPE = Shape("content", "update", "msg", False, _read_part, _write_part)

# --- resource names

_TASKS, _CONFIGS = "tasks/", "/pushNotificationConfigs"


def _read_name(name: str, path: str) -> tuple[str, str]:
    """The task and the push configuration that a resource name names; a bare id is a task's."""
    task, _, config = name.partition(_CONFIGS)
    task, config = task.removeprefix(_TASKS), config.removeprefix("/")
    if not task:
        raise Malformed(path, "must be like tasks/{id}")
    return task, config


def _read_task_name(name: str, path: str) -> str:
    task = name.removeprefix(_TASKS)
    if not task:
        raise Malformed(path, "must be like tasks/{id}")
    return task


def _name(task: str, config: str = "") -> str:
    return f"{_TASKS}{task}{_CONFIGS}/{config}" if config else f"{_TASKS}{task}"


# --- push configurations


def _read_config(message: Any, task: str = "", config: str = "") -> ops.PushConfig:
    authentication = message.authentication
    return ops.PushConfig(
        url=message.url,
        id=config or message.id,
        task_id=task,
        token=message.token,
        authentication=ops.AuthenticationInfo(
            scheme=authentication.schemes[0] if authentication.schemes else "",
            credentials=authentication.credentials,
            others=tuple(authentication.schemes[1:]),
        )
        if authentication.schemes or authentication.credentials
        else None,
    )


def _write_config(message: Any, value: ops.PushConfig) -> None:
    message.id, message.url, message.token = value.id, value.url, value.token
    if value.authentication is not None:
        message.authentication.schemes.extend((value.authentication.scheme, *value.authentication.others))
        message.authentication.credentials = value.authentication.credentials


def _read_task_config(message: Any) -> ops.PushConfig:
    task, config = _read_name(message.name, "name")
    return _read_config(message.push_notification_config, task, message.push_notification_config.id or config)


def _write_task_config(message: Any, value: ops.PushConfig) -> None:
    message.name = f"{_TASKS}{value.task_id}{_CONFIGS}/{value.id}"
    _write_config(message.push_notification_config, value)


def _read_configs(message: Any) -> ops.PushConfigPage:
    return ops.PushConfigPage(
        configs=tuple(map(_read_task_config, message.configs)), next_page_token=message.next_page_token
    )


def _write_configs(message: Any, value: ops.PushConfigPage) -> None:
    for config in value.configs:
        _write_task_config(message.configs.add(), config)
    message.next_page_token = value.next_page_token


# --- requests

_ALL = 2**31 - 1


def _read_length(number: int) -> int | None:
    return number if 0 < number < _ALL else None


def _read_send(message: Any) -> ops.SendMessage:
    if not message.HasField("request"):
        raise Malformed("message", "is missing")
    stated = message.configuration
    push = stated.HasField("push_notification")
    return ops.SendMessage(
        message=tasks.read_sent(message.request, "message", SHAPE),
        configuration=ops.Configuration(
            accepted_output_modes=tuple(stated.accepted_output_modes),
            task_push_notification_config=_read_config(stated.push_notification) if push else None,
            history_length=_read_length(stated.history_length),
            return_immediately=message.HasField("configuration") and not stated.blocking,
        ),
        metadata=read_metadata(message, "params"),
    )


def _write_send(message: Any, value: ops.SendMessage) -> None:
    stated = value.configuration
    tasks.write_message(message.request, value.message, SHAPE)
    settings = message.configuration
    settings.SetInParent()
    settings.blocking = not stated.return_immediately
    settings.accepted_output_modes.extend(stated.accepted_output_modes)
    settings.history_length = stated.history_length or _ALL
    if stated.task_push_notification_config is not None:
        _write_config(settings.push_notification, stated.task_push_notification_config)
    if value.metadata:
        write_struct(message.metadata, value.metadata)


def _read_get(message: Any) -> ops.GetTask:
    return ops.GetTask(
        id=_read_task_name(message.name, "name"), history_length=_read_length(message.history_length)
    )


def _write_get(message: Any, value: ops.GetTask) -> None:
    message.name, message.history_length = _name(value.id), value.history_length or _ALL


def _read_cancel(message: Any) -> ops.CancelTask:
    return ops.CancelTask(id=_read_task_name(message.name, "name"))


def _read_subscribe(message: Any) -> ops.SubscribeToTask:
    return ops.SubscribeToTask(id=_read_task_name(message.name, "name"))


def _write_task_name(message: Any, value: ops.CancelTask | ops.SubscribeToTask) -> None:
    message.name = _name(value.id)


def _read_create(message: Any) -> ops.CreatePushConfig:
    task, config = _read_name(message.parent or message.config.name, "parent")
    config = message.config_id or message.config.push_notification_config.id or config
    return ops.CreatePushConfig(config=_read_config(message.config.push_notification_config, task, config))


def _write_create(message: Any, value: ops.CreatePushConfig) -> None:
    message.parent, message.config_id = _name(value.config.task_id), value.config.id
    _write_task_config(message.config, value.config)


def _read_get_config(message: Any) -> ops.GetPushConfig:
    task, config = _read_name(message.name, "name")
    return ops.GetPushConfig(task_id=task, id=config)


def _read_delete(message: Any) -> ops.DeletePushConfig:
    task, config = _read_name(message.name, "name")
    return ops.DeletePushConfig(task_id=task, id=config)


def _write_config_name(message: Any, value: ops.GetPushConfig | ops.DeletePushConfig) -> None:
    message.name = _name(value.task_id, value.id)


def _read_list_configs(message: Any) -> ops.ListPushConfigs:
    return ops.ListPushConfigs(
        task_id=_read_name(message.parent, "parent")[0],
        page_size=message.page_size or None,
        page_token=message.page_token,
    )


def _write_list_configs(message: Any, value: ops.ListPushConfigs) -> None:
    message.parent = _name(value.task_id)
    message.page_size, message.page_token = value.page_size or 0, value.page_token


def _read_extended(message: Any) -> ops.GetExtendedCard:
    return ops.GetExtendedCard()


def _nothing(*_: Any) -> None:
    return None


_SEND = MessageForm(V0_3.SendMessageRequest, _read_send, _write_send)
_TASK = MessageForm(V0_3.Task, partial(tasks.read_task, shape=SHAPE), partial(tasks.write_task, shape=SHAPE))
_CONFIG = MessageForm(V0_3.TaskPushNotificationConfig, _read_task_config, _write_task_config)
_read_event, _write_event = partial(tasks.read_event, shape=SHAPE), partial(tasks.write_event, shape=SHAPE)

CODEC = Codec(
    name="0.3-proto",
    version="0.3",
    service="a2a.v1.A2AService",
    methods=V0_3Proto.methods,
    requests={
        ops.SEND: _SEND,
        ops.STREAM: _SEND,
        ops.GET: MessageForm(V0_3.GetTaskRequest, _read_get, _write_get),
        ops.CANCEL: MessageForm(V0_3.CancelTaskRequest, _read_cancel, _write_task_name),
        ops.SUBSCRIBE: MessageForm(V0_3.TaskSubscriptionRequest, _read_subscribe, _write_task_name),
        ops.PUSH_CREATE: MessageForm(
            V0_3.CreateTaskPushNotificationConfigRequest, _read_create, _write_create
        ),
        ops.PUSH_GET: MessageForm(
            V0_3.GetTaskPushNotificationConfigRequest, _read_get_config, _write_config_name
        ),
        ops.PUSH_LIST: MessageForm(
            V0_3.ListTaskPushNotificationConfigRequest, _read_list_configs, _write_list_configs
        ),
        ops.PUSH_DELETE: MessageForm(
            V0_3.DeleteTaskPushNotificationConfigRequest, _read_delete, _write_config_name
        ),
        ops.EXTENDED_CARD: MessageForm(V0_3.GetAgentCardRequest, _read_extended, _nothing),
    },
    results={
        ops.SEND: MessageForm(V0_3.SendMessageResponse, _read_event, _write_event),
        ops.GET: _TASK,
        ops.CANCEL: _TASK,
        ops.PUSH_CREATE: _CONFIG,
        ops.PUSH_GET: _CONFIG,
        ops.PUSH_LIST: MessageForm(
            V0_3.ListTaskPushNotificationConfigResponse, _read_configs, _write_configs
        ),
        ops.PUSH_DELETE: MessageForm(Empty, _nothing, _nothing),
        ops.EXTENDED_CARD: MessageForm(V0_3.AgentCard, cards.read_card, cards.write_0_3),
    },
    event=MessageForm(V0_3.StreamResponse, _read_event, _write_event),
    marks_last=True,
)

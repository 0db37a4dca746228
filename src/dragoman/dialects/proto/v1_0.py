"""A2A 1.0 in protobuf: `lf.a2a.v1`."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dragoman.dialects.proto import cards, tasks
from dragoman.dialects.proto.codec import Codec, MessageForm
from dragoman.dialects.proto.messages import V1_0, Empty
from dragoman.dialects.proto.tasks import Shape, read_metadata
from dragoman.dialects.proto.values import (
    read_moment,
    read_value,
    write_moment,
    write_struct,
    write_value,
)
from dragoman.dialects.reading import Malformed
from dragoman.model import ops
from dragoman.model.content import Part


def _read_part(message: Any, path: str) -> Part:
    kind = message.WhichOneof("content")
    return Part(
        text=message.text if kind == "text" else None,
        raw=message.raw if kind == "raw" else None,
        url=message.url if kind == "url" else None,
        data=read_value(message.data, f"{path}.data") if kind == "data" else UNSET,
        media_type=message.media_type,
        filename=message.filename,
        metadata=read_metadata(message, path),
    )


def _write_part(message: Any, value: Part) -> None:
    if value.text is not None:
        message.text = value.text
    elif value.raw is not None:
        message.raw = value.raw
    elif value.url is not None:
        message.url = value.url
    elif value.data is not UNSET:
        write_value(message.data, value.data)
    if value.media_type:
        message.media_type = value.media_type
    if value.filename:
        message.filename = value.filename
    if value.metadata:
        write_struct(message.metadata, value.metadata)


SHAPE = Shape("parts", "message", "message", True, _read_part, _write_part)

# --- push configurations


def _read_config(message: Any) -> ops.PushConfig:
    authentication = message.authentication
    return ops.PushConfig(
        url=message.url,
        id=message.id,
        task_id=message.task_id,
        token=message.token,
        authentication=ops.AuthenticationInfo(
            scheme=authentication.scheme, credentials=authentication.credentials
        )
        if message.HasField("authentication")
        else None,
        tenant=message.tenant,
    )


def _write_config(message: Any, value: ops.PushConfig) -> None:
    message.url, message.id, message.task_id = value.url, value.id, value.task_id
    message.token, message.tenant = value.token, value.tenant
    if value.authentication is not None:
        message.authentication.scheme = value.authentication.scheme
        message.authentication.credentials = value.authentication.credentials


def _read_configs(message: Any) -> ops.PushConfigPage:
    return ops.PushConfigPage(
        configs=tuple(map(_read_config, message.configs)), next_page_token=message.next_page_token
    )


def _write_configs(message: Any, value: ops.PushConfigPage) -> None:
    for config in value.configs:
        _write_config(message.configs.add(), config)
    message.next_page_token = value.next_page_token


# --- requests


def _read_send(message: Any) -> ops.SendMessage:
    stated = message.configuration
    push = stated.HasField("task_push_notification_config")
    if not message.HasField("message"):
        raise Malformed("message", "is missing")
    return ops.SendMessage(
        tenant=message.tenant,
        message=tasks.read_sent(message.message, "message", SHAPE),
        configuration=ops.Configuration(
            accepted_output_modes=tuple(stated.accepted_output_modes),
            task_push_notification_config=_read_config(stated.task_push_notification_config)
            if push
            else None,
            history_length=_read_optional(stated, "history_length"),
            return_immediately=stated.return_immediately,
        ),
        metadata=read_metadata(message, "params"),
    )


def _write_send(message: Any, value: ops.SendMessage) -> None:
    stated = value.configuration
    if value.tenant:
        message.tenant = value.tenant
    tasks.write_message(message.message, value.message, SHAPE)
    if stated != ops.Configuration():
        message.configuration.accepted_output_modes.extend(stated.accepted_output_modes)
        message.configuration.return_immediately = stated.return_immediately
        _write_optional(message.configuration, "history_length", stated.history_length)
        if stated.task_push_notification_config is not None:
            _write_config(
                message.configuration.task_push_notification_config, stated.task_push_notification_config
            )
    if value.metadata:
        write_struct(message.metadata, value.metadata)


def _read_get(message: Any) -> ops.GetTask:
    return ops.GetTask(
        tenant=message.tenant, id=message.id, history_length=_read_optional(message, "history_length")
    )


def _write_get(message: Any, value: ops.GetTask) -> None:
    message.tenant, message.id = value.tenant, value.id
    _write_optional(message, "history_length", value.history_length)


def _read_list(message: Any) -> ops.ListTasks:
    after = message.status_timestamp_after
    return ops.ListTasks(
        tenant=message.tenant,
        context_id=message.context_id,
        status=tasks.read_state(message.status, "status"),
        page_size=_read_optional(message, "page_size"),
        page_token=message.page_token,
        history_length=_read_optional(message, "history_length"),
        status_timestamp_after=read_moment(after, "statusTimestampAfter")
        if message.HasField("status_timestamp_after")
        else "",
        include_artifacts=message.include_artifacts,
    )


def _write_list(message: Any, value: ops.ListTasks) -> None:
    message.tenant, message.context_id, message.page_token = value.tenant, value.context_id, value.page_token
    message.status = tasks.STATE_NUMBERS[value.status]
    _write_optional(message, "page_size", value.page_size)
    _write_optional(message, "history_length", value.history_length)
    if value.status_timestamp_after:
        write_moment(message.status_timestamp_after, value.status_timestamp_after)
    if value.include_artifacts:
        message.include_artifacts = True


def _read_cancel(message: Any) -> ops.CancelTask:
    return ops.CancelTask(tenant=message.tenant, id=message.id, metadata=read_metadata(message, "params"))


def _write_cancel(message: Any, value: ops.CancelTask) -> None:
    message.tenant, message.id = value.tenant, value.id
    if value.metadata:
        write_struct(message.metadata, value.metadata)


def _read_subscribe(message: Any) -> ops.SubscribeToTask:
    return ops.SubscribeToTask(tenant=message.tenant, id=message.id)


def _write_subscribe(message: Any, value: ops.SubscribeToTask) -> None:
    message.tenant, message.id = value.tenant, value.id


def _read_create(message: Any) -> ops.CreatePushConfig:
    return ops.CreatePushConfig(config=_read_config(message), tenant=message.tenant)


def _write_create(message: Any, value: ops.CreatePushConfig) -> None:
    _write_config(message, replace(value.config, tenant=value.tenant or value.config.tenant))


def _read_get_config(message: Any) -> ops.GetPushConfig:
    if not message.id:
        raise Malformed("id", "must not be empty")
    return ops.GetPushConfig(tenant=message.tenant, task_id=message.task_id, id=message.id)


def _read_delete(message: Any) -> ops.DeletePushConfig:
    return ops.DeletePushConfig(tenant=message.tenant, task_id=message.task_id, id=message.id)


def _write_one_config(message: Any, value: ops.GetPushConfig | ops.DeletePushConfig) -> None:
    message.tenant, message.task_id, message.id = value.tenant, value.task_id, value.id


def _read_list_configs(message: Any) -> ops.ListPushConfigs:
    return ops.ListPushConfigs(
        tenant=message.tenant,
        task_id=message.task_id,
        page_size=message.page_size or None,
        page_token=message.page_token,
    )


def _write_list_configs(message: Any, value: ops.ListPushConfigs) -> None:
    message.tenant, message.task_id = value.tenant, value.task_id
    message.page_size, message.page_token = value.page_size or 0, value.page_token


def _read_extended(message: Any) -> ops.GetExtendedCard:
    return ops.GetExtendedCard(tenant=message.tenant)


def _write_extended(message: Any, value: ops.GetExtendedCard) -> None:
    message.tenant = value.tenant


def _read_optional(message: Any, name: str) -> int | None:
    return getattr(message, name) if message.HasField(name) else None


def _write_optional(message: Any, name: str, value: int | None) -> None:
    if value is not None:
        setattr(message, name, value)


# --- results


def _read_page(message: Any) -> ops.TaskPage:
    return ops.TaskPage(
        tasks=tuple([tasks.read_task(task, SHAPE) for task in message.tasks]),
        next_page_token=message.next_page_token,
        page_size=message.page_size,
        total_size=message.total_size,
    )


def _write_page(message: Any, value: ops.TaskPage) -> None:
    for task in value.tasks:
        tasks.write_task(message.tasks.add(), task, SHAPE)
    message.next_page_token = value.next_page_token
    message.page_size, message.total_size = value.page_size, value.total_size


def _nothing(*_: Any) -> None:
    return None


_SEND = MessageForm(V1_0.SendMessageRequest, _read_send, _write_send)
_TASK = MessageForm(V1_0.Task, partial(tasks.read_task, shape=SHAPE), partial(tasks.write_task, shape=SHAPE))
_CONFIG = MessageForm(V1_0.TaskPushNotificationConfig, _read_config, _write_config)
_read_event, _write_event = partial(tasks.read_event, shape=SHAPE), partial(tasks.write_event, shape=SHAPE)

CODEC = Codec(
    name="1.0",
    version="1.0",
    service="lf.a2a.v1.A2AService",
    methods={op: op.name for op in ops.OPS.values()},
    requests={
        ops.SEND: _SEND,
        ops.STREAM: _SEND,
        ops.GET: MessageForm(V1_0.GetTaskRequest, _read_get, _write_get),
        ops.LIST: MessageForm(V1_0.ListTasksRequest, _read_list, _write_list),
        ops.CANCEL: MessageForm(V1_0.CancelTaskRequest, _read_cancel, _write_cancel),
        ops.SUBSCRIBE: MessageForm(V1_0.SubscribeToTaskRequest, _read_subscribe, _write_subscribe),
        ops.PUSH_CREATE: MessageForm(V1_0.TaskPushNotificationConfig, _read_create, _write_create),
        ops.PUSH_GET: MessageForm(
            V1_0.GetTaskPushNotificationConfigRequest, _read_get_config, _write_one_config
        ),
        ops.PUSH_LIST: MessageForm(
            V1_0.ListTaskPushNotificationConfigsRequest, _read_list_configs, _write_list_configs
        ),
        ops.PUSH_DELETE: MessageForm(
            V1_0.DeleteTaskPushNotificationConfigRequest, _read_delete, _write_one_config
        ),
        ops.EXTENDED_CARD: MessageForm(V1_0.GetExtendedAgentCardRequest, _read_extended, _write_extended),
    },
    results={
        ops.SEND: MessageForm(V1_0.SendMessageResponse, _read_event, _write_event),
        ops.GET: _TASK,
        ops.LIST: MessageForm(V1_0.ListTasksResponse, _read_page, _write_page),
        ops.CANCEL: _TASK,
        ops.PUSH_CREATE: _CONFIG,
        ops.PUSH_GET: _CONFIG,
        ops.PUSH_LIST: MessageForm(
            V1_0.ListTaskPushNotificationConfigsResponse, _read_configs, _write_configs
        ),
        ops.PUSH_DELETE: MessageForm(Empty, _nothing, _nothing),
        ops.EXTENDED_CARD: MessageForm(V1_0.AgentCard, cards.read_card, cards.write_1_0),
    },
    event=MessageForm(V1_0.StreamResponse, _read_event, _write_event),
)

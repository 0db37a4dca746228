"""The rules for requests that all versions share, beyond the types of members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from msgspec.structs import replace

from dragoman.errors import InvalidParams
from dragoman.model import ops
from dragoman.model.content import Role
from dragoman.model.ids import read_timestamp
from dragoman.model.ops import Request

MAX_PAGE_SIZE = 100
MAX_ID_LENGTH = 512
"""Characters in the id of a task or a context, which every event repeats."""
MAX_PARTS = 1000
"""Parts in a message. Each costs far more than its bytes: here, in the log, and for readers of the task."""
MAX_MEMBERS = 10_000
"""Members and items that a request in the versions before 1.0, or in a lenient spelling, has outside `metadata` and `data`:
these are read one by one, in Python.
"""
MAX_MODES = 1000
"""Output modes that a sender accepts. Each is compared with those of the skill."""
TOO_MANY_PARTS = f"must not be more than {MAX_PARTS}"


def refuse(path: str, why: str) -> NoReturn:
    raise InvalidParams(f"{path} {why}", fields=((path, why),))


def checked(request: Request) -> Request:
    """The request. Raises `InvalidParams` if it makes no sense."""
    check = _CHECKS.get(type(request))
    return request if check is None else check(request) or request


def checked_as(request: Request, names: Mapping[str, str]) -> Request:
    """`checked` for a version with other names of some members: errors have its names."""
    try:
        return checked(request)
    except InvalidParams as error:
        for path, why in error.fields:
            for ours, theirs in names.items():
                if path.startswith(ours):
                    refuse(theirs + path.removeprefix(ours), why)
        raise


def _check_send(request: ops.SendMessage) -> None:
    message, configuration = request.message, request.configuration
    if len(message.task_id) > MAX_ID_LENGTH:
        refuse("message.taskId", f"is longer than {MAX_ID_LENGTH} characters")
    if len(message.context_id) > MAX_ID_LENGTH:
        refuse("message.contextId", f"is longer than {MAX_ID_LENGTH} characters")
    if not message.message_id:
        refuse("message.messageId", "must not be empty")
    if message.role is Role.UNSPECIFIED:
        refuse("message.role", "must be given")
    if not message.parts:
        refuse("message.parts", "must not be empty")
    if len(message.parts) > MAX_PARTS:
        refuse("message.parts", TOO_MANY_PARTS)
    for n, part in enumerate(message.parts):
        if part.contents != 1:
            why = "must have exactly one of text, raw, url and data"
            refuse(f"message.parts[{n}]", why)
    if configuration.history_length is not None:
        _check_history(configuration.history_length, "configuration.historyLength")
    if len(configuration.accepted_output_modes) > MAX_MODES:
        refuse("configuration.acceptedOutputModes", f"must not be more than {MAX_MODES}")
    config = configuration.task_push_notification_config
    if config is not None:
        _check_present(config.url, "configuration.taskPushNotificationConfig.url")


def _check_present(value: str, path: str) -> None:
    if not value:
        refuse(path, "must not be empty")


def _check_history(length: int, path: str) -> None:
    if length < 0:
        refuse(path, "must not be negative")


def _moment(text: str) -> str:
    try:
        return read_timestamp(text)
    except ValueError:
        refuse("statusTimestampAfter", "is not an ISO 8601 timestamp")


def _check_get(request: ops.GetTask) -> None:
    if not request.id:
        refuse("id", "must not be empty")
    if request.history_length is not None:
        _check_history(request.history_length, "historyLength")


def _check_id(request: ops.CancelTask | ops.SubscribeToTask) -> None:
    _check_present(request.id, "id")


def _check_list(request: ops.ListTasks) -> ops.ListTasks:
    if request.history_length is not None:
        _check_history(request.history_length, "historyLength")
    if request.page_size is not None and not 1 <= request.page_size <= MAX_PAGE_SIZE:
        refuse("pageSize", f"must be from 1 to {MAX_PAGE_SIZE}")
    if request.status_timestamp_after:
        return replace(request, status_timestamp_after=_moment(request.status_timestamp_after))
    return request


def _check_create_config(request: ops.CreatePushConfig) -> None:
    _check_present(request.config.task_id, "taskId")
    _check_present(request.config.url, "url")


def _check_get_config(request: ops.GetPushConfig) -> None:
    _check_present(request.task_id, "taskId")


def _check_delete_config(request: ops.DeletePushConfig) -> None:
    _check_present(request.task_id, "taskId")
    _check_present(request.id, "id")


def _check_list_configs(request: ops.ListPushConfigs) -> None:
    _check_present(request.task_id, "taskId")
    if request.page_size is not None and request.page_size < 0:
        refuse("pageSize", "must not be negative")


_CHECKS: dict[type[Request], Callable[[Any], Request | None]] = {
    ops.SendMessage: _check_send,
    ops.GetTask: _check_get,
    ops.CancelTask: _check_id,
    ops.SubscribeToTask: _check_id,
    ops.ListTasks: _check_list,
    ops.CreatePushConfig: _check_create_config,
    ops.GetPushConfig: _check_get_config,
    ops.DeletePushConfig: _check_delete_config,
    ops.ListPushConfigs: _check_list_configs,
}

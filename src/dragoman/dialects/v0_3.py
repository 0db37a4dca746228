"""A2A 0.3 over JSON-RPC, and 0.2, which differs little.

How it differs from 1.0:

* Methods are `message/send`, `tasks/get` ...; there is no way to list tasks.
* Nothing is wrapped: a `kind` member says what an object is. States and roles are words (`input-required`, `user`).
* A file is a part with a `file` in it; data is always an object (anything else is boxed).
* The last status update of a stream says `final: true`.
* `configuration.blocking: false` is what 1.0 calls `returnImmediately`; push configs are nested and may have several
  authentication schemes (we use the first).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from dragoman.dialects import cards
from dragoman.dialects.dialect import Dialect, EventWriter
from dragoman.dialects.legacy_values import (
    JsonForm,
    read_config,
    read_event,
    read_message,
    read_task,
    read_task_config,
    read_task_configs,
    status_of,
    without_empty,
    write_config,
    write_event,
    write_message,
    write_task,
)
from dragoman.dialects.reading import (
    Malformed,
    check_as,
    flag,
    identifier,
    mapping,
    needed,
    needed_object,
    normalize,
    number,
    read_params,
    strings,
    task_id_of,
)
from dragoman.errors import InvalidAgentResponse
from dragoman.model import ops
from dragoman.model.card import AgentCard
from dragoman.model.content import Message, Part
from dragoman.model.ops import Op, Request, StreamResponse, refuse
from dragoman.model.task import Event, Task

encode = msgspec.json.Encoder().encode


class V0_3(Dialect):
    name = family = version = "0.3"
    subscribe_errors_as_events = True

    form = JsonForm()
    names: ClassVar[dict[str, str]] = {}
    """Members that are called otherwise than in 1.0, where they are checked."""
    push_member = "pushNotificationConfig"
    """Where a `configuration` has the push config."""
    methods: ClassVar[dict[Op, str]] = {
        ops.SEND: "message/send",
        ops.STREAM: "message/stream",
        ops.GET: "tasks/get",
        ops.CANCEL: "tasks/cancel",
        ops.SUBSCRIBE: "tasks/resubscribe",
        ops.PUSH_CREATE: "tasks/pushNotificationConfig/set",
        ops.PUSH_GET: "tasks/pushNotificationConfig/get",
        ops.PUSH_LIST: "tasks/pushNotificationConfig/list",
        ops.PUSH_DELETE: "tasks/pushNotificationConfig/delete",
        ops.EXTENDED_CARD: "agent/getAuthenticatedExtendedCard",
    }

    def read_request(self, op: Op, params: bytes) -> Request:
        return self.from_document(op, read_params(params))

    def from_document(self, op: Op, document: dict[str, Any]) -> Request:
        """The request in a normalized object. Raises `InvalidParams`."""
        try:
            return check_as(self._read_request(op, document), self.names)
        except Malformed as wrong:
            refuse(wrong.path, wrong.why)

    def _read_request(self, op: Op, document: dict[str, Any]) -> Request:
        if op in (ops.SEND, ops.STREAM):
            return self._read_send(document)
        if op is ops.EXTENDED_CARD:
            return ops.GetExtendedCard()
        if op is ops.PUSH_CREATE:
            return ops.CreatePushConfig(config=read_task_config(document, ""))
        task_id = task_id_of(document)
        if op is ops.GET:
            return ops.GetTask(id=task_id, history_length=self._read_length(document))
        if op is ops.CANCEL:
            return ops.CancelTask(id=task_id, metadata=mapping(document, "metadata", ""))
        if op is ops.SUBSCRIBE:
            return ops.SubscribeToTask(id=task_id)
        if op is ops.PUSH_LIST:
            return ops.ListPushConfigs(task_id=task_id)
        if op is ops.PUSH_DELETE:
            return ops.DeletePushConfig(task_id=task_id, id=needed(document, "pushNotificationConfigId", ""))
        assert op is ops.PUSH_GET
        return ops.GetPushConfig(task_id=task_id, id=identifier(document, "pushNotificationConfigId", ""))

    def _read_send(self, document: dict[str, Any]) -> ops.SendMessage:
        message = dict(needed_object(document, "message", ""))
        if "messageId" in document:  # an example of the specification has it there
            message.setdefault("messageId", document["messageId"])
        settings = mapping(document, "configuration", "")
        push = mapping(settings, self.push_member, "configuration")
        return ops.SendMessage(
            message=read_message(message, "message", self.form),
            configuration=ops.Configuration(
                accepted_output_modes=strings(settings, "acceptedOutputModes", "configuration"),
                history_length=self._read_length(settings, "configuration"),
                return_immediately=self._returns_immediately(document, settings),
                task_push_notification_config=read_config(push, f"configuration.{self.push_member}")
                if push
                else None,
            ),
            metadata=mapping(document, "metadata", ""),
        )

    def _read_length(self, document: dict[str, Any], path: str = "") -> int | None:
        return number(document, "historyLength", path)

    def _returns_immediately(self, document: dict[str, Any], settings: dict[str, Any]) -> bool:
        return "blocking" in settings and not flag(settings, "blocking", "configuration")

    def write_request(self, op: Op, request: Request) -> bytes:
        return encode(self.to_document(request, blocking=op is ops.SEND))

    def to_document(self, request: Request, *, blocking: bool) -> dict[str, Any]:
        match request:
            case ops.SendMessage():
                return self._write_send(request, blocking=blocking)
            case ops.GetTask():
                length = request.history_length
                return {"id": request.id, **({} if length is None else {"historyLength": length})}
            case ops.CancelTask():
                return {"id": request.id, **without_empty(metadata=request.metadata)}
            case ops.SubscribeToTask():
                return {"id": request.id}
            case ops.CreatePushConfig():
                return self._write_task_config(request.config)
            case ops.GetPushConfig():
                return {"id": request.task_id, **without_empty(pushNotificationConfigId=request.id)}
            case ops.ListPushConfigs():
                return {"id": request.task_id}
            case ops.DeletePushConfig():
                return {"id": request.task_id, "pushNotificationConfigId": request.id}
        return {}

    def _write_send(self, request: ops.SendMessage, *, blocking: bool) -> dict[str, Any]:
        out: dict[str, Any] = {"message": write_message(request.message, self.form)}
        stated = request.configuration
        settings = without_empty(acceptedOutputModes=stated.accepted_output_modes)
        if stated.history_length is not None:
            settings["historyLength"] = stated.history_length
        if stated.task_push_notification_config is not None:
            settings[self.push_member] = write_config(stated.task_push_notification_config)
        if blocking or stated.return_immediately:
            settings["blocking"] = not stated.return_immediately  # the text names no default, so say it
        if settings:
            out["configuration"] = self._settings(settings)
        return out | without_empty(metadata=request.metadata)

    def _settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings

    def read_result(self, op: Op, result: Any) -> Any:
        if op is ops.PUSH_DELETE:
            return None
        if op is ops.EXTENDED_CARD:
            return cards.read_card(result)[0]
        try:
            return self.result_from_document(op, normalize(result))
        except (Malformed, RecursionError) as wrong:
            raise InvalidAgentResponse(f"the peer's answer makes no sense: {wrong}") from None

    def result_from_document(self, op: Op, document: Any) -> Any:
        """A result in a normalized document. Raises `Malformed`."""
        if op in (ops.GET, ops.CANCEL):
            return read_task(document, "", self.form)
        if op in (ops.PUSH_CREATE, ops.PUSH_GET):
            return read_task_config(document, "")
        if op is ops.PUSH_LIST:
            return ops.PushConfigPage(configs=read_task_configs(document, ""))
        return read_event(document, "", self.form)

    def write_result(self, op: Op, result: Any, request: Request | None = None) -> bytes:
        return encode(self.result_to_document(op, result))

    def result_to_document(self, op: Op, result: Any) -> Any:
        match result:
            case Task():
                return write_task(result, self.form)
            case Message():
                return write_message(result, self.form)
            case ops.PushConfig():
                return self._write_task_config(result)
            case ops.PushConfigPage():
                return [self._write_task_config(config) for config in result.configs]
            case AgentCard():
                return cards.write_card(result, self.name)
        return None

    def write_parts(self, parts: Sequence[Part]) -> bytes:
        return encode([self.form.write_part(part) for part in parts])

    def _write_task_config(self, config: ops.PushConfig) -> dict[str, Any]:
        return {"taskId": config.task_id, "pushNotificationConfig": write_config(config)}

    def writer(self, request: Request | None = None) -> EventWriter:
        return _Writer(self)

    def write_event(self, event: Event, *, last: bool) -> dict[str, Any]:
        return write_event(event, self.form, last=last)


class _Writer:
    def __init__(self, dialect: V0_3) -> None:
        self._dialect = dialect

    def write(self, response: StreamResponse, *, last: bool) -> list[bytes]:
        event = response.event
        key = (self._dialect.name, last)
        body = response.encoded.get(key)
        if body is None:
            body = response.encoded[key] = encode(self._dialect.write_event(event, last=last))
        if last and isinstance(event, Task):  # only a status update can say that it is the last
            return [body, encode(self._dialect.write_event(status_of(event), last=True))]
        return [body]


class V0_2(V0_3):
    """All minor versions of 0.2. The extended card is fetched with HTTP GET; errors have neither a missing extended card nor
    an unsupported version; until 0.2.5 a `configuration` must have `acceptedOutputModes`. Some agents (pydantic's fasta2a)
    keep the push methods' names of 0.1.
    """

    name = family = "0.2"
    version = ""
    subscribe_errors_as_events = False
    extended_card_path = "/agent/authenticatedExtendedCard"

    methods = {op: name for op, name in V0_3.methods.items() if op is not ops.EXTENDED_CARD}

    def _settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"acceptedOutputModes": [], **settings}


class V0_2Type(V0_2):
    """The form of the Python SDK of May 2025: `type` where 0.2 has `kind`, and a streamed message has `final`."""

    name = "0.2-type"

    form = JsonForm(tag="type")

    def write_event(self, event: Event, *, last: bool) -> dict[str, Any]:
        out = super().write_event(event, last=last)
        if isinstance(event, Message):
            out["final"] = last
        return out

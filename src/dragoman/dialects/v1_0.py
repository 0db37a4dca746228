"""A2A 1.0. Its JSON is the model's own encoding, so reading is one decode and writing one encode.

* A result that can be several things is wrapped in a member that says which: `{"task": ...}`, `{"statusUpdate": ...}`.
* Creating a push config takes the config itself, flat.
* What a strict decode refuses gets a second, slower look in the lenient manner of ProtoJSON: snake_case names, enum
  numbers, numbers as strings, base64 without padding, null for absent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.dialects import cards
from dragoman.dialects.dialect import Dialect, EventWriter
from dragoman.dialects.reading import SNAKE_MEMBER, normalize, normalize_request, snake
from dragoman.errors import InvalidAgentResponse, InvalidParams
from dragoman.model import ops
from dragoman.model.card import AgentCard
from dragoman.model.content import Message, Part
from dragoman.model.ops import Op, Request, StreamResponse, refuse
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task

T = TypeVar("T")

encoder = msgspec.json.Encoder()

SHAPES: dict[Op, type[Any]] = {op: op.request for op in ops.OPS.values()} | {ops.PUSH_CREATE: ops.PushConfig}
_DECODERS = {op: msgspec.json.Decoder(shape) for op, shape in SHAPES.items()}

EVENTS: dict[str, type[Any]] = {
    "task": Task,
    "message": Message,
    "statusUpdate": StatusUpdate,
    "artifactUpdate": ArtifactUpdate,
}
EVENT_MEMBERS: dict[type[Any], str] = {shape: member for member, shape in EVENTS.items()}
"""The member in which a result or an event is wrapped."""
_OPENINGS = {shape: f'{{"{member}":'.encode() for member, shape in EVENTS.items()}

RESULTS: dict[Op, type[Any]] = {
    ops.GET: Task,
    ops.CANCEL: Task,
    ops.LIST: ops.TaskPage,
    ops.PUSH_CREATE: ops.PushConfig,
    ops.PUSH_GET: ops.PushConfig,
    ops.PUSH_LIST: ops.PushConfigPage,
}


class V1_0(Dialect):
    name = family = version = rest_version = "1.0"
    strict_cancel = False
    subscribes_to_finished = False
    ends_on_interrupt = False
    signs_cards = True
    extended_card_has_one_error = False
    is_current = True
    gets_configs_by_id = True
    model_json = True
    extensions_header = b"a2a-extensions"

    methods = {op: op.name for op in ops.OPS.values()}

    def read_request(self, op: Op, params: bytes) -> Request:
        shape = SHAPES[op]
        document: Any
        try:
            try:
                document = (
                    _leniently(params, shape)
                    if SNAKE_MEMBER.search(params)
                    else _DECODERS[op].decode(params or b"{}")
                )
            except msgspec.ValidationError:
                document = _leniently(params, shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidParams(f"params are not JSON: {error}") from None
        except RecursionError:
            raise InvalidParams("params are nested too deeply") from None
        return from_wire(document)

    def write_request(self, op: Op, request: Request) -> bytes:
        return encoder.encode(to_wire(request))

    def read_result(self, op: Op, result: Any) -> Any:
        if op is ops.PUSH_DELETE:
            return None
        if op is ops.EXTENDED_CARD:
            return cards.read_card(result)[0]
        if op is ops.SEND or op.streams:
            return _read_event(result)
        return _read(result, RESULTS[op])

    def write_result(self, op: Op, result: Any, request: Request | None = None) -> bytes:
        if op is ops.SEND:
            return _OPENINGS[type(result)] + encoder.encode(result) + b"}"
        if isinstance(result, AgentCard):
            return encoder.encode(cards.write_card(result, "1.0"))
        if (
            isinstance(result, ops.TaskPage)
            and isinstance(request, ops.ListTasks)
            and request.include_artifacts
        ):
            return _with_artifacts(result)
        if isinstance(result, ops.PushConfig):
            result = _with_one_scheme(result)
        elif isinstance(result, ops.PushConfigPage):
            # `configs` is there even when there are none.
            configs = [_with_one_scheme(config) for config in result.configs]
            more = {"nextPageToken": result.next_page_token} if result.next_page_token else {}
            return encoder.encode({"configs": configs, **more})
        return encoder.encode(result)

    def write_parts(self, parts: Sequence[Part]) -> bytes:
        return encoder.encode(parts)

    def writer(self, request: Request | None = None) -> EventWriter:
        return _WRITER


def from_wire(value: Any) -> Request:
    """The request that a value of its `SHAPES` is. Raises `InvalidParams`."""
    if isinstance(value, ops.PushConfig):
        value = ops.CreatePushConfig(config=value, tenant=value.tenant)
    elif isinstance(value, ops.GetPushConfig) and not value.id:
        refuse("id", "must not be empty")
    request: Request = value.check()
    return request


def to_wire(request: Request) -> Any:
    """The inverse of `from_wire`."""
    if isinstance(request, ops.CreatePushConfig):
        config = _with_one_scheme(request.config)
        return replace(config, tenant=request.tenant or config.tenant)
    if isinstance(request, ops.SendMessage):
        stated = request.configuration.task_push_notification_config
        if stated is not None and (config := _with_one_scheme(stated)) is not stated:
            settings = replace(request.configuration, task_push_notification_config=config)
            return replace(request, configuration=settings)
    return request


class _Writer:
    openings = _OPENINGS

    def write(self, response: StreamResponse, *, last: bool) -> list[bytes]:
        return [_OPENINGS[type(response.event)] + (response.raw or response.encode()) + b"}"]


_WRITER = _Writer()


def _with_artifacts(page: ops.TaskPage) -> bytes:
    """Asked for, the member is there even when it is empty."""
    tasks = []
    for task in page.tasks:
        body = encoder.encode(task)
        tasks.append(msgspec.Raw(body if task.artifacts else body[:-1] + b',"artifacts":[]}'))
    return encoder.encode(
        {
            "tasks": tasks,
            "nextPageToken": page.next_page_token,
            "pageSize": page.page_size,
            "totalSize": page.total_size,
        }
    )


def _with_one_scheme(config: ops.PushConfig) -> ops.PushConfig:
    """The versions before 1.0 have a list of authentication schemes."""
    if config.authentication is None or not config.authentication.others:
        return config
    return replace(config, authentication=replace(config.authentication, others=()))


def _leniently(params: bytes, shape: type[T]) -> T:
    document = msgspec.json.decode(params or b"{}")
    try:
        return msgspec.convert(normalize_request({} if document is None else document), shape)
    except msgspec.ValidationError as error:
        refuse(*path_and_reason(error))


MAX_REASON_CHARACTERS = 80
"""Characters of what a decoder says that a caller is told."""

_EXPECTED = re.compile(r"^Expected `(\w+)(?: \| null)?`, got `(\w+)`$")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bytes": "base64",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_SENTENCES = (
    (re.compile(r"^Invalid enum value (.*)$"), r"has the unknown value \1"),
    (re.compile(r"^Invalid base64.*$"), "is not base64"),
)


def path_and_reason(error: msgspec.ValidationError) -> tuple[str, str]:
    """What the decoder found wrong, as the end of a sentence that begins with the path."""
    reason, at, path = str(error).rpartition(" - at `")
    if at and path.endswith("`"):
        path = path[:-1].removeprefix("key in ").removeprefix("$").removeprefix(".")
    else:
        reason, path = str(error), ""
    if len(reason) > MAX_REASON_CHARACTERS:  # it repeats an unknown value
        reason = reason[:MAX_REASON_CHARACTERS] + "..."
    missing = re.match(r"^Object missing required field `(.*)`$", reason)
    if missing:
        return f"{path}.{missing[1]}".lstrip("."), "is missing"
    if expected := _EXPECTED.match(reason):
        wanted, got = (_KINDS.get(kind, kind) for kind in expected.groups())
        return path or "params", f"must be {wanted}, not {got}"
    for pattern, sentence in _SENTENCES:
        if pattern.match(reason):
            return path or "params", pattern.sub(sentence, reason)
    return path or "params", f"is wrong: {reason}"


def _read(result: Any, shape: type[T]) -> T:
    try:
        return msgspec.convert(normalize(result), shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidAgentResponse(f"the peer's answer is not a {shape.__name__}: {error}") from None


def _read_event(result: Any) -> Any:
    if isinstance(result, dict):
        for member, shape in EVENTS.items():
            body = result.get(member, result.get(snake(member)))
            if body is not None:
                return _read(_whole(body), shape)
    raise InvalidAgentResponse("the peer's answer has none of task, message, statusUpdate and artifactUpdate")


def _whole(event: Any) -> Any:
    """An event with what writers of protobuf's JSON leave out when it is empty: a context, the parts of an artifact."""
    event = normalize(event)
    if not isinstance(event, dict):
        return event
    whole = {"contextId": "", **event}
    if isinstance(artifact := event.get("artifact"), dict):
        whole["artifact"] = {"parts": [], **artifact}
    if isinstance(artifacts := event.get("artifacts"), list):
        whole["artifacts"] = [{"parts": [], **each} if isinstance(each, dict) else each for each in artifacts]
    return whole

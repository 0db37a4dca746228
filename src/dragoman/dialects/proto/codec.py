"""A version of A2A on gRPC: its service, and how its messages read and write.

What a `Dialect` is for JSON, a `Codec` is for protobuf: `v1_0.CODEC` and `v0_3.CODEC`. A message is read as the document of its
JSON form (`documents.py`), which the dialect of the version reads; and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message_factory import GetMessageClass
from msgspec.structs import replace

from dragoman.dialects.legacy_values import status_of
from dragoman.dialects.pieces import group_parts
from dragoman.dialects.proto.documents import document_reader, document_writer
from dragoman.dialects.proto.messages import POOL, document_type
from dragoman.dialects.proto.values import json_for_protobuf
from dragoman.dialects.reading import Malformed
from dragoman.errors import A2AError, InvalidAgentResponse, InvalidParams
from dragoman.model.content import Artifact, Message, Role
from dragoman.model.ops import (
    GET,
    MAX_PARTS,
    STREAM,
    TOO_MANY_PARTS,
    Op,
    Request,
    SendMessage,
    StreamResponse,
    refuse,
)
from dragoman.model.task import Event, Task, TaskState, TaskStatus


class Codec:
    """A subclass says how the documents of its version are read and written."""

    name: str
    """The dialect whose rules apply beyond the wire."""
    version: str
    """The value of `a2a-version`."""
    service: str
    """The full name of the gRPC service."""
    methods: dict[Op, str]
    """Its operations, and their names."""
    sent_parts: tuple[str, str]
    """Where the request of a send has the parts of its message."""
    marks_last: bool = False
    """The last status update of a stream has `final`."""

    def __init__(self) -> None:
        self.requests: dict[Op, Any] = {}
        """The types of messages."""
        self.results: dict[Op, Any] = {}
        service = POOL.FindServiceByName(self.service)
        for op, name in self.methods.items():
            method = service.FindMethodByName(name)
            self.requests[op] = GetMessageClass(method.input_type)
            self.results[op] = GetMessageClass(method.output_type)
            if op.streams:
                self.event = self.results[op]

    def request_from(self, op: Op, document: dict[str, Any]) -> Request:
        """Raises `InvalidParams` or `Malformed`."""
        raise NotImplementedError

    def request_to(self, op: Op, request: Request) -> dict[str, Any]:
        raise NotImplementedError

    def result_from(self, op: Op, document: dict[str, Any]) -> Any:
        """Raises `Malformed`. The event of a stream is a result, too."""
        raise NotImplementedError

    def result_to(self, op: Op, result: Any) -> dict[str, Any]:
        raise NotImplementedError

    def event_to(self, event: Event, *, last: bool) -> dict[str, Any]:
        raise NotImplementedError

    def parsed(self, op: Op, body: bytes) -> Any:
        """The message of a request; `read_message` makes the request of it. Raises `InvalidParams`."""
        kind = self.requests[op]
        try:
            return document_type(kind).FromString(body)
        except DecodeError:
            raise InvalidParams(f"this is not a {kind.DESCRIPTOR.name}") from None

    def tenant_of(self, message: Any) -> str:
        """The tenant that a request names; 0.3 has no field for it."""
        return getattr(message, "tenant", "")

    def read_message(self, op: Op, message: Any, *, max_nodes: int = 250_000) -> Request:
        """Raises `InvalidParams`. `max_nodes`: so many messages, of all kinds, may be inside the one."""
        if message.ByteSize() > 2 * max_nodes and has_more_messages(max_nodes, message):
            raise InvalidParams(f"the request has more than {max_nodes} values in it")
        if op.request is SendMessage:
            sent, parts = self.sent_parts
            if len(getattr(getattr(message, sent), parts)) > MAX_PARTS:
                refuse(f"message.{parts}", TOO_MANY_PARTS)
        try:
            return self.request_from(op, document_reader(message.DESCRIPTOR)(message))
        except Malformed as wrong:
            refuse(wrong.path, wrong.why)

    def read_request(self, op: Op, body: bytes, *, max_nodes: int = 250_000) -> Request:
        """Raises `InvalidParams`."""
        return self.read_message(op, self.parsed(op, body), max_nodes=max_nodes)

    def write_request(self, op: Op, request: Request) -> bytes:
        with _convert_errors(InvalidParams):
            return _encode(self.requests[op], self.request_to(op, request))

    def read_result(self, op: Op, body: bytes) -> Any:
        """Raises `InvalidAgentResponse`."""
        try:
            kind = document_type(self.results[op])
            return self.result_from(op, document_reader(kind.DESCRIPTOR)(kind.FromString(body)))
        except (DecodeError, Malformed) as wrong:
            raise InvalidAgentResponse(f"the peer's answer makes no sense: {wrong}") from None

    def write_result(self, op: Op, result: Any) -> bytes:
        return _write_answer(result, partial(self._result, op))

    def _result(self, op: Op, result: Any) -> bytes:
        return _encode(self.results[op], self.result_to(op, result))

    def write_pieces(self, op: Op, task: Task) -> Iterator[bytes]:
        """The bytes of `write_result` for a large task, piece by piece. Some pieces are empty: they are where other work
        can be done.

        Encoded messages of one type that follow each other are one message with all their parts.
        """
        task_type = self.results[GET].DESCRIPTOR
        pieces = [self.write_result(GET, replace(task, artifacts=(), history=()))]
        nobody = Message(message_id="", role=Role.UNSPECIFIED, parts=())
        lists: list[tuple[str, Artifact | Message, Artifact | Message]] = [
            *(("artifacts", each, Artifact(artifact_id="", parts=())) for each in task.artifacts),
            *(("history", each, nobody) for each in task.history),
        ]
        for field, value, rest in lists:
            written: list[bytes] = []
            for group in group_parts(value.parts):
                piece = replace(rest if written else value, parts=group)
                written.append(_write_answer(piece, partial(self._item, field)))
                yield b""
            number = task_type.fields_by_name[field].number
            pieces += (_field_head(number, sum(map(len, written))), *written)
        answer = self.results[op].DESCRIPTOR
        if answer is not task_type:
            yield _field_head(answer.fields_by_name["task"].number, sum(map(len, pieces)))
        yield from pieces

    def _item(self, field: str, value: Any) -> bytes:
        """An artifact, or a message of the history, as it is in a task."""
        within: dict[str, Any] = {field: (value,)}
        task = _message(self.results[GET], self.result_to(GET, Task(id="", status=_NO_STATUS, **within)))
        item: bytes = getattr(task, field)[0].SerializeToString()
        return item

    def read_event(self, body: bytes) -> Event:
        """Raises `InvalidAgentResponse`."""
        event: Event = self.read_result(STREAM, body)
        return event

    def write_event(self, response: StreamResponse, *, last: bool) -> list[bytes]:
        """The messages for one event; all its readers share them. `last`: the stream ends with it."""
        last = last and self.marks_last
        key = (self.service, last)
        body = response.encoded.get(key)
        if body is None:
            body = response.encoded[key] = _write_answer(response.event, partial(self._event, last=last))
        if last and isinstance(response.event, Task):  # only a status update can be marked as the last
            return [body, _write_answer(status_of(response.event), partial(self._event, last=True))]
        return [body]

    def show(self, kind: Any, body: bytes) -> bytes:
        """A message as JSON, for people; as it is if it is no such message."""
        try:
            text: str = MessageToJson(kind.FromString(body), indent=None, descriptor_pool=POOL)
            return text.encode()
        except (DecodeError, ValueError, TypeError, RecursionError):
            return body

    def _event(self, event: Event, *, last: bool) -> bytes:
        return _encode(self.event, self.event_to(event, last=last))


def has_more_messages(nodes: int, message: Any) -> bool:
    """True if more than `nodes` messages are inside one. Each may take two bytes on the wire, and a hundred in memory."""
    inside = [message]
    while inside:
        for field, value in inside.pop().ListFields():
            kind = field.message_type
            if kind is None:
                continue
            if kind.GetOptions().map_entry:
                found = value.values() if kind.fields_by_name["value"].message_type is not None else ()
            else:
                found = value if hasattr(value, "add") else (value,)  # many, or one
            nodes -= len(found)
            if nodes < 0:
                return True
            inside.extend(found)
    return False


_NO_STATUS = TaskStatus(state=TaskState.UNSPECIFIED)


def _field_head(number: int, length: int) -> bytes:
    """The tag and the length of a field with a message in it."""
    return _varint(number << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _encode(kind: Any, document: dict[str, Any]) -> bytes:
    body: bytes = _message(kind, document).SerializeToString()
    return body


def _message(kind: Any, document: dict[str, Any]) -> Any:
    made = document_type(kind)
    return made(**document_writer(made.DESCRIPTOR)(document))


def _write_answer(value: Any, write: Callable[[Any], bytes]) -> bytes:
    """Write an answer, also if protobuf cannot carry all of it."""
    try:
        return write(value)
    except _CANNOT_CARRY:
        with _convert_errors(InvalidAgentResponse):
            return write(json_for_protobuf(value))


_CANNOT_CARRY = (EncodeError, TypeError, ValueError, OverflowError, RecursionError)


@contextmanager
def _convert_errors(kind: type[A2AError]) -> Iterator[None]:
    """JSON allows more than protobuf: text that is not Unicode, numbers that fit no double, deeper nesting."""
    try:
        yield
    except _CANNOT_CARRY as error:
        raise kind(f"protobuf cannot carry this: {error}") from error

"""A2A 1.0 in protobuf: `lf.a2a.v1`. The documents of its messages are the model's own JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.dialects import cards
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.reading import Malformed
from dragoman.dialects.v1_0 import EVENTS, RESULTS, SHAPES, V1_0, from_wire, path_and_reason, to_wire
from dragoman.errors import InvalidAgentResponse
from dragoman.model import ops
from dragoman.model.card import AgentCard
from dragoman.model.ops import Op, Request
from dragoman.model.task import Event

_MEMBERS = {shape: member for member, shape in EVENTS.items()}


class _Codec(Codec):
    name = version = "1.0"
    service = "lf.a2a.v1.A2AService"
    methods = V1_0.methods
    sent_parts = "message", "parts"

    def request_from(self, op: Op, document: dict[str, Any]) -> Request:
        return from_wire(_convert(document, SHAPES[op]))

    def request_to(self, op: Op, request: Request) -> dict[str, Any]:
        return _document(to_wire(request))

    def result_from(self, op: Op, document: dict[str, Any]) -> Any:
        if op in RESULTS:
            return _convert(document, RESULTS[op])
        if op is ops.EXTENDED_CARD:
            return read_card(document)
        for member, shape in EVENTS.items():
            if member in document:
                return _convert(document[member], shape)
        if op is ops.PUSH_DELETE:
            return None
        raise Malformed("it", "is neither a task nor a message nor an update")

    def result_to(self, op: Op, result: Any) -> dict[str, Any]:
        if op is ops.SEND:
            return {_MEMBERS[type(result)]: _document(result)}
        if isinstance(result, AgentCard):
            return cards.write_card(result, "1.0")
        return {} if result is None else _document(result)

    def event_to(self, event: Event, *, last: bool) -> dict[str, Any]:
        return {_MEMBERS[type(event)]: _document(event)}


def _convert(document: Any, shape: type[Any]) -> Any:
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise Malformed(*path_and_reason(error)) from None


def _document(value: Any) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(value, builtin_types=(bytes,))
    return document


def read_card(document: dict[str, Any]) -> AgentCard:
    try:
        return cards.read_card(document)[0]
    except InvalidAgentResponse as error:
        raise Malformed("the card", f"is malformed: {error}") from None


CODEC = _Codec()

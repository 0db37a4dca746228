"""A2A 0.3 in protobuf: `a2a.v1`. The documents of its messages are those of 0.3 over HTTP+JSON (`v0_3_proto.py`).

A peer cannot see whether a history length is 0 or was left out, and some (a2a-js) read it as no history. So all of it is asked
for with the largest number. Cards have security in the wrapped form of 1.0.
"""

from __future__ import annotations

from typing import Any

from dragoman.dialects import cards
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.proto.v1_0 import read_card
from dragoman.dialects.v0_3_proto import WHOLE_HISTORY, V0_3Proto
from dragoman.model import ops
from dragoman.model.card import AgentCard, Skill
from dragoman.model.ops import Op, Request
from dragoman.model.task import Event

_DIALECT = V0_3Proto()


class _Codec(Codec):
    name, version = _DIALECT.name, _DIALECT.version
    service = "a2a.v1.A2AService"
    methods = V0_3Proto.methods
    sent_parts = "message", "content"
    marks_last = True

    def request_from(self, op: Op, document: dict[str, Any]) -> Request:
        return _DIALECT.from_document(op, document)

    def request_to(self, op: Op, request: Request) -> dict[str, Any]:
        document = _DIALECT.to_document(request, blocking=True)
        if isinstance(request, ops.SendMessage):
            document["configuration"]["historyLength"] = request.configuration.history_length or WHOLE_HISTORY
        elif isinstance(request, ops.GetTask):
            document["historyLength"] = request.history_length or WHOLE_HISTORY
        return document

    def result_from(self, op: Op, document: dict[str, Any]) -> Any:
        if op is ops.PUSH_DELETE:
            return None
        if op is not ops.EXTENDED_CARD:
            return _DIALECT.result_from_document(op, document)
        for stated in (document, *document["skills"]):
            stated["securityRequirements"] = stated.pop("security")
        return read_card(document)

    def result_to(self, op: Op, result: Any) -> dict[str, Any]:
        if isinstance(result, AgentCard):
            return _write_card(result)
        document: dict[str, Any] = _DIALECT.result_to_document(op, result) or {}
        return document

    def event_to(self, event: Event, *, last: bool) -> dict[str, Any]:
        return _DIALECT.write_event(event, last=last)


def _write_card(card: AgentCard) -> dict[str, Any]:
    document = cards.write_card(card, "0.3")
    if card.security_schemes:
        document["securitySchemes"] = cards.write_schemes(card.security_schemes)
    told: list[tuple[dict[str, Any], AgentCard | Skill]] = [(document, card)]
    told += zip(document["skills"], card.skills, strict=False)
    for stated, about in told:
        if about.security_requirements:
            stated["security"] = cards.write_requirements(about.security_requirements)
    return document


CODEC = _Codec()

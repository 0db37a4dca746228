"""A2A 0.2, all its minor versions, and the transitional form before it.

How 0.2 differs from 0.3: the extended card is fetched with HTTP GET, not with a method; errors know neither a missing
extended card nor an unsupported version; until 0.2.5 a `configuration` must say `acceptedOutputModes`. Some agents
(pydantic's fasta2a) keep the push methods' names of 0.1.

The transitional form (`0.2-type`, the Python SDK of May 2025) says `type` where 0.2 says `kind`, and a streamed message
says whether it is the `final` one.
"""

from __future__ import annotations

from typing import Any

from dragoman.dialects.parts import Form
from dragoman.dialects.v0_3 import V0_3
from dragoman.model import ops
from dragoman.model.content import Message
from dragoman.model.task import Event


class V0_2(V0_3):
    name = family = "0.2"
    version = ""
    subscribe_errors_as_events = False
    extended_card_path = "/agent/authenticatedExtendedCard"

    methods = {op: name for op, name in V0_3.methods.items() if op is not ops.EXTENDED_CARD}

    def _settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"acceptedOutputModes": [], **settings}


class V0_2Type(V0_2):
    name = "0.2-type"

    form = Form(tag="type")

    def write_event(self, event: Event, *, last: bool) -> dict[str, Any]:
        out = super().write_event(event, last=last)
        if isinstance(event, Message):
            out["final"] = last
        return out

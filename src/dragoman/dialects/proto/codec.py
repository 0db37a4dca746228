"""A version of A2A on gRPC: its service, and how its messages read and write.

What a `Dialect` is for JSON, a `Codec` is for protobuf: `v1_0.CODEC` and `v0_3.CODEC`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, EncodeError

from dragoman.dialects.checks import checked, refuse
from dragoman.dialects.reading import Malformed
from dragoman.dialects.tasks import status_of
from dragoman.errors import A2AError, InvalidAgentResponse, InvalidParams
from dragoman.model.ops import Op, Request, StreamResponse
from dragoman.model.task import Event, Task


class Form(NamedTuple):
    """A message type, what it means in the model, and the other way round."""

    message: Any
    read: Callable[[Any], Any]
    """Raises `Malformed`."""
    write: Callable[[Any, Any], None]
    """Fills an empty message."""

    def encoded(self, value: Any) -> bytes:
        message = self.message()
        self.write(message, value)
        body: bytes = message.SerializeToString()
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    name: str
    """The dialect whose rules apply beyond the wire."""
    version: str
    """What `a2a-version` says."""
    service: str
    """The full name of the gRPC service."""
    methods: dict[Op, str]
    """The operations it has, and what it calls them."""
    requests: dict[Op, Form]
    results: dict[Op, Form]
    event: Form
    marks_last: bool = False
    """The last status update of a stream says `final`."""

    def read_request(self, op: Op, body: bytes) -> Request:
        """Raises `InvalidParams`."""
        form = self.requests[op]
        try:
            return checked(form.read(form.message.FromString(body)))
        except DecodeError:
            raise InvalidParams(f"this is not a {form.message.DESCRIPTOR.name}") from None
        except Malformed as wrong:
            refuse(wrong.path, wrong.why)

    def write_request(self, op: Op, request: Request) -> bytes:
        with _carried(InvalidParams):
            return self.requests[op].encoded(request)

    def read_result(self, op: Op, body: bytes) -> Any:
        """Raises `InvalidAgentResponse`."""
        return _read(self.results[op], body)

    def write_result(self, op: Op, result: Any) -> bytes:
        with _carried(InvalidAgentResponse):
            return self.results[op].encoded(result)

    def read_event(self, body: bytes) -> Event:
        """Raises `InvalidAgentResponse`."""
        event: Event = _read(self.event, body)
        return event

    def write_event(self, response: StreamResponse, *, last: bool) -> list[bytes]:
        """The messages for one event; all its readers share them. `last`: the stream ends with it."""
        last = last and self.marks_last
        key = (self.service, last)
        body = response.encoded.get(key)
        with _carried(InvalidAgentResponse):
            if body is None:
                body = response.encoded[key] = self._event(response.event, last)
            if last and isinstance(response.event, Task):  # only a status update can say that it is the last
                return [body, self._event(status_of(response.event), True)]
        return [body]

    def _event(self, event: Event, last: bool) -> bytes:
        message = self.event.message()
        self.event.write(message, event)
        if last and message.HasField("status_update"):
            message.status_update.final = True
        body: bytes = message.SerializeToString()
        return body


def _read(form: Form, body: bytes) -> Any:
    try:
        return form.read(form.message.FromString(body))
    except (DecodeError, Malformed) as wrong:
        raise InvalidAgentResponse(f"the peer's answer makes no sense: {wrong}") from None


@contextmanager
def _carried(kind: type[A2AError]) -> Iterator[None]:
    """JSON can say a little more than protobuf: text that is not Unicode, numbers that fit no double, deeper nesting."""
    try:
        yield
    except (EncodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise kind(f"protobuf cannot carry this: {error}") from error

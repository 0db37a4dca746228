"""A `Service` over JSON-RPC, in any dialect.

One operation is one POST; a streaming one is answered with server-sent events. Nothing is repeated or resumed here:
`resumable_stream.py` does that for every binding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.client.transport.http_exchange import (
    UNARY,
    HttpBinding,
    R,
    read_document,
    write_headers,
)
from dragoman.client.transport.transport import Response, Transport, to_error
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.reading import looks_snake
from dragoman.dialects.sse import Frame
from dragoman.errors import A2AError, InvalidAgentResponse, UnsupportedOperation
from dragoman.model.content import Message
from dragoman.model.ids import new_id
from dragoman.model.ops import (
    GET,
    PUSH_DELETE,
    SEND,
    Call,
    ExtensionCall,
    Op,
    Request,
    SendMessage,
)
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskStatus

_E = TypeVar("_E", bound=Event)


class JsonRpc(HttpBinding):
    def __init__(
        self, transport: Transport, url: str, dialect: Dialect, *, silence: float | None = None
    ) -> None:
        super().__init__(transport, url, dialect, silence=silence)
        self._fast = dialect.model_json
        self._ids = count(1)

    async def call(self, call: Call, request: Request) -> Any:
        if isinstance(request, ExtensionCall):
            response = await self._post(
                call, request.method, msgspec.json.encode(request.params), "application/json"
            )
            return self._result(response, await response.read())
        op = UNARY[type(request)]
        request = self._name_task(call, request)
        response = await self._ask(call, op, request, "application/json")
        body = await response.read()
        if op is SEND and self._fast and (answer := read_model_event(body)) is not None:
            return answer
        if op is GET and self._fast and (task := read_model_task(body)) is not None:
            return task
        if op is PUSH_DELETE:
            return self._check_done(response, body)
        result = self.dialect.read_result(op, self._result(response, body))
        return _in_context(result, request) if op is SEND else result

    def _read_single(self, document: dict[str, Any], http: int, request: Request) -> Event:
        return _in_context(self.dialect.read_event(self._result_in(document, http)), request)

    def _read_frame(self, request: Request, frame: Frame) -> Sequence[Event]:
        if self._fast and (event := read_model_event(frame.data)) is not None:
            return (event,)
        document = read_document(frame.data, self.url)
        if not ("result" in document or "error" in document) and frame.event not in ("", "message"):
            return ()
        return (self._read_single(document, 200, request),)

    async def _ask(self, call: Call, op: Op, request: Request, accept: str) -> Response:
        method = self.dialect.method(op)
        if not method:
            raise UnsupportedOperation(f"this agent speaks A2A {self.dialect.name}, which has no {op.name}")
        return await self._post(call, method, self.dialect.write_request(op, request), accept)

    def _name_task(self, call: Call, request: R) -> R:
        """Give the task the same id each time the same message is sent, so that a repeated send does not make another task.
        Events of these versions do not say to which context they belong, so the context gets an id here, too.
        """
        if not self.dialect.names_tasks or not isinstance(request, SendMessage) or request.message.task_id:
            return request
        message = request.message
        task_id = call.idempotency_key or new_id()
        named = replace(message, task_id=task_id, context_id=message.context_id or task_id)
        return replace(request, message=named)

    async def _post(self, call: Call, method: str, params: bytes, accept: str) -> Response:
        body = b'{"jsonrpc":"2.0","id":"%d","method":"%s","params":%s}' % (
            next(self._ids),
            method.encode(),
            params or b"{}",
        )
        response = await self._send("POST", self.url, write_headers(call, self.dialect, accept), body)
        if not 200 <= response.status < 300:
            raise to_error(response, await response.read(), self.url, self._read_error)
        return response

    def _result(self, response: Response, body: bytes) -> Any:
        return self._result_in(read_document(body, self.url), response.status)

    def _result_in(self, document: dict[str, Any], http: int) -> Any:
        if "result" in document and document.get("error") is None:
            return document["result"]
        raise self._read_error(document, http)

    def _check_done(self, response: Response, body: bytes) -> None:
        """Check an answer without a value. Some peers leave out a `result` that is null."""
        document = read_document(body, self.url)
        if document.get("error") is not None or not ("result" in document or "jsonrpc" in document):
            raise self._read_error(document, response.status)

    def _read_error(self, document: dict[str, Any], http: int) -> A2AError:
        error = document.get("error")
        if not isinstance(error, dict):
            return InvalidAgentResponse(f"{self.url} answered with neither a result nor an error")
        return self.dialect.read_error(error, http=http)


def _in_context(event: _E, request: Request) -> _E:
    """The event with the context of the message that it answers, if it names none."""
    if isinstance(request, SendMessage) and not event.context_id and request.message.context_id:
        return replace(event, context_id=request.message.context_id)
    return event


class _EventResult(Struct, rename="camel", gc=False):
    artifact_update: ArtifactUpdate | None = None
    status_update: StatusUpdate | None = None
    task: Task | None = None
    message: Message | None = None


class _EventAnswer(Struct, gc=False):
    result: _EventResult | None = None
    error: None = None
    """Anything else is for the dialect."""


_decode_answer = msgspec.json.Decoder(_EventAnswer).decode


def read_model_event(answer: bytes) -> Event | None:
    """Decode a JSON-RPC answer of 1.0 straight into the model. None if only the dialect can read it.

    The model's JSON is 1.0's own, so an answer that follows the specification to the letter needs no mapping. That is ten
    times faster, which matters in a stream of many small events.
    """
    try:
        result = _decode_answer(answer).result
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if result is None or looks_snake(answer):
        return None
    if result.artifact_update is not None:
        return result.artifact_update
    if result.status_update is not None:
        return result.status_update if _has_our_timestamp(result.status_update.status) else None
    if result.task is not None:
        return result.task if _has_our_timestamp(result.task.status) else None
    return result.message


class _TaskAnswer(Struct, gc=False):
    result: Task | None = None
    error: None = None


_decode_task = msgspec.json.Decoder(_TaskAnswer).decode


def read_model_task(answer: bytes) -> Task | None:
    """`read_model_event`, for an answer that is a task."""
    try:
        task = _decode_task(answer).result
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return task if task is not None and not looks_snake(answer) and _has_our_timestamp(task.status) else None


def _has_our_timestamp(status: TaskStatus) -> bool:
    """True if the timestamp is absent, or written as we write it."""
    time = status.timestamp
    return not time or (len(time) == 24 and time[19] == "." and time[23] == "Z")

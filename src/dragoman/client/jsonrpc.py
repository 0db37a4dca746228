"""A `Service` over JSON-RPC, in any dialect.

One operation is one POST; a streaming one is answered with server-sent events. Nothing is repeated or resumed here:
`resume.py` does that for every binding.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.client.transport import Response, Transport, error_of
from dragoman.dialects.dialect import Dialect, EventReader
from dragoman.dialects.sse import Frame, SseReader
from dragoman.errors import A2AError, InvalidAgentResponse, Unreachable, UnsupportedOperation
from dragoman.model.ids import new_id
from dragoman.model.ops import (
    OPS,
    STREAM,
    SUBSCRIBE,
    Batch,
    Call,
    Op,
    Request,
    SendMessage,
    StreamResponse,
    SubscribeToTask,
)

_UNARY = {op.request: op for op in OPS.values() if not op.streams}
_decode = msgspec.json.Decoder().decode


class JsonRpc:
    """Speaks one dialect to one URL. A stream that has begun and then sends nothing for `silence` seconds is dead."""

    def __init__(
        self, transport: Transport, url: str, dialect: Dialect, *, silence: float | None = None
    ) -> None:
        self.transport = transport
        self.url = url
        self.dialect = dialect
        self.ours = False
        """A Dragoman server: it continues a stream after an event, and knows a repeated `Idempotency-Key`."""
        self._silence = silence
        self._ids = count(1)
        self._extensions = "A2A-Extensions" if dialect.version.startswith("1") else "X-A2A-Extensions"

    async def call(self, call: Call, request: Request) -> Any:
        op = _UNARY[type(request)]
        response = await self._post(call, op, request, "application/json")
        result = self._result(response, await response.read())
        return self.dialect.read_result(op, result)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        op = SUBSCRIBE if isinstance(request, SubscribeToTask) else STREAM
        response = await self._post(call, op, request, "text/event-stream")
        try:
            reader = self.dialect.reader()
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                result = self._result(response, await response.read())
                yield [StreamResponse(event) for event in reader.read(result)]
                return
            frames, begun = SseReader(), False
            chunks = response.chunks()
            while (chunk := await self._hear(chunks, begun)) is not None:
                batch, error = self._events(frames.feed(chunk), reader)
                if batch:
                    begun = True
                    yield batch
                if error is not None:
                    raise error
            batch, _ = self._events(frames.end(), reader)  # half a frame is no event
            if batch:
                yield batch
        finally:
            await response.close()

    async def _hear(self, chunks: AsyncIterator[bytes], begun: bool) -> bytes | None:
        try:
            async with asyncio.timeout(self._silence if begun else None):
                return await anext(chunks, None)
        except TimeoutError as error:
            raise Unreachable(f"nothing was heard from {self.url} for {self._silence:g} s") from error

    def _events(
        self, frames: list[Frame], reader: EventReader
    ) -> tuple[list[StreamResponse], A2AError | None]:
        """The events in some frames, up to the first that is none."""
        batch: list[StreamResponse] = []
        try:
            for frame in frames:
                document = _document(frame.data, self.url)
                if "result" not in document:
                    return batch, self._error(document, 200)
                events = reader.read(document["result"])
                batch.extend(map(StreamResponse, events))
                if frame.id.isdecimal() and events:
                    batch[-1].seq = int(frame.id)
        except A2AError as error:
            return batch, error
        return batch, None

    async def _post(self, call: Call, op: Op, request: Request, accept: str) -> Response:
        method = self.dialect.method(op)
        if not method:
            raise UnsupportedOperation(f"this agent speaks A2A {self.dialect.name}, which has no {op.name}")
        if self.dialect.names_tasks and isinstance(request, SendMessage) and not request.message.task_id:
            # The same name for the same send, so that a repeated one is not another task.
            named = replace(request.message, task_id=call.idempotency_key or new_id())
            request = replace(request, message=named)
        params = self.dialect.write_request(op, request)
        body = b'{"jsonrpc":"2.0","id":"%d","method":"%s","params":%s}' % (
            next(self._ids),
            method.encode(),
            params or b"{}",
        )
        response = await self.transport.request("POST", self.url, self._headers(call, accept), body)
        if "dragoman" in response.headers:
            self.ours = True
        if response.status != 200:
            raise error_of(response, await response.read(), self.url, self._error)
        return response

    def _headers(self, call: Call, accept: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": accept}
        if self.dialect.version:
            headers["A2A-Version"] = self.dialect.version
        if call.extensions:
            headers[self._extensions] = ", ".join(call.extensions)
        if call.idempotency_key:
            headers["Idempotency-Key"] = call.idempotency_key
        if call.after is not None:
            headers["Last-Event-ID"] = str(call.after)
        if call.trace:
            headers.update(call.trace)
        if call.deadline is not None:
            headers["Dragoman-Timeout"] = f"{max(0.0, call.deadline - time.time()):.3f}"
        if call.depth:
            headers["Dragoman-Depth"] = str(call.depth)
        return headers

    def _result(self, response: Response, body: bytes) -> Any:
        document = _document(body, self.url)
        if "result" in document and document.get("error") is None:
            return document["result"]
        raise self._error(document, response.status)

    def _error(self, document: dict[str, Any], http: int) -> A2AError:
        error = document.get("error")
        if not isinstance(error, dict):
            return InvalidAgentResponse(f"{self.url} answered with neither a result nor an error")
        return self.dialect.read_error(error, http=http)


def _document(body: bytes | str, url: str) -> dict[str, Any]:
    try:
        document = _decode(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"{url} did not answer with JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidAgentResponse(f"{url} did not answer with a JSON object")
    return document

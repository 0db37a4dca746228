"""What JSON-RPC and HTTP+JSON share: the headers of a call, its response, and reading a stream of events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from dragoman.client.transport.transport import NOT_JSON, Response, Transport, decode_json
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.sse import MEDIA_TYPE, Frame, SseReader
from dragoman.errors import A2AError, InvalidAgentResponse, Unreachable
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
from dragoman.model.task import Event

R = TypeVar("R", bound=Request)

UNARY = {op.request: op for op in OPS.values() if not op.streams}
"""The operation of each request that is answered once."""
_MAX_ID_DIGITS = 18
"""The numbers of a Dragoman server's events are shorter."""


class HttpBinding:
    """A `Service` in one dialect at one URL. A stream that has begun counts as dead after `silence` seconds without data."""

    def __init__(
        self, transport: Transport, url: str, dialect: Dialect, *, silence: float | None = None
    ) -> None:
        self.transport, self.url, self.dialect = transport, url, dialect
        self.is_dragoman = False
        """A Dragoman server: it continues a stream after an event, and recognizes a repeated `Idempotency-Key`."""
        self._silence = silence

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        op = SUBSCRIBE if isinstance(request, SubscribeToTask) else STREAM
        request = self._name_task(call, request)
        response = await self._ask(call, op, request, MEDIA_TYPE)
        try:
            if not response.headers.get("content-type", "").lower().startswith(MEDIA_TYPE):
                document = read_document(await response.read(), self.url)
                yield [StreamResponse(self._read_single(document, response.status, request))]
                return
            read = partial(self._read_frame, request)
            async for batch in read_stream(
                response, self.url, read, silence=self._silence, begun=op is SUBSCRIBE
            ):
                yield batch
        finally:
            await response.close()

    async def _send(self, verb: str, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        response = await self.transport.request(verb, url, headers, body)
        if "dragoman" in response.headers:
            self.is_dragoman = True
        return response

    def _name_task(self, call: Call, request: R) -> R:
        """The request with the id of a new task, where the client chooses it."""
        return request

    async def _ask(self, call: Call, op: Op, request: Request, accept: str) -> Response:
        """The response to a request. Raises the error of one that is not a success."""
        raise NotImplementedError

    def _read_single(self, document: dict[str, Any], http: int, request: Request) -> Event:
        """The answer of a peer that does not stream."""
        raise NotImplementedError

    def _read_frame(self, request: Request, frame: Frame) -> Sequence[Event]:
        """The event of a frame; none for a ping of another protocol. Raises the error of an error frame."""
        raise NotImplementedError


def write_headers(call: Call, dialect: Dialect, accept: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept": accept}
    if dialect.version:
        headers["A2A-Version"] = dialect.version
    if call.extensions:
        name = "A2A-Extensions" if dialect.version.startswith("1") else "X-A2A-Extensions"
        headers[name] = ", ".join(call.extensions)
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


async def read_stream(
    response: Response,
    url: str,
    read: Callable[[Frame], Sequence[Event]],
    *,
    silence: float | None,
    begun: bool = False,
) -> AsyncIterator[Batch]:
    """The events of a stream, in the batches in which they arrive. `read` raises the error of an error frame.

    A stream that has `begun` (a subscription has from the start) counts as dead after `silence` seconds without data.
    """
    frames = SseReader()
    chunks = response.chunks()
    while (chunk := await _next_chunk(chunks, url, silence if begun else None)) is not None:
        batch, error = _read_frames(frames.feed(chunk), read)
        if batch:
            begun = True
            yield batch
        if error is not None:
            raise error
    batch, _ = _read_frames(frames.end(), read)  # an incomplete frame is not an event
    if batch:
        yield batch


async def _next_chunk(chunks: AsyncIterator[bytes], url: str, silence: float | None) -> bytes | None:
    try:
        async with asyncio.timeout(silence):
            return await anext(chunks, None)
    except TimeoutError as error:
        raise Unreachable(f"nothing came from {url} for {silence:g} s") from error


def _read_frames(
    frames: list[Frame], read: Callable[[Frame], Sequence[Event]]
) -> tuple[list[StreamResponse], A2AError | None]:
    """The events in some frames, up to the first error."""
    batch: list[StreamResponse] = []
    try:
        for frame in frames:
            if not frame.data:  # a keep-alive
                continue
            events = read(frame)
            for event in events:
                batch.append(StreamResponse(event))
            if events and frame.id.isdecimal() and len(frame.id) <= _MAX_ID_DIGITS:
                batch[-1].seq = int(frame.id)
    except A2AError as error:
        return batch, error
    return batch, None


def read_document(body: bytes, url: str) -> dict[str, Any]:
    """A JSON object. Raises `Unreachable` or `InvalidAgentResponse`."""
    try:
        document = decode_json(body)
    except NOT_JSON as error:
        raise Unreachable(f"{url} did not answer with JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidAgentResponse(f"{url} did not answer with a JSON object")
    return document

"""Shows what goes over the wire, as bytes, to somebody who looks.

`connect(..., tap=tap)` calls `tap` with a `WireEvent` for every request, response, piece of a body and gRPC message, retries and
requests for tokens included. A tap is awaited, so one that waits slows the client down and nothing piles up. It sees
credentials: what it passes on must be masked first.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import count
from typing import Any

from msgspec import Struct

from dragoman.client.transport.transport import Response, Transport
from dragoman.errors import A2AError

REQUEST, RESPONSE, BODY, MESSAGE, END = "request", "response", "body", "message", "end"


class WireEvent(Struct, frozen=True, kw_only=True):
    """Something that was sent or received. `n` is the number of the request that it belongs to."""

    n: int
    kind: str
    """`request` and `response` (with its head only), `body` (a piece of a response), `message` (of gRPC), `end`."""
    sent: bool = False
    """We sent it; else it was received."""
    time: float
    """In `time.time()` seconds."""
    method: str = ""
    """Of a request: POST, or the method of a gRPC service."""
    url: str = ""
    status: int = 0
    headers: Mapping[str, str] = {}
    body: bytes = b""
    """Of a request, all of it. A gRPC message is JSON."""
    error: str = ""
    """Why the answer ended early."""


Tap = Callable[[WireEvent], Awaitable[None]]
_numbers = count(1)


def new_request() -> int:
    """A number for a request."""
    return next(_numbers)


async def report(tap: Tap, n: int, kind: str, **about: Any) -> None:
    await tap(WireEvent(n=n, kind=kind, time=time.time(), **about))


class TappedTransport:
    """A `Transport` whose requests and responses are shown to a tap."""

    def __init__(self, inner: Transport, tap: Tap) -> None:
        self._inner, self._tap = inner, tap

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        n = new_request()
        await report(
            self._tap, n, REQUEST, sent=True, method=method, url=url, headers=dict(headers), body=body
        )
        try:
            response = await self._inner.request(method, url, headers, body)
        except A2AError as error:
            await report(self._tap, n, END, error=str(error))
            raise
        await report(self._tap, n, RESPONSE, status=response.status, headers=dict(response.headers))
        return TappedResponse(response, self._tap, n)

    async def close(self) -> None:
        await self._inner.close()


class TappedResponse:
    """A `Response` whose body is shown as it is read."""

    def __init__(self, inner: Response, tap: Tap, n: int) -> None:
        self._inner, self._tap, self._n = inner, tap, n
        self._ended = False

    @property
    def status(self) -> int:
        return self._inner.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._inner.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner.chunks():
                await report(self._tap, self._n, BODY, body=chunk)
                yield chunk
        except A2AError as error:
            await self._end(str(error))
            raise
        await self._end()

    async def read(self) -> bytes:
        try:
            body = await self._inner.read()
        except A2AError as error:
            await self._end(str(error))
            raise
        await report(self._tap, self._n, BODY, body=body)
        await self._end()
        return body

    async def close(self) -> None:
        await self._inner.close()
        await self._end()

    async def _end(self, error: str = "") -> None:
        if not self._ended:
            self._ended = True
            await report(self._tap, self._n, END, error=error)

"""How bytes reach a peer: one HTTP exchange, whoever carries it.

`http.py` carries them over the network, `asgi.py` to an application in the same process. What is above (JSON-RPC,
discovery, credentials) cannot tell which.
"""

from __future__ import annotations

import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import msgspec

from dragoman.errors import A2AError, Forbidden, RateLimited, Unauthenticated, Unavailable, Unreachable

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises on bytes from a stranger."""
MAX_BODY = 64 << 20
"""The largest document we read into memory."""
_MAX_RETRY_AFTER = 64
"""No number of seconds and no date is longer."""
_decode = msgspec.json.Decoder().decode


class NotSent(Unreachable):
    """The peer never saw the request, so repeating it is safe."""


class Rejected(Unreachable):
    """Turned down by whoever is there (HTTP 4xx). The same again would be, too."""


class NotThere(Rejected):
    """Nobody takes requests at that address (HTTP 404, 405, 410), so nothing was done."""


class Response(Protocol):
    """The answer to one request. Header names are lower case. Read it or close it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises `Unreachable` if it breaks off before its end."""
        ...

    async def read(self) -> bytes:
        """The whole body, up to `MAX_BODY`."""
        ...

    async def close(self) -> None:
        """Stop reading. A body that was read to its end leaves the connection usable."""
        ...


class Transport(Protocol):
    """Sends requests. Raises `NotSent` when the peer cannot have seen one, `Unreachable` when it may have."""

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        """Send, and return once the head of the response is here. Redirects are followed; credentials are not."""
        ...

    async def close(self) -> None: ...


def decoded(body: bytes) -> Any:
    """What a JSON document says; some writers begin it with a byte-order mark. Raises one of `NOT_JSON`."""
    return _decode(body.removeprefix(BOM_UTF8))


def too_large(url: str) -> Unreachable:
    return Unreachable(f"{url} answered with more than {MAX_BODY >> 20} MB")


async def read_at_most(response: Response, limit: int, url: str) -> bytes:
    """The body of what should be a small document."""
    body = bytearray()
    async for piece in response.chunks():
        body += piece
        if len(body) > limit:
            await response.close()
            raise Unreachable(f"{url} answered with more than {limit >> 10} KB")
    return bytes(body)


def error_of(
    response: Response, body: bytes, url: str, read: Callable[[dict[str, Any], int], A2AError]
) -> A2AError:
    """What a response that is not a success means: its own error document if it has one, else its status."""
    status = response.status
    try:
        document = decoded(body)
    except NOT_JSON:
        document = None
    if isinstance(document, dict) and isinstance(document.get("error"), dict) and status not in _BY_STATUS:
        error = read(document, status)
    else:
        error = _kind(status)(f"{url} answered HTTP {status}{_said(document, body)}")
    error.retry_after = retry_after(response.headers.get("retry-after", ""))
    return error


_BY_STATUS: dict[int, type[A2AError]] = {
    401: Unauthenticated,
    403: Forbidden,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
_LATER = (408, 425)
"""Refusals of the moment."""


def _kind(status: int) -> type[A2AError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status in (404, 405, 410):
        return NotThere
    if 400 <= status < 500 and status not in _LATER:
        return Rejected
    return Unavailable if status >= 500 else Unreachable


def _said(document: Any, body: bytes) -> str:
    """What the body says, on one line and not too much of it."""
    said: Any = None
    if isinstance(document, dict):
        inner = document.get("error")
        said = (
            inner.get("message")
            if isinstance(inner, dict)
            else inner or document.get("message") or document.get("detail")
        )
    if not isinstance(said, str):
        blank = document in ({}, []) or body[:1000].lstrip()[:1] == b"<"
        said = "" if blank else body[:200].decode("utf-8", "replace")
    said = " ".join(said[:1000].split())
    return f": {said[:200]}" if said else ""


def retry_after(value: str) -> float | None:
    """Seconds to wait, from a `Retry-After` of either kind (a number, a date)."""
    value = value.strip()
    if not value or len(value) > _MAX_RETRY_AFTER:
        return None
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None

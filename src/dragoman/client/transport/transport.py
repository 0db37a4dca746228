"""The interface of a transport: one HTTP request and its response.

`network.py` sends them over the network, `asgi.py` to an application in this process. What is above (JSON-RPC, discovery,
credentials) does not know which.
"""

from __future__ import annotations

import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import msgspec

from dragoman.dialects.errors import BY_HTTP
from dragoman.errors import A2AError, Unavailable, Unreachable

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What `decode_json` raises."""
MAX_BODY_BYTES = 64 << 20
"""The largest answer that is read into memory, in bytes."""
_MAX_RETRY_AFTER_CHARS = 64
_decode = msgspec.json.Decoder().decode


class NotSent(Unreachable):
    """The peer never saw the request, so repeating it is safe."""


class ConnectFailed(NotSent):
    """Nobody accepted the connection."""

    may_be_restarting = True


class AddressBlocked(NotSent):
    """The guard does not allow the address. Trying again does not help."""


class RequestRejected(Unreachable):
    """The server refused the request (HTTP 4xx), and would refuse it again."""


class NotThere(RequestRejected):
    """Nobody takes requests at that address (HTTP 404, 405, 410), so nothing was done."""


class AnswerTooLarge(Unreachable):
    """The answer is larger than the client reads. Asking again gets the same answer."""


FINAL_ERRORS = (AddressBlocked, RequestRejected, AnswerTooLarge)
"""Errors of a transport after which the same request fails again."""


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
        """The whole body, up to `MAX_BODY_BYTES`."""
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


def decode_json(body: bytes) -> Any:
    """Decode JSON; some writers begin it with a byte-order mark. Raises one of `NOT_JSON`."""
    return _decode(body.removeprefix(BOM_UTF8))


def too_large(url: str) -> AnswerTooLarge:
    return AnswerTooLarge(f"{url} answered with more than {MAX_BODY_BYTES >> 20} MB")


async def read_at_most(response: Response, limit: int, url: str) -> bytes:
    """The body of a small document. Raises `AnswerTooLarge`."""
    body = bytearray()
    async for piece in response.chunks():
        body += piece
        if len(body) > limit:
            await response.close()
            raise AnswerTooLarge(f"{url} answered with more than {limit >> 10} KB")
    return bytes(body)


def to_error(
    response: Response, body: bytes, url: str, read: Callable[[dict[str, Any], int], A2AError]
) -> A2AError:
    """The error of a response that is not a success: from its error document if it has one, else from its status."""
    status = response.status
    try:
        document = decode_json(body)
    except NOT_JSON:
        document = None
    if isinstance(document, dict) and isinstance(document.get("error"), dict) and status not in BY_HTTP:
        error = read(document, status)
    else:
        error = error_class(status)(f"{url} answered HTTP {status}{_describe_body(document, body)}")
    error.retry_after = retry_after(response.headers.get("retry-after", ""))
    return error


_TEMPORARY = (408, 425)


def error_class(status: int) -> type[A2AError]:
    if status in BY_HTTP:
        return BY_HTTP[status]
    if status in (404, 405, 410):
        return NotThere
    if 400 <= status < 500 and status not in _TEMPORARY:
        return RequestRejected
    return Unavailable if status >= 500 else Unreachable


def _describe_body(document: Any, body: bytes) -> str:
    """The text of an error response, on one line and not too much of it."""
    text: Any = None
    if isinstance(document, dict):
        inner = document.get("error")
        text = (
            inner.get("message")
            if isinstance(inner, dict)
            else inner or document.get("message") or document.get("detail")
        )
    if not isinstance(text, str):
        blank = document in ({}, []) or body[:1000].lstrip()[:1] == b"<"
        text = "" if blank else body[:200].decode("utf-8", "replace")
    text = " ".join(text[:1000].split())
    return f": {text[:200]}" if text else ""


def retry_after(value: str) -> float | None:
    """Seconds to wait, from a `Retry-After` of either kind (a number, a date)."""
    value = value.strip()
    if not value or len(value) > _MAX_RETRY_AFTER_CHARS:
        return None
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None

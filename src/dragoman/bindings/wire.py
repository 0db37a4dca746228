"""uvicorn's HTTP/1.1, with a short way for requests that are all here and answers that are whole.

Through ASGI, such a request is received in an event of its own and its answer is two messages and two writes. Most
requests are small and most answers whole, so the application may ask for the body and give the answer directly
(`exchange.Direct`, in the scope's extensions); where it meets another server, it does as ASGI says. Clients that are too
slow to ask or to read are let go (`bindings/slow.py`).

What could be read in two ways is not read at all: a request names one host, its body is chunked or has a length, and a
trailer is never a header. A head has an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dragoman.bindings.exchange import DIRECT, Header
from dragoman.bindings.limits import Limits
from dragoman.bindings.slow import Slow

_MOST_HEADERS = 256
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _Refused(Exception):
    """The parser stops here."""


class _Trailers(list[tuple[bytes, bytes]]):
    """What comes after a body has no meaning for us, and some of it would have one among the headers."""

    def append(self, header: tuple[bytes, bytes]) -> None:
        pass


_TRAILERS = _Trailers()


class HttpProtocol(HttpToolsProtocol):
    """`slow` is what the connections of a server share; one that comes without is on its own."""

    def __init__(
        self, *args: Any, slow: Slow | None = None, max_head: int = 64 << 10, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._slow = slow or Slow(Limits())
        self._max_head, self._head = max_head, 0
        self._answered: RequestResponseCycle | None = None
        """The request that is being answered, while others wait behind it; uvicorn remembers only the last of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._slow.asked(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._slow.gone(self)
        answered = self._answered
        if answered is not None and not answered.response_complete:
            answered.disconnected = True
            answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.headers is not _TRAILERS:  # a head has begun and has not ended
            self._head += len(data)
            if self._head > self._max_head:
                self._refuse(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._slow.sent(self)
        self._check_head()
        before = self.cycle
        super().on_headers_complete()
        if (cycle := self.cycle) is not before:
            self.scope.setdefault("extensions", {})[DIRECT] = _Direct(cycle)  # type: ignore[assignment]
        if self.pipeline and self._answered is None:
            self._answered = before
        self.headers, self._head = _TRAILERS, 0

    def _check_head(self) -> None:
        if len(self.headers) > _MOST_HEADERS:
            self._refuse(_TOO_LARGE)
            raise _Refused
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                raise _Refused
        if hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            raise _Refused

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():  # or it has been said already
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """As uvicorn does, but without a timer for each pause between two requests: `Slow` has one clock for all."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._answered = None
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._answered = cycle
            self._start_asgi_task(cycle, app)
        else:
            self._answered = None
            self._slow.asked(self)  # also if the rest of a body is on its way: nobody else waits for that

    def pause_writing(self) -> None:
        self._slow.blocked(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._slow.free(self)
        super().resume_writing()

    def unread(self) -> int:
        return self.transport.get_write_buffer_size()

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()


class _Direct:
    """One request and its answer, past ASGI (`exchange.Direct`)."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def body(self) -> bytes | None:
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        cycle.flow.resume_reading()
        return body

    def answer(self, status: int, headers: Sequence[Header], body: bytes, length: int | None) -> bool:
        cycle = self._cycle
        if cycle.response_started or cycle.flow.write_paused:
            return False
        if cycle.disconnected:
            return True
        head = _head(status, tuple(headers)) + _lines(tuple(cycle.default_headers))
        if length is not None:
            head += b"content-length: %d\r\n" % length
        if not cycle.keep_alive:
            head += b"connection: close\r\n"
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"%b\r\n%b" % (head, body))
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


@lru_cache(256)
def _head(status: int, headers: tuple[Header, ...]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n%b" % (status, phrase.encode(), _lines(headers))


@lru_cache(256)
def _lines(headers: tuple[Header, ...]) -> bytes:
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers) or b"\0" in lines:
        raise ValueError("a header must be one line")
    return lines

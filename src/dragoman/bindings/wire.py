"""uvicorn's HTTP/1.1, with the head and the body of an answer in one write.

uvicorn writes them apart. A write is a call into the kernel and a packet: of a small answer, the second one is a fifth of
the cost. Streams are written as they come. Clients that are too slow to ask or to read are let go (`bindings/slow.py`).

What could be read in two ways is not read at all: a request names one host, its body is chunked or has a length, and a
trailer is never a header. A head has an end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

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
        super().connection_made(_Transport(transport, self.loop))  # type: ignore[arg-type]
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
        self._answered = self.pipeline[-1][0] if self.pipeline else None
        if not self.pipeline:
            self._slow.asked(
                self
            )  # also if the rest of a body is still on its way: nobody else waits for that
        super().on_response_complete()

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


class _Transport:
    """Holds an answer whose length is known until the loop comes round: by then it is whole."""

    __slots__ = ("_held", "_loop", "_transport", "get_extra_info", "is_closing", "pause_reading", "resume_reading",
                 "set_protocol")  # fmt: skip

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []
        self.get_extra_info: Any = transport.get_extra_info
        self.is_closing: Any = transport.is_closing
        self.pause_reading: Any = transport.pause_reading
        self.resume_reading: Any = transport.resume_reading
        self.set_protocol: Any = transport.set_protocol

    def write(self, data: bytes) -> None:
        if self._held:
            self._held.append(data)
        elif data.startswith(b"HTTP/1.1 ") and b"\r\ncontent-length: " in data:
            self._held.append(data)
            self._loop.call_soon(self._release)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._release()
        self._transport.close()

    def abort(self) -> None:
        self._held.clear()
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def _release(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held))

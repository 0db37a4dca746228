"""uvicorn's HTTP/1.1, with the head and the body of an answer in one write.

uvicorn writes them apart. A write is a call into the kernel and a packet: of a small answer, the second one is a fifth of
the cost. Streams are written as they come. Clients that are too slow to ask or to read are let go (`bindings/slow.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dragoman.bindings.limits import Limits
from dragoman.bindings.slow import Slow


class HttpProtocol(HttpToolsProtocol):
    """`slow` is what the connections of a server share; one that comes without is on its own."""

    def __init__(self, *args: Any, slow: Slow | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._slow = slow or Slow(Limits())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Transport(transport, self.loop))  # type: ignore[arg-type]
        self._slow.asked(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._slow.gone(self)
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._slow.sent(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
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

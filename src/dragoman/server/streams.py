"""Responses that are streams: batches of events, keep-alives between them, and an end for clients that left.

A stream ends when its client leaves or the server stops. Its task goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Protocol, TypeVar

from dragoman.dialects.sse import KEEP_ALIVE, MEDIA_TYPE
from dragoman.errors import Unavailable
from dragoman.server.asgi import Disconnected, HttpClient
from dragoman.server.limits import Timeout
from dragoman.server.mount import Header

E = TypeVar("E", contravariant=True)

STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
_STARTS_PER_KEEPALIVE, _PROBES_PER_KEEPALIVE = 4, 8
"""A response without an event starts after a quarter of the keep-alive time: until then, an error is sent like that of any other
call. A half-closed client gets a keep-alive every eighth of it: the write fails if the client left."""


class ResponseWriter(HttpClient, Protocol):
    """A response to write: an `Exchange`."""

    responding: bool
    """The response has begun."""

    async def start(self, status: int, headers: Iterable[Header]) -> None: ...

    async def write(self, body: bytes, *, more: bool = True) -> None: ...


class Framing(Protocol[E]):
    """Turns the batches of a stream into bytes."""

    def batch(self, batch: E) -> tuple[bytes, bool]:
        """The frames of a batch; True if the stream ends with it."""
        ...


class Streams:
    """The open streams of an application. Their keep-alives are timeouts, so an idle stream has no timer of its own."""

    def __init__(self, *, keepalive: float = 15.0) -> None:
        self.sends_keep_alives = keepalive > 0
        self._open: set[_Stream] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.unstarted = Timeout[_Stream](keepalive / _STARTS_PER_KEEPALIVE, _Stream.send_keep_alive)
        self.quiet = Timeout[_Stream](keepalive, _Stream.send_keep_alive)
        self.half_closed = Timeout[_Stream](keepalive / _PROBES_PER_KEEPALIVE, _Stream.send_keep_alive)
        self.draining = False

    def __len__(self) -> int:
        return len(self._open)

    async def serve(
        self,
        response: ResponseWriter,
        batches: AsyncIterator[E],
        frames: Framing[E],
        *,
        failed: Callable[[Exception], bytes],
        headers: Iterable[Header] = (),
    ) -> None:
        """Write a stream to its end. An error before the first event is raised; a later one is the last frame."""
        if self.draining:
            raise Unavailable("shutting down", retry_after=1)
        stream = _Stream(self, response, headers)
        self._open.add(stream)
        self._idle.clear()
        direct, watcher = response.direct, None
        if direct is not None:
            direct.on_gone = stream.leave
            if direct.gone:
                stream.leave()
        else:
            watcher = asyncio.create_task(stream.watch())
        try:
            try:
                async for batch in batches:
                    chunk, last = frames.batch(batch)
                    await stream.write(chunk)
                    if last:
                        break
            finally:
                stream.running = False  # the end must not be canceled
        except asyncio.CancelledError:
            if not stream.ended:
                raise
            stream.task.uncancel()
        except Disconnected:
            stream.gone = True
        except Exception as error:
            if not response.responding:
                raise
            await stream.write(failed(error))
        finally:
            self._open.discard(stream)
            if not self._open:
                self._idle.set()
            stream.timeout.remove(stream)
            if direct is not None:
                direct.on_gone = None
            if watcher is not None:
                watcher.cancel()
            if (aclose := getattr(batches, "aclose", None)) is not None:
                await aclose()
        if stream.gone:
            return
        if stream.ended and not response.responding:
            raise Unavailable("shutting down", retry_after=1)
        with suppress(Disconnected, OSError):
            await stream.write(b"")
            await response.write(b"", more=False)

    async def drain(self) -> None:
        """End every stream between two events, and begin no more. Clients continue with `Last-Event-ID`."""
        self.draining = True
        for stream in list(self._open):
            stream.end()
        await self._idle.wait()


class _Stream:
    __slots__ = ("_headers", "_keep_alive", "_response", "_streams", "_writing", "ended", "gone", "running", "task",
                 "timeout")  # fmt: skip

    def __init__(self, streams: Streams, response: ResponseWriter, headers: Iterable[Header]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[object] = task
        self.running = True
        self.ended = False
        """The stream is to end: the client left (`gone`), or the server stops."""
        self.gone = False
        self._streams = streams
        self._response = response
        self._headers = headers
        self._writing = False
        self._keep_alive: asyncio.Task[None] | None = None
        """A keep-alive that is being written."""
        self.timeout = streams.unstarted
        """Runs out when a keep-alive is to be sent."""
        if streams.sends_keep_alives:
            self.timeout.add(self)

    async def write(self, chunk: bytes) -> None:
        """Raises `Disconnected`."""
        if self._keep_alive is not None and chunk is not KEEP_ALIVE:
            await asyncio.wait([self._keep_alive])
        self._writing = True
        response, streams = self._response, self._streams
        try:
            if not response.responding:
                await response.start(200, (*STREAM_HEADERS, *self._headers))
                self.timeout.remove(self)
                half_closed = response.direct is not None and response.direct.half_closed
                self.timeout = streams.half_closed if half_closed else streams.quiet
            if chunk:
                await response.write(chunk)
        except OSError:
            raise Disconnected from None
        finally:
            self._writing = False
        if streams.sends_keep_alives and self.running:
            self.timeout.add(self)

    def send_keep_alive(self) -> None:
        """Nothing was written for a while."""
        if not self.running:
            return
        direct = self._response.direct
        if direct is not None and direct.half_closed:
            self.timeout = self._streams.half_closed
        if self._writing or self._keep_alive is not None:
            self.timeout.add(self)
        else:
            self._keep_alive = self.task.get_loop().create_task(self._write_keep_alive())

    async def _write_keep_alive(self) -> None:
        try:
            await self.write(KEEP_ALIVE)
        except Disconnected:
            pass  # `leave` ends the stream
        finally:
            self._keep_alive = None

    async def watch(self) -> None:
        """Wait for the client to go away."""
        while (await self._response.receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def leave(self) -> None:
        """The client has gone away."""
        self.gone = True
        self.end()

    def end(self) -> None:
        if self.running and not self.ended:
            self.ended = True
            self.task.cancel()

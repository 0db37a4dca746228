"""Streams over HTTP: events out, one frame each, for as long as somebody reads.

A stream is a reader with a cursor and nothing else: when its client goes away, or this server does, the reading ends
and the task goes on. Frames that are ready together leave in one write. One clock for all streams keeps the idle ones
alive, so a quiet stream costs no timer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.sse import KEEP_ALIVE, MAX_EVENT, MEDIA_TYPE
from dragoman.errors import A2AError, InvalidAgentResponse, Unavailable
from dragoman.model.ops import Batch, Op, Request
from dragoman.model.task import ArtifactUpdate
from dragoman.server.exchange import Disconnected, Exchange, Header
from dragoman.server.stream_end import Ending

E = TypeVar("E", contravariant=True)

HEADERS: tuple[Header, ...] = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)

_TICKS = 8
"""How many times the clock ticks before a quiet stream is spoken to. (Once is enough if its client says nothing more: one
that left answers that it is not there.)"""
_BEGIN = 2
"""And before one begins in which nothing has happened: until then, what fails is refused like any other call."""


class Frames:
    """Turns the events of one stream into bytes."""

    __slots__ = ("_writer", "_write", "_own", "_opening", "_closing", "_ends_with", "_max")

    def __init__(
        self,
        dialect: Dialect,
        op: Op,
        request: Request,
        *,
        opening: bytes = b"data: ",
        closing: bytes = b"\n\n",
        max_event: int = MAX_EVENT,
    ) -> None:
        self._writer = dialect.writer(request)
        self._write = self._writer.write
        self._opening, self._closing = opening, closing
        """What stands around each document; the documents themselves have no line breaks."""
        openings: Mapping[type, bytes] = getattr(self._writer, "openings", {})
        self._own = {kind: opening + member for kind, member in openings.items()}
        """What stands before an event's own JSON, in dialects that write it as it is; `}` stands after it."""
        self._ends_with = Ending(dialect, op).comes_with
        self._max = max_event

    def batch(self, batch: Batch) -> tuple[bytes, bool]:
        """The frames of a batch, and whether the stream ends with it."""
        frames: list[bytes] = []
        opening, closing, own, add = self._opening, self._closing, self._own, frames.append
        final, last = len(batch) - 1, False
        for n, response in enumerate(batch):
            event, seq = response.event, response.seq
            kind = type(event)
            last = kind is not ArtifactUpdate and self._ends_with(event, n == final)
            if own and seq:
                add(b"id: %d\n%b%b}%b" % (seq, own[kind], response.raw, closing))
            else:
                documents = self._write(response, last=last)
                for document in documents[:-1]:
                    add(opening + document + closing)
                if documents:  # the id comes with the last one: only then has the whole event arrived
                    add((b"id: %d\n" % seq if seq else b"") + opening + documents[-1] + closing)
            if last:
                break
        chunk = b"".join(frames)
        if len(chunk) > self._max and max(map(len, frames)) > self._max:
            raise InvalidAgentResponse(
                f"an event of this task is larger than {self._max} bytes; get the task instead"
            )
        return chunk, last

    def fail(self, error: A2AError) -> bytes:
        """The end of a stream that broke, in dialects that have events for it; empty in the others."""
        if (fail := getattr(self._writer, "fail", None)) is None:
            return b""
        return b"".join([self._opening + document + self._closing for document in fail(error)])


class Framing(Protocol[E]):
    """Turns what a stream brings into bytes."""

    def batch(self, batch: E) -> tuple[bytes, bool]:
        """The frames of a batch, and whether the stream ends with it."""
        ...


class Streams:
    """Every open stream of the application."""

    def __init__(self, *, keepalive: float = 15.0) -> None:
        self._keepalive = keepalive
        self._open: set[_Stream] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._clock: asyncio.TimerHandle | None = None
        self._beats: set[asyncio.Task[None]] = set()
        self.ticks = 0
        self.draining = False

    def __len__(self) -> int:
        return len(self._open)

    async def serve(
        self,
        exchange: Exchange,
        batches: AsyncIterator[E],
        frames: Framing[E],
        *,
        failed: Callable[[Exception], bytes],
        headers: Iterable[Header] = (),
    ) -> None:
        """Write a stream to its end. What fails before the first event is raised; later, it is the last frame."""
        if self.draining:
            raise Unavailable("shutting down", retry_after=1)
        stream = _Stream(self, exchange, headers)
        self._enter(stream)
        watcher = asyncio.create_task(stream.watch())
        try:
            try:
                async for batch in batches:
                    chunk, last = frames.batch(batch)
                    await stream.write(chunk)
                    if last:
                        break
            finally:
                stream.running = False  # nobody may cancel what we write about the end
        except asyncio.CancelledError:
            if not stream.ended:
                raise
            stream.task.uncancel()
        except Disconnected:
            stream.gone = True
        except Exception as error:
            if not exchange.responding:
                raise
            await stream.write(failed(error))
        finally:
            self._leave(stream)
            watcher.cancel()
            if (aclose := getattr(batches, "aclose", None)) is not None:
                await aclose()
        await stream.finish()

    def _enter(self, stream: _Stream) -> None:
        self._open.add(stream)
        self._idle.clear()
        if self._clock is None and self._keepalive > 0:
            self._clock = stream.task.get_loop().call_later(self._keepalive / _TICKS, self._tick)

    def _leave(self, stream: _Stream) -> None:
        self._open.discard(stream)
        if not self._open:
            self._idle.set()

    def _tick(self) -> None:
        self._clock = None
        self.ticks += 1
        loop = asyncio.get_running_loop()
        for stream in self._open:
            if stream.quiet(self.ticks):
                beat = loop.create_task(stream.keep_alive())
                self._beats.add(beat)
                beat.add_done_callback(self._beats.discard)
        if self._open:
            self._clock = loop.call_later(self._keepalive / _TICKS, self._tick)

    async def drain(self) -> None:
        """End every stream between two events, and begin no more. Clients come back with `Last-Event-ID`."""
        self.draining = True
        for stream in list(self._open):
            stream.end()
        await self._idle.wait()


class _Stream:
    """One response that goes on."""

    __slots__ = ("_exchange", "_headers", "_lock", "_streams", "ended", "gone", "running", "task", "wrote")

    def __init__(self, streams: Streams, exchange: Exchange, headers: Iterable[Header]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[object] = task
        self.running = True
        self.ended = False
        """Somebody asked for the end: the client by going away (`gone`), or the server."""
        self.gone = False
        self.wrote = streams.ticks
        self._streams = streams
        self._exchange = exchange
        self._headers = headers
        self._lock = asyncio.Lock()
        """Held while bytes leave: a keep-alive never comes between."""

    def quiet(self, ticks: int) -> bool:
        exchange = self._exchange
        patience = 1 if exchange.half_closed else _TICKS if exchange.responding else _BEGIN
        return ticks - self.wrote >= patience and not self._lock.locked()

    async def write(self, chunk: bytes) -> None:
        """Raises `Disconnected`."""
        async with self._lock:
            await self._write(chunk)

    async def _write(self, chunk: bytes) -> None:
        exchange = self._exchange
        try:
            if not exchange.responding:
                await exchange.start(200, (*HEADERS, *self._headers))
            if chunk:
                await exchange.send({"type": "http.response.body", "body": chunk, "more_body": True})
        except OSError:
            raise Disconnected from None
        self.wrote = self._streams.ticks

    async def keep_alive(self) -> None:
        with suppress(Disconnected):  # the watcher will say so
            async with self._lock:
                if self.running:
                    await self._write(KEEP_ALIVE)

    async def watch(self) -> None:
        """Wait for the client to go away."""
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.end()

    def end(self) -> None:
        if self.running and not self.ended:
            self.ended = True
            self.task.cancel()

    async def finish(self) -> None:
        if self.gone:
            return
        if self.ended and not self._exchange.responding:
            raise Unavailable("shutting down", retry_after=1)
        with suppress(Disconnected, OSError):
            await self.write(b"")
            await self._exchange.send({"type": "http.response.body", "body": b""})

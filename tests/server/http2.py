"""HTTP/2 by hand: as much as it takes to be a caller that gRPC's own clients would not be."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MAX_CONCURRENT_STREAMS = 3


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    n = len(text)
    if n < 127:
        return bytes((n,))
    out, n = bytearray((127,)), n - 127
    while n >= 128:
        out.append(n % 128 + 128)
        n //= 128
    out.append(n)
    return bytes(out)


class Connection:
    """`windows` is what the server has let us send, by stream, beyond the 65,535 bytes that each begins with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.settings: dict[int, int] = {}
        self.windows: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        """Streams that the server has ended, and with which kind of frame first."""
        self.closed = False
        self._news = asyncio.Condition()

    def call(self, stream: int, method: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Begin a call: its head alone."""
        said = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.encode()),
            (b":authority", b"here"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *headers,
        ]
        block = b"".join(_literal(name, value) for name, value in said)
        self.writer.write(frame(HEADERS, END_HEADERS, stream, block))

    def data(self, stream: int, payload: bytes, *, end: bool = False) -> None:
        pieces = [payload[at : at + 16384] for at in range(0, len(payload), 16384)] or [b""]
        for n, piece in enumerate(pieces, 1):
            self.writer.write(frame(DATA, END_STREAM if end and n == len(pieces) else 0, stream, piece))

    async def until(self, true: object) -> None:
        """Wait until `true()`, which is asked after each frame."""
        assert callable(true)
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: true() or self.closed)
            assert true()

    async def listen(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self.reader.readexactly(9)
                size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
                stream = int.from_bytes(head[5:]) & 0x7FFFFFFF
                payload = await self.reader.readexactly(size)
                if kind == SETTINGS and not flags & ACK:
                    self.settings.update(struct.iter_unpack(">HI", payload))
                    self.writer.write(frame(SETTINGS, ACK, 0))
                elif kind == PING and not flags & ACK:
                    self.writer.write(frame(PING, ACK, 0, payload))
                elif kind == WINDOW:
                    self.windows[stream] = self.windows.get(stream, 0) + int.from_bytes(payload)
                elif kind == RST or (kind == HEADERS and flags & END_STREAM):
                    self.ended.setdefault(stream, kind)
                async with self._news:
                    self._news.notify_all()
        self.closed = True
        async with self._news:
            self._news.notify_all()


@asynccontextmanager
async def dialled(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
    connection = Connection(reader, writer)
    listening = asyncio.create_task(connection.listen())
    try:
        yield connection
    finally:
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        writer.transport.abort()

"""Ends gRPC calls whose caller does not read, with `write_timeout` and `read_rate` as over HTTP.

gRPC's core takes one message at a time, and says when the caller has room for it. It does not say how much of the message
has been read, and it cannot end a call while a message waits: the status comes after the message. So what a caller reads is
counted per connection (`front.py`). A call that waits too long ends for us: nothing more is read from the log for it.
Its message stays in the core until the caller reads it or the connection is closed. We close the connection if all of
its calls have ended like that, or if they hold more than `MAX_UNREAD_BYTES`. So a proxy with many users on one connection does
not lose the others because of one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from dragoman.errors import Unavailable
from dragoman.server.limits import Limits, Timeout

log = logging.getLogger(__name__)

MAX_UNREAD_BYTES = 1 << 20
"""Of calls that have ended because their caller does not read, on one connection."""


class Client(Protocol):
    """The connection of a caller."""

    def read_bytes(self) -> int:
        """Bytes that we passed on and that its connection took."""
        ...

    def abort(self) -> None: ...


class TooSlowReader(Unavailable):
    """The caller can subscribe again, and misses nothing."""


class Readers:
    """The open calls of a port, by connection. `find`: the connection of a peer; None if it cannot be watched."""

    def __init__(self, limits: Limits, find: Callable[[str], Client | None]) -> None:
        self._find = find
        self._max_uploads = limits.max_uploads
        self._seconds, self._rate = limits.write_timeout, limits.read_rate
        self._timeout = Timeout[CallReader](limits.write_timeout, self._check)
        self._connections: dict[str, GrpcConnection] = {}

    def begin(self, peer: str, *, streams: bool) -> CallReader:
        """A call begins. It ends with its asyncio task, which includes writing the answer and the status."""
        connection = self._connections.get(peer)
        if connection is None:
            connection = GrpcConnection(peer, self._find(peer), self._max_uploads)
            self._connections[peer] = connection
        task = asyncio.current_task()
        assert task is not None
        reader = CallReader(connection, task, streams, self._timeout)
        connection.calls.add(reader)
        task.add_done_callback(lambda _: self._end(reader))
        return reader

    def _end(self, reader: CallReader) -> None:
        self._timeout.remove(reader)
        connection = reader.connection
        connection.calls.discard(reader)
        if connection.calls:
            connection.close_if_unread()
        else:
            self._connections.pop(connection.peer, None)

    def _check(self, reader: CallReader) -> None:
        """A message waits for a whole `write_timeout`. Give it more time if its caller reads fast enough: at most as
        long as the message takes at the slowest rate that is allowed."""
        now, read = reader.task.get_loop().time(), reader.connection.read_bytes()
        enough = read - reader.read_before >= self._rate * self._seconds
        if enough and now - reader.since < self._seconds + reader.unread / max(1, self._rate):
            reader.read_before = read
            self._timeout.add(reader)
            return
        reader.expired = True
        log.info("a gRPC client does not read its answer: the call ends, and its task goes on")
        if reader.streams:
            reader.task.cancel()
        reader.connection.close_if_unread()


class GrpcConnection:
    """One connection, with its open calls."""

    __slots__ = ("_client", "calls", "peer", "uploads")

    def __init__(self, peer: str, client: Client | None, max_uploads: int) -> None:
        self.peer, self._client = peer, client
        self.uploads = asyncio.Semaphore(max_uploads)
        """For calls that send their body."""
        self.calls: set[CallReader] = set()

    def read_bytes(self) -> int:
        return self._client.read_bytes() if self._client is not None else 0

    def close_if_unread(self) -> None:
        expired = [call for call in self.calls if call.expired]
        if not expired or self._client is None:
            return
        if len(expired) == len(self.calls) or sum(call.unread for call in expired) > MAX_UNREAD_BYTES:
            self._client.abort()


class CallReader:
    """How one call's answer is read.

    with reader.writing(size):
        await write(message)  # `TooSlowReader` if the caller does not read it

    The answer of a call without a stream is written by gRPC after our function has returned: `writing` alone watches it.
    """

    __slots__ = ("_timeout", "connection", "expired", "read_before", "since", "streams", "task", "unread")

    def __init__(
        self, connection: GrpcConnection, task: asyncio.Task[Any], streams: bool, timeout: Timeout[CallReader]
    ) -> None:
        self.connection, self.task, self.streams = connection, task, streams
        self._timeout = timeout
        self.expired = False
        self.since = 0.0
        self.unread = self.read_before = 0
        """Bytes of the message that waits; what the connection had read when the wait began."""

    def writing(self, size: int) -> CallReader:
        self.since, self.unread = self.task.get_loop().time(), size
        self.read_before = self.connection.read_bytes()
        self._timeout.add(self)
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._timeout.remove(self)
        if self.expired and kind is asyncio.CancelledError:
            self.task.uncancel()
            raise TooSlowReader("the answer was not read in time; subscribe again to go on") from None
        self.unread = 0

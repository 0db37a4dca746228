"""Limits of requests and connections, and the timeouts that enforce them.

A timer per request would cost as much as reading the request. So each kind of wait has one timer: a wait is an entry
in a dictionary, and the timer looks through the entries eight times per timeout while there are any. A timeout is
therefore up to an eighth late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dragoman.dialects.sse import MAX_EVENT_BYTES

BODIES_BYTES = 64 << 20
"""Of large request bodies that a process works on at a time. The work takes several copies of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_body: int = 8 << 20
    """Bytes in a request."""
    max_head: int = 64 << 10
    """Bytes in the head of a request; on our own server."""
    max_depth: int = 64
    """Levels of nesting in its JSON."""
    max_nodes: int = 250_000
    """Objects and arrays in it: eight megabytes of `[],[],` would become hundreds in memory."""
    max_event: int = MAX_EVENT_BYTES
    """Bytes in one event of a stream we write."""
    body_timeout: float = 30.0
    """Seconds the body of a request may take to arrive."""
    head_timeout: float = 10.0
    """Seconds until a connection has sent the head of a request; on our own server."""
    write_timeout: float = 60.0
    """Seconds a client may go without reading what we wrote; on our own server and gRPC. The task goes on without it."""
    read_rate: int = 1024
    """Bytes per second that it has to read in that time, if there are more to read than a connection holds."""

    max_connections: int = 0
    """Open connections, over HTTP and gRPC together. Further ones get 503, or over gRPC are closed. 0: any number. On our
    own server."""
    max_streams: int = 256
    """Open calls of one gRPC connection; its client delays further ones."""
    max_uploads: int = 8
    """Of these, the calls that may send a body at once; the others wait, each with what fits into its window."""

    def exceeded_by(self, document: bytes) -> str:
        """Which limit a document exceeds, found without decoding it; empty if none."""
        if document.count(b"{") + document.count(b"[") <= self.max_depth:
            return ""
        brackets = _outside_strings(document).translate(_ONE_KIND)
        if brackets.count(b"(") > self.max_nodes:
            return f"the request has more than {self.max_nodes} objects and arrays"
        if _deeper_than(self.max_depth, brackets):
            return f"the request nests deeper than {self.max_depth} levels"
        return ""


class ConnectionGauge(Protocol):
    """The open connections of all workers of a server."""

    def set(self, value: int) -> None: ...

    def total(self) -> int: ...


class Connections:
    """Counts the open connections of a process, of all its bindings. `gauge`: adds those of other workers."""

    def __init__(self, most: int = 0, gauge: ConnectionGauge | None = None) -> None:
        self._most, self._gauge = most, gauge
        self.here = 0

    def count(self, change: int) -> None:
        self.here += change
        if self._gauge is not None:
            self._gauge.set(self.here)

    @property
    def full(self) -> bool:
        """True if there are more connections than allowed."""
        return self._most > 0 and (self._gauge.total() if self._gauge else self.here) > self._most


_NEITHER = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_ONE_KIND = bytes.maketrans(b"[]{}", b"()()")


def _outside_strings(document: bytes) -> bytes:
    """The brackets that are not in strings; a string that does not end goes to the end."""
    if b"\\" in document:  # in JSON only strings have them: what is left of them escapes a quote
        document = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = document.translate(None, _NEITHER)
    # Two adjacent quotes change nothing around them, and most strings have no brackets.
    return b"".join(marks.replace(b'""', b"").split(b'"')[::2])


def _deeper_than(limit: int, brackets: bytes) -> bool:
    """Remove the innermost pairs, once per level: what is left after `limit` rounds was deeper."""
    descent = b"(" * (limit + 1)
    for _ in range(limit):
        if descent in brackets:
            return True
        shorter = brackets.replace(b"()", b"")
        if len(shorter) == len(brackets):
            break  # nothing closes: not JSON
        brackets = shorter
    return b"()" in brackets


# -- timeouts --------------------------------------------------------------------------------------------------------


CHECKS_PER_TIMEOUT = 8

K = TypeVar("K")


class Timeout(Generic[K]):
    """Calls `expired(key)` for each key that was added more than `seconds` ago and not removed."""

    def __init__(self, seconds: float, expired: Callable[[K], object]) -> None:
        self._interval = seconds / CHECKS_PER_TIMEOUT
        self._expired = expired
        self._now = 0
        self._timer: asyncio.TimerHandle | None = None
        self._since: dict[K, int] = {}

    def add(self, key: K) -> None:
        self._since[key] = self._now
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._check)

    def remove(self, key: K) -> bool:
        """True if the key was there."""
        return self._since.pop(key, None) is not None

    def _check(self) -> None:
        self._now += 1
        self._timer = None
        for key in [key for key, since in self._since.items() if self._now - since > CHECKS_PER_TIMEOUT]:
            del self._since[key]
            self._expired(key)
        if self._since and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._check)


class TaskTimeout:
    """Limits how long the current task waits. One instance serves any number of tasks.

    with timeout:
        await something  # TimeoutError after `seconds`
    """

    def __init__(self, seconds: float) -> None:
        self._timeout = Timeout[asyncio.Task[object]](seconds, asyncio.Task.cancel)

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._timeout.add(task)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        expired = not self._timeout.remove(task)
        if expired and kind is asyncio.CancelledError and not task.uncancel():
            raise TimeoutError from None


class TimedConnection(Protocol):
    """What `ConnectionTimeouts` needs of a connection."""

    def unread_bytes(self) -> int:
        """Bytes that we wrote and the client has not read."""
        ...

    def is_responding(self) -> bool:
        """True between the first and the last byte of a response."""
        ...

    def end_head(self) -> None:
        """The head of a request, or the rest of what is ignored, did not come in time: close, after an answer if a head has begun."""
        ...

    def close(self) -> None:
        """Close when everything written is read."""
        ...

    def abort(self) -> None: ...


class ConnectionTimeouts:
    """Closes connections whose client is too slow. Tasks go on without their readers.

    The head of a request must arrive within `head_timeout`. A client must read at `read_rate`; a byte now and then is
    not enough. A client that closed its side gets `write_timeout` for the response to begin.
    """

    def __init__(self, limits: Limits) -> None:
        self._heads = Timeout[TimedConnection](limits.head_timeout, lambda peer: peer.end_head())
        self._readers = Timeout[TimedConnection](limits.write_timeout, self._check_reader)
        self._half_closed = Timeout[TimedConnection](limits.write_timeout, self._check_half_closed)
        self._min_bytes_read = limits.read_rate * limits.write_timeout
        self._unread: dict[TimedConnection, int] = {}
        self.head_expected = self._heads.add
        self.head_received = self._heads.remove
        self.half_closed = self._half_closed.add

    def write_blocked(self, peer: TimedConnection) -> None:
        self._unread[peer] = peer.unread_bytes()
        self._readers.add(peer)

    def write_unblocked(self, peer: TimedConnection) -> None:
        if self._unread.pop(peer, None) is not None:
            self._readers.remove(peer)

    def forget(self, peer: TimedConnection) -> None:
        self._half_closed.remove(peer)
        self._heads.remove(peer)
        if self._unread.pop(peer, None) is not None:
            self._readers.remove(peer)

    def _check_reader(self, peer: TimedConnection) -> None:
        before = self._unread.pop(peer)
        read = before - peer.unread_bytes()
        if read > 0 and read >= min(self._min_bytes_read, before):
            self.write_blocked(peer)
        else:
            peer.abort()

    def _check_half_closed(self, peer: TimedConnection) -> None:
        if peer.is_responding():
            self._half_closed.add(peer)  # writing shows whether the client is still there
        else:
            peer.abort()

"""Timeouts that cost nothing per request.

A timer per request would cost as much as reading the request. So each kind of wait has one timer: a wait is an entry
in a dictionary, and the timer looks through the entries eight times per timeout while there are any. A timeout is
therefore up to an eighth late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from dragoman.server.limits import Limits

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


class Peer(Protocol):
    """What `ConnectionTimeouts` needs of a connection."""

    def unread_bytes(self) -> int:
        """Bytes that we wrote and the client has not read."""
        ...

    def is_responding(self) -> bool:
        """True between the first and the last byte of a response."""
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
        self._heads = Timeout[Peer](limits.head_timeout, lambda peer: peer.close())
        self._readers = Timeout[Peer](limits.write_timeout, self._check_reader)
        self._half_closed = Timeout[Peer](limits.write_timeout, self._check_half_closed)
        self._min_bytes_read = limits.read_rate * limits.write_timeout
        self._unread: dict[Peer, int] = {}
        self.head_expected = self._heads.add
        self.head_received = self._heads.remove
        self.half_closed = self._half_closed.add

    def write_blocked(self, peer: Peer) -> None:
        self._unread[peer] = peer.unread_bytes()
        self._readers.add(peer)

    def write_unblocked(self, peer: Peer) -> None:
        if self._unread.pop(peer, None) is not None:
            self._readers.remove(peer)

    def forget(self, peer: Peer) -> None:
        self._half_closed.remove(peer)
        self._heads.remove(peer)
        if self._unread.pop(peer, None) is not None:
            self._readers.remove(peer)

    def _check_reader(self, peer: Peer) -> None:
        before = self._unread.pop(peer)
        read = before - peer.unread_bytes()
        if read > 0 and read >= min(self._min_bytes_read, before):
            self.write_blocked(peer)
        else:
            peer.abort()

    def _check_half_closed(self, peer: Peer) -> None:
        if peer.is_responding():
            self._half_closed.add(peer)  # writing shows whether the client is still there
        else:
            peer.abort()

"""Whoever is too slow is let go: one clock for all connections of a server, nothing per request.

A connection is written down when we begin to wait for it and struck out when it has done what we waited for. Two things
are waited for: the head of a request, and a client that reads what we wrote; a byte now and then is not reading. And one
that has said its last is not answered for ever, because it may have left. Only the connection ends; tasks go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from dragoman.server.limits import Limits

_LOOKS = 8
"""How many times the clock looks while somebody's time runs out; who is late is found this much later at most."""


class Peer(Protocol):
    """A connection, as far as it can be too slow."""

    def unread(self) -> int:
        """How many bytes of ours wait to be read."""
        ...

    def answering(self) -> bool:
        """Whether it has been told the beginning of an answer, and not yet the end."""
        ...

    def close(self) -> None:
        """End when what was written is read."""
        ...

    def abort(self) -> None: ...


class Slow:
    """The connections of one server that we wait for."""

    def __init__(self, limits: Limits) -> None:
        self._heads = _Waiting(limits.head_timeout, lambda peer: peer.close())
        self._readers = _Waiting(limits.write_timeout, self._not_reading)
        self._silent = _Waiting(limits.write_timeout, self._unanswered)
        self._least = limits.read_rate * limits.write_timeout
        self._unread: dict[Peer, int] = {}

    def asked(self, peer: Peer) -> None:
        """It may send a request."""
        self._heads.add(peer)

    def sent(self, peer: Peer) -> None:
        """The head of a request is here."""
        self._heads.remove(peer)

    def blocked(self, peer: Peer) -> None:
        """It has more to read than we want to keep."""
        self._unread[peer] = peer.unread()
        self._readers.add(peer)

    def free(self, peer: Peer) -> None:
        if self._unread.pop(peer, None) is not None:
            self._readers.remove(peer)

    def silent(self, peer: Peer) -> None:
        """It sends nothing more, and waits for what it asked for; or it is gone."""
        self._silent.add(peer)

    def gone(self, peer: Peer) -> None:
        self._silent.remove(peer)
        self.sent(peer)
        self.free(peer)

    def _not_reading(self, peer: Peer) -> None:
        before = self._unread.pop(peer)
        read = before - peer.unread()
        if read > 0 and read >= min(self._least, before):
            self.blocked(peer)  # slow, but it reads
        else:
            peer.abort()

    def _unanswered(self, peer: Peer) -> None:
        if peer.answering():
            self.silent(peer)  # what is written to it tells whether it is there
        else:
            peer.abort()


class _Waiting:
    """Those we wait for, and for how long at most."""

    def __init__(self, seconds: float, late: Callable[[Peer], None]) -> None:
        self._every = seconds / _LOOKS
        self._late = late
        self._now = 0
        self._clock: asyncio.TimerHandle | None = None
        self._since: dict[Peer, int] = {}

    def add(self, peer: Peer) -> None:
        self._since[peer] = self._now
        if self._clock is None:
            self._clock = asyncio.get_running_loop().call_later(self._every, self._look)

    def remove(self, peer: Peer) -> None:
        self._since.pop(peer, None)

    def _look(self) -> None:
        self._now += 1
        self._clock = None
        for peer in [peer for peer, since in self._since.items() if self._now - since > _LOOKS]:
            del self._since[peer]
            self._late(peer)
        if self._since and self._clock is None:
            self._clock = asyncio.get_running_loop().call_later(self._every, self._look)

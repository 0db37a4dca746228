"""What the buses between processes have in common.

Within the process a wake-up is a function call and carries its records. The others hear a topic and nothing else: they
look at the log. What is to be said to them waits here until somebody can say it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b

from dragoman.buses.local import LocalBus
from dragoman.engine.protocols import Woken
from dragoman.engine.records import Record

_LONGEST = 2000
"""Bytes of a topic that are sent as they are; PostgreSQL takes eight thousand."""
_MOST = 10_000
"""Topics that wait while nobody can be reached. Who has not heard by then finds out by looking."""


class Relay:
    def __init__(self) -> None:
        self._local = LocalBus()
        self._pending: dict[str, None] = {}
        self._news = asyncio.Event()
        """There is something to do for whoever passes on what is said here."""
        self._relaying = False

    def wake(self, topic: str, records: Sequence[Record] = ()) -> None:
        name = _name(topic)
        self._local.wake(name, records)
        if self._relaying and len(self._pending) < _MOST:
            self._pending[name] = None
            self._news.set()

    def wake_all(self) -> None:
        self._local.wake_all()

    def listen(self, topic: str, woken: Woken) -> AbstractContextManager[None]:
        return self._local.listen(_name(topic), woken)


def _name(topic: str) -> str:
    """A topic as it is sent: short, and in letters that everybody takes."""
    if topic.isascii() and len(topic) <= _LONGEST and "\0" not in topic:
        return topic
    return "#" + blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()

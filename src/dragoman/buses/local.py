"""The bus of one process, and what buses between processes share.

Within a process a wake-up is a function call and carries the new records. Other processes receive only the topic, and read the
log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from dragoman.engine.protocols import Woken
from dragoman.engine.records import Record

WAKE_ALL = "*"
"""Sent instead of a topic: every listener reads its log."""
_MAX_TOPIC_BYTES = 2000
"""Longer topics are sent as a hash. PostgreSQL takes eight thousand bytes."""
_MAX_PENDING_TOPICS = 10_000
"""Topics that wait while nobody can be reached. Listeners poll, so the rest is only late."""
_LAST_SEND_SECONDS = 1.0
"""Time to send the pending topics when the bus closes."""

_log = logging.getLogger("dragoman.buses")


class LocalBus:
    def __init__(self) -> None:
        self._listeners: dict[str, list[Woken]] = {}
        self._of_all: list[Callable[[str], None]] = []

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        self._listeners.clear()

    def wake(self, topic: str, records: Sequence[Record] = ()) -> None:
        # A copy, because a listener may unsubscribe when it is called.
        for woken in tuple(self._listeners.get(topic, ())):
            try:
                woken(records)
            except Exception:
                _log.exception("a listener of %s failed", topic)
        if self._of_all:
            for listener in tuple(self._of_all):
                listener(topic)

    def wake_all(self) -> None:
        for topic in tuple(self._listeners):
            self.wake(topic)
        for listener in tuple(self._of_all):
            listener(WAKE_ALL)

    def listen(self, topic: str, woken: Woken) -> AbstractContextManager[None]:
        self._listeners.setdefault(topic, []).append(woken)
        return _Listening(self._listeners, topic, woken)

    @contextmanager
    def listen_all(self, woken: Callable[[str], None]) -> Iterator[None]:
        self._of_all.append(woken)
        try:
            yield
        finally:
            self._of_all.remove(woken)


class _Listening(Struct):
    listeners: dict[str, list[Woken]]
    topic: str
    woken: Woken

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        listening = self.listeners.get(self.topic, [])
        if self.woken in listening:
            listening.remove(self.woken)
        if not listening:
            self.listeners.pop(self.topic, None)


class RemoteBus:
    """The base of buses between processes: wakes listeners here, and collects the topics to send to other processes.

    A subclass starts `_send_topics` with `_start_sending` when it is connected. That coroutine waits for `_changed`, sends
    `_pending`, and returns when `_closing` is set.
    """

    def __init__(self) -> None:
        self._local = LocalBus()
        self._pending: dict[str, None] = {}
        self._changed = asyncio.Event()
        """There are pending topics, or the connection changed, or the bus closes."""
        self._relaying = self._closing = False
        self._sender: asyncio.Task[None] | None = None

    def wake(self, topic: str, records: Sequence[Record] = ()) -> None:
        name = _encode_topic(topic)
        self._local.wake(name, records)
        if self._relaying and len(self._pending) < _MAX_PENDING_TOPICS:
            self._pending[name] = None
            self._changed.set()

    def wake_all(self) -> None:
        self._local.wake_all()

    def listen(self, topic: str, woken: Woken) -> AbstractContextManager[None]:
        return self._local.listen(_encode_topic(topic), woken)

    def listen_all(self, woken: Callable[[str], None]) -> AbstractContextManager[None]:
        return self._local.listen_all(woken)

    def _receive_topics(self, names: Sequence[str]) -> None:
        for name in names:
            if name == WAKE_ALL:
                self._local.wake_all()
            else:
                self._local.wake(name)

    def _start_sending(self, send_topics: Coroutine[Any, Any, None]) -> None:
        self._relaying, self._closing = True, False
        self._sender = asyncio.create_task(send_topics, name="dragoman-bus")

    async def _stop_sending(self) -> None:
        """Send what is pending, within a second."""
        self._relaying, self._closing = False, True
        if self._sender is not None:
            self._changed.set()
            await asyncio.wait([self._sender], timeout=_LAST_SEND_SECONDS)
            self._sender.cancel()
            with suppress(asyncio.CancelledError):
                await self._sender
            self._sender = None


def _encode_topic(topic: str) -> str:
    """A topic as it is sent: short ASCII without NUL."""
    if topic.isascii() and len(topic) <= _MAX_TOPIC_BYTES and "\0" not in topic:
        return topic
    return "#" + blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()

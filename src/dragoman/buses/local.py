"""The bus of a single process: a wake-up is a function call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager

from dragoman.engine.protocols import Woken
from dragoman.engine.records import Record

_log = logging.getLogger("dragoman.buses")


class LocalBus:
    def __init__(self) -> None:
        self._listeners: dict[str, list[Woken]] = {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        self._listeners.clear()

    def wake(self, topic: str, records: Sequence[Record] = ()) -> None:
        for woken in tuple(self._listeners.get(topic, ())):  # a copy: a listener may leave when it is called
            try:
                woken(records)
            except Exception:
                _log.exception("a listener of %s failed", topic)

    def wake_all(self) -> None:
        for topic in tuple(self._listeners):
            self.wake(topic)

    def listen(self, topic: str, woken: Woken) -> AbstractContextManager[None]:
        return _Listening(self._listeners, topic, woken)


class _Listening(AbstractContextManager[None]):
    __slots__ = ("_listeners", "_topic", "_woken")

    def __init__(self, listeners: dict[str, list[Woken]], topic: str, woken: Woken) -> None:
        self._listeners = listeners
        self._topic = topic
        self._woken = woken

    def __enter__(self) -> None:
        self._listeners.setdefault(self._topic, []).append(self._woken)

    def __exit__(self, *exc: object) -> None:
        listening = self._listeners.get(self._topic, [])
        if self._woken in listening:
            listening.remove(self._woken)
        if not listening:
            self._listeners.pop(self._topic, None)

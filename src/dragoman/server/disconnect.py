"""Wait for an answer only as long as the client does.

A blocking send may take minutes, and a client that gave up must not leave its wait behind; the task goes on either
way. Most answers come at once, so nobody watches the connection until a clock, one for all, finds the wait long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.errors import Unavailable
from dragoman.server.exchange import Disconnected, Exchange

T = TypeVar("T")


class Attendance:
    """Looks every `seconds` for those who are still waiting, and then stays with them."""

    def __init__(self, seconds: float = 2.0) -> None:
        self._seconds = seconds
        self.closed = False
        self._clock: asyncio.TimerHandle | None = None
        self._waiting: dict[asyncio.Task[Any], Exchange] = {}
        self._watchers: dict[asyncio.Task[Any], asyncio.Task[None]] = {}

    async def attend(self, exchange: Exchange, answer: Coroutine[Any, Any, T]) -> T:
        """Raises `Disconnected` if the client left, `Unavailable` if we do."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = exchange
        if self._clock is None:
            self._clock = task.get_loop().call_later(self._seconds, self._look)
        try:
            return await answer
        except asyncio.CancelledError:
            if task in self._waiting:
                raise  # it was somebody else
            task.uncancel()
            if self.closed:
                raise Unavailable("shutting down; what was sent is kept", retry_after=1) from None
            raise Disconnected from None
        finally:
            self._waiting.pop(task, None)
            if self._watchers and (watcher := self._watchers.pop(task, None)):
                watcher.cancel()

    def close(self) -> None:
        """Nobody gets an answer any more: tell those who still wait."""
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            task.cancel()

    def _look(self) -> None:
        self._clock = None
        loop = asyncio.get_running_loop()
        for task, exchange in self._waiting.items():
            if task not in self._watchers:
                self._watchers[task] = loop.create_task(self._watch(task, exchange))
        if self._waiting:
            self._clock = loop.call_later(self._seconds, self._look)

    async def _watch(self, task: asyncio.Task[Any], exchange: Exchange) -> None:
        exchange.mark_slow()
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        if self._waiting.pop(task, None):
            task.cancel()

"""Waits for answers that may take long, such as that of a blocking send. A client may leave before it has its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.errors import Unavailable
from dragoman.server.asgi import Disconnected, HttpClient
from dragoman.server.limits import Timeout

T = TypeVar("T")

WATCH_SECONDS = 2.0
"""After this time we watch whether a client that waits for an answer disconnects. Most answers come before."""


class Waits:
    """Waits for an answer only as long as the client does. Watches those that wait longer than `seconds`.

    `persistent`: what was sent outlives the server.
    """

    def __init__(self, seconds: float = WATCH_SECONDS, *, persistent: bool = True) -> None:
        self.closed = False
        self._refusal = "shutting down; what was sent is kept" if persistent else "shutting down"
        self._timeout = Timeout[asyncio.Task[Any]](seconds, self._start_watching)
        self._waiting: dict[asyncio.Task[Any], HttpClient] = {}
        self._watchers: dict[asyncio.Task[Any], asyncio.Task[None]] = {}

    async def wait(self, client: HttpClient, answer: Coroutine[Any, Any, T]) -> T:
        """Raises `Disconnected` if the client leaves, `Unavailable` if the server stops."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = client
        self._timeout.add(task)
        try:
            return await answer
        except asyncio.CancelledError:
            if task in self._waiting:
                raise  # canceled by something else
            task.uncancel()
            if self.closed:
                raise Unavailable(self._refusal, retry_after=1) from None
            raise Disconnected from None
        finally:
            self._waiting.pop(task, None)
            self._timeout.remove(task)
            if self._watchers and (watcher := self._watchers.pop(task, None)):
                watcher.cancel()

    def close(self) -> None:
        """End all waits."""
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for task in waiting:
            task.cancel()

    def _start_watching(self, task: asyncio.Task[Any]) -> None:
        if task in self._waiting:
            self._watchers[task] = task.get_loop().create_task(self._watch(task, self._waiting[task]))

    async def _watch(self, task: asyncio.Task[Any], client: HttpClient) -> None:
        if client.direct is not None:
            client.direct.mark_slow()
        while (await client.receive())["type"] != "http.disconnect":
            pass
        if self._waiting.pop(task, None):
            task.cancel()

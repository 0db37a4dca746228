"""Work that a hub repeats in the background, from its start to its stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dragoman.errors import A2AError, keep_going

log = logging.getLogger(__name__)


class PeriodicWork:
    """Calls `work` from `start` to `stop`, each time after the seconds that it returned; None: after `retry` seconds.

    An error is logged, those that are `expected` in one line, and `work` is called again after `retry` seconds.
    """

    def __init__(
        self,
        what: str,
        work: Callable[[], Awaitable[float | None]],
        *,
        retry: float,
        expected: tuple[type[Exception], ...] = (A2AError,),
    ) -> None:
        self.what, self._work, self._retry, self._expected = what, work, retry, expected
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        if not self.running:
            self._task = asyncio.create_task(self._repeat(), name=f"dragoman-hub: {self.what}")

    async def stop(self) -> None:
        """Cancel the work, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _repeat(self) -> None:
        while True:
            pause = None
            with keep_going(log, self.what, *self._expected):
                pause = await self._work()
            await asyncio.sleep(self._retry if pause is None else pause)

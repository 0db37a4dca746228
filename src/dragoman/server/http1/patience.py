"""Gives up on those who take too long, with one clock for all of them.

A timer per request would cost as much as reading the request. So whoever waits is only written down, and a clock that
runs while somebody is waiting looks through the list now and then.
"""

from __future__ import annotations

import asyncio

_LOOKS = 8
"""How many times the clock looks while somebody's time runs out; who is late is found this much later at most."""


class Patience:
    """For waiting up to `seconds`:

    with patience:
        await something  # TimeoutError if it takes longer
    """

    def __init__(self, seconds: float) -> None:
        self._every = seconds / _LOOKS
        self._now = 0
        self._clock: asyncio.TimerHandle | None = None
        self._waiting: dict[asyncio.Task[object], int] = {}

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = self._now
        if self._clock is None:
            self._clock = task.get_loop().call_later(self._every, self._look)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._waiting.pop(task, None) is None and kind is asyncio.CancelledError and not task.uncancel():
            raise TimeoutError from None

    def _look(self) -> None:
        self._now += 1
        self._clock = None
        for task in [task for task, since in self._waiting.items() if self._now - since > _LOOKS]:
            del self._waiting[task]
            task.cancel()
        if self._waiting:
            loop = next(iter(self._waiting)).get_loop()
            self._clock = loop.call_later(self._every, self._look)

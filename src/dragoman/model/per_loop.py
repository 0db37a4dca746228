"""A value for each event loop, such as a lock, which can be waited for in one loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """`make` makes the value of a loop. Values of closed loops are dropped when another loop gets its value.

    Not a `WeakKeyDictionary`: a lock that was waited for refers to its loop, and the loop would stay as long as the lock.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """The value of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            for closed in [each for each in list(self._values) if each.is_closed()]:
                self._values.pop(closed, None)  # another thread may have dropped it
            self._values[loop] = self._make()
        return self._values[loop]

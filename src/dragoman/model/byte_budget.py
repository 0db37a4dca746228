"""A budget of bytes for what one process works on at a time.

Only what is large is counted. Who finds no room waits for it, in order. A request that takes long does not keep others
waiting: after a few seconds it is no longer counted, because by then its bytes are in the store, and the copies that were
made of them on the way are gone.
"""

from __future__ import annotations

import asyncio
from collections import deque

LARGE_BYTES = 256 << 10
"""What is smaller is not counted."""
HOLD_SECONDS = 5.0


class ByteBudget:
    def __init__(self, capacity: int, *, hold: float = HOLD_SECONDS) -> None:
        self._capacity, self._hold = capacity, hold
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def hold(self, size: int, *, seconds: float | None = None) -> None:
        """Count `size` bytes until the current asyncio task ends, or for `seconds`. Waits until there is room.

        What is larger than the budget is let in when it is alone.
        """
        if size < LARGE_BYTES:
            return
        task = asyncio.current_task()
        assert task is not None
        if self._waiting or not self._fits(size):
            await self._wait(size)
        else:
            self.used += size
        counted = [size]

        def release(_: object = None) -> None:
            if counted:
                self._release(counted.pop())

        asyncio.get_running_loop().call_later(self._hold if seconds is None else seconds, release)
        task.add_done_callback(release)

    async def _wait(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(size)  # it was our turn, and we leave
            else:
                self._waiting.remove((size, turn))
            raise

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._capacity

    def _release(self, size: int) -> None:
        self.used -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            self.used += size
            turn.set_result(None)

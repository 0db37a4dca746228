"""How much each of many callers has used, in memory that the workers of a server share.

A caller is a slot in a table: when it will have worked off what it used, and how much each worker has under way for it.
Nobody locks: two workers that count the same caller in the same microsecond may count one too few, which is less than it
would cost to be exact. What a worker that was killed had under way is forgotten when another takes its place.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from mmap import mmap

_SLOTS = 1 << 14
"""How many callers are remembered at a time."""
_PROBES = 8
"""In how many places a caller may be; of those there, the one longest silent gives way."""
_CELL = 8


class Tally:
    def __init__(self, workers: int = 1, worker: int = 0, memory: mmap | None = None) -> None:
        self._workers, self._worker = workers, worker
        self._memory = memory or mmap(-1, (2 + workers) * _SLOTS * _CELL)
        cells = memoryview(self._memory)
        self._names = cells[: _SLOTS * _CELL].cast("q")
        self._until = cells[_SLOTS * _CELL : 2 * _SLOTS * _CELL].cast("d")
        self._busy = cells[2 * _SLOTS * _CELL :].cast("q")

    def of(self, worker: int) -> Tally:
        """The same, as worker number `worker` sees it: it has nothing under way yet."""
        tally = Tally(self._workers, worker, self._memory)
        for slot in range(worker * _SLOTS, (worker + 1) * _SLOTS):
            tally._busy[slot] = 0
        return tally

    def slot(self, name: Hashable) -> int:
        """Where `name` is counted."""
        known = hash(name) or 1  # workers are made of one process, so a name has the same hash in all of them
        best, silent = known % _SLOTS, float("inf")
        for place in range(best, best + _PROBES):
            slot = place % _SLOTS
            found = self._names[slot]
            if found == known:
                return slot
            until = self._until[slot] if found else 0.0
            if until < silent and not (found and self.busy(slot)):
                best, silent = slot, until
        self._names[best], self._until[best] = known, 0.0
        return best

    def take(self, slot: int, rate: float, burst: int) -> float:
        """0 if one more is within `rate` per second, `burst` at once; otherwise the seconds until it is."""
        now = time.monotonic()
        until = max(now, self._until[slot])
        wait = until - now - (burst - 1) / rate
        if wait > 0:
            return wait
        self._until[slot] = until + 1 / rate
        return 0.0

    def busy(self, slot: int) -> int:
        """How much is under way, with all workers."""
        return sum(self._busy[slot + worker * _SLOTS] for worker in range(self._workers))

    def enter(self, slot: int) -> None:
        self._busy[slot + self._worker * _SLOTS] += 1

    def leave(self, slot: int) -> None:
        self._busy[slot + self._worker * _SLOTS] -= 1

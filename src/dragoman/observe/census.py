"""How many of something the workers of a server have, together: each says its own number, in memory that they share.

A worker that was killed has as many as it said last, until another takes its place.
"""

from __future__ import annotations

from mmap import mmap

_CELL = 8


class Census:
    def __init__(self, workers: int = 1, worker: int = 0, memory: mmap | None = None) -> None:
        self._worker = worker
        self._memory = memory or mmap(-1, workers * _CELL)
        self._counts = memoryview(self._memory)[: workers * _CELL].cast("q")

    def of(self, worker: int) -> Census:
        """The same, as worker number `worker` sees it: it has none yet."""
        census = Census(len(self._counts), worker, self._memory)
        census.say(0)
        return census

    def say(self, mine: int) -> None:
        self._counts[self._worker] = mine

    def total(self) -> int:
        return sum(self._counts)

"""Counts the turns of a server, over all its workers: those that run, those that arrive, and those that wait for room.

Each worker writes its own two counters, in shared memory, and reads those of all. A worker takes a place before it knows
whether one is free, and gives it back if none is. So two workers may both refuse for a moment where one had room, but together
they never take more than the limit.
"""

from __future__ import annotations

from mmap import mmap
from threading import Lock

_CELL_BYTES = 8
_MAX_TRIES = 4


class Load:
    def __init__(self, workers: int = 1, worker: int = 0, memory: mmap | bytearray | None = None) -> None:
        self.workers, self._worker = workers, worker
        size = 2 * workers * _CELL_BYTES
        self._memory = memory if memory is not None else mmap(-1, size) if workers > 1 else bytearray(size)
        self._cells = memoryview(self._memory)[:size].cast("q")
        self._barrier = Lock()

    def of(self, worker: int) -> Load:
        """The same, as worker number `worker` sees it: nothing runs there yet."""
        load = Load(self.workers, worker, self._memory)
        load._cells[worker] = 0
        return load

    @property
    def running(self) -> int:
        """What runs, or arrives and may run at once."""
        return sum(self._cells[: self.workers])

    @property
    def waiting(self) -> int:
        """What is stored and waits for room, as far as we know."""
        return max(0, sum(self._cells[self.workers :]))

    @property
    def total(self) -> int:
        if self.workers == 1:
            running, waiting = self._cells
            return running + waiting if waiting > 0 else running
        return self.running + self.waiting

    def enter(self, limit: int | None = None) -> bool:
        """Take a place. False if there would be more than `limit`."""
        for _ in range(_MAX_TRIES):
            self._cells[self._worker] += 1
            if limit is None:
                return True
            if self.workers > 1:
                with self._barrier:  # others see what we wrote before we read what they wrote
                    pass
            if self.total <= limit:
                return True
            self._cells[self._worker] -= 1
            if self.total >= limit:
                return False
        return False

    def leave(self) -> None:
        """Give a place back."""
        self._cells[self._worker] -= 1

    def wait(self, more: int) -> None:
        """So many more wait than before; fewer, if that is negative."""
        self._cells[self.workers + self._worker] += more

    def correct(self, waiting: int) -> None:
        """So many wait in fact."""
        self.wait(waiting - sum(self._cells[self.workers :]))

"""How many turns a server has, over all its workers: those that run, that arrive, and that wait for room."""

from __future__ import annotations

from mmap import mmap
from threading import Lock

_CELL_BYTES = 8
_MAX_TRIES = 4
"""How often a worker tries to take a place while other workers take places."""


class Load:
    """Each worker writes its own two counters, in shared memory, and reads those of all.

    A worker takes a place before it knows whether one is free, and gives it back if none is. So two workers may both refuse for
    a moment where one had room, but together they never take more than the limit.
    """

    def __init__(self, workers: int = 1, worker: int = 0, memory: mmap | bytearray | None = None) -> None:
        self.workers, self._worker = workers, worker
        size = 2 * workers * _CELL_BYTES
        self._memory = memory if memory is not None else mmap(-1, size) if workers > 1 else bytearray(size)
        self._cells = memoryview(self._memory)[:size].cast("q")
        self._barrier = Lock()

    def for_worker(self, worker: int) -> Load:
        """Return the view of one worker. It runs nothing yet."""
        load = Load(self.workers, worker, self._memory)
        load._cells[worker] = 0
        return load

    @property
    def running(self) -> int:
        """Turns that run, or arrive and may run at once."""
        return sum(self._cells[: self.workers])

    @property
    def waiting(self) -> int:
        """Tasks that are stored and wait for room, as far as this server knows."""
        return max(0, self.counted)

    @property
    def total(self) -> int:
        return self.running + self.waiting

    def enter(self, limit: int | None = None) -> bool:
        """Take a place. False if there would be more than `limit`."""
        for _ in range(_MAX_TRIES):
            self._cells[self._worker] += 1
            if limit is None:
                return True
            if self.workers > 1:
                with self._barrier:  # other workers see our write before we read theirs
                    pass
            running, waiting = self._cells if self.workers == 1 else (self.running, self.waiting)
            if running + max(0, waiting) <= limit:
                return True
            self._cells[self._worker] -= 1
            if self.total >= limit:
                return False
        return False

    def leave(self) -> None:
        """Give a place back."""
        self._cells[self._worker] -= 1

    def count_waiting(self, more: int) -> None:
        """Add to the number of tasks that wait; `more` may be negative."""
        self._cells[self.workers + self._worker] += more

    @property
    def counted(self) -> int:
        """The sum of what all calls of `count_waiting` added. It is negative while a task that this worker has claimed is not counted yet."""
        return sum(self._cells[self.workers :])

    def correct_waiting(self, waiting: int, counted: int) -> None:
        """Set the number of tasks that wait. `counted` is from before they were looked up: if it changed, nothing is set."""
        if self.counted == counted:
            self.count_waiting(waiting - counted)

"""A board on which each worker of a server writes what the others may want to know, in memory that they share.

Each has two sheets: it writes on the one that nobody reads, and then says that it is this one now. So who is killed while
it writes leaves what it had written before, also for the one that takes its place.
"""

from __future__ import annotations

from mmap import mmap

_SHEET = 1 << 20
_HEAD = 32
"""Which sheet is up, and how much is on each."""


class Board:
    def __init__(self, workers: int, worker: int = 0, memory: mmap | None = None) -> None:
        self._workers, self._worker = workers, worker
        self._memory = memory or mmap(-1, workers * (_HEAD + 2 * _SHEET))

    def of(self, worker: int) -> Board:
        """The same, as worker number `worker` sees it."""
        return Board(self._workers, worker, self._memory)

    def write(self, words: bytes) -> None:
        """What does not fit is not written: what was there before stays."""
        if len(words) > _SHEET:
            return
        start, head = self._head(self._worker)
        sheet = 1 - head[0]
        at = start + _HEAD + sheet * _SHEET
        self._memory[at : at + len(words)] = words
        head[1 + sheet] = len(words)
        head[0] = sheet

    def mine(self) -> bytes:
        """What I wrote, or the one whose place I took."""
        return self._read(self._worker)

    def others(self) -> list[bytes]:
        return [
            words for each in range(self._workers) if each != self._worker and (words := self._read(each))
        ]

    def _read(self, worker: int) -> bytes:
        start, head = self._head(worker)
        sheet = head[0]
        at = start + _HEAD + sheet * _SHEET
        return bytes(self._memory[at : at + head[1 + sheet]])

    def _head(self, worker: int) -> tuple[int, memoryview]:
        start = worker * (_HEAD + 2 * _SHEET)
        return start, memoryview(self._memory)[start : start + _HEAD].cast("q")

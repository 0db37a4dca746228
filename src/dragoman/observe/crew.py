"""What the workers of one server have in common, beside the store: what callers use, and what is counted."""

from __future__ import annotations

from dragoman.observe.board import Board
from dragoman.observe.tally import Tally


class Crew:
    """Made before the workers are; each then takes its own part (`of`)."""

    def __init__(self, workers: int, tally: Tally | None = None, board: Board | None = None) -> None:
        self._workers = workers
        self.tally, self.board = tally or Tally(workers), board or Board(workers)

    def of(self, worker: int) -> Crew:
        return Crew(self._workers, self.tally.of(worker), self.board.of(worker))

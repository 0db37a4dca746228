"""What the workers of one server have in common, beside the store: what callers use, what is counted, and how full it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dragoman.engine.load import Load
from dragoman.observe.board import Board
from dragoman.observe.census import Census
from dragoman.observe.tally import Tally


@dataclass(frozen=True, slots=True)
class Crew:
    """Made before the workers are; each then takes its own part (`of`)."""

    tally: Tally
    board: Board
    connections: Census
    load: Load

    @classmethod
    def hired(cls, workers: int) -> Self:
        return cls(Tally(workers), Board(workers), Census(workers), Load(workers))

    def of(self, worker: int) -> Crew:
        return Crew(
            self.tally.of(worker), self.board.of(worker), self.connections.of(worker), self.load.of(worker)
        )

"""Events as they come, added up only when somebody asks what they come to: most streams end without that."""

from __future__ import annotations

from dragoman.model.fold import Fold
from dragoman.model.task import Event


class Heard:
    def __init__(self, task_id: str = "") -> None:
        self._fold = Fold()
        self._fold.task_id = task_id
        self._new: list[Event] = []
        self.add = self._new.append

    @property
    def fold(self) -> Fold:
        """What all of it comes to."""
        if self._new:
            for event in self._new:
                self._fold.apply(event)
            self._new.clear()
        return self._fold

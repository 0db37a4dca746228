"""When a stream ends: the same for every binding."""

from __future__ import annotations

from dragoman.dialects.dialect import Dialect
from dragoman.model.content import Message
from dragoman.model.ops import STREAM, Op
from dragoman.model.task import INTERRUPTED, TERMINAL, ArtifactUpdate, Event, Task, TaskState

_NEVER: frozenset[TaskState] = frozenset()
_QUESTION = frozenset({TaskState.INPUT_REQUIRED})


class Ending:
    """Of the streams that an operation opens in a dialect."""

    __slots__ = ("_pauses", "_task_pauses")

    def __init__(self, dialect: Dialect, op: Op) -> None:
        pauses = INTERRUPTED if dialect.ends_on_interrupt else _NEVER
        # A task that was just answered may still say that it waits; a task that is subscribed to means it.
        self._pauses, self._task_pauses = (pauses or _QUESTION, _NEVER) if op is STREAM else (pauses, pauses)

    def comes_with(self, event: Event, newest: bool) -> bool:
        """Whether nothing comes after `event`. What is not the `newest` there is may be history, replayed."""
        kind = type(event)
        if kind is ArtifactUpdate:
            return False
        if kind is Message:
            return True
        state = event.status.state  # type: ignore[union-attr]
        return state in TERMINAL or (
            newest and state in (self._task_pauses if kind is Task else self._pauses)
        )

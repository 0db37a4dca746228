"""Remembers and logs damaged data of a database."""

from __future__ import annotations

import logging

import msgspec

UNREADABLE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, KeyError, IndexError, AssertionError)
"""What unpacking and folding raise for damaged bytes of a log."""
MAX_DAMAGED_TASKS = 1000
"""Damaged tasks that are remembered."""

_log = logging.getLogger("dragoman.stores")


class Damage:
    """The damage that was found in one database."""

    def __init__(self) -> None:
        self._tasks: dict[str, None] = {}
        self._database = ""

    def __str__(self) -> str:
        """The damage in a sentence; empty if there is none."""
        if self._database:
            return f"the database is damaged: {self._database}"
        if not self._tasks:
            return ""
        some = ", ".join(list(self._tasks)[:3])
        more = f" and {len(self._tasks) - 3} more" if len(self._tasks) > 3 else ""
        return f"tasks cannot be read because the database is damaged: {some}{more}"

    def note_task(self, task: str, error: Exception) -> None:
        if task not in self._tasks and len(self._tasks) < MAX_DAMAGED_TASKS:
            self._tasks[task] = None
            _log.error("task %s cannot be read, its stored data is damaged: %s", task, error)

    def note_database(self, error: Exception) -> None:
        if not self._database:
            self._database = str(error)
            _log.error("the database is damaged, restore it from a copy: %s", error)

    def clear(self, task: str) -> None:
        """Note that the task can be read."""
        if self._tasks:
            self._tasks.pop(task, None)

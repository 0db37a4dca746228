"""What of a database is known to be damaged. The log names each task once; `/readyz` fails while there is one."""

from __future__ import annotations

import logging

import msgspec

UNREADABLE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, KeyError, IndexError, AssertionError)
"""What unpacking and folding raise when the bytes of a log are not what was written."""
MAX_NAMES = 1000
"""Damaged tasks that are remembered by name."""

_log = logging.getLogger("dragoman.stores")


class Damage:
    def __init__(self) -> None:
        self._tasks: dict[str, None] = {}
        self._database = ""

    def __str__(self) -> str:
        """In a sentence; empty if nothing is damaged."""
        if self._database:
            return f"the database is damaged: {self._database}"
        if not self._tasks:
            return ""
        some = ", ".join(list(self._tasks)[:3])
        more = f" and {len(self._tasks) - 3} more" if len(self._tasks) > 3 else ""
        return f"tasks cannot be read because the database is damaged: {some}{more}"

    def note_task(self, task: str, error: Exception) -> None:
        if task not in self._tasks and len(self._tasks) < MAX_NAMES:
            self._tasks[task] = None
            _log.error("task %s cannot be read, what is stored of it is damaged: %s", task, error)

    def note_database(self, error: Exception) -> None:
        if not self._database:
            self._database = str(error)
            _log.error("the database is damaged, restore it from a copy: %s", error)

    def clear(self, task: str) -> None:
        """The task can be read."""
        if self._tasks:
            self._tasks.pop(task, None)

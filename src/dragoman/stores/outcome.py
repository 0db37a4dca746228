"""What records do to the row of their task, in stores that keep one beside the log."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.engine.log import Record
from dragoman.model.task import StatusUpdate, TaskStatus


def outcome(records: Sequence[Record]) -> tuple[bool, TaskStatus | None]:
    """Whether these records finish their task, and the last status among them."""
    for record in reversed(records):
        if isinstance(record.body, StatusUpdate):
            return record.terminal, record.body.status
        if record.kind == "reply":
            return True, None
    return False, None

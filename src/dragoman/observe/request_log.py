"""One line per request and per task that came to rest, at `info`, on the logger `dragoman.requests`.

A busy server writes thousands of them in a second, so a request only adds an entry to a list. All entries of a moment become
lines together, in one write. Where nobody logs at `info` there are none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime

from dragoman.engine.records import Snapshot
from dragoman.model.ops import Call
from dragoman.observe import logs
from dragoman.observe.logs import Entry

DELAY_SECONDS = 0.05
"""How long an entry waits for others."""

logger = logging.getLogger("dragoman.requests")


def log_request(
    call: Call, operation: str, outcome: str, seconds: float, task: str = "", trace: str = ""
) -> None:
    if logger.isEnabledFor(logging.INFO):
        scope, who = call.scope, call.principal.id
        _add((time.time(), operation, outcome, seconds, scope.agent, scope.tenant, who, task, trace))


def log_refusal(agent: str, reason: str) -> None:
    """Somebody was not let in."""
    if logger.isEnabledFor(logging.INFO):
        _add((time.time(), "authenticate", reason, None, agent, "", "", "", ""))


def log_task(snapshot: Snapshot) -> None:
    """A task came to rest: it ended, or asks for something."""
    if logger.isEnabledFor(logging.INFO) and not snapshot.hidden and snapshot.mails:
        now, scope, first = time.time(), snapshot.scope, snapshot.mails[0][1]
        seconds = max(0.0, now - datetime.fromisoformat(first.at).timestamp()) if first.at else None
        who, task = first.principal, snapshot.task_id
        _add((now, "task", snapshot.state.word, seconds, scope.agent, scope.tenant, who, task, ""))


_entries: list[Entry] = []
_timer: asyncio.TimerHandle | None = None
_loop: asyncio.AbstractEventLoop | None = None


def _add(entry: Entry) -> None:
    global _loop, _timer
    _entries.append(entry)
    loop = asyncio.get_running_loop()
    if _timer is None or _loop is not loop:
        _loop, _timer = loop, loop.call_later(DELAY_SECONDS, flush)


def flush() -> None:
    """Write what waits, now."""
    global _timer, _entries
    _timer = None
    entries, _entries = _entries, []
    if not entries:
        return
    handler = logs.configured()
    if handler is not None and not logger.handlers and logger.propagate:
        handler.write_entries(logger.name, entries)
        return
    for entry in entries:  # whoever uses the library has handlers of their own
        logger.info("%s", logs.entry_text(entry), extra={"entry": entry})

"""Log lines: with the task, principal and trace they are about, and without secrets.

The library logs through `logging` and sets nothing up by itself. `configure` is for the command line.

The logger `dragoman.requests` has one line, at `info`, for each request and for each task that ended or asks for input. A busy
server writes thousands of them in a second, so a request only adds an entry to a list, and the entries of a moment are
written together. If nobody logs at `info` there are no entries.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, TextIO

import msgspec

from dragoman.engine.snapshot import Snapshot
from dragoman.model.ids import timestamp
from dragoman.model.ops import Call
from dragoman.observe.redact import redact_line
from dragoman.observe.terminal import UNSAFE

LOG_FIELDS: ContextVar[Callable[[], Mapping[str, str]] | None] = ContextVar(
    "dragoman_log_fields", default=None
)
"""Returns the fields of log lines in this context: `task`, `principal`, ... It is called when a line is written."""

_CONTROL = re.compile(f"[{UNSAFE}]")
_PLAIN = re.compile(r"[!#-<>-~\xa1-\uffff]+")


MAX_CHARACTERS = 16_384
"""Of one message, traceback or value. Longer ones are cut, so that one request cannot fill the log."""
MAX_ERROR_CHARACTERS = 300
_KEY_IN_WORDS = re.compile(r"(?i)(?P<before>\bkey\b[^:\n]{0,40}:\s{0,3})[^\s\"']{4,}")
"""`Incorrect API key provided: 1234abcd`"""
_CUT_SEARCH_CHARACTERS = 4_096
"""Before the limit, a text is cut at a space, so that no half of a secret is left."""


def redact(text: str) -> str:
    """Remove what looks like a secret, and cut the text to `MAX_CHARACTERS`."""
    if len(text) > MAX_CHARACTERS:
        text = _cut(text)
    return redact_line(text)


def describe(error: BaseException) -> str:
    """Describe an error from a peer in one short line without secrets. Peers may repeat in it what they were sent."""
    text = " ".join(f"{type(error).__name__}: {error}"[: 4 * MAX_ERROR_CHARACTERS].split())
    text = _KEY_IN_WORDS.sub(r"\g<before>***", redact(text))
    return text if len(text) <= MAX_ERROR_CHARACTERS else f"{text[:MAX_ERROR_CHARACTERS]} ..."


def _cut(text: str) -> str:
    head = text[:MAX_CHARACTERS]
    end = max(head.rfind(space, MAX_CHARACTERS - _CUT_SEARCH_CHARACTERS) for space in " \n")
    end = end if end > 0 else MAX_CHARACTERS - _CUT_SEARCH_CHARACTERS
    return f"{head[:end]} ... ({len(text)} characters in all)"


def _fields() -> dict[str, str]:
    get = LOG_FIELDS.get()
    return {key: value[:MAX_CHARACTERS] for key, value in get().items() if value} if get is not None else {}


Entry = tuple[float, str, str, float | None, str, str, str, str, str, str]
"""Time, operation, outcome, seconds, agent, tenant, principal, task, trace, path."""
_ENTRY_FIELDS = ("agent", "tenant", "principal", "task", "trace", "path")
MAX_PATH_CHARACTERS = 200


def format_entry(entry: Entry) -> str:
    """Format an entry as `SendMessage completed 12 ms agent=hello task=...`."""
    _, operation, outcome, seconds, *fields = entry
    took = "" if seconds is None else f" {seconds * 1000:.0f} ms" if seconds < 10 else f" {seconds:.1f} s"
    pairs = [f" {name}={_quote(value)}" for name, value in zip(_ENTRY_FIELDS, fields, strict=True) if value]
    return f"{operation} {outcome}{took}{''.join(pairs)}"


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format_line(self, logger: str, entry: Entry) -> str:
        at, operation, outcome, seconds, *fields = entry
        line: dict[str, object] = {
            "at": timestamp(at),
            "level": "info",
            "logger": logger,
            "message": f"{operation} {outcome}",
            "operation": operation,
            "outcome": outcome,
        }
        if seconds is not None:
            line["seconds"] = round(seconds, 6)
        line |= {name: value for name, value in zip(_ENTRY_FIELDS, fields, strict=True) if value}
        try:
            return msgspec.json.encode(line).decode()
        except UnicodeEncodeError:  # half a surrogate pair, in a name that a caller chose
            return json.dumps(line)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **_fields(),
        }
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """Lines for people. Text that callers chose cannot start a line or look like a line of ours."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._second, self._stamp = -1, ""

    def format_line(self, logger: str, entry: Entry) -> str:
        second, ms = divmod(int(entry[0] * 1000), 1000)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._stamp},{ms:03d} INFO {logger} {format_entry(entry)}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_quote(value)}" for key, value in _fields().items())
        return _CONTROL.sub(_escape, redact(super().formatMessage(record))) + fields

    def formatException(self, ei: Any) -> str:
        lines = redact(super().formatException(ei)).splitlines()
        return "\n".join("    " + _CONTROL.sub(_escape, line) for line in lines)


class ShortLines(PlainLines):
    """Lines for somebody who writes an agent: the time of day, and the name of a logger only if something is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.datefmt = "%H:%M:%S"

    def usesTime(self) -> bool:
        return True

    def format_line(self, logger: str, entry: Entry) -> str:
        return f"{time.strftime('%H:%M:%S', time.localtime(entry[0]))} {format_entry(entry)}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        warning = f"{record.levelname} {record.name} " if record.levelno >= logging.WARNING else ""
        fields = "".join(f" {key}={_quote(value)}" for key, value in _fields().items())
        return f"{record.asctime} {warning}{_CONTROL.sub(_escape, redact(record.message))}{fields}"


def _escape(control: re.Match[str]) -> str:
    return ascii(control[0])[1:-1]


def _quote(value: str) -> str:
    """Put a value in quotes unless it is one plain word."""
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, and request entries in batches. Waiting entries are written before any other line."""

    def __init__(self, stream: TextIO, lines: JsonLines | PlainLines) -> None:
        super().__init__(stream)
        self.lines = lines
        self.setFormatter(lines)

    def write_entries(self, logger: str, entries: Sequence[Entry]) -> None:
        self.acquire()
        try:
            self.stream.write("".join([self.lines.format_line(logger, entry) + "\n" for entry in entries]))
            self.stream.flush()
        except (OSError, ValueError):  # as `logging` does: the server goes on if its log cannot be written
            pass
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        flush_entries()
        super().emit(record)

    def flush(self) -> None:
        flush_entries()
        super().flush()


requests_logger = logging.getLogger("dragoman.requests")

ENTRY_DELAY_SECONDS = 0.05
"""How long an entry waits for others."""


def log_request(
    call: Call, operation: str, outcome: str, seconds: float, task: str = "", trace: str = ""
) -> None:
    if requests_logger.isEnabledFor(logging.INFO):
        scope, who = call.scope, call.principal.id
        _add_entry(
            (time.time(), operation, outcome, seconds, scope.agent, scope.tenant, who, task, trace, "")
        )


def log_refusal(agent: str, reason: str, path: str = "") -> None:
    """Log a failed authentication."""
    if requests_logger.isEnabledFor(logging.INFO):
        path = redact(path[:MAX_PATH_CHARACTERS])
        _add_entry((time.time(), "authenticate", reason, None, agent, "", "", "", "", path))


def log_task(snapshot: Snapshot) -> None:
    """Log a task that ended or asks for input."""
    if snapshot.mails:
        now, scope, first = time.time(), snapshot.scope, snapshot.mails[0][1]
        seconds = max(0.0, now - datetime.fromisoformat(first.at).timestamp()) if first.at else None
        who, task = first.principal, snapshot.task_id
        _add_entry((now, "task", snapshot.state.word, seconds, scope.agent, scope.tenant, who, task, "", ""))


_entries: list[Entry] = []
_timer: asyncio.TimerHandle | None = None
_loop: asyncio.AbstractEventLoop | None = None


def _add_entry(entry: Entry) -> None:
    global _loop, _timer
    _entries.append(entry)
    loop = asyncio.get_running_loop()
    if _timer is None or _loop is not loop:
        _loop, _timer = loop, loop.call_later(ENTRY_DELAY_SECONDS, flush_entries)


def flush_entries() -> None:
    """Write the entries that wait."""
    global _timer, _entries
    _timer = None
    entries, _entries = _entries, []
    if not entries:
        return
    handler = configured()
    if handler is not None and not requests_logger.handlers and requests_logger.propagate:
        handler.write_entries(requests_logger.name, entries)
        return
    for entry in entries:  # users of the library have handlers of their own
        requests_logger.info("%s", format_entry(entry), extra={"entry": entry})


_configured: LineHandler | None = None
_root = logging.getLogger("dragoman")


def configured() -> LineHandler | None:
    """The handler that `configure` installed, if it is still installed."""
    return _configured if _configured in logging.root.handlers else None


def is_json() -> bool:
    handler = configured()
    return handler is not None and isinstance(handler.lines, JsonLines)


def configure(level: str = "info", *, lines: str = "plain") -> None:
    """Log to stderr: `plain`, `short` or `json`."""
    global _configured
    made = {"json": JsonLines, "short": ShortLines}.get(lines, PlainLines)()
    handler = _configured = LineHandler(sys.stderr, made)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if lines == "json":  # what Python itself prints becomes lines, too
        logging.captureWarnings(True)
        sys.excepthook = lambda kind, error, at: _root.critical("%s", error, exc_info=(kind, error, at))
        threading.excepthook = lambda args: _root.critical("a thread failed", exc_info=args.exc_value)

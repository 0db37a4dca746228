"""Log lines that say which task, whose, and in which trace; and that keep secrets to themselves.

The library logs through `logging` and sets nothing up by itself. `configure` is for the command line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TextIO

import msgspec

from dragoman.model.ids import timestamp
from dragoman.observe.terminal import UNSAFE

ABOUT: ContextVar[Callable[[], Mapping[str, str]] | None] = ContextVar("dragoman_log_about", default=None)
"""Says what the lines of this context are about: `task`, `principal`, ... It is asked when a line is written."""

_SECRETS = re.compile(
    r"""(?ix)
    (?P<head> (?: set-)? cookie ["'\\]* \s* [=:] \s* ) [^\r\n"']+
    | (?P<named> \b (?: bearer | basic | apikey ) \s+
        | (?: token | secret | passw(?:or)?d | credentials? | api[-_]?key | authorization ) ["'\\]* \s* [=:] \s* ["'\\]*
          (?: (?: bearer | basic | apikey | digest | hmac ) \s+ )? )
      [^\s"'\\&,;}]{4,}
    | (?P<url> :// [^\s/@:]* : ) [^\s/@]+ (?= @ )
    | \b (?: dgm_ | atr_ | adm_ | sk- | whsec_ ) [A-Za-z0-9_-]{8,}
    | -----BEGIN [A-Z ]* PRIVATE\ KEY----- .*? (?: -----END | \Z )
    """,
    re.DOTALL,
)
_JWT = re.compile(r"(?<![\w-])(?P<before>(?>[\w-]*?\b(?=eyJ)))[\w-]++\.[\w.-]*+")
"""Looks for the first `eyJ` of a word only (an atomic group), so that a word is read once, however many it has."""
_CONTROL = re.compile(f"[{UNSAFE}]")
_PLAIN = re.compile(r"[!#-<>-~\xa1-\uffff]+")


MAX_CHARACTERS = 16_384
"""Of one message, of one traceback, of one value: what is longer is cut, so that nobody fills the log with one request."""
MAX_ERROR_CHARACTERS = 300
_KEY_IN_WORDS = re.compile(r"(?i)(?P<before>\bkey\b[^:\n]{0,40}:\s{0,3})[^\s\"']{4,}")
"""`Incorrect API key provided: 1234abcd`"""
_BACK = 4_096
"""How far from the cut a space is looked for, so that no half of a secret is left."""


def redacted(text: str) -> str:
    """`text` without what looks like a secret, and no longer than a log line may be."""
    if len(text) > MAX_CHARACTERS:
        text = _cut(text)
    text = _JWT.sub(r"\g<before>***", text)
    return _SECRETS.sub(lambda m: (m["head"] or m["named"] or m["url"] or "") + "***", text)


def describe(error: BaseException) -> str:
    """An error of somebody else's, who may repeat in it what it was sent: one line, short, without secrets."""
    text = " ".join(f"{type(error).__name__}: {error}"[: 4 * MAX_ERROR_CHARACTERS].split())
    text = _KEY_IN_WORDS.sub(r"\g<before>***", redacted(text))
    return text if len(text) <= MAX_ERROR_CHARACTERS else f"{text[:MAX_ERROR_CHARACTERS]} ..."


def _cut(text: str) -> str:
    head = text[:MAX_CHARACTERS]
    kept = max(head.rfind(space, MAX_CHARACTERS - _BACK) for space in " \n")
    kept = kept if kept > 0 else MAX_CHARACTERS - _BACK
    return f"{head[:kept]} ... ({len(text)} characters in all)"


def _about() -> dict[str, str]:
    says = ABOUT.get()
    return {key: value[:MAX_CHARACTERS] for key, value in says().items() if value} if says is not None else {}


Entry = tuple[float, str, str, float | None, str, str, str, str, str]
"""When, what was done, how it ended, how many seconds it took; the agent, tenant, principal, task and trace."""
_FIELDS = ("agent", "tenant", "principal", "task", "trace")


def entry_text(entry: Entry) -> str:
    """`SendMessage completed 12 ms agent=hello task=...`: what is known of a request, on one line."""
    _, operation, outcome, seconds, *about = entry
    took = "" if seconds is None else f" {seconds * 1000:.0f} ms" if seconds < 10 else f" {seconds:.1f} s"
    fields = "".join([f" {name}={_word(value)}" for name, value in zip(_FIELDS, about, strict=True) if value])
    return f"{operation} {outcome}{took}{fields}"


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def entry_line(self, logger: str, entry: Entry) -> str:
        at, operation, outcome, seconds, *about = entry
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
        line |= {name: value for name, value in zip(_FIELDS, about, strict=True) if value}
        try:
            return msgspec.json.encode(line).decode()
        except UnicodeEncodeError:  # half a character, in a name that somebody else chose
            return json.dumps(line)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
            **_about(),
        }
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """For people. A line begins where we say: what somebody else chose neither begins one nor looks like one of ours."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._second, self._stamp = -1, ""

    def entry_line(self, logger: str, entry: Entry) -> str:
        second, ms = divmod(int(entry[0] * 1000), 1000)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._stamp},{ms:03d} INFO {logger} {entry_text(entry)}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        about = "".join(f" {key}={_word(value)}" for key, value in _about().items())
        return _CONTROL.sub(_escaped, redacted(super().formatMessage(record))) + about

    def formatException(self, ei: Any) -> str:
        lines = redacted(super().formatException(ei)).splitlines()
        return "\n".join("    " + _CONTROL.sub(_escaped, line) for line in lines)


def _escaped(control: re.Match[str]) -> str:
    return ascii(control[0])[1:-1]


def _word(value: str) -> str:
    """One word, or a text in quotes."""
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream, and takes entries by the hundred. `before` is called before any other line, to keep the order."""

    def __init__(self, stream: TextIO, lines: JsonLines | PlainLines) -> None:
        super().__init__(stream)
        self.lines = lines
        self.setFormatter(lines)
        self.before: Callable[[], None] = lambda: None

    def write_entries(self, logger: str, entries: Sequence[Entry]) -> None:
        self.acquire()
        try:
            self.stream.write("".join([self.lines.entry_line(logger, entry) + "\n" for entry in entries]))
            self.stream.flush()
        except (OSError, ValueError):  # as `logging` does: a server goes on though nobody reads what it says
            pass
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        self.before()
        super().emit(record)

    def flush(self) -> None:
        self.before()
        super().flush()


_configured: LineHandler | None = None
_root = logging.getLogger("dragoman")


def configured() -> LineHandler | None:
    """The handler of `configure`, while it is the one that lines go to."""
    return _configured if _configured in logging.root.handlers else None


def is_json() -> bool:
    handler = configured()
    return handler is not None and isinstance(handler.lines, JsonLines)


def configure(level: str = "info", *, lines: str = "plain") -> None:
    """Log to stderr: `plain` or `json`."""
    global _configured
    from dragoman.observe import request_log

    handler = _configured = LineHandler(sys.stderr, JsonLines() if lines == "json" else PlainLines())
    handler.before = request_log.flush
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if lines == "json":  # what Python itself would print becomes lines, too
        logging.captureWarnings(True)
        sys.excepthook = lambda kind, error, at: _root.critical("%s", error, exc_info=(kind, error, at))
        threading.excepthook = lambda args: _root.critical("a thread failed", exc_info=args.exc_value)

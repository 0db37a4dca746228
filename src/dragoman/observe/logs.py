"""Log lines that say which task, whose, and in which trace; and that keep secrets to themselves.

The library logs through `logging` and sets nothing up by itself. `configure` is for the command line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

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
    | \b (?: (?: dgm_ | atr_ | adm_ | sk- | whsec_ ) [A-Za-z0-9_-]{8,} | eyJ[\w-]+\.[\w-]+\.[\w-]* )
    | -----BEGIN [A-Z ]* PRIVATE\ KEY----- .*? (?: -----END | \Z )
    """,
    re.DOTALL,
)
_CONTROL = re.compile(f"[{UNSAFE}]")
_PLAIN = re.compile(r"[!#-<>-~\xa1-\uffff]+")


def redacted(text: str) -> str:
    """`text` without what looks like a secret."""
    return _SECRETS.sub(lambda m: (m["head"] or m["named"] or m["url"] or "") + "***", text)


def _about() -> dict[str, str]:
    says = ABOUT.get()
    return {key: value for key, value in says().items() if value} if says is not None else {}


class JsonLines(logging.Formatter):
    """One JSON object per line."""

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


def configure(level: str = "info", *, lines: str = "plain") -> None:
    """Log to stderr: `plain` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if lines == "json" else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)

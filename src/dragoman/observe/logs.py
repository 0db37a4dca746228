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

from dragoman.model.ids import timestamp

ABOUT: ContextVar[Callable[[], Mapping[str, str]] | None] = ContextVar("dragoman_log_about", default=None)
"""Says what the lines of this context are about: `task`, `principal`, ... It is asked when a line is written."""

_SECRETS = re.compile(
    r"""(?ix)
    (?P<head> \b (?: bearer | basic | apikey ) \s+ | (?:^|[?&;,\s"'{]) (?: api[-_]?key | access[-_]?token | token | password | secret
        | client[-_]?secret | authorization | x-api-key | validationtoken ) ["']? \s* [=:] \s* ["']? (?: bearer \s+ | basic \s+ )? )
    (?P<secret> [^\s"'&,;}]{4,} )
    | \b (?P<token> (?: atr_ | adm_ | sk-) [A-Za-z0-9_-]{8,} | eyJ[\w-]+\.[\w-]+\.[\w-]* )
    """
)


def redacted(text: str) -> str:
    """`text` without what looks like a secret."""
    return _SECRETS.sub(lambda m: (m["head"] or "") + "***", text)


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
    """For people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        about = "".join(f" {key}={value}" for key, value in _about().items())
        return redacted(super().format(record)) + about


def configure(level: str = "info", *, lines: str = "plain") -> None:
    """Log to stderr: `plain` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if lines == "json" else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)

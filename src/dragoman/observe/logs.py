"""Log lines that say which task, whose, and in which trace; and that keep secrets to themselves.

The library logs through `logging` and sets nothing up by itself. `configure` is for the command line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import ContextVar

from dragoman.model.ids import timestamp

_FIELDS: ContextVar[dict[str, str] | None] = ContextVar("dragoman_log_fields", default=None)

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


class fields:
    """`with fields(task="t1"):` puts these on every log line of what runs inside."""

    __slots__ = ("_more", "_token")

    def __init__(self, **more: str) -> None:
        self._more = more

    def __enter__(self) -> None:
        self._token = _FIELDS.set({**(_FIELDS.get() or {}), **self._more})

    def __exit__(self, *exc: object) -> None:
        _FIELDS.reset(self._token)


def _about() -> dict[str, str]:
    return {key: value for key, value in (_FIELDS.get() or {}).items() if value}


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

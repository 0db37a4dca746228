"""Holders of secrets in a file, which is read again when it changes: a token is given or taken back without a restart.

    {"ada": "HASH", "bob": {"secret": ["OLD HASH", "NEW HASH"], "scopes": ["read"], "expires": "2027-01-01"}}

A file that is gone or makes no sense changes nothing: those who were there stay, nobody else comes in, and the log says
what is wrong.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from dragoman.auth.secrets import Holder, Holders

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK = 1.0
"""Seconds between two looks at a file."""


class Filed(Generic[T]):
    """What `make` makes of the holders: of those given, or of those in the file by now."""

    def __init__(self, holders: Holders | str | Path, make: Callable[[Holders], T]) -> None:
        self._make = make
        self._looked = time.monotonic()
        self._path: Path | None = None
        if isinstance(holders, str | Path):
            self._path = Path(holders)
            self._stamp = stamp_of(self._path)
            holders = _read(self._path)
        self._made = make(holders)

    def now(self) -> T:
        if self._path is not None and time.monotonic() - self._looked >= _LOOK:
            self._look(self._path)
        return self._made

    def _look(self, path: Path) -> None:
        self._looked = time.monotonic()
        try:
            stamp = stamp_of(path)
        except OSError as error:
            stamp = str(error)  # to be said once
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._made = self._make(_read(path))
            log.info("%s has changed, and counts from now on", path.name)
        except (OSError, ValueError) as error:
            log.error("%s cannot be read, so what it said before still counts: %s", path.name, error)


def stamp_of(*files: str | Path) -> object:
    """Differs when one of the files does. Raises `OSError`."""
    seen = [Path(file).stat() for file in files]
    return [(each.st_mtime_ns, each.st_size, each.st_ino) for each in seen]


def _read(path: Path) -> Holders:
    """Raises `OSError` or `ValueError`."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, str | Holder])

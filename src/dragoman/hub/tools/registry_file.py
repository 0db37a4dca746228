"""Files that the operator changes while a hub runs: `a2a_agents.json` and `mcp_servers.json`.

A changed file is read again within seconds. A file that cannot be read changes nothing: the content from before stays in use, and
the log says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from dragoman.errors import InvalidParams
from dragoman.hub.periodic import PeriodicWork
from dragoman.server.routes import explain, sentence

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0

T = TypeVar("T")


def read_entries(path: Path, member: str, kind: type[T], what: str) -> tuple[dict[str, T], dict[str, Any]]:
    """The entries of a registry, each as `kind`, and as they are written; none if there is no such file.

    Raises `InvalidParams`, also for a member that would be ignored: it is misspelled, or of another program's format.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}, {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise InvalidParams(f"{path.name} is not a valid registry of {what}: {error}") from error
    refuse_unknown(document, (member,), path.name)
    written = _convert(
        document.get(member, {}), dict[str, Any], f"{path.name} is not a valid registry of {what}: {member}"
    )
    entries: dict[str, T] = {}
    for name, entry in written.items():
        if not name or name.split() != [name]:
            raise InvalidParams(f"{path.name}: {name!r} is not a valid name: a name has no spaces")
        where = f"{path.name}: {member.removesuffix('s')} {name!r}"
        members = _convert(entry, dict[str, Any], where)
        refuse_unknown(members, kind.__struct_fields__, where)  # type: ignore[attr-defined]
        entries[name] = _convert(members, kind, where)
    return entries, written


def _convert(given: Any, kind: type[T], where: str) -> T:
    """Raises `InvalidParams` with the member that is wrong."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        member, why = explain(error)
        raise InvalidParams(sentence(f"{where}: {member}" if member else where, why)) from error


def refuse_unknown(given: Iterable[str], known: tuple[str, ...], where: str) -> None:
    for member in given:
        if member not in known:
            close = get_close_matches(member.lower(), known, 1, 0.6)
            hint = f": did you mean {close[0]!r}?" if close else f"; members are {', '.join(known)}"
            raise InvalidParams(f"{where} has an unknown member {member[:80]!r}{hint}")


def check_url(url: str, where: str) -> None:
    """Raises `InvalidParams` if it is no http or https URL of a host."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port or an address
        fits = False
    if not fits or url.split() != [url]:
        raise InvalidParams(f"{where}: {url[:200]!r} is not an http or https URL")


class RegistryFile(Generic[T]):
    """`read` parses the file and raises `InvalidParams`; `use` gets what it says, now and after each change."""

    def __init__(
        self, path: Path, read: Callable[[Path], dict[str, T]], use: Callable[[dict[str, T]], Awaitable[None]]
    ) -> None:
        self._path, self._read, self._use = path, read, use
        self._seen: object = None
        self._was_missing = False
        self.periodic = PeriodicWork(f"reading {path.name} again", self.check, retry=CHECK_SECONDS)

    def load(self) -> dict[str, T]:
        """The content at the start; empty, and a log line, if it is invalid."""
        self._seen = self._state()
        try:
            return self._read(self._path)
        except InvalidParams as error:
            log.error("%s", error.message)
            return {}

    async def check(self) -> None:
        """Read the file again if it changed."""
        state = await asyncio.to_thread(self._state)
        missing, self._was_missing = self._was_missing, state is None
        if state == self._seen or (state is None and not missing):
            return  # unchanged, or missing for the first time: it may be about to be replaced
        self._seen = state
        try:
            content = await asyncio.to_thread(self._read, self._path)
        except InvalidParams as error:
            log.error("%s. The content from before stays in use", error.message)
            return
        await self._use(content)
        log.info("%s was read again: %s", self._path.name, ", ".join(content) or "it is empty")

    def _state(self) -> object:
        try:
            about = self._path.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size, about.st_ino

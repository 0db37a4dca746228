"""Finds out which nodes of this machine are alive, by locks on files.

Each node locks a file of its own. The kernel releases the lock when the process dies, in whatever way. So a process that gets
the lock knows that the node is gone, without waiting for its leases to lapse. A process that is only paused keeps its lock.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

if sys.platform != "win32":
    import fcntl

_SUFFIX = ".lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_name() -> str:
    """A name of this machine since its last start. Machines that share a folder may not see the locks of each other."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return quote(socket.gethostname(), safe="")


class NodeLocks:
    """The locks of nodes in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def hold(self, node: str) -> None:
        """Lock the file of `node` until `drop`, or until this process dies."""
        if node in self._held:
            return
        while True:
            try:
                self._folder.mkdir(exist_ok=True)
                handle = self._create(node)
                if handle is None:
                    handle = os.open(self._path(node), os.O_CREAT | os.O_RDWR, 0o600)
            except FileNotFoundError:  # the last node to leave removed the folder between our two steps
                if not self._folder.parent.is_dir():
                    raise
                continue
            if not _lock(handle):
                os.close(handle)
                raise RuntimeError(f"another process is running as node {node!r}")
            if _same(handle, self._path(node)):
                self._held[node] = handle
                return
            os.close(handle)  # another process removed the file before it was locked

    def _create(self, node: str) -> int | None:
        """The file of a new node, locked before other processes can see it. None if it exists, or the file system has no links."""
        hidden = self._folder / f".{secrets.token_hex(8)}"
        handle = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            _lock(handle)
            os.link(hidden, self._path(node))
        except OSError:
            os.close(handle)
            return None
        finally:
            hidden.unlink(missing_ok=True)
        return handle

    def drop(self, node: str) -> None:
        handle = self._held.pop(node, None)
        if handle is not None:
            with suppress(OSError):  # read-only by now: the file stays, without a lock
                self._path(node).unlink(missing_ok=True)
            os.close(handle)
            with suppress(OSError):  # other nodes have files in it
                self._folder.rmdir()

    def drop_all(self) -> None:
        for node in list(self._held):
            self.drop(node)

    def is_dead(self, node: str) -> bool:
        """True if the process of `node` is known to be gone. Removes its file."""
        if node in self._held or sys.platform == "win32":
            return False
        try:
            handle = os.open(self._path(node), os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if not _lock(handle):
                return False
            if _same(handle, self._path(node)):
                with suppress(OSError):  # a read-only file system
                    self._path(node).unlink(missing_ok=True)
            return True
        finally:
            os.close(handle)

    @contextmanager
    def dead_nodes(self) -> Iterator[list[str]]:
        """The nodes that have a file here and whose processes are gone. None of them can start inside the block. At its end their
        files are removed."""
        locked: dict[str, int] = {}
        try:
            for name in self._names():
                handle = self._take(name) if name not in self._held else None
                if handle is not None:
                    locked[name] = handle
            yield list(locked)
            for node in locked:
                with suppress(OSError):  # a read-only file system
                    self._path(node).unlink(missing_ok=True)
        finally:
            for handle in locked.values():
                os.close(handle)

    def _names(self) -> list[str]:
        if sys.platform == "win32":
            return []
        try:
            files = sorted(name for name in os.listdir(self._folder) if name.endswith(_SUFFIX))
        except OSError:
            return []
        return [unquote(name.removesuffix(_SUFFIX)) for name in files]

    def _take(self, node: str) -> int | None:
        """The lock of a node, if no process holds it."""
        try:
            handle = os.open(self._path(node), os.O_RDWR)
        except OSError:
            return None
        with suppress(OSError):  # a file system without locks
            if _lock(handle) and _same(handle, self._path(node)):
                return handle
        os.close(handle)
        return None

    def _path(self, node: str) -> Path:
        return self._folder / (quote(node, safe="") + _SUFFIX)


def _lock(handle: int) -> bool:
    if sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False

"""Which processes of this machine are alive, as the operating system knows it.

Each node holds a lock on a file of its own. The kernel lets go of it when the process dies, however it dies, so
whoever can take the lock knows that the node is gone, without waiting for its lease to lapse. A process that only stands
still keeps its lock.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

if sys.platform != "win32":
    import fcntl

_SUFFIX = ".lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_name() -> str:
    """A name of this machine since its last start. Machines that share a folder may not see each other's locks."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return quote(socket.gethostname(), safe="")


class NodeLocks:
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
            os.close(handle)  # somebody tidied the file away between our opening and our locking it

    def drop(self, node: str) -> None:
        handle = self._held.pop(node, None)
        if handle is not None:
            with suppress(
                OSError
            ):  # a file system that is read-only by now keeps the file: nobody holds its lock
                self._path(node).unlink(missing_ok=True)
            os.close(handle)
            with suppress(OSError):  # others have files in it
                self._folder.rmdir()

    def drop_all(self) -> None:
        for node in list(self._held):
            self.drop(node)

    def dead(self, node: str) -> bool:
        """Whether the process of `node` is known to be gone. Its file goes too."""
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
                with suppress(OSError):  # a read-only file system keeps it
                    self._path(node).unlink(missing_ok=True)
            return True
        finally:
            os.close(handle)

    def dead_nodes(self) -> list[str]:
        """The nodes that have a file here and whose processes are gone. Their files stay until `dead` is asked."""
        if sys.platform == "win32":
            return []
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.endswith(_SUFFIX))
        except OSError:
            return []
        nodes = [unquote(name.removesuffix(_SUFFIX)) for name in names]
        return [node for node in nodes if node not in self._held and self._is_free(node)]

    def _is_free(self, node: str) -> bool:
        try:
            handle = os.open(self._path(node), os.O_RDWR)
        except OSError:
            return False
        try:
            return _lock(handle)
        except OSError:  # a file system without locks
            return False
        finally:
            os.close(handle)

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

"""Temporary folders that do not outlive their process, also if it is killed.

A process that uses such a folder holds a lock on it, which the operating system releases when the process ends. Whoever makes
a folder first removes those of its kind and user that nobody holds. On systems without such locks, the folder of a process
that was killed stays.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl


class TemporaryFolder:
    """A folder for this user alone. It is made when it is first used, and removed with this object or with `remove`.

    Its path is known before that: workers that are forked meanwhile use the same folder, and only the process that created
    the object removes it.
    """

    def __init__(self, kind: str, parent: str = "") -> None:
        self._parent, self._prefix = Path(parent or tempfile.gettempdir()), f"dragoman-{kind}."
        self.path = self._parent / f"{self._prefix}{secrets.token_hex(4)}"
        self._locks: list[int] = []
        self._owner = os.getpid()
        weakref.finalize(self, _remove, self.path, self._locks, self._owner)

    def make(self) -> Path:
        """Make the folder, unless this process uses it already: its path. Raises `OSError`."""
        if not self._locks:
            self._remove_unused()
            while (lock := self._lock()) is None:
                pass
            self._locks.append(lock)
        return self.path

    def _lock(self) -> int | None:
        """None if somebody removed the folder before it was locked."""
        with suppress(FileExistsError):  # made by another worker
            self.path.mkdir(mode=0o700)
        try:
            lock = os.open(self.path, _FOLDER)
        except FileNotFoundError:
            return None
        except PermissionError:
            if os.name == "nt":
                return -1  # folders cannot be opened
            raise
        try:
            if not _is_ours(lock):
                raise PermissionError(f"{self.path} belongs to somebody else")
            if sys.platform != "win32":
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(lock, fcntl.LOCK_SH)
            if _is_at(lock, self.path):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None

    def _remove_unused(self) -> None:
        """Remove the folders of processes that were killed."""
        if sys.platform == "win32":
            return
        for folder in self._parent.glob(f"{self._prefix}*"):
            if folder == self.path:
                continue  # a worker made it
            with suppress(OSError):
                lock = os.open(folder, _FOLDER)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if anybody uses it
                    if _is_ours(lock) and _is_at(lock, folder):
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)

    def remove(self) -> None:
        """`make` makes it again."""
        _remove(self.path, self._locks, self._owner)


_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def _remove(path: Path, locks: list[int], owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
    while locks:
        with suppress(OSError):
            os.close(locks.pop())


def _is_ours(lock: int) -> bool:
    found = os.fstat(lock)
    return os.name == "nt" or (found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077)


def _is_at(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(path))
    except FileNotFoundError:
        return False

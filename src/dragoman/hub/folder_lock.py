"""A lock that gives a folder to one hub process, because limits and running requests are per process.

The process holds an operating system lock on `hub.lock`, which ends with the process. `dragoman tenant` needs no lock. On
systems without such locks, every process may use the folder.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.errors import Unavailable
from dragoman.model.ids import timestamp

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)


class _LockHolder(Struct, frozen=True):
    """The content of the lock file, for people."""

    pid: int
    host: str
    since: str


class FolderLock:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def acquire(self) -> None:
        """Lock the folder, and create it if necessary. Raises `Unavailable` if another hub holds it."""
        if self._file is not None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self._folder / "hub.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Unavailable(f"the folder {self._folder} cannot be used: {error.strerror}") from error
        try:
            if not _try_lock(file):
                raise Unavailable(
                    f"the folder {self._folder} is in use by another hub{_describe_holder(file)}"
                )
        except BaseException:
            os.close(file)
            raise
        holder = _LockHolder(os.getpid(), socket.gethostname(), timestamp())
        os.ftruncate(file, 0)
        os.pwrite(file, msgspec.json.encode(holder), 0)
        self._file = file

    def release(self) -> None:
        """Release the lock. The file stays, because another process may have opened it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _try_lock(file: int) -> bool:
    """False: another process holds the lock."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning(
                "this file system has no locks, so another hub on this folder is not detected: %s",
                error.strerror,
            )
    return True


def _describe_holder(file: int) -> str:
    """Which process holds the lock, for an error message."""
    try:
        holder = msgspec.json.decode(os.pread(file, 4096, 0), type=_LockHolder)
    except msgspec.MsgspecError:
        return ""  # the holder has not written it yet
    return f": process {holder.pid} on {holder.host}, since {holder.since}"

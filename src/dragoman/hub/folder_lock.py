"""A folder is for one hub at a time: limits, running requests and the order of commands are those of a process.

Who has it holds a lock of the operating system's on `hub.lock`, which goes with the process, however that ends. What the
shell does beside a running hub (`dragoman tenant`) needs no lock. Where there are no such locks, nobody is refused.
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


class _Holder(Struct, frozen=True):
    """What the file says, for people."""

    pid: int
    host: str
    since: str


class FolderLock:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def take(self) -> None:
        """Have the folder, which is made if there is none. Raises `Unavailable` if another hub has it."""
        if self._file is not None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self._folder / "hub.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Unavailable(f"the folder {self._folder} cannot be used: {error.strerror}") from error
        try:
            if not _locked(file):
                raise Unavailable(f"the folder {self._folder} is in use by another hub{_words(file)}")
        except BaseException:
            os.close(file)
            raise
        holder = _Holder(os.getpid(), socket.gethostname(), timestamp())
        os.ftruncate(file, 0)
        os.pwrite(file, msgspec.json.encode(holder), 0)
        self._file = file

    def leave(self) -> None:
        """The file stays: another hub may have it open already, and waits for nothing but the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _locked(file: int) -> bool:
    """Whether it is ours now."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning("whether another hub has this folder cannot be known here: %s", error.strerror)
    return True


def _words(file: int) -> str:
    try:
        holder = msgspec.json.decode(os.pread(file, 4096, 0), type=_Holder)
    except msgspec.MsgspecError:
        return ""  # it is about to write who it is
    return f": process {holder.pid} on {holder.host}, since {holder.since}"

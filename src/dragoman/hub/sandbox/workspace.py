"""The folder of a tenant: where its commands run, and what `/write`, `/read` and `/list` see of that.

Commands are strangers' work, so nothing in the folder is taken for what it seems: links are not followed, only plain
files are read, and what a command has locked is opened again. The folder has a limit. A copy of it is kept up beside it,
and put back if a command took too much. A hub that is root's has folders that are somebody else's (`owner.py`).

Everything here blocks: it belongs on a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import InvalidParams
from dragoman.hub.conversations.artifacts import QuotaExceeded, clean_path
from dragoman.hub.sandbox.folder_copy import TooDeepError, copy, entries, remove, take_apart
from dragoman.hub.sandbox.run_as import Owner

READ_LIMIT = 1 << 20
_LEAST = 4096
"""Bytes that an entry counts for, however empty it is."""
_NO_END = 1 << 62
_FREE = 512 << 20
"""Bytes that commands leave free on the disk; half of what is free when one begins, if that is less."""


class Workspace:
    """`limit`: bytes it may have on the disk. `saved` is a place beside it, for the copy. `owner`: whose it is, if not the
    hub's own user's."""

    def __init__(self, root: Path, saved: Path, *, limit: int, owner: Owner | None = None) -> None:
        self.root, self._saved, self._limit, self._owner = root, saved, limit, owner
        self._heap = saved.with_name(f"{saved.name}.removing")

    def open(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._owner is not None and self.root.lstat().st_uid != self._owner.uid:
            self._owner.take_all(self.root)  # it is new, or was created when commands ran as root

    # -- files -------------------------------------------------------------------------------------------------

    def write(self, path: str, content: bytes) -> None:
        """Raises `InvalidParams` for a path that cannot be, and `QuotaExceeded`."""
        *folders, name = clean_path(path).split("/")
        self.open()
        used = self.used()
        if used + len(content) > self._limit:
            raise QuotaExceeded(
                f"no room for {path}: {used} of {self._limit} bytes of the workspace are used"
            )
        with self._inside(folders, make=True) as folder:
            fresh = f".{os.getpid()}-{os.urandom(4).hex()}"
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
            try:
                with open(file, "wb") as out:
                    out.write(content)
                    if self._owner is not None:
                        self._owner.take(file)
                os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:  # there is a folder of that name
                os.unlink(fresh, dir_fd=folder)
                raise InvalidParams(f"{path} cannot be written: {error.strerror}") from error

    def read(self, path: str) -> bytes | None:
        """A plain file, the first `READ_LIMIT` bytes of it and one more if there are more; None if there is none."""
        try:
            *folders, name = clean_path(path).split("/")
            with self._inside(folders) as folder:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except (InvalidParams, OSError):
            return None
        with open(file, "rb") as opened:
            return opened.read(READ_LIMIT + 1) if stat.S_ISREG(os.fstat(file).st_mode) else None

    def list(self, most: int = 200) -> list[tuple[str, int]]:
        """Plain files: path and size, by path."""
        found = entries(self.root, lambda folder, name: None)
        return sorted((path, about.st_size) for path, about in found if stat.S_ISREG(about.st_mode))[:most]

    def used(self) -> int:
        """Bytes on the disk, its own and those of a copy, in which a file has no holes. What goes too deep has no end."""
        try:
            return sum(_bytes(about) for _, about in entries(self.root))
        except TooDeepError:
            return _NO_END

    @property
    def device(self) -> int:
        return self.root.lstat().st_dev

    def free(self) -> int:
        """Bytes that are free on its disk."""
        about = os.statvfs(self.root)
        return about.f_bavail * about.f_frsize

    # -- before and after a command ----------------------------------------------------------------------------

    def save(self) -> int:
        """Remember the folder as it is. Returns how many bytes a command may leave here: as many as are allowed, or,
        where there are more already, no more than those. What goes too deep, from when that was allowed, is removed."""
        self.open()
        take_apart(self._heap)  # of a hub that died

        def prune(folder: int, name: str) -> None:
            self._heap.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.rename(name, self._heap / os.urandom(8).hex(), src_dir_fd=folder)

        used = sum(_bytes(about) for _, about in entries(self.root, prune))
        take_apart(self._heap)
        copy(self.root, self._saved)
        return max(self._limit, used)

    def settle(self, room: int, *, spoilt: bool = False) -> bool:
        """Put everything back as it was if there is more than `room` now, or it is `spoilt` anyway, and say so."""
        if not spoilt and self.used() <= room:
            with suppress(
                TooDeepError
            ):  # something left running is still at it: the next `save` sees to that
                copy(
                    self.root, self._saved
                )  # now, so that the next command need not wait for what this one made
            return False
        for entry in list(os.scandir(self.root)):  # the folder itself stays: a container may hold on to it
            remove(Path(entry.path), self._heap)
        if self._owner is not None:
            self._owner.take_all(self._saved)
        for entry in list(os.scandir(self._saved)):
            os.rename(entry.path, self.root / entry.name)
        return True

    # ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _inside(self, folders: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """A folder below the root, reached without following a link. Raises `OSError`, or `InvalidParams` to who makes it."""
        at = _folder(self.root)
        try:
            for name in folders:
                try:
                    below = self._below(at, name) if make else _folder(name, at)
                except OSError as error:
                    if make:
                        raise InvalidParams(f"{name} is not a folder to write into") from error
                    raise
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)

    def _below(self, at: int, name: str) -> int:
        """A folder in another; made, if there is none. Raises `OSError`."""
        made = False
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=at)
            made = True
        below = _folder(name, at)
        if made and self._owner is not None:
            self._owner.take(below)
        return below


def _folder(path: str | Path, at: int | None = None) -> int:
    """Open a folder, which is none if it is a link. Raises `OSError`."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)


def floor(free: int) -> int:
    """How many bytes a command has to leave free on a disk that has `free` when it begins."""
    return min(_FREE, free // 2)


def _bytes(about: os.stat_result) -> int:
    return max(_LEAST, about.st_blocks * 512, about.st_size)

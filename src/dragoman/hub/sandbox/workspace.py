"""The folder of a tenant, in which its commands run.

Its content is not trusted: links are not followed, only plain files are read, and permissions that a command removed are
restored. The folder has a size limit. A copy of it is kept beside it, and restored if a command exceeds the limit. If the hub
runs as root, another user owns the folders (`RunAsUser`).

Every function blocks: call it on a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import InvalidParams, QuotaExceeded
from dragoman.hub.sandbox.child_process import RunAsUser
from dragoman.hub.sandbox.folder_copy import (
    TooDeepError,
    copy,
    empty_trash,
    entries,
    open_file,
    open_folder,
    remove,
)
from dragoman.hub.store.artifacts import clean_path

READ_LIMIT = 1 << 20
_MIN_ENTRY_BYTES = 4096
"""Minimum bytes that an entry counts for."""
_UNLIMITED = 1 << 62
_FREE_BYTES = 512 << 20
"""Bytes that must stay free on the disk, or half of the free bytes at the start, if that is less."""


class Workspace:
    """`limit`: bytes on the disk. `saved`: the folder of the copy. `owner`: its user, if not the hub's own."""

    def __init__(self, root: Path, saved: Path, *, limit: int, owner: RunAsUser | None = None) -> None:
        self.root, self._saved, self._limit, self._owner = root, saved, limit, owner
        self._trash = saved.with_name(f"{saved.name}.removing")

    def open(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._owner is not None and self.root.lstat().st_uid != self._owner.uid:
            self._owner.chown_all(self.root)  # it is new, or was created when commands ran as root

    # -- files -------------------------------------------------------------------------------------------------

    def write(self, path: str, content: bytes) -> None:
        """Raises `InvalidParams` and `QuotaExceeded`."""
        *folders, name = clean_path(path).split("/")
        self.open()
        used = self.used()
        if used + len(content) > self._limit:
            raise QuotaExceeded(
                f"no room for {path}: {used} of {self._limit} bytes of the workspace are used"
            )
        with self._inside(folders) as folder:
            fresh = f".{os.getpid()}-{os.urandom(4).hex()}"
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
            try:
                with open(file, "wb") as out:
                    out.write(content)
                    if self._owner is not None:
                        self._owner.chown(file)
                os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:  # a folder has that name
                os.unlink(fresh, dir_fd=folder)
                raise InvalidParams(f"{path} cannot be written: {error.strerror}") from error

    def read(self, path: str) -> bytes | None:
        """The first `READ_LIMIT` + 1 bytes of a plain file; None if there is none."""
        try:
            with open_file(self.root, clean_path(path)) as file:
                return file.read(READ_LIMIT + 1)
        except (InvalidParams, OSError):
            return None

    def list(self, most: int = 200) -> list[tuple[str, int]]:
        """Plain files: path and size, by path."""
        found = entries(self.root, lambda folder, name: None)
        return sorted((path, about.st_size) for path, about in found if stat.S_ISREG(about.st_mode))[:most]

    def used(self) -> int:
        """Bytes on the disk; holes in files count. A folder that is too deep counts as unlimited."""
        try:
            return sum(_bytes(about) for _, about in entries(self.root))
        except TooDeepError:
            return _UNLIMITED

    @property
    def device(self) -> int:
        return self.root.lstat().st_dev

    def free(self) -> int:
        """Bytes that are free on its disk."""
        about = os.statvfs(self.root)
        return about.f_bavail * about.f_frsize

    # -- the copy -----------------------------------------------------------------------------------------------

    def save(self) -> int:
        """Copy the folder. Returns the bytes that it may have after the command: the limit, or the current size if that is
        larger. Folders that are too deep are removed."""
        self.open()
        empty_trash(self._trash)  # of a killed hub

        def prune(folder: int, name: str) -> None:
            self._trash.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.rename(name, self._trash / os.urandom(8).hex(), src_dir_fd=folder)

        used = sum(_bytes(about) for _, about in entries(self.root, prune))
        empty_trash(self._trash)
        copy(self.root, self._saved)
        return max(self._limit, used)

    def keep_or_restore(self, room: int, *, over_limit: bool = False) -> bool:
        """Restore the copy if the folder has more than `room` bytes or is `over_limit`. Returns whether it did."""
        if not over_limit and self.used() <= room:
            with suppress(
                TooDeepError
            ):  # something left running is still at it: the next `save` sees to that
                copy(
                    self.root, self._saved
                )  # now, so that the next command need not wait for what this one made
            return False
        for entry in list(os.scandir(self.root)):  # the folder itself stays: a container may have mounted it
            remove(Path(entry.path), self._trash)
        if self._owner is not None:
            self._owner.chown_all(self._saved)
        for entry in list(os.scandir(self._saved)):
            os.rename(entry.path, self.root / entry.name)
        return True

    # ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _inside(self, folders: Sequence[str]) -> Iterator[int]:
        """Open a folder below the root, which is created, without following links. Raises `InvalidParams`."""
        at = open_folder(self.root)
        try:
            for name in folders:
                try:
                    below = self._below(at, name)
                except OSError as error:
                    raise InvalidParams(f"{name} is not a folder to write into") from error
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)

    def _below(self, at: int, name: str) -> int:
        """Open or create a folder in another. Raises `OSError`."""
        made = False
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=at)
            made = True
        below = open_folder(name, at)
        if made and self._owner is not None:
            self._owner.chown(below)
        return below


def min_free_bytes(free: int) -> int:
    """Bytes that must stay free on a disk that has `free` bytes at the start."""
    return min(_FREE_BYTES, free // 2)


def _bytes(about: os.stat_result) -> int:
    return max(_MIN_ENTRY_BYTES, about.st_blocks * 512, about.st_size)

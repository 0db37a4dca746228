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
    unlock,
)
from dragoman.hub.store.artifacts import clean_path

MAX_READ_BYTES = 1 << 20
_MIN_ENTRY_BYTES = 4096
"""Minimum bytes that an entry counts for."""
_UNLIMITED = 1 << 62
RESTORING_SUFFIXES = ".emptying", ".refilling"
"""Suffixes of the marker files beside a copy, which say how far restoring it has come."""
_FREE_BYTES = 512 << 20
"""Bytes that must stay free on the disk, or half of the free bytes at the start, if that is less."""


class Workspace:
    """`limit`: bytes on the disk. `saved`: the folder of the copy. `owner`: its user, if not the hub's own."""

    def __init__(self, root: Path, saved: Path, *, limit: int, owner: RunAsUser | None = None) -> None:
        self.root, self._saved, self._limit, self._owner = root, saved, limit, owner
        self._trash = saved.with_name(f"{saved.name}.removing")
        self._emptying, self._refilling = (
            saved.with_name(f"{saved.name}{end}") for end in RESTORING_SUFFIXES
        )
        self._saved_bytes = self._added_bytes = 0
        self._min_free_bytes = -1

    def open(self) -> None:
        """Create it, or make it usable again."""
        above = self.root.parent
        above.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A command may give its files to everybody, with set-user-id.
        if stat.S_IMODE(above.stat().st_mode) & 0o077:
            with suppress(PermissionError):
                above.chmod(0o700)
        with suppress(FileExistsError):
            self.root.mkdir(mode=0o700)
            _sync(above)
        if self._owner is not None and self.root.lstat().st_uid != self._owner.uid:
            self._owner.chown_all(self.root)  # it is new, or was created when commands ran as root
        unlock(self.root, self.root.lstat(), always=True)
        self._finish_restoring()

    # -- files -------------------------------------------------------------------------------------------------

    def write(self, path: str, content: bytes) -> None:
        """Write a file. It is on disk when this returns, because the log of the task will say that it was written.

        Raises `InvalidParams` and `QuotaExceeded`.
        """
        *folders, name = clean_path(path).split("/")
        self.open()
        used = self.used()
        if used + len(content) > self._limit:
            raise QuotaExceeded(
                f"no room for {path}: {used} of {self._limit} bytes of the workspace are used"
            )
        with self._open_parent(folders) as folder:
            fresh = f".{os.getpid()}-{os.urandom(4).hex()}"
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
            try:
                with open(file, "wb") as out:
                    out.write(content)
                    if self._owner is not None:
                        self._owner.chown(file)
                    out.flush()
                    os.fsync(file)
                os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            except OSError as error:  # a folder has that name
                os.unlink(fresh, dir_fd=folder)
                raise InvalidParams(f"{path} cannot be written: {error.strerror}") from error

    def read(self, path: str) -> bytes | None:
        """The first `MAX_READ_BYTES` + 1 bytes of a plain file; None if there is none."""
        try:
            with open_file(self.root, clean_path(path)) as file:
                return file.read(MAX_READ_BYTES + 1)
        except (InvalidParams, OSError):
            return None

    def list(self, most: int = 200) -> list[tuple[str, int]]:
        """Plain files: path and size, by path."""
        found = entries(self.root, lambda folder, name: None)
        return sorted((path, info.st_size) for path, info in found if stat.S_ISREG(info.st_mode))[:most]

    def used(self) -> int:
        """Bytes on the disk; holes in files count. A folder that is too deep counts as unlimited."""
        try:
            used = sum(_bytes(info) for _, info in entries(self.root))
        except TooDeepError:
            return _UNLIMITED
        self._added_bytes = max(0, used - self._saved_bytes)
        return used

    def crowds_disk(self) -> bool:
        """True if a copy of what was added since `save` would leave too little free space on the disk."""
        return self.free() - self._added_bytes < self._min_free_bytes

    @property
    def device(self) -> int:
        return self.root.lstat().st_dev

    def free(self) -> int:
        """Bytes that are free on its disk; less if the free inodes allow only fewer entries."""
        info = os.statvfs(self.root)
        free = info.f_bavail * info.f_frsize
        return min(free, info.f_favail * _MIN_ENTRY_BYTES) if info.f_files else free

    # -- the copy -----------------------------------------------------------------------------------------------

    def save(self) -> int:
        """Copy the folder. Returns the bytes that it may have after the command: the limit, or the current size if that is
        larger. Folders that are too deep are removed."""
        self.open()
        empty_trash(self._trash)  # of a killed hub

        def prune(folder: int, name: str) -> None:
            self._trash.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.rename(name, self._trash / os.urandom(8).hex(), src_dir_fd=folder)

        used = sum(_bytes(info) for _, info in entries(self.root, prune))
        empty_trash(self._trash)
        copy(self.root, self._saved)
        self._saved_bytes, self._added_bytes, self._min_free_bytes = used, 0, min_free_bytes(self.free())
        return max(self._limit, used)

    def keep_or_restore(self, room: int, *, over_limit: bool = False) -> bool:
        """Restore the copy if the folder has more than `room` bytes or is `over_limit`. Returns whether it did."""
        self.open()
        fits = not over_limit and self.used() <= room
        if fits and not (self._added_bytes and self.crowds_disk()):
            # Copy now what the command changed, so that the next one need not wait for it. This fails if there is no room for a copy, or
            # if a process that still runs makes folders that are too deep: the next `save` removes them.
            with suppress(TooDeepError, OSError):
                copy(self.root, self._saved)
            return False
        self._emptying.touch()
        self._finish_restoring()
        return True

    def _finish_restoring(self) -> None:
        """Replace the content of the folder by the copy, if that has begun.

        A hub that is killed in the middle leaves some files in the copy and some in the folder, and the next copy would lose the former.
        So `open` finishes it before the folder is used.
        """
        if self._emptying.exists():
            # The folder itself stays: a container may have mounted it.
            for entry in list(os.scandir(self.root)):
                remove(Path(entry.path), self._trash)
            os.replace(
                self._emptying, self._refilling
            )  # from now on, what is in the folder comes from the copy
        if self._refilling.exists():
            if self._owner is not None:
                self._owner.chown_all(self._saved)
            for entry in list(os.scandir(self._saved)):
                os.rename(entry.path, self.root / entry.name)
            self._refilling.unlink()

    # ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _open_parent(self, folders: Sequence[str]) -> Iterator[int]:
        """Open a folder below the root, and create it if necessary. No link is followed. Raises `InvalidParams`."""
        at = open_folder(self.root)
        try:
            for name in folders:
                try:
                    below = self._open_or_create(at, name)
                except OSError as error:
                    raise InvalidParams(f"{name} is not a folder to write into") from error
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)

    def _open_or_create(self, at: int, name: str) -> int:
        """Open or create a folder in another. Raises `OSError`."""
        made = False
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=at)
            os.fsync(at)
            made = True
        below = open_folder(name, at)
        if made and self._owner is not None:
            self._owner.chown(below)
        return below


def _sync(path: Path) -> None:
    """Sync a folder, so that the names in it are on disk."""
    folder = open_folder(path)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def min_free_bytes(free: int) -> int:
    """Bytes that must stay free on a disk that has `free` bytes at the start."""
    return min(_FREE_BYTES, free // 2)


def _bytes(info: os.stat_result) -> int:
    return max(_MIN_ENTRY_BYTES, info.st_blocks * 512, info.st_size)

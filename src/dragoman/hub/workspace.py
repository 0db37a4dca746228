"""The folder of a tenant: where its commands run, and what `/write`, `/read` and `/list` see of that.

Commands are strangers' work, so nothing in the folder is taken for what it seems: links are not followed, only plain
files are read, and what a command has locked is opened again. The folder has a limit. What a command may spoil is saved
before it runs, and put back if it took too much. A hub that is root's has folders that are somebody else's (`owner.py`).

Everything here blocks: it belongs on a thread.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import InvalidParams
from dragoman.hub.artifacts import QuotaExceeded, clean_path
from dragoman.hub.copying import copy
from dragoman.hub.owner import Owner

READ_LIMIT = 1 << 20
_LEAST = 1024
"""Bytes that an entry counts for, however empty it is."""


class Workspace:
    """`limit`: bytes it may have on the disk. `saved` is a place beside it, for the time that a command runs. `owner`: whose
    it is, if not the hub's own user's."""

    def __init__(self, root: Path, saved: Path, *, limit: int, owner: Owner | None = None) -> None:
        self.root, self._saved, self._limit, self._owner = root, saved, limit, owner

    def open(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._owner is not None and self.root.lstat().st_uid != self._owner.uid:
            self._owner.take_all(self.root)  # it is new, or from when commands were root's

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
        found = [(path, about) for path, about in self._entries() if stat.S_ISREG(about.st_mode)]
        return sorted((str(path.relative_to(self.root)), about.st_size) for path, about in found)[:most]

    def used(self) -> int:
        """Bytes on the disk, its own and those of a copy, in which a file has no holes."""
        return sum(max(_LEAST, about.st_blocks * 512, about.st_size) for _, about in self._entries())

    # -- before and after a command ----------------------------------------------------------------------------

    def save(self) -> int:
        """Remember the folder as it is. Returns how many bytes a command may leave here: as many as are allowed, or,
        where there are more already, no more than those."""
        self.open()
        used = self.used()  # which opens what was locked
        _remove(self._saved)
        self._saved.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy(self.root, self._saved)
        return max(self._limit, used)

    def settle(self, room: int) -> bool:
        """Put everything back as it was if there is more than `room` now, and say so. What was saved is not needed again."""
        spoilt = self.used() > room
        if spoilt:  # the folder itself stays: a container may hold on to it
            for entry in os.scandir(self.root):
                _remove(Path(entry.path))
            if self._owner is not None:
                self._owner.take_all(self._saved)
            for entry in os.scandir(self._saved):
                os.rename(entry.path, self.root / entry.name)
        _remove(self._saved)
        return spoilt

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

    def _entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = Path(folder, name)
                with suppress(OSError):  # a command may be taking it away
                    about = path.lstat()
                    if stat.S_ISDIR(about.st_mode):
                        _unlock(path, about)
                    yield path, about


def _folder(path: str | Path, at: int | None = None) -> int:
    """Open a folder, which is none if it is a link. Raises `OSError`."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)


def _unlock(path: Path, about: os.stat_result) -> None:
    """A command runs as the same user, and may have locked its own folders and files: nothing is to hide in there.

    From root nothing hides; and what root opens may be a link, by then, to what is none of the command's.
    """
    if os.geteuid() == 0:
        return
    needed = 0o700 if stat.S_ISDIR(about.st_mode) else 0o400
    if about.st_mode & needed != needed:
        path.chmod(stat.S_IMODE(about.st_mode) | needed)


def _remove(path: Path) -> None:
    """Whatever it is, and however it was locked."""
    if path.is_dir() and not path.is_symlink():
        _unlock(path, path.lstat())
        for folder, folders, _ in os.walk(path):
            for name in folders:
                inside = Path(folder, name)
                if not inside.is_symlink():
                    _unlock(inside, inside.lstat())
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

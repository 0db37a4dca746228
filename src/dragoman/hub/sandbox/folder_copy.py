"""Copies a folder incrementally, while untrusted programs may change it.

A program may replace a file by a link between a check and its use. So folders are opened once, everything is reached from
their descriptors, and no link is followed.

A file is copied again if its size, mtime or ctime changed. The copy has the mtime of the file, and the file's ctime, which no
program can set, as its atime. A file that changed within the last clock tick is always copied again.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

MAX_DEPTH = 64
"""Maximum depth of folders."""
MAX_PATH_BYTES = 2000
"""Maximum bytes of a relative path. The whole path stays below PATH_MAX."""
_TICK_NS = 100_000_000
_PERMISSIONS = 0o777
"""The bits of a mode that a copy keeps. A copy may belong to root, so set-user-id is not among them."""
_GONE_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for an entry that was removed or replaced meanwhile."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK

TooDeep = Callable[[int, str], None]
"""Called for a folder that is too deep: the descriptor of its parent, and its name."""


class TooDeepError(Exception):
    """A folder exceeds `MAX_DEPTH` or `MAX_PATH_BYTES`."""


def entries(root: Path, too_deep: TooDeep | None = None) -> Iterator[tuple[str, os.stat_result]]:
    """All entries in a folder: relative path and stat result. Raises `TooDeepError` unless `too_deep` is given."""
    with suppress(FileNotFoundError, NotADirectoryError):
        unlock(root, root.lstat())
        stack = [_open_and_list(root, "")]
        try:
            while stack:
                folder, found, before = stack[-1]
                entry = next(found, None)
                if entry is None:
                    os.close(stack.pop()[0])
                    continue
                path = before + entry.name
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:  # it was removed
                    continue
                yield path, info
                if not stat.S_ISDIR(info.st_mode):
                    continue
                if len(stack) >= MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
                    if too_deep is None:
                        raise TooDeepError
                    too_deep(folder, entry.name)
                    continue
                with suppress(OSError):
                    unlock(entry.name, info, folder)
                    stack.append(_open_and_list(entry.name, path + "/", folder))
        finally:
            for folder, _, _ in stack:
                os.close(folder)


def copy(source: Path, target: Path) -> None:
    """Make `target` a copy of the folders, plain files and links of `source`. Unchanged files are not copied.

    Raises `OSError`, and `TooDeepError`.
    """
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    origin, copy_folder = open_folder(source), open_folder(target)
    try:
        _copy_folder(origin, copy_folder, target, 1)
    finally:
        os.close(origin)
        os.close(copy_folder)


def open_folder(name: str | Path, inside: int | None = None) -> int:
    """Open a folder, but not a link to one. Raises `OSError`."""
    return os.open(name, _FOLDER, dir_fd=inside)


def open_file(root: Path, path: str) -> BinaryIO:
    """Open a plain file below a folder, without following links. Raises `OSError`."""
    *folders, name = path.split("/")
    at = open_folder(root)
    try:
        for folder in folders:
            below = open_folder(folder, at)
            os.close(at)
            at = below
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("not a plain file")
    return open(file, "rb")


def remove(path: Path, trash: Path) -> None:
    """Remove anything, whatever its permissions and depth. `trash` is a folder beside it.

    Folders are moved to the trash one by one, so no path becomes too long.
    """
    info = None
    with suppress(FileNotFoundError):
        info = path.lstat()
    if info is not None:
        if stat.S_ISDIR(info.st_mode):
            trash.mkdir(mode=0o700, parents=True, exist_ok=True)
            unlock(path, info)
            os.rename(path, trash / os.urandom(8).hex())
        else:
            path.unlink(missing_ok=True)
    empty_trash(trash)


def empty_trash(trash: Path) -> None:
    """Remove the trash with its content, also after a crash."""
    try:
        trash_folder = open_folder(trash)
    except FileNotFoundError:
        return
    try:
        for last in (False,) * 9 + (True,):
            waiting = os.listdir(trash_folder)
            while waiting:
                try:
                    _delete_entry(waiting.pop(), trash_folder, waiting)
                except OSError as error:
                    if last or error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                        raise  # else a program still writes there: repeat
    finally:
        os.close(trash_folder)
    trash.rmdir()


def unlock(
    name: str | Path, info: os.stat_result, folder: int | None = None, *, always: bool = False
) -> None:
    """Restore permissions that a command of the same user has removed. Root does not need them; `always`: restore them for root, too.

    Only what was opened is changed, never a link.
    """
    needed = 0o700 if stat.S_ISDIR(info.st_mode) else 0o400
    if (os.geteuid() == 0 and not always) or info.st_mode & needed == needed or stat.S_ISLNK(info.st_mode):
        return
    at = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if stat.S_IFMT(os.fstat(at).st_mode) == stat.S_IFMT(info.st_mode):
            os.chmod(f"/proc/self/fd/{at}", stat.S_IMODE(info.st_mode) | needed)
    finally:
        os.close(at)


def _open_and_list(
    name: str | Path, before: str, folder: int | None = None
) -> tuple[int, Iterator[os.DirEntry[str]], str]:
    """The descriptor of a folder, its entries, and `before`: the path that precedes their names."""
    at = open_folder(name, folder)
    return at, iter(os.scandir(at)), before


def _delete_entry(name: str, trash_folder: int, waiting: list[str]) -> None:
    info = os.lstat(name, dir_fd=trash_folder)
    if not stat.S_ISDIR(info.st_mode):
        os.unlink(name, dir_fd=trash_folder)
        return
    unlock(name, info, trash_folder)
    folder = open_folder(name, trash_folder)
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                random_name = os.urandom(8).hex()
                unlock(entry.name, entry.stat(follow_symlinks=False), folder)
                os.rename(entry.name, random_name, src_dir_fd=folder, dst_dir_fd=trash_folder)
                waiting.append(random_name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=trash_folder)


def _copy_folder(source: int, target: int, path: Path, depth: int) -> None:
    """Copy an open folder to another one. `path` is the path of `target`, for removing old entries."""
    if depth > MAX_DEPTH:
        raise TooDeepError
    known = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(target)}
    for entry in os.scandir(source):
        try:
            _copy(entry.name, source, target, path, known.pop(entry.name, None), depth)
        except OSError as error:
            if error.errno not in _GONE_ERRORS:
                raise
    for name in known:
        _remove_entry(name, path)
    os.fchmod(target, os.fstat(source).st_mode & _PERMISSIONS)


def _copy(name: str, source: int, target: int, path: Path, known: os.stat_result | None, depth: int) -> None:
    info = os.lstat(name, dir_fd=source)
    mode = info.st_mode
    if known is not None and (
        stat.S_IFMT(known.st_mode) != stat.S_IFMT(mode) or not _is_unchanged(info, known)
    ):
        _remove_entry(name, path)
        known = None
    if stat.S_ISDIR(mode):
        unlock(name, info, source)
        inside = open_folder(name, source)
        try:
            if known is None:
                os.mkdir(name, 0o700, dir_fd=target)
            else:
                unlock(name, known, target)
            copy_folder = open_folder(name, target)
            try:
                _copy_folder(inside, copy_folder, path / name, depth + 1)
            finally:
                os.close(copy_folder)
        finally:
            os.close(inside)
    elif stat.S_ISLNK(mode):
        link = os.readlink(name, dir_fd=source)
        if known is not None and os.readlink(name, dir_fd=target) == link:
            return
        if known is not None:
            os.unlink(name, dir_fd=target)
        os.symlink(link, name, dir_fd=target)
    elif stat.S_ISREG(mode) and known is None:
        unlock(name, info, source)
        _copy_file(name, source, target)


def _copy_file(name: str, source: int, target: int) -> None:
    now = time.time_ns()
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=source)
    with open(file, "rb") as opened:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            return
        copied_file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target)
        with open(copied_file, "wb") as out:
            shutil.copyfileobj(opened, out, 1 << 20)
            out.flush()
            os.fchmod(copied_file, info.st_mode & _PERMISSIONS)
            changed = info.st_ctime_ns if info.st_ctime_ns < now - _TICK_NS else 0
            os.utime(copied_file, ns=(changed, info.st_mtime_ns))


def _is_unchanged(info: os.stat_result, copied: os.stat_result) -> bool:
    """True if a file is unchanged since it was copied."""
    if not stat.S_ISREG(info.st_mode):
        return True
    return (info.st_size, info.st_mtime_ns, info.st_ctime_ns) == (
        copied.st_size,
        copied.st_mtime_ns,
        copied.st_atime_ns,
    )


def _remove_entry(name: str, path: Path) -> None:
    """Remove an entry of the copy."""
    there = path / name
    if there.is_dir() and not there.is_symlink():
        shutil.rmtree(there)
    else:
        there.unlink(missing_ok=True)

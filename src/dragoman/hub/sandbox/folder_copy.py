"""An incremental copy of a folder that untrusted programs may change meanwhile.

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
_GONE_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""It was removed or replaced."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK

TooDeep = Callable[[int, str], None]
"""Called for a folder that is too deep: the descriptor of its parent, and its name."""


class TooDeepError(Exception):
    """A folder exceeds `MAX_DEPTH` or `MAX_PATH_BYTES`."""


def entries(root: Path, too_deep: TooDeep | None = None) -> Iterator[tuple[str, os.stat_result]]:
    """All entries in a folder: relative path and stat result. Raises `TooDeepError` unless `too_deep` is given."""
    with suppress(FileNotFoundError, NotADirectoryError):
        stack = [_opened(root, "")]
        try:
            while stack:
                folder, found, before = stack[-1]
                entry = next(found, None)
                if entry is None:
                    os.close(stack.pop()[0])
                    continue
                path = before + entry.name
                try:
                    about = entry.stat(follow_symlinks=False)
                except OSError:  # it was removed
                    continue
                yield path, about
                if not stat.S_ISDIR(about.st_mode):
                    continue
                if len(stack) >= MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
                    if too_deep is None:
                        raise TooDeepError
                    too_deep(folder, entry.name)
                    continue
                with suppress(OSError):
                    unlock(entry.name, about, folder)
                    stack.append(_opened(entry.name, path + "/", folder))
        finally:
            for folder, _, _ in stack:
                os.close(folder)


def copy(source: Path, target: Path) -> None:
    """Make `target` a copy of the folders, plain files and links of `source`. Unchanged files are not copied.

    Raises `OSError`, and `TooDeepError`.
    """
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    origin, made = open_folder(source), open_folder(target)
    try:
        _copy_folder(origin, made, target, 1)
    finally:
        os.close(origin)
        os.close(made)


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
    about = None
    with suppress(FileNotFoundError):
        about = path.lstat()
    if about is not None:
        if stat.S_ISDIR(about.st_mode):
            trash.mkdir(mode=0o700, parents=True, exist_ok=True)
            unlock(path, about)
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


def unlock(name: str | Path, about: os.stat_result, folder: int | None = None) -> None:
    """Restore permissions that a command, which runs as the same user, has removed. Root does not need this.

    It changes what it has opened, and never a link.
    """
    needed = 0o700 if stat.S_ISDIR(about.st_mode) else 0o400
    if os.geteuid() == 0 or about.st_mode & needed == needed or stat.S_ISLNK(about.st_mode):
        return
    at = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if stat.S_IFMT(os.fstat(at).st_mode) == stat.S_IFMT(about.st_mode):
            os.chmod(f"/proc/self/fd/{at}", stat.S_IMODE(about.st_mode) | needed)
    finally:
        os.close(at)


def _opened(
    name: str | Path, before: str, folder: int | None = None
) -> tuple[int, Iterator[os.DirEntry[str]], str]:
    at = open_folder(name, folder)
    return at, iter(os.scandir(at)), before


def _delete_entry(name: str, trash_folder: int, waiting: list[str]) -> None:
    about = os.lstat(name, dir_fd=trash_folder)
    if not stat.S_ISDIR(about.st_mode):
        os.unlink(name, dir_fd=trash_folder)
        return
    unlock(name, about, trash_folder)
    folder = open_folder(name, trash_folder)
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                fresh = os.urandom(8).hex()
                unlock(entry.name, entry.stat(follow_symlinks=False), folder)
                os.rename(entry.name, fresh, src_dir_fd=folder, dst_dir_fd=trash_folder)
                waiting.append(fresh)
            else:
                os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=trash_folder)


def _copy_folder(source: int, target: int, path: Path, depth: int) -> None:
    """`path` is the path of `target`, for removing old entries."""
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
        _clear(name, path)
    os.fchmod(target, stat.S_IMODE(os.fstat(source).st_mode))


def _copy(name: str, source: int, target: int, path: Path, known: os.stat_result | None, depth: int) -> None:
    about = os.lstat(name, dir_fd=source)
    mode = about.st_mode
    if known is not None and (stat.S_IFMT(known.st_mode) != stat.S_IFMT(mode) or not _same(about, known)):
        _clear(name, path)
        known = None
    if stat.S_ISDIR(mode):
        unlock(name, about, source)
        inside = open_folder(name, source)
        try:
            if known is None:
                os.mkdir(name, 0o700, dir_fd=target)
            else:
                unlock(name, known, target)
            made = open_folder(name, target)
            try:
                _copy_folder(inside, made, path / name, depth + 1)
            finally:
                os.close(made)
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
        unlock(name, about, source)
        _copy_file(name, source, target)


def _copy_file(name: str, source: int, target: int) -> None:
    now = time.time_ns()
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=source)
    with open(file, "rb") as opened:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            return
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target)
        with open(made, "wb") as out:
            shutil.copyfileobj(opened, out, 1 << 20)
            out.flush()
            os.fchmod(made, stat.S_IMODE(about.st_mode))
            changed = about.st_ctime_ns if about.st_ctime_ns < now - _TICK_NS else 0
            os.utime(made, ns=(changed, about.st_mtime_ns))


def _same(about: os.stat_result, copied: os.stat_result) -> bool:
    """True if a file is unchanged since it was copied."""
    if not stat.S_ISREG(about.st_mode):
        return True
    return (about.st_size, about.st_mtime_ns, about.st_ctime_ns) == (
        copied.st_size,
        copied.st_mtime_ns,
        copied.st_atime_ns,
    )


def _clear(name: str, path: Path) -> None:
    """Remove an entry of the copy."""
    there = path / name
    if there.is_dir() and not there.is_symlink():
        shutil.rmtree(there)
    else:
        there.unlink(missing_ok=True)

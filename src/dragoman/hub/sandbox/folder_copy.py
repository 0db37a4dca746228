"""A copy of a folder that others may be changing, or playing tricks with, meanwhile; made once, and then kept up.

What is a folder or a file when it is looked at may be a link, when it is opened, to something that is none of theirs. So
folders are opened once, and everything else is reached from there, and no link is followed.

A file is copied again when it differs from its copy in size or in either of its times. The copy has the same time of
modification, and as its time of access the time at which the original last changed (ctime), which no program can set. A
file that changed a moment ago may change again within the same tick of the clock, so its copy counts as old from the start.
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

MAX_DEPTH = 64
"""Folders that may be inside one another."""
MAX_PATH_BYTES = 2000
"""Bytes of a path in a folder. With what is before it, it is well below what the kernel takes in one call (PATH_MAX)."""
_TICK_NS = 100_000_000
_ELSE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""It has been taken away, or is something else by now."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK

TooDeep = Callable[[int, str], None]
"""What to do about a folder that is too deep: the folder it is in, opened, and its name there."""


class TooDeepError(Exception):
    """A folder has more folders inside one another, or longer paths, than it may."""


def entries(root: Path, too_deep: TooDeep | None = None) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in a folder: the path from there, and what it is. Raises `TooDeepError` unless `too_deep` is given."""
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
                except OSError:  # somebody is taking it away
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
    """Make `target` what `source` is: folders, plain files and links. Pipes and sockets are not worth keeping.

    What has not changed since the last time is left as it is. Raises `OSError`, and `TooDeepError`.
    """
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    origin, made = os.open(source, _FOLDER), os.open(target, _FOLDER)
    try:
        _copy_folder(origin, made, target, 1)
    finally:
        os.close(origin)
        os.close(made)


def remove(path: Path, heap: Path) -> None:
    """Remove whatever it is, however it was locked and however deep it goes. `heap` is a place beside it, to take it apart.

    Folders are moved to the heap one by one, so that none is ever reached through another.
    """
    about = None
    with suppress(FileNotFoundError):
        about = path.lstat()
    if about is not None:
        if stat.S_ISDIR(about.st_mode):
            heap.mkdir(mode=0o700, parents=True, exist_ok=True)
            unlock(path, about)
            os.rename(path, heap / os.urandom(8).hex())
        else:
            path.unlink(missing_ok=True)
    take_apart(heap)


def take_apart(heap: Path) -> None:
    """Remove what was moved to a heap, now or before a crash, and the heap."""
    try:
        pile = os.open(heap, _FOLDER)
    except FileNotFoundError:
        return
    try:
        for last in (False,) * 9 + (True,):
            waiting = os.listdir(pile)
            while waiting:
                try:
                    _take_apart(waiting.pop(), pile, waiting)
                except OSError as error:
                    if last or error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                        raise  # else somebody is still writing there: again
    finally:
        os.close(pile)
    heap.rmdir()


def unlock(name: str | Path, about: os.stat_result, folder: int | None = None) -> None:
    """A command runs as the same user, and may have locked its own folders and files: nothing is to hide in there.

    From root nothing hides. What is opened is what is changed, and a link is neither.
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
    at = os.open(name, _FOLDER, dir_fd=folder)
    return at, iter(os.scandir(at)), before


def _take_apart(name: str, pile: int, waiting: list[str]) -> None:
    about = os.lstat(name, dir_fd=pile)
    if not stat.S_ISDIR(about.st_mode):
        os.unlink(name, dir_fd=pile)
        return
    unlock(name, about, pile)
    folder = os.open(name, _FOLDER, dir_fd=pile)
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                fresh = os.urandom(8).hex()
                unlock(entry.name, entry.stat(follow_symlinks=False), folder)
                os.rename(entry.name, fresh, src_dir_fd=folder, dst_dir_fd=pile)
                waiting.append(fresh)
            else:
                os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=pile)


def _copy_folder(source: int, target: int, path: Path, depth: int) -> None:
    """`path` is where `target` is, for removing what is there no more."""
    if depth > MAX_DEPTH:
        raise TooDeepError
    known = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(target)}
    for entry in os.scandir(source):
        try:
            _copy(entry.name, source, target, path, known.pop(entry.name, None), depth)
        except OSError as error:
            if error.errno not in _ELSE:
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
        inside = os.open(name, _FOLDER, dir_fd=source)
        try:
            if known is None:
                os.mkdir(name, 0o700, dir_fd=target)
            else:
                unlock(name, known, target)
            made = os.open(name, _FOLDER, dir_fd=target)
            try:
                _copy_folder(inside, made, path / name, depth + 1)
            finally:
                os.close(made)
        finally:
            os.close(inside)
    elif stat.S_ISLNK(mode):
        said = os.readlink(name, dir_fd=source)
        if known is not None and os.readlink(name, dir_fd=target) == said:
            return
        if known is not None:
            os.unlink(name, dir_fd=target)
        os.symlink(said, name, dir_fd=target)
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
    """Whether a file is as it was when it was copied. Of links the target says so."""
    if not stat.S_ISREG(about.st_mode):
        return True
    return (about.st_size, about.st_mtime_ns, about.st_ctime_ns) == (
        copied.st_size,
        copied.st_mtime_ns,
        copied.st_atime_ns,
    )


def _clear(name: str, path: Path) -> None:
    """Remove something from the copy, which is never deep."""
    there = path / name
    if there.is_dir() and not there.is_symlink():
        shutil.rmtree(there)
    else:
        there.unlink(missing_ok=True)

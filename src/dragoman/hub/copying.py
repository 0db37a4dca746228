"""A copy of a folder that others may be changing, or playing tricks with, meanwhile.

What is a folder or a file when it is looked at may be a link, when it is opened, to something that is none of theirs. So
folders are opened once, and everything else is reached from there, and no link is followed.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

_ELSE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""It has been taken away, or is something else by now."""


def copy(source: Path, target: Path) -> None:
    """Folders, plain files and links, as they are; pipes and sockets are not worth keeping. Raises `OSError`."""
    modes: list[tuple[Path, int]] = []
    for at, folders, files, folder in os.fwalk(source, onerror=_failed, follow_symlinks=False):
        inside = target / os.path.relpath(at, source)
        inside.mkdir(mode=0o700, parents=True, exist_ok=True)
        modes.append((inside, os.fstat(folder).st_mode))
        for name in (*folders, *files):
            try:
                _copy(name, folder, inside / name)
            except OSError as error:
                if error.errno not in _ELSE:
                    raise
    for made, mode in reversed(modes):  # a folder that is locked is locked when everything is in it
        made.chmod(stat.S_IMODE(mode))


def _copy(name: str, folder: int, target: Path) -> None:
    mode = os.lstat(name, dir_fd=folder).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=folder), target)
    elif stat.S_ISREG(mode):
        if not mode & stat.S_IRUSR and os.geteuid() != 0:  # of the same user, who has locked it
            os.chmod(name, stat.S_IMODE(mode) | stat.S_IRUSR, dir_fd=folder)
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with open(file, "rb") as opened, target.open("xb") as out:
            about = os.fstat(file)
            if stat.S_ISREG(about.st_mode):
                shutil.copyfileobj(opened, out, 1 << 20)
                os.fchmod(out.fileno(), stat.S_IMODE(about.st_mode))
        os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))


def _failed(error: OSError) -> None:
    if error.errno not in _ELSE:
        raise error

"""Whose the commands of agents are, and the files they make.

A hub that is an ordinary user's has commands that are this user's, too. One that runs as root has commands that are
nobody's: a command of root's reads whatever there is on the machine, and no namespace changes that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from msgspec import Struct

if sys.platform != "win32":
    import pwd


_NEEDED = 1 << 0 | 1 << 6 | 1 << 7
"""CAP_CHOWN, CAP_SETGID, CAP_SETUID."""


class Owner(Struct, frozen=True):
    uid: int
    gid: int

    def take(self, place: int | Path) -> None:
        """Give a file or a folder to it; of a link, the link itself."""
        if isinstance(place, int):
            os.chown(place, self.uid, self.gid)
        else:
            os.chown(place, self.uid, self.gid, follow_symlinks=False)

    def take_all(self, folder: Path) -> None:
        """With everything in it."""
        self.take(folder)
        for at, folders, files in os.walk(folder):
            for name in (*folders, *files):
                self.take(Path(at, name))


def owner() -> Owner | None:
    """Whose commands are to be; None: as whom the hub runs anyway."""
    if sys.platform == "win32" or not _root() or not _able():
        return None
    try:
        found = pwd.getpwnam("nobody")
    except KeyError:
        return Owner(65534, 65534)
    return Owner(found.pw_uid, found.pw_gid)


def warning() -> str:
    """What the operator should know of that; empty if all is well."""
    if not _root():
        return ""
    whose = "run as nobody" if _able() else "read what root can, because it may not run them as anybody else"
    return f"this hub runs as root: commands {whose}. Give it a user of its own"


def _root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


def _able() -> bool:
    """Whether root may be somebody else: in a container it may have been forbidden."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return True  # no Linux
    held = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    return held & _NEEDED == _NEEDED

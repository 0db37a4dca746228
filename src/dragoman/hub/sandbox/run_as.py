"""The user that runs commands and owns their files.

Commands run as the user of the hub. If that is root, they run as `nobody`, because a command of root can read every file
of the machine, in any namespace.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from msgspec import Struct

if sys.platform != "win32":
    import pwd


_CAPABILITIES = 1 << 0 | 1 << 6 | 1 << 7
"""CAP_CHOWN, CAP_SETGID, CAP_SETUID."""


class RunAsUser(Struct, frozen=True):
    uid: int
    gid: int

    def chown(self, place: int | Path) -> None:
        """Change the owner of a file or folder; of a link, not its target."""
        if isinstance(place, int):
            os.chown(place, self.uid, self.gid)
        else:
            os.chown(place, self.uid, self.gid, follow_symlinks=False)

    def chown_all(self, folder: Path) -> None:
        """With everything in it."""
        self.chown(folder)
        for at, folders, files in os.walk(folder):
            for name in (*folders, *files):
                self.chown(Path(at, name))


def command_user() -> RunAsUser | None:
    """The user of commands; None: the user of the hub."""
    if sys.platform == "win32" or not _root() or not _may_change_user():
        return None
    try:
        found = pwd.getpwnam("nobody")
    except KeyError:
        return RunAsUser(65534, 65534)
    return RunAsUser(found.pw_uid, found.pw_gid)


def root_warning() -> str:
    """A warning for the operator if the hub runs as root; empty otherwise."""
    if not _root():
        return ""
    whose = (
        "run as nobody"
        if _may_change_user()
        else "read what root can, because it may not run them as anybody else"
    )
    return f"this hub runs as root: commands {whose}. Give it a user of its own"


def _root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


def _may_change_user() -> bool:
    """True if root may change its user, which a container may forbid."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return True  # no Linux
    held = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    return held & _CAPABILITIES == _CAPABILITIES

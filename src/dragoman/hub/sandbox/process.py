"""A cell that is a process of this machine, confined by Linux namespaces.

A confined command has no network, sees only its own processes, cannot write outside its folder, and sees neither the hub's
files nor the home of its user. Where user namespaces are not available, no command runs, unless the operator sets
`exec_unconfined`: then it has only limits and a bare environment, and the log says so. The command shares the kernel with the
hub; use containers (`container.py`) or machines against attackers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import Unavailable
from dragoman.hub.sandbox.child_process import start
from dragoman.hub.sandbox.run_as import RunAsUser

log = logging.getLogger(__name__)

_PATH = "/usr/local/bin:/usr/bin:/bin"
_SHARED = (Path("~"), Path("/run"), Path("/sys"), Path("/var/tmp"))
"""Folders with secrets, sockets and files of others."""
_NEEDED = ("unshare", "mount", "setpriv", "prlimit")

# The folder is bound to /mnt, because the folders above it are hidden. Only the basic devices exist: root could read a disk
# device. Other mounts are read-only.
_APART = """\
set -ef
mount -t tmpfs -o size=1m,mode=755 tmpfs /mnt
mkdir -m 1777 /mnt/workspace /mnt/dev /mnt/dev/shm
mount --bind . /mnt/workspace
for device in null zero full random urandom; do
    [ -e /dev/$device ] || continue
    : > /mnt/dev/$device
    mount --bind /dev/$device /mnt/dev/$device
done
ln -s /proc/self/fd /mnt/dev/fd
for n in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${n%:*} /mnt/dev/${n#*:}; done
limits=$1; command=$2; as=$3; shift 3
for hidden in "$@"; do
    if [ -d "$hidden" ]; then mount -t tmpfs -o size=1m,mode=755 tmpfs "$hidden"
    elif [ -e "$hidden" ]; then mount --bind /mnt/dev/null "$hidden"; fi
done
while read -r from at kind how rest; do
    case $at in *\\\\040*) at=$(printf %s "$at" | sed 's/\\\\040/ /g') ;; esac
    case $at,$how in /,*|/proc,*|/proc/*|/mnt,*|/mnt/*|*,ro|*,ro,*) continue ;; esac
    [ -e "$at" ] || continue
    { mount -o remount,bind,ro "$at" || mount -t tmpfs none "$at" || mount --bind /mnt/dev/null "$at"; } 2>/dev/null
done < /proc/self/mounts
mount --rbind /mnt/dev /dev
mount -t tmpfs -o size=64m tmpfs /tmp
mount -t proc proc /proc
mount -o remount,bind,ro /
cd /mnt/workspace
export HOME=/mnt/workspace
exec setpriv $as --no-new-privs --bounding-set=-all --inh-caps=-all prlimit $limits sh -c "$command"
"""
_OFFLINE = 'limits=$1; as=$3; exec setpriv $as --no-new-privs prlimit $limits sh -c "$2"'
_BARE = 'ulimit -v $3; ulimit -f $4; ulimit -t $5; ulimit -c 0; ulimit -n 256; exec sh -c "$2"'
_AS = "import os, sys; uid, gid, *rest = sys.argv[1:]; os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid)); "
_AS += "os.execv('/bin/sh', rest)"

_WORDS = {
    _APART: "commands run without a network, and see nothing of the hub",
    _OFFLINE: "commands run without a network, but they see the files of this machine",
    _BARE: "commands run with limits alone: they reach the network, and see the files of this machine",
}


REFUSED = "commands cannot be confined on this machine, so it runs none"
_ADVICE = (
    "commands cannot be confined here, which takes unshare, mount, setpriv, prlimit and namespaces for users, so /exec is "
    "refused: set exec_image, or exec_unconfined if commands may read what the hub can"
)


class Process:
    """`hidden`: folders and files that commands do not see. `owner`: the user of commands, if the hub is root. `unconfined`: run
    commands also where they cannot be confined."""

    def __init__(
        self,
        *,
        hidden: Sequence[Path] = (),
        seconds: float = 30.0,
        memory_mb: int = 512,
        file_mb: int = 1024,
        owner: RunAsUser | None = None,
        unconfined: bool = False,
    ) -> None:
        self._owner, self._unconfined = owner, unconfined
        places = [Path(os.path.expanduser(each)).resolve() for each in (*hidden, *_SHARED)]
        self._hidden = [str(place) for place in places if place != Path("/")]
        memory, file, cpu = memory_mb << 20, file_mb << 20, int(seconds) + 1
        self._limits = f"--as={memory} --fsize={file} --cpu={cpu} --core=0 --nofile=256"
        self._bare = [str(memory >> 10), str(file >> 9), str(cpu)]
        self._at_most = ["timeout", "-s", "KILL", str(cpu)] if shutil.which("timeout") else []
        """Ends a command also if the hub is gone."""
        self._way: list[str] | None = None
        self._trying = asyncio.Lock()

    async def enter(self, tenant: str, folder: Path, command: str) -> tuple[list[str], dict[str, str]]:
        async with self._trying:
            way = self._way or await self._find(folder)
            if way[-1] == _APART:
                self._way = way  # only full confinement is cached; a failure may be temporary
            elif not self._unconfined:
                log.error("%s", _ADVICE)
                raise Unavailable(REFUSED)
            else:
                log.warning("%s", _WORDS[way[-1]])
        return [*self._at_most, *self._arguments(way, command)], self._environment(folder)

    async def how(self, folder: Path) -> str:
        """A sentence about how commands are confined on this machine."""
        way = await self._find(folder)
        return _WORDS[way[-1]] if way[-1] == _APART or self._unconfined else _ADVICE

    async def clear(self, tenant: str) -> None:
        """The kernel has killed the whole PID namespace."""

    async def close(self) -> None:
        pass

    def _arguments(self, way: list[str], command: str) -> list[str]:
        owner = self._owner
        if way[-1] == _BARE:
            first = (
                [sys.executable, "-I", "-c", _AS, str(owner.uid), str(owner.gid)] if owner is not None else []
            )
            return [*first, *way, "sh", self._limits, command, *self._bare]
        as_ = f"--reuid={owner.uid} --regid={owner.gid} --clear-groups" if owner is not None else ""
        if way[-1] == _APART:
            return [*way, "sh", f"{self._limits} --nproc=256", command, as_, *self._hidden]
        return [*way, "sh", self._limits, command, as_]

    async def _find(self, folder: Path) -> list[str]:
        """The strongest confinement that works on this machine."""
        ways = []
        if all(shutil.which(program) for program in _NEEDED):
            apart = (
                ["unshare"] if self._owner is not None else ["unshare", "-r"]
            )  # root needs no user namespace
            ways = [
                [*apart, "-n", "-m", "-i", "-p", "-f", "--kill-child", "sh", "-c", _APART],
                [*apart, "-n", "-i", "sh", "-c", _OFFLINE],
            ]
        for way in ways:
            if await self._works(way, folder):
                return way
        return ["sh", "-c", _BARE]

    async def _works(self, way: list[str], folder: Path) -> bool:
        arguments, environment = self._arguments(way, "true | true"), self._environment(folder)
        trial = await start(arguments, environment=environment, folder=folder, output=False)
        return await trial.wait() == 0

    def _environment(self, folder: Path) -> dict[str, str]:
        """None of the hub's variables, which contain keys. Another user cannot reach the folder by its path."""
        home = "." if self._owner is not None else str(folder)
        return {"PATH": _PATH, "HOME": home, "LANG": "C.UTF-8"}

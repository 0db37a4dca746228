"""A cell that is a process of this machine, confined by bubblewrap, or else by Linux namespaces.

Both give a command the same view: its folder, the programs of the machine (read-only), a few files of /etc, a small /tmp, its
own processes, and no network. Everything else is not there: the root of the machine is replaced, not covered. Where neither
works, no command runs, unless the operator sets `exec_unconfined`: then it has only limits and a bare environment, and the log
says so. The command shares the kernel with the hub; use containers (`container.py`) or machines against attackers.
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
from dragoman.hub.sandbox.child_process import RunAsUser, start

log = logging.getLogger(__name__)

_PATH = "/usr/local/bin:/usr/bin:/bin"
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_ETC = (
    *("passwd", "group", "nsswitch.conf", "localtime", "timezone", "mime.types", "magic", "terminfo"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "ImageMagick-6", "ImageMagick-7"),
    *("ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/tls/openssl.cnf", "ca-certificates"),
    *("perl", "python3", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14"),
)
"""Files of /etc that programs need. The others may have secrets."""
_HIDDEN = (Path("~"), Path("/usr/local/etc"))
_BASES = ("/mnt", "/media", "/srv", "/opt")
"""Where the new root may be built."""
_NEEDED = ("unshare", "mount", "umount", "pivot_root", "setpriv", "prlimit", "nice")
_SBIN = "/usr/sbin:/sbin"

# The new root is a small tmpfs that gets the programs, the basic devices (root could read a disk device) and the folder. All but
# the folder, /tmp and /dev/shm is read-only. Flags that a mount has must stay: a user namespace may not take them away.
_APART = """\
set -ef
PATH=$PATH:/usr/sbin:/sbin
root=$1; limits=$2; command=$3; as=$4; shift 4
mount -t tmpfs -o size=1m,mode=755 tmpfs "$root"
mkdir -p "$root/mnt/workspace" "$root/dev/shm" "$root/proc" "$root/tmp"
mount --bind . "$root/mnt/workspace"
while [ "$1" != -- ]; do
    case $1 in
    *=*) ln -s "${1#*=}" "$root${1%%=*}" ;;
    *)  if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root${1%/*}"; : > "$root$1"; fi
        mount --rbind "$1" "$root$1" ;;
    esac
    shift
done
shift
for hidden in "$@"; do
    if [ -d "$root$hidden" ]; then mount -t tmpfs -o size=4k,mode=755 tmpfs "$root$hidden"
    elif [ -e "$root$hidden" ]; then mount --bind /dev/null "$root$hidden"; fi
done
for device in null zero full random urandom; do
    [ -e /dev/$device ] || continue
    : > "$root/dev/$device"
    mount --bind /dev/$device "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
for n in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${n%:*} "$root/dev/${n#*:}"; done
while read -r from at kind how rest; do
    case $at in *\\\\040*) at=$(printf %s "$at" | sed 's/\\\\040/ /g') ;; esac
    case $at in "$root"/mnt/workspace|"$root"/dev/*|"$root"/mnt/workspace/*) continue ;; "$root"/*) ;; *) continue ;; esac
    [ -e "$at" ] || continue
    options=remount,bind,ro
    for flag in nosuid nodev noexec noatime nodiratime relatime; do
        case ,$how, in *,$flag,*) options=$options,$flag ;; esac
    done
    mount -o $options "$at"
done < /proc/self/mounts
mount -t tmpfs -o size=1m,mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
for names in keys key-users; do [ ! -e "$root/proc/$names" ] || mount --bind /dev/null "$root/proc/$names"; done
mount -o remount,bind,ro "$root"
cd "$root"
pivot_root . .
umount -l .
cd /mnt/workspace
export HOME=/mnt/workspace PATH=/usr/local/bin:/usr/bin:/bin
exec setpriv $as --no-new-privs --bounding-set=-all --inh-caps=-all nice -n 10 prlimit $limits sh -c "$command"
"""
_APART_FLAGS = ("-n", "-m", "-i", "-u", "-p", "-f", "--kill-child")
_OFFLINE = 'limits=$1; as=$3; exec setpriv $as --no-new-privs prlimit $limits sh -c "$2"'
_BARE = 'ulimit -v $3; ulimit -f $4; ulimit -t $5; ulimit -c 0; ulimit -n 256; exec sh -c "$2"'
_AS = "import os, sys; uid, gid, *rest = sys.argv[1:]; os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid)); "
_AS += "os.execv('/bin/sh', rest)"

BUBBLEWRAP, NAMESPACES, OFFLINE, BARE = "bubblewrap", "namespaces", "offline", "bare"
CONFINED: tuple[str, ...] = (BUBBLEWRAP, NAMESPACES)
"""The ways that confine, the preferred one first."""
_DESCRIPTIONS = {
    BUBBLEWRAP: "commands run in bubblewrap: without a network, and they see nothing of the hub",
    NAMESPACES: "commands run in namespaces: without a network, and they see nothing of the hub",
    OFFLINE: "commands run without a network, but they see the files of this machine",
    BARE: "commands run with limits alone: they reach the network, and see the files of this machine",
}
_LAUNCH = str(Path(__file__).with_name("launch.py"))

REFUSED = "commands cannot be confined on this machine, so it runs none"
_ADVICE = (
    "commands cannot be confined here, which takes bubblewrap, or unshare, mount, pivot_root, setpriv, prlimit and namespaces for "
    "users, so /exec is refused: set exec_image, or exec_unconfined if commands may read what the hub can"
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
        places = [Path(os.path.expanduser(each)).resolve() for each in (*hidden, *_HIDDEN)]
        self._hidden = [str(place) for place in places if place != Path("/") and place.exists()]
        memory, file, cpu = memory_mb << 20, file_mb << 20, int(seconds) + 1
        self._limits = f"--as={memory} --fsize={file} --cpu={cpu} --core=0 --nofile=256"
        self._bare = [str(memory >> 10), str(file >> 9), str(cpu)]
        self._at_most = ["timeout", "-s", "KILL", str(cpu)] if shutil.which("timeout") else []
        """Ends a command also if the hub is gone."""
        self._way = ""
        self._trying = asyncio.Lock()

    async def enter(self, tenant: str, folder: Path, command: str) -> tuple[list[str], dict[str, str]]:
        async with self._trying:
            way = self._way or await self._find(folder)
            if way in CONFINED:
                self._way = way  # only full confinement is cached; a failure may be temporary
            elif not self._unconfined:
                log.error("%s", _ADVICE)
                raise Unavailable(REFUSED)
            else:
                log.warning("%s", _DESCRIPTIONS[way])
        return [*self._at_most, *self._arguments(way, folder, command)], self._environment(folder)

    async def describe(self, folder: Path) -> str:
        """A sentence about how commands are confined on this machine."""
        way = await self._find(folder)
        return _DESCRIPTIONS[way] if way in CONFINED or self._unconfined else _ADVICE

    async def clear(self, tenant: str) -> None:
        """The kernel has killed the whole PID namespace."""

    async def close(self) -> None:
        pass

    def _arguments(self, way: str, folder: Path, command: str) -> list[str]:
        owner, first = self._owner, _launcher()
        as_ = f"--reuid={owner.uid} --regid={owner.gid} --clear-groups" if owner is not None else ""
        enter = ["unshare"] if owner is not None else ["unshare", "-r"]  # root needs no user namespace
        if way == BUBBLEWRAP:
            return [*first, *self._bubblewrap(folder), *self._limited(as_.split(), command)]
        if way == NAMESPACES:
            base = next(each for each in _BASES if os.path.isdir(each) and not folder.is_relative_to(each))
            apart = [*enter, *_APART_FLAGS, "sh", "-c", _APART, "sh", base]
            view = [f"{path}={target}" if target else path for path, target in _view()]
            return [*first, *apart, f"{self._limits} --nproc=256", command, as_, *view, "--", *self._hidden]
        if way == OFFLINE:
            return [*first, *enter, "-n", "-i", "sh", "-c", _OFFLINE, "sh", self._limits, command, as_]
        if owner is not None:
            first += [sys.executable, "-I", "-c", _AS, str(owner.uid), str(owner.gid), "sh"]
        else:
            first.append("sh")
        return [*first, "-c", _BARE, "sh", self._limits, command, *self._bare]

    def _limited(self, as_: list[str], command: str) -> list[str]:
        """The command with its limits. bubblewrap has dropped all capabilities but those that change the user."""
        drop = ["setpriv", *as_, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"] if as_ else []
        inside = ["sh", "-c", 'cd /mnt/workspace && exec "$@"', "sh"]  # as its user: it is closed to others
        limits = ["nice", "-n", "10", "prlimit", *self._limits.split(), "--nproc=256"]
        return [*drop, *inside, *limits, "sh", "-c", command]

    def _bubblewrap(self, folder: Path) -> list[str]:
        """The command line of bubblewrap: the same view as that of `_APART`."""
        out = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--cap-drop", "ALL"]
        out += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        if self._owner is None:
            out += ["--unshare-user", "--disable-userns"]
        else:
            out += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
        above = {str(each) for path, _ in _view() for each in Path(path).parents} | {"/mnt"}
        for each in sorted(above - {"/"}):
            out += ["--perms", "0755", "--dir", each]
        seen = []
        for path, target in _view():
            out += ["--symlink", target, path] if target else ["--ro-bind", path, path]
            seen += [] if target else [Path(path)]
        for hidden in self._hidden:
            if any(Path(hidden).is_relative_to(path) for path in seen):
                inside = ["--size", "4096", "--perms", "0755", "--tmpfs", hidden, "--remount-ro", hidden]
                out += inside if os.path.isdir(hidden) else ["--ro-bind", "/dev/null", hidden]
        out += ["--proc", "/proc", "--perms", "0755", "--dir", "/dev"]
        for device in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
            out += ["--dev-bind-try", device, device]
        for n, name in (("", "fd"), ("/0", "stdin"), ("/1", "stdout"), ("/2", "stderr")):
            out += ["--symlink", f"/proc/self/fd{n}", f"/dev/{name}"]
        out += ["--size", str(1 << 20), "--perms", "1777", "--tmpfs", "/dev/shm"]
        for names in ("/proc/keys", "/proc/key-users"):
            out += ["--ro-bind", "/dev/null", names] if os.path.exists(names) else []
        out += ["--size", str(64 << 20), "--perms", "1777", "--tmpfs", "/tmp"]
        out += ["--bind", str(folder), "/mnt/workspace", "--remount-ro", "/", "--chdir", "/"]
        return [*out, "--setenv", "HOME", "/mnt/workspace", "--"]

    async def _find(self, folder: Path) -> str:
        """The strongest confinement that works on this machine."""
        needed = {
            BUBBLEWRAP: ("bwrap", "prlimit", "nice", *(("setpriv",) if self._owner is not None else ())),
            NAMESPACES: _NEEDED,
            OFFLINE: ("unshare", "setpriv", "prlimit"),
        }
        for way in (*CONFINED, OFFLINE):
            there = all(shutil.which(program) or shutil.which(program, path=_SBIN) for program in needed[way])
            if there and await self._works(way, folder):
                return way
        return BARE

    async def _works(self, way: str, folder: Path) -> bool:
        arguments, environment = self._arguments(way, folder, "true | true"), self._environment(folder)
        trial = await start(arguments, environment=environment, folder=folder, output=False)
        return await trial.wait() == 0

    def _environment(self, folder: Path) -> dict[str, str]:
        """None of the hub's variables, which contain keys. Another user cannot reach the folder by its path."""
        home = "." if self._owner is not None else str(folder)
        return {"PATH": _PATH, "HOME": home, "LANG": "C.UTF-8"}


def _launcher() -> list[str]:
    """The start of a command line that takes system calls away. The hub's own Python may be in a place that its user may not enter."""
    places = (sys.executable, shutil.which("python3") or "", "/usr/bin/python3")
    found = next((place for place in places if place and os.access(place, os.X_OK)), "")
    if not found:
        log.warning("there is no Python to start commands with, so they may use all system calls")
        return []
    return [found, "-I", "-S", _LAUNCH]


def _view() -> list[tuple[str, str]]:
    """What of the machine a command sees: paths, and for a link its target."""
    out = []
    for path in _PROGRAMS:
        if os.path.islink(path):
            out.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            out.append((path, ""))
    return [*out, *((path, "") for name in _ETC if os.path.exists(path := f"/etc/{name}"))]

"""Runs commands in processes of this machine, confined by bubblewrap, or else by Linux namespaces.

Both show a command the same: its folder, the programs of the machine (read-only), a few files of /etc, a small /tmp, its own processes,
and no network. The root of the machine is replaced, so nothing else exists for the command. If neither works, no command runs, unless
the operator sets `exec_unconfined`: then a command has only limits and a minimal environment, and the log says so. The command shares
the kernel with the hub; use containers (`container.py`) or machines against attackers.
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
from dragoman.hub.sandbox.launch import NO_USER_NAMESPACES, PARENT, SECONDS

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
_HIDDEN = (Path("~"), Path("/usr/local/etc"), Path("/usr/src"))
_ROOT_FOLDERS = ("/mnt", "/media", "/srv", "/opt")
"""Folders on which the new root may be mounted."""
MAX_PROCESSES = 256
"""Processes and threads of a command. The kernel limits them by user and user namespace. If the hub runs as root, all commands have the
same user: then the sandbox limits each command, and the kernel all together."""
_MAX_PROCESSES_OF_ALL = 16 * MAX_PROCESSES
_NAMESPACE_PROGRAMS = ("unshare", "mount", "umount", "pivot_root", "setpriv", "prlimit", "nice")
_SBIN = "/usr/sbin:/sbin"

# The new root is a small tmpfs that gets the programs, the basic devices (root could read a disk device) and the folder. All but
# the folder, /tmp and /dev/shm is read-only. Flags that a mount has must stay: a user namespace may not take them away.
# This shell stays the first process of the namespace, and keeps its privileges: it dies with its parent, and everything with it. A
# command that were the first itself could leave its parent and its group, and run for ever.
_NAMESPACES_SCRIPT = """\
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
[ -n "$as" ] || { echo 0 > /proc/sys/user/max_user_namespaces; } 2>/dev/null || :
export HOME=/mnt/workspace PATH=/usr/local/bin:/usr/bin:/bin
setpriv $as --no-new-privs --bounding-set=-all --inh-caps=-all nice -n 19 prlimit $limits sh -c "$command"
exit $?
"""
_UNSHARE_FLAGS = ("-n", "-m", "-i", "-u", "-p", "-f", "--kill-child")
_OFFLINE_SCRIPT = 'limits=$1; as=$3; exec setpriv $as --no-new-privs prlimit $limits sh -c "$2"'
_LIMITS_SCRIPT = 'ulimit -v $3; ulimit -f $4; ulimit -t $5; ulimit -c 0; ulimit -n 256; exec sh -c "$2"'
_CHANGE_USER_SCRIPT = "import os, sys; uid, gid, *rest = sys.argv[1:]; os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid)); "
_CHANGE_USER_SCRIPT += "os.execv('/bin/sh', rest)"

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


class ProcessIsolation:
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
        self._hidden_paths = (*hidden, *_HIDDEN)
        memory, file, cpu = memory_mb << 20, file_mb << 20, int(seconds) + 1
        # one byte of a core: at 0 the kernel still starts the machine's handler of crashes, as root, with all memory of the process
        self._limits = f"--as={memory} --fsize={file} --cpu={cpu} --core=1 --nofile=256"
        self._confined_limits = (
            f"{self._limits} --nproc={MAX_PROCESSES if owner is None else _MAX_PROCESSES_OF_ALL}"
        )
        self._bare = [str(memory >> 10), str(file >> 9), str(cpu)]
        self._max_seconds = cpu
        """Seconds after which a command ends even if the hub hangs."""
        self._confinement = ""
        self._finding = asyncio.Lock()

    async def prepare(self, tenant: str, folder: Path, command: str) -> tuple[list[str], dict[str, str]]:
        async with self._finding:
            method = self._confinement or await self._find_method(folder)
            if method in CONFINED:
                self._confinement = method  # only full confinement is cached; a failure may be temporary
            elif not self._unconfined:
                log.error("%s", _ADVICE)
                raise Unavailable(REFUSED)
            else:
                log.warning("%s", _DESCRIPTIONS[method])
        return self._arguments(method, folder, command), self._environment(folder)

    async def describe(self, folder: Path) -> str:
        """A sentence about how commands are confined on this machine."""
        method = await self._find_method(folder)
        return _DESCRIPTIONS[method] if method in CONFINED or self._unconfined else _ADVICE

    async def clean_up(self, tenant: str, *, killed: bool) -> None:
        """Nothing is left to stop: the kernel has killed the whole PID namespace."""

    async def close(self) -> None:
        pass

    @property
    def _hidden(self) -> list[str]:
        """The hidden paths that exist now, without those inside another."""
        places = {Path(os.path.expanduser(each)).resolve() for each in self._hidden_paths} - {Path("/")}
        return sorted(str(each) for each in places if each.exists() and not places.intersection(each.parents))

    def _arguments(self, method: str, folder: Path, command: str) -> list[str]:
        owner, first = self._owner, self._launcher(method)
        user_options = f"--reuid={owner.uid} --regid={owner.gid} --clear-groups" if owner is not None else ""
        enter = ["unshare"] if owner is not None else ["unshare", "-r"]  # root needs no user namespace
        if method == BUBBLEWRAP:
            return [*first, *self._bubblewrap(folder), *self._limited(user_options.split(), command)]
        if method == NAMESPACES:
            base = next(
                each for each in _ROOT_FOLDERS if os.path.isdir(each) and not folder.is_relative_to(each)
            )
            apart = [*enter, *_UNSHARE_FLAGS, "sh", "-c", _NAMESPACES_SCRIPT, "sh", base]
            view = [f"{path}={target}" if target else path for path, target in _visible_paths()]
            return [*first, *apart, self._confined_limits, command, user_options, *view, "--", *self._hidden]
        if method == OFFLINE:
            return [
                *first,
                *enter,
                "-n",
                "-i",
                "sh",
                "-c",
                _OFFLINE_SCRIPT,
                "sh",
                self._limits,
                command,
                user_options,
            ]
        if owner is not None:
            first += [sys.executable, "-I", "-c", _CHANGE_USER_SCRIPT, str(owner.uid), str(owner.gid), "sh"]
        else:
            first.append("sh")
        return [*first, "-c", _LIMITS_SCRIPT, "sh", self._limits, command, *self._bare]

    def _launcher(self, method: str) -> list[str]:
        """The start of a command line: it denies system calls, and ends the command after its time.

        It runs with the first Python that the user of commands can execute. Commands of root run without a user namespace, so the
        launcher denies new ones; otherwise the confinement does, after it has made its own.
        """
        places = (sys.executable, shutil.which("python3") or "", "/usr/bin/python3")
        python = next((place for place in places if place and os.access(place, os.X_OK)), "")
        timeout = ["timeout", "-s", "KILL", str(self._max_seconds)] if shutil.which("timeout") else []
        if not python:
            log.warning("no Python was found to start commands with, so no system calls are denied to them")
            return timeout
        launcher = [python, "-I", "-S", _LAUNCH]
        if self._owner is not None:
            launcher.append(NO_USER_NAMESPACES)
        if method in CONFINED:
            return [*launcher, f"{SECONDS}={self._max_seconds}", f"{PARENT}={os.getpid()}"]
        return [
            *timeout,
            *launcher,
        ]  # the launcher becomes the command itself, which could undo the other options

    def _limited(self, user_options: list[str], command: str) -> list[str]:
        """The command with its limits, and without the capabilities that bubblewrap leaves.

        A shell stays the first process of the namespace and keeps the capabilities. So the command cannot control it with ptrace, detach
        it from the hub, and run for ever.
        """
        first = ["sh", "-c", '"$@"; exit $?', "sh"]
        drop = ["setpriv", *user_options, "--no-new-privs", "--ambient-caps=-all", "--inh-caps=-all"]
        # Only processes that root starts have a bounding set to remove. For others AppArmor may refuse it.
        if os.geteuid() == 0:
            drop.append("--bounding-set=-all")
        inside = ["sh", "-c", 'cd /mnt/workspace && exec "$@"', "sh"]  # as its user: it is closed to others
        limits = ["nice", "-n", "19", "prlimit", *self._confined_limits.split()]
        return [*first, *drop, *inside, *limits, "sh", "-c", command]

    def _bubblewrap(self, folder: Path) -> list[str]:
        """The command line of bubblewrap: the same view as that of `_NAMESPACES_SCRIPT`."""
        out = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--cap-drop", "ALL"]
        out += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        out += ["--as-pid-1", "--cap-add", "CAP_SETPCAP"]
        if self._owner is None:
            out += ["--unshare-user", "--disable-userns"]
        else:
            out += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        above = {str(each) for path, _ in _visible_paths() for each in Path(path).parents} | {"/mnt"}
        for each in sorted(above - {"/"}):
            out += ["--perms", "0755", "--dir", each]
        seen = []
        for path, target in _visible_paths():
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

    async def _find_method(self, folder: Path) -> str:
        """The strongest confinement that works on this machine."""
        needed = {
            BUBBLEWRAP: ("bwrap", "prlimit", "nice", "setpriv"),
            NAMESPACES: _NAMESPACE_PROGRAMS,
            OFFLINE: ("unshare", "setpriv", "prlimit"),
        }
        for method in (*CONFINED, OFFLINE):
            there = all(
                shutil.which(program) or shutil.which(program, path=_SBIN) for program in needed[method]
            )
            if there and await self._works(method, folder):
                return method
        return BARE

    async def _works(self, method: str, folder: Path) -> bool:
        arguments, environment = self._arguments(method, folder, "true | true"), self._environment(folder)
        trial = await start(arguments, environment=environment, folder=folder, output=False)
        return await trial.wait() == 0

    def _environment(self, folder: Path) -> dict[str, str]:
        """The environment of a command: none of the hub's variables, which contain keys. `HOME` is `.` for another user, which cannot reach
        the folder by its path."""
        home = "." if self._owner is not None else str(folder)
        return {"PATH": _PATH, "HOME": home, "LANG": "C.UTF-8"}


def _visible_paths() -> list[tuple[str, str]]:
    """What a command sees of the machine: paths, and for a link its target."""
    out = []
    for path in _PROGRAMS:
        if os.path.islink(path):
            out.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            out.append((path, ""))
    return [*out, *((path, "") for name in _ETC if os.path.exists(path := f"/etc/{name}"))]

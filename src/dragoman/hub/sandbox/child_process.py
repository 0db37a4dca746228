"""Child processes that inherit no descriptors and no environment of the hub, and the user that they run as.

`asyncio.create_subprocess_exec` leaves closing descriptors to the event loop, and uvloop does not close them: a descriptor
without close-on-exec is open in the child. `subprocess.Popen` closes all above 2 in the child, on any loop.

Commands run as the user of the hub. If that is root, they run as `nobody`, because a command of root can read every file
of the machine, in any namespace.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")
_READ_BYTES = 65_536


class ChildProcess:
    """A running process in its own session. `output`: its stdout and stderr."""

    def __init__(self, process: subprocess.Popen[bytes], output: asyncio.StreamReader | None) -> None:
        self._process, self.output = process, output
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._hidden: frozenset[int] = frozenset()
        if process.stdout is not None:
            # Not `connect_read_pipe`: uvloop closes the descriptor of a pipe twice, and the second time it may be another's.
            os.set_blocking(process.stdout.fileno(), False)
            asyncio.get_running_loop().add_reader(process.stdout.fileno(), self._read_output)
        threading.Thread(
            target=self._reap,
            args=(asyncio.get_running_loop(),),
            name=f"dragoman-child-{process.pid}",
            daemon=True,
        ).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Its exit status."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _read_output(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None and self.output is not None
        try:
            data = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.output.feed_data(data)
        else:
            self.close_output()

    def close_output(self) -> None:
        """Read no more of its output: a detached process may hold the pipe open for ever."""
        pipe = self._process.stdout
        if pipe is not None and not pipe.closed:
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            pipe.close()
            if self.output is not None:
                self.output.feed_eof()

    def deleted_bytes(self, device: int) -> int:
        """Bytes on `device` in files that its descendants hold open, or mapped, after deleting them. Blocks.

        A process whose files cannot be read, twice in a row, counts as unlimited. This applies only to processes in their own
        namespace: the process that builds the namespace cannot be read either.
        """
        found: dict[tuple[int, int], int] = {}
        hidden = set()
        for pid in _descendants(self.pid):
            try:
                _open_files(pid, device, found)
                _mapped_files(pid, device, found)
            except PermissionError:
                if _namespaces(pid) > _namespaces(os.getpid()):
                    hidden.add(pid)
            except OSError:  # it has ended
                continue
        again, self._hidden = hidden & self._hidden, frozenset(hidden)
        return 1 << 62 if again else sum(found.values())

    def memory_bytes(self) -> int:
        """Bytes of memory that its descendants use together: their pages, and files in memory (memfd). Blocks."""
        own = mapped = 0
        files: dict[tuple[int, int], int] = {}
        for pid in _descendants(self.pid):
            try:
                mine, shared = _resident(pid)
                own, mapped = own + mine, mapped + shared
                _memory_files(pid, files)
            except OSError:  # it has ended, or is in another's hands for a moment
                continue
        return own + max(mapped, sum(files.values()))

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._process.wait()

        def ended() -> None:
            if not self._ended.done():
                self._ended.set_result(code)

        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(ended)


async def start(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path | None = None,
    output: bool = True,
) -> ChildProcess:
    """Start a process. Raises `OSError`."""
    into = subprocess.PIPE if output else subprocess.DEVNULL

    def popen() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            arguments,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=into,
            stderr=subprocess.STDOUT,
            close_fds=True,
            start_new_session=True,
        )

    starting = asyncio.ensure_future(asyncio.to_thread(popen))
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:  # it must not keep running
        await asyncio.wait((starting,))
        if starting.exception() is None:
            child = ChildProcess(starting.result(), asyncio.StreamReader())
            child.kill()
            await child.wait()
            child.close_output()
        raise
    return ChildProcess(process, None if process.stdout is None else asyncio.StreamReader())


def _descendants(root: int) -> Iterator[int]:
    """The process and its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = Path(entry.path, "stat").read_bytes()
                parent = int(
                    stat[stat.rindex(b")") + 2 :].split()[1]
                )  # the name may have blanks and brackets
                children.setdefault(parent, []).append(int(entry.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def _namespaces(pid: int) -> int:
    """The depth of its PID namespace."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return len(line.split())
    return 0


def _resident(pid: int) -> tuple[int, int]:
    """Bytes of a process in memory: its own, and those that it may share with others, without files of a disk."""
    found = {"RssAnon:": 0, "RssShmem:": 0}
    for line in (_PROC / str(pid) / "status").read_text(errors="replace").splitlines():
        word, _, rest = line.partition("\t")
        if word in found:
            found[word] = int(rest.split()[0]) << 10
    return found["RssAnon:"], found["RssShmem:"]


def _memory_files(pid: int, found: dict[tuple[int, int], int]) -> None:
    for entry in os.scandir(_PROC / str(pid) / "fd"):
        with suppress(FileNotFoundError):
            if os.readlink(entry.path).startswith("/memfd:"):
                about = os.stat(entry.path)
                found[about.st_dev, about.st_ino] = about.st_blocks * 512


def _open_files(pid: int, device: int, found: dict[tuple[int, int], int]) -> None:
    for entry in os.scandir(_PROC / str(pid) / "fd"):
        with suppress(FileNotFoundError):
            about = os.stat(entry.path)
            if about.st_dev == device and about.st_nlink == 0:
                found[about.st_dev, about.st_ino] = max(about.st_blocks * 512, about.st_size)


def _mapped_files(pid: int, device: int, found: dict[tuple[int, int], int]) -> None:
    """Count mapped parts: only root can see the size of such a file."""
    with open(_PROC / str(pid) / "maps", errors="replace") as maps:
        for line in maps:
            if not line.endswith("(deleted)\n"):
                continue
            span, _, offset, at, inode, _ = line.split(maxsplit=5)
            major, minor = (int(each, 16) for each in at.split(":"))
            if os.makedev(major, minor) == device:
                begin, end = (int(each, 16) for each in span.split("-"))
                key = device, int(inode)
                found[key] = max(found.get(key, 0), int(offset, 16) + end - begin)


# -- the user ----------------------------------------------------------------------------------------------

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

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

_PROC = Path("/proc")
_READ_BYTES = 65_536
_READ_SECONDS = 0.01
"""Pause between two reads of an output, so that a program that writes without end does not keep the hub busy."""

T = TypeVar("T")


class ChildProcess:
    """A running process in its own session. `output`: its stdout and stderr."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        output: asyncio.StreamReader | None,
        ended: asyncio.Future[int],
    ) -> None:
        self._process, self.output, self._ended = process, output, ended
        self._hidden: frozenset[int] = frozenset()
        """Threads whose files could not be read at the last check."""
        if process.stdout is not None:
            # Not `connect_read_pipe`: uvloop closes the descriptor of a pipe twice, and the second time it may be another's.
            os.set_blocking(process.stdout.fileno(), False)
            self._wait_for_output()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Its exit status."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill its process group, and descendants that left the group. (When the first process of a PID namespace dies, all others die.)"""
        if self._process.returncode is None:
            for pid in list(_descendants(self.pid)):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _wait_for_output(self) -> None:
        pipe = self._process.stdout
        if pipe is not None and not pipe.closed:
            asyncio.get_running_loop().add_reader(pipe.fileno(), self._read_output)

    def _read_output(self) -> None:
        pipe, loop = self._process.stdout, asyncio.get_running_loop()
        assert pipe is not None and self.output is not None
        try:
            data = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close_output()
            return
        self.output.feed_data(data)
        loop.remove_reader(pipe.fileno())
        loop.call_later(_READ_SECONDS, self._wait_for_output)

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
            for thread in _threads(pid):
                try:
                    _count_open_files(thread, device, found)
                    _count_mapped_files(thread, device, found)
                except PermissionError:
                    if _namespace_depth(pid) > _namespace_depth(os.getpid()):
                        hidden.add(int(thread.name))
                except OSError:  # it has ended
                    continue
        again, self._hidden = hidden & self._hidden, frozenset(hidden)
        return 1 << 62 if again else sum(found.values())

    def threads(self) -> int:
        """How many threads its descendants have together. Blocks, but not for long."""
        found = 0
        for pid in _descendants(self.pid):
            with suppress(OSError, ValueError, IndexError):
                stat = (_PROC / str(pid) / "stat").read_bytes()
                found += int(stat[stat.rindex(b")") + 2 :].split()[17])
        return found

    def memory_bytes(self) -> int:
        """Bytes of the memory pages of its descendants, those in the swap included. Blocks, but not for long."""
        return sum(sum(pages.values()) for pages in self._pages())

    def temporary_bytes(self) -> int:
        """Bytes of memory in file systems of its own, /tmp and /dev/shm, with the names and attributes of the files. Blocks, but not for
        long."""
        for pid in _descendants(self.pid):
            root = _PROC / str(pid) / "root"
            with suppress(OSError):  # it has ended, or its file systems are not all mounted yet
                if not os.path.samestat(root.stat(), os.stat("/")):
                    return sum(_tmpfs_bytes(root / place) for place in ("tmp", "dev/shm"))
        return 0

    def memory_bytes_with_shared(self) -> int:
        """`memory_bytes`, but shared memory counts with its whole size, also if no process has its pages. Slow if they have many
        mappings."""
        files: dict[tuple[int, int], int] = {}
        for pid in _descendants(self.pid):
            for n, thread in enumerate(_threads(pid)):
                with suppress(OSError):  # it has ended, or may not be read at this moment
                    _count_memory_files(thread, files)
                    if not n:
                        _count_shared_memory(thread, files)
        own = sum(sum(pages.values()) - pages["RssShmem:"] for pages in self._pages())
        return own + sum(files.values())

    def watched_files(self, most: int) -> int:
        """How many files its descendants watch with epoll, counted until there are more than `most`."""
        found = 0
        for pid in _descendants(self.pid):
            for thread in _threads(pid):
                with suppress(OSError):
                    for watches in _watched_by_epoll(thread, most):
                        if (found := found + watches) > most:
                            return found
        return found

    def _pages(self) -> Iterator[dict[str, int]]:
        """Bytes of the pages of each descendant."""
        for pid in _descendants(self.pid):
            for thread in _threads(pid)[:1]:
                with suppress(OSError):
                    yield _page_bytes(thread)


async def start(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path | None = None,
    output: bool = True,
) -> ChildProcess:
    """Start a process. Raises `OSError`."""
    stdout = subprocess.PIPE if output else subprocess.DEVNULL

    def popen() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            arguments,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            close_fds=True,
            start_new_session=True,
        )

    loop = asyncio.get_running_loop()
    started: asyncio.Future[subprocess.Popen[bytes]] = loop.create_future()
    ended: asyncio.Future[int] = loop.create_future()

    def run() -> None:
        """Start the process and wait for its end. (A process that dies with its parent dies with the thread that started it.)"""
        try:
            process = popen()
        except Exception as error:
            report(started.set_exception, error)
            return
        report(started.set_result, process)
        report(ended.set_result, process.wait())

    def report(callback: Callable[[T], None], value: T) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(callback, value)

    threading.Thread(target=run, name="dragoman-child", daemon=True).start()
    try:
        process = await asyncio.shield(started)
    except asyncio.CancelledError:  # it must not keep running
        await asyncio.wait((started,))
        if started.exception() is None:
            child = ChildProcess(started.result(), asyncio.StreamReader(), ended)
            child.kill()
            await child.wait()
            child.close_output()
        raise
    return ChildProcess(process, None if process.stdout is None else asyncio.StreamReader(), ended)


def _descendants(root: int) -> Iterator[int]:
    """The process and its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = Path(entry.path, "stat").read_bytes()
                # the name, in brackets, may have blanks and brackets
                parent = int(stat[stat.rindex(b")") + 2 :].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def _namespace_depth(pid: int) -> int:
    """The depth of its PID namespace."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return len(line.split())
    return 0


def _threads(pid: int) -> list[Path]:
    """The threads of a process that have not ended: the first one may end before the others, and each may have files of its own."""
    out = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError):
                stat = (thread / "stat").read_bytes()
                if stat[stat.rindex(b")") + 2 :][:1] not in b"ZX":
                    out.append(thread)
    return out


def _page_bytes(thread: Path) -> dict[str, int]:
    """Bytes of a process: its own pages, in memory and in the swap, and those that it may share."""
    found = {"RssAnon:": 0, "RssShmem:": 0, "VmSwap:": 0, "HugetlbPages:": 0}
    for line in (thread / "status").read_text(errors="replace").splitlines():
        word, _, rest = line.partition("\t")
        if word in found:
            found[word] = int(rest.split()[0]) << 10
    return found


def available_memory() -> int:
    """Bytes of memory that the machine can still give to programs; -1 if it does not say."""
    with suppress(OSError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return -1


def _tmpfs_bytes(place: Path) -> int:
    """Bytes of a tmpfs. Each inode counts as a kilobyte, for the file itself and its attributes."""
    info = os.statvfs(place)
    return (info.f_blocks - info.f_bfree) * info.f_frsize + (info.f_files - info.f_ffree) * 1024


def _count_memory_files(thread: Path, found: dict[tuple[int, int], int]) -> None:
    for entry in os.scandir(thread / "fd"):
        with suppress(FileNotFoundError):
            if os.readlink(entry.path).startswith("/memfd:"):
                info = os.stat(entry.path)
                found[info.st_dev, info.st_ino] = info.st_blocks * 512


def _watched_by_epoll(thread: Path, most: int) -> Iterator[int]:
    """How many files each of its epoll descriptors watches; more than `most` need not be exact."""
    for entry in os.scandir(thread / "fd"):
        with suppress(FileNotFoundError):
            if os.readlink(entry.path) == "anon_inode:[eventpoll]":
                with open(thread / "fdinfo" / entry.name, "rb") as lines:
                    yield sum(line.startswith(b"tfd:") for line in islice(lines, most + 10))


def _count_shared_memory(thread: Path, found: dict[tuple[int, int], int]) -> None:
    """Add memory that a process shares with its children, with its whole size."""
    with open(thread / "maps", errors="replace") as maps:
        for line in maps:
            if line.endswith("/dev/zero (deleted)\n"):
                span, _, offset, at, inode, _ = line.split(maxsplit=5)
                begin, end = (int(each, 16) for each in span.split("-"))
                major, minor = (int(each, 16) for each in at.split(":"))
                key = os.makedev(major, minor), int(inode)
                found[key] = max(found.get(key, 0), int(offset, 16) + end - begin)


def _count_open_files(thread: Path, device: int, found: dict[tuple[int, int], int]) -> None:
    for entry in os.scandir(thread / "fd"):
        with suppress(FileNotFoundError):
            info = os.stat(entry.path)
            if info.st_dev == device and info.st_nlink == 0:
                found[info.st_dev, info.st_ino] = max(info.st_blocks * 512, info.st_size)


def _count_mapped_files(thread: Path, device: int, found: dict[tuple[int, int], int]) -> None:
    """Add deleted files that are mapped, with the size of the mapped part: only root can see the size of such a file."""
    with open(thread / "maps", errors="replace") as maps:
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
        """Change the owner of a folder and of everything in it."""
        self.chown(folder)
        for at, folders, files in os.walk(folder):
            for name in (*folders, *files):
                self.chown(Path(at, name))


def command_user() -> RunAsUser | None:
    """The user of commands; None: the user of the hub."""
    if sys.platform == "win32" or not _is_root() or not _may_change_user():
        return None
    try:
        found = pwd.getpwnam("nobody")
    except KeyError:
        return RunAsUser(65534, 65534)
    return RunAsUser(found.pw_uid, found.pw_gid)


def root_warning() -> str:
    """A warning for the operator if the hub runs as root; empty otherwise."""
    if not _is_root():
        return ""
    how = (
        "run as nobody"
        if _may_change_user()
        else "can read what root can, because it may not change their user"
    )
    return f"this hub runs as root: commands {how}. Give it a user of its own"


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


def _may_change_user() -> bool:
    """True if root may change its user, which a container may forbid."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return True  # not Linux
    capabilities = next(
        (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0
    )
    return capabilities & _CAPABILITIES == _CAPABILITIES

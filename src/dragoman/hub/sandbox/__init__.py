"""Runs commands in the folder of their tenant, isolated from the machine.

The sandbox runs one command at a time for a tenant, and limits its time, its output and its folder. An `Isolation` confines the command:
in a process (`process.py`) or in a container (`container.py`). Hubs that share the folders take turns (`store/workspace_leases.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import A2AError, InvalidParams, Unavailable, keep_going
from dragoman.hub.sandbox.child_process import ChildProcess, RunAsUser, available_memory, start
from dragoman.hub.sandbox.workspace import Workspace
from dragoman.hub.store.workspace_leases import WorkspaceLease, WorkspaceLeases

log = logging.getLogger(__name__)

MAX_OUTPUT_BYTES = 32 * 1024
MAX_COMMAND_BYTES = 100_000
"""The kernel takes arguments of up to 128 KiB."""
_DISK_CHECK_SECONDS = 0.5
"""Seconds between two checks of the disk usage."""
_USAGE_CHECK_SECONDS = 0.1
"""Seconds between two checks of the memory and processes of a command."""
_MAX_USAGE_CHECK_SECONDS = 0.5
"""The same for a command that has so many processes that a check takes long."""
_FOREVER = 86_400.0
MAX_WATCHED_FILES = 20_000
"""Files that a command may watch with epoll. The kernel limits them by user. A hub that is not root has the same user as its commands,
and could accept no connection if they used up the limit."""
_FREE_MEMORY_BYTES = 512 << 20
"""Bytes of memory that must stay free on the machine, or half of the free bytes at the start, if that is less."""

_FOLDERS = ThreadPoolExecutor(8, "dragoman-folders")
_CHECKS = ThreadPoolExecutor(128, "dragoman-checks")
"""Separate threads for the checks of running commands, so that no other work and no large folder delays them."""

T = TypeVar("T")


class CommandResult(Struct, frozen=True, kw_only=True):
    output: str
    code: int
    timed_out: bool = False
    seconds: float = 0.0


class Isolation(Protocol):
    """Confines the commands of tenants."""

    async def prepare(self, tenant: str, folder: Path, command: str) -> tuple[list[str], dict[str, str]]:
        """The command line and environment that run a shell command in a tenant's folder. Raises `A2AError`."""
        ...

    async def clean_up(self, tenant: str, *, killed: bool) -> None:
        """Stop everything that a command left running. `killed`: it did not end by itself."""
        ...

    async def close(self) -> None: ...


class Sandbox:
    """`seconds` limits the time of a command, `disk` the bytes of a tenant's folder, `memory` the bytes of all processes of a command,
    and `processes` their number (0: the isolation limits them). `owner`: the user of the folders, if not the hub's own. `count` feeds
    metrics. `leases`: other hubs use the same folders."""

    def __init__(
        self,
        folder: Path,
        isolation: Isolation,
        *,
        seconds: float = 30.0,
        disk: int = 1 << 30,
        memory: int = 0,
        processes: int = 0,
        owner: RunAsUser | None = None,
        count: Callable[[str, float], None] | None = None,
        leases: WorkspaceLeases | None = None,
    ) -> None:
        self._folder, self._isolation, self._seconds, self._disk = folder.resolve(), isolation, seconds, disk
        self._owner, self._memory, self._processes = owner, memory, processes
        self._count = count or (lambda what, by: None)
        self._leases = leases
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By tenant, while a command runs or waits."""

    async def run(
        self, tenant: str, command: str, may_begin: Callable[[], Awaitable[None]] | None = None
    ) -> CommandResult:
        """Run a shell command until it ends or times out. Cancelling kills it. Raises `A2AError`.

        It first waits for the folder. `may_begin` is called after that, and raises if the command may not run any more.
        """
        if "\0" in command or len(command.encode("utf-8", "replace")) > MAX_COMMAND_BYTES:
            raise InvalidParams(f"a command has at most {MAX_COMMAND_BYTES} bytes, and no NUL character")
        workspace = self._workspace(tenant)
        async with self._hold_folder(tenant) as lease:
            room = await _save(workspace)
            held = await _renew(lease)
            if held and may_begin is not None:
                await may_begin()
            rolled_back = over_limit = False
            try:
                if held:
                    result, over_limit = await self._run(tenant, workspace, command, room)
            finally:
                if held := held and await _renew(lease):
                    rolled_back = await _on_thread(
                        lambda: workspace.keep_or_restore(room, over_limit=over_limit)
                    )
                    self._count("rollback", int(rolled_back))
        if not held:
            raise Unavailable(
                "another hub has taken over the folder: the command may or may not have taken effect"
            )
        if not rolled_back:
            return result
        why = (
            f"[undone: the workspace may have at most {self._disk} bytes, and must leave free space on the disk; it is as it was "
            "before the command]"
        )
        return replace(result, output=f"{result.output}\n{why}".lstrip(), code=result.code or 1)

    async def write(self, tenant: str, path: str, content: bytes) -> None:
        """Raises `InvalidParams` and `QuotaExceeded`, and `Unavailable` if another hub uses the folder."""
        async with self._hold_folder(tenant):  # a command that is rolled back would undo this, too
            await _on_thread(lambda: self._workspace(tenant).write(path, content))

    async def read(self, tenant: str, path: str) -> bytes | None:
        return await self._with_workspace(tenant, lambda workspace: workspace.read(path))

    async def list(self, tenant: str) -> list[tuple[str, int]]:
        return await self._with_workspace(tenant, lambda workspace: workspace.list())

    async def close(self) -> None:
        await self._isolation.close()

    async def _run(
        self, tenant: str, workspace: Workspace, command: str, room: int
    ) -> tuple[CommandResult, bool]:
        """The result, and whether the command exceeded the disk limit."""
        arguments, environment = await self._isolation.prepare(tenant, workspace.root, command)
        began = time.monotonic()
        process = await start(arguments, environment=environment, folder=workspace.root)
        assert process.output is not None
        output_bytes = bytearray()
        reader = asyncio.create_task(_collect_output(process.output, output_bytes))
        disk_check = asyncio.create_task(_wait_until_full(workspace, process, room))
        usage_check = asyncio.create_task(_wait_until_over_limit(process, self._memory, self._processes))
        exit = asyncio.create_task(process.wait())
        try:
            first = (exit, disk_check, usage_check)
            await asyncio.wait(first, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not any(each.done() for each in first)
            over_disk, over_usage = disk_check.done(), usage_check.done()
        finally:
            self._count("exec", 1)
            self._count("exec_ms", (time.monotonic() - began) * 1000)
            killed = not exit.done()
            await _kill_and_close(process, reader)
            disk_check.cancel()
            usage_check.cancel()
            await asyncio.wait((disk_check, usage_check, exit))
            await self._isolation.clean_up(tenant, killed=killed)
        if over_disk:
            disk_check.result()  # raises its error
        if over_usage:
            output_bytes += f"\n[killed: {usage_check.result()}]".encode()
        if timed_out:
            self._count("exec_timeout", 1)
        result = CommandResult(
            output=_decode_output(output_bytes),
            code=exit.result(),
            timed_out=timed_out,
            seconds=self._seconds,
        )
        return result, over_disk

    async def _with_workspace(self, tenant: str, work: Callable[[Workspace], T]) -> T:
        async with self._lock(tenant):
            return await _on_thread(lambda: work(self._workspace(tenant)))

    @asynccontextmanager
    async def _hold_folder(self, tenant: str) -> AsyncIterator[WorkspaceLease | None]:
        """Inside this block, no other command of this hub or of another one changes the folder."""
        async with self._lock(tenant):
            if self._leases is None:
                yield None
            else:
                async with self._leases.hold(tenant) as lease:
                    yield lease

    def _workspace(self, tenant: str) -> Workspace:
        return Workspace(
            self._folder / f"t{tenant}",
            self._folder / ".before" / f"t{tenant}",
            limit=self._disk,
            owner=self._owner,
        )

    def _lock(self, tenant: str) -> asyncio.Lock:
        return self._locks.setdefault(tenant, asyncio.Lock())


async def _renew(lease: WorkspaceLease | None) -> bool:
    """False: the lease is lost. Another hub may use the folder, so this one must not change it."""
    with keep_going(log, "renewing the lease of a workspace", A2AError):
        return lease is None or await lease.renew()
    return False


async def _save(workspace: Workspace) -> int:
    """Save the folder. Raises `Unavailable`."""
    try:
        return await _on_thread(workspace.save)
    except OSError as error:
        log.error("the folder %s cannot be copied: %s", workspace.root, error)
        raise Unavailable("commands cannot run right now: the workspace cannot be copied") from error


async def _on_thread(work: Callable[[], T]) -> T:
    """Run `work` on a thread to its end, also if the caller is cancelled: it holds the folder until then."""
    doing = asyncio.get_running_loop().run_in_executor(_FOLDERS, work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait((doing,))
        raise


async def _wait_until_full(workspace: Workspace, process: ChildProcess, room: int) -> None:
    """Return when the folder exceeds its limit, deleted open files included, or when the disk is nearly full.

    A large folder is checked less often.
    """
    device = workspace.device
    await _first_result(
        _wait_until(lambda: workspace.used() + process.deleted_bytes(device) > room, _DISK_CHECK_SECONDS),
        _wait_until(workspace.crowds_disk, _USAGE_CHECK_SECONDS),
    )


async def _wait_until_over_limit(process: ChildProcess, memory: int, processes: int) -> str:
    """Return when a command exceeds a limit, with the reason why it has to end. 0: no limit.

    Memory that the kernel uses for a command, such as the buffers of its sockets, is not counted as the command's. So the command also
    ends when the machine has little memory left. Slow checks run apart, so that a command cannot delay the others.
    """
    min_free = _min_free_memory(available_memory())
    too_much = f"a command may use {memory >> 20} MB of memory"

    def exceeded() -> str:
        if (
            processes and process.threads() > processes
        ):  # first, because the other checks are slow with many processes
            return f"a command may have {processes} processes"
        if memory and available_memory() < min_free:
            return "the machine is short of memory"
        return too_much if memory and process.memory_bytes() + process.temporary_bytes() > memory else ""

    def watches_too_many() -> str:
        too_many = process.watched_files(MAX_WATCHED_FILES) > MAX_WATCHED_FILES
        return f"a command may watch {MAX_WATCHED_FILES} files" if too_many else ""

    def exceeds_shared_memory() -> str:
        return too_much if process.memory_bytes_with_shared() > memory else ""

    if not memory and not processes:
        await asyncio.sleep(_FOREVER)
    checks = [_wait_until(exceeded, _USAGE_CHECK_SECONDS, _MAX_USAGE_CHECK_SECONDS)]
    if memory:
        checks.append(_wait_until(watches_too_many, _USAGE_CHECK_SECONDS, _MAX_USAGE_CHECK_SECONDS))
        checks.append(_wait_until(exceeds_shared_memory, _USAGE_CHECK_SECONDS))
    return await _first_result(*checks)


async def _wait_until(check: Callable[[], T], seconds: float, most: float = _FOREVER) -> T:
    """Repeat a check, on a thread, until its result is true. `seconds`: pause between two checks; a slow check pauses up to `most`."""
    while True:
        began = time.monotonic()
        if result := await asyncio.get_running_loop().run_in_executor(_CHECKS, check):
            return result
        await asyncio.sleep(min(max(seconds, 4 * (time.monotonic() - began)), most))


async def _first_result(*waits: Coroutine[Any, Any, T]) -> T:
    """The result of the coroutine that ends first; the others are canceled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _min_free_memory(free: int) -> int:
    """Bytes of memory that must stay free on a machine that has `free` bytes at the start of a command."""
    return min(_FREE_MEMORY_BYTES, free // 2)


async def _collect_output(stream: asyncio.StreamReader, output_bytes: bytearray) -> None:
    """Read everything, and keep the first `MAX_OUTPUT_BYTES` bytes."""
    while chunk := await stream.read(65_536):
        output_bytes += chunk[: max(0, MAX_OUTPUT_BYTES - len(output_bytes))]


async def _kill_and_close(process: ChildProcess, reader: asyncio.Task[None]) -> None:
    """Kill the rest of a command, and read its last output."""
    process.kill()
    await process.wait()
    await asyncio.wait((reader,), timeout=1.0)  # a detached process may hold the pipe open
    process.close_output()
    reader.cancel()
    await asyncio.wait((reader,))


def _decode_output(output_bytes: bytearray) -> str:
    text = bytes(output_bytes).decode("utf-8", "replace")
    return text + "\n[output cut]" if len(output_bytes) >= MAX_OUTPUT_BYTES else text

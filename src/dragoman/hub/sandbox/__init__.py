"""Runs commands in the folder of their tenant, isolated by a cell.

The sandbox runs one command at a time for a tenant, and limits its time, its output and its folder. The cell is a confined
process (`process.py`) or a container (`container.py`). Hubs that share the folders take turns (`store/workspace_leases.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import A2AError, Unavailable, keep_going
from dragoman.hub.sandbox.child_process import ChildProcess, RunAsUser, start
from dragoman.hub.sandbox.workspace import Workspace, min_free_bytes
from dragoman.hub.store.workspace_leases import WorkspaceLease, WorkspaceLeases

log = logging.getLogger(__name__)

OUTPUT_LIMIT = 32 * 1024
_CHECK_SECONDS = 0.5
"""Seconds between two checks of the disk usage."""
_MEMORY_SECONDS = 0.1
"""Seconds between two checks of the memory usage."""

T = TypeVar("T")


class CommandResult(Struct, frozen=True, kw_only=True):
    output: str
    code: int
    timed_out: bool = False
    seconds: float = 0.0


class Cell(Protocol):
    async def enter(self, tenant: str, folder: Path, command: str) -> tuple[list[str], dict[str, str]]:
        """The command line and environment that run a shell command in a tenant's folder. Raises `A2AError`."""
        ...

    async def clear(self, tenant: str) -> None:
        """Stop everything that a killed command started."""
        ...

    async def close(self) -> None: ...


class Sandbox:
    """`seconds` limits a command, `disk` bytes a tenant's folder, `memory` bytes all processes of a command (0: its cell does). `owner`: the user of the folders, if not the hub's own.
    `counted` feeds metrics. `leases`: other hubs use the same folders."""

    def __init__(
        self,
        folder: Path,
        cell: Cell,
        *,
        seconds: float = 30.0,
        disk: int = 1 << 30,
        memory: int = 0,
        owner: RunAsUser | None = None,
        counted: Callable[[str, float], None] | None = None,
        leases: WorkspaceLeases | None = None,
    ) -> None:
        self._folder, self._cell, self._seconds, self._disk = folder.resolve(), cell, seconds, disk
        self._owner, self._memory = owner, memory
        self._counted = counted or (lambda what, by: None)
        self._leases = leases
        self._busy: dict[str, asyncio.Lock] = {}

    async def run(self, tenant: str, command: str) -> CommandResult:
        """Run a shell command until it ends or times out. Cancelling kills it. Raises `A2AError`."""
        workspace = self._workspace(tenant)
        async with self._exclusive(tenant) as lease:
            room = await _thread(workspace.save)
            held = await _renew(lease)
            rolled_back = over_limit = False
            try:
                if held:
                    ran, over_limit = await self._run(tenant, workspace, command, room)
            finally:
                if held := held and await _renew(lease):
                    rolled_back = await _thread(
                        lambda: workspace.keep_or_restore(room, over_limit=over_limit)
                    )
                    self._counted("rollback", int(rolled_back))
        if not held:
            raise Unavailable(
                "another hub has the folder by now: the command may or may not have taken effect"
            )
        if not rolled_back:
            return ran
        why = f"[undone: the workspace may have {self._disk} bytes, and is as it was before the command]"
        return replace(ran, output=f"{ran.output}\n{why}".lstrip(), code=ran.code or 1)

    async def write(self, tenant: str, path: str, content: bytes) -> None:
        """Raises `InvalidParams` and `QuotaExceeded`, and `Unavailable` if another hub uses the folder."""
        async with self._exclusive(tenant):  # a command that is rolled back would undo this, too
            await _thread(lambda: self._workspace(tenant).write(path, content))

    async def read(self, tenant: str, path: str) -> bytes | None:
        return await self._file(tenant, lambda workspace: workspace.read(path))

    async def list(self, tenant: str) -> list[tuple[str, int]]:
        return await self._file(tenant, lambda workspace: workspace.list())

    async def close(self) -> None:
        await self._cell.close()

    async def _run(
        self, tenant: str, workspace: Workspace, command: str, room: int
    ) -> tuple[CommandResult, bool]:
        """The result, and whether the command exceeded the disk limit."""
        arguments, environment = await self._cell.enter(tenant, workspace.root, command)
        began = time.monotonic()
        process = await start(arguments, environment=environment, folder=workspace.root)
        assert process.output is not None
        output_bytes = bytearray()
        reading = asyncio.create_task(_read(process.output, output_bytes))
        watching = asyncio.create_task(_wait_until_full(workspace, process, room))
        using = asyncio.create_task(_wait_until_over_memory(process, self._memory))
        ended = asyncio.create_task(process.wait())
        try:
            first = (ended, watching, using)
            await asyncio.wait(first, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not any(each.done() for each in first)
            over_disk, over_memory = watching.done(), using.done()
        finally:
            self._counted("exec", 1)
            self._counted("exec_ms", (time.monotonic() - began) * 1000)
            killed = not ended.done()
            await _end(process, reading)
            watching.cancel()
            using.cancel()
            await asyncio.wait((watching, using, ended))
            if killed:
                await self._cell.clear(tenant)
        if over_disk:
            watching.result()  # raises its error
        if over_memory:
            using.result()
            output_bytes += f"\n[killed: a command may use {self._memory >> 20} MB of memory]".encode()
        if timed_out:
            self._counted("exec_timeout", 1)
        ran = CommandResult(
            output=_text(output_bytes), code=ended.result(), timed_out=timed_out, seconds=self._seconds
        )
        return ran, over_disk

    async def _file(self, tenant: str, work: Callable[[Workspace], T]) -> T:
        async with self._lock(tenant):
            return await _thread(lambda: work(self._workspace(tenant)))

    @asynccontextmanager
    async def _exclusive(self, tenant: str) -> AsyncIterator[WorkspaceLease | None]:
        """Nobody else changes the folder, here or at another hub."""
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
        return self._busy.setdefault(tenant, asyncio.Lock())


async def _renew(lease: WorkspaceLease | None) -> bool:
    """False: another hub may have the folder by now, so this one may not touch it."""
    with keep_going(log, "renewing the lease of a workspace", A2AError):
        return lease is None or await lease.renew()
    return False


async def _thread(work: Callable[[], T]) -> T:
    """Run `work` on a thread to its end, also if the caller is cancelled: it holds the folder until then."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait((doing,))
        raise


async def _wait_until_full(workspace: Workspace, process: ChildProcess, room: int) -> None:
    """Return when the folder exceeds its limit, deleted open files included, or when the disk is nearly full.

    A large folder is checked less often.
    """
    device, least = workspace.device, min_free_bytes(workspace.free())

    def full() -> bool:
        return workspace.used() + process.deleted_bytes(device) > room or workspace.free() < least

    while True:
        began = time.monotonic()
        if await asyncio.to_thread(full):
            return
        await asyncio.sleep(max(_CHECK_SECONDS, 4 * (time.monotonic() - began)))


async def _wait_until_over_memory(process: ChildProcess, limit: int) -> None:
    """Return when the processes of a command use more than `limit` bytes of memory together; 0: never."""
    while True:
        began = time.monotonic()
        if limit and await asyncio.to_thread(process.memory_bytes) > limit:
            return
        await asyncio.sleep(max(_MEMORY_SECONDS, 4 * (time.monotonic() - began)) if limit else 3600)


async def _read(stream: asyncio.StreamReader, output_bytes: bytearray) -> None:
    """Read everything, and keep the first `OUTPUT_LIMIT` bytes."""
    while chunk := await stream.read(65_536):
        output_bytes += chunk[: max(0, OUTPUT_LIMIT - len(output_bytes))]


async def _end(process: ChildProcess, reading: asyncio.Task[None]) -> None:
    """Kill the rest of a command, and read its last output."""
    process.kill()
    await process.wait()
    await asyncio.wait((reading,), timeout=1.0)  # a detached process may hold the pipe open
    process.close_output()
    reading.cancel()
    await asyncio.wait((reading,))


def _text(output_bytes: bytearray) -> str:
    text = bytes(output_bytes).decode("utf-8", "replace")
    return text + "\n[output cut]" if len(output_bytes) >= OUTPUT_LIMIT else text

"""Renames, deletes and exports tenants.

A tenant keeps its number when it is renamed, and with it everything it has. Agents elsewhere that are registered for it are listed
under its name, so they move.

A tenant is deleted with everything it has: tasks and logs, webhooks, conversations, memory, files, schedules, folders. The order makes
a deletion safe to interrupt at any point. First the tenant is disabled and its work is canceled, on every hub. Then its tasks go, as
soon as no hub runs them, then its rows, and its own row last. A hub that starts, or that finds a deletion which another hub
began, continues it; several hubs may do so at once. Each hub deletes its own folder of the tenant.

An export is a ZIP archive, written while it is read: nothing is held in memory but a page of rows.

    tables/NAME.jsonl       one JSON object a line for each row: agents, agent_versions, conversations, messages, ...
    tasks/N.jsonl           the first line describes a task and its webhooks (their addresses, without secrets); then its log
    files/ID                the content of the file with this id in tables/artifacts.jsonl
    pictures/N              images that were given to models; pictures.jsonl says which
    workspace/PATH          the folder in which the tenant's commands run
    manifest.json           last: the format, the tenant, the time, how many of each. An archive without it is not whole
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
import zipfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from dragoman.engine.protocols import CatalogueStore, RegisteredAgent, Store, TaskInfo, TaskQuery
from dragoman.engine.records import PIECE_BYTES
from dragoman.errors import A2AError, TaskNotFound
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.sandbox.folder_copy import TooDeepError, entries, open_file, remove
from dragoman.hub.sandbox.workspace import RESTORING_SUFFIXES
from dragoman.hub.store.artifacts import Artifacts
from dragoman.hub.store.blobs import BlobSweeper
from dragoman.hub.store.database import Database
from dragoman.hub.store.tenant_rows import EXPORTED, DeletedTenant, Deletions, Exports
from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.model.ids import timestamp
from dragoman.model.ops import Scope
from dragoman.server.routes import Conflict, NotFound

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""How soon a hub continues a deletion that another process began."""
SWEEP_SECONDS = 60.0
"""How often deleted tenants are checked for tasks that were created at the last moment."""
LATE_SECONDS = 3600
"""How long after its deletion a tenant may still get such a task, from a hub that was suspended."""
BATCH = 200


class TenantDeletion:
    """`folder`: where the folders of tenants are, `workspaces`; None if there are none. `contents`: of large files."""

    def __init__(self, database: Database, store: Store, folder: Path | None, contents: BlobSweeper) -> None:
        self._store, self._folder, self._contents = store, folder, contents
        self.deletions = Deletions(database)
        self._wake = asyncio.Event()
        self._next_sweep, self._since = 0.0, 0
        self.periodic = PeriodicWork(
            "deleting tenants", self._work, retry=CHECK_SECONDS, expected=(A2AError, OSError)
        )

    async def begin(self, tenant: Tenant, *, actor: str) -> None:
        """Disable the tenant, and start to delete it in the background."""
        await self.deletions.begin(tenant, actor=actor)
        self._wake.set()

    async def continue_deletions(self) -> bool:
        """Continue all deletions. False if some wait for tasks to end. Raises the first error of a deletion after it has tried all."""
        done, failed = True, None
        for tenant in await self.deletions.pending():
            try:
                done &= await self._delete(tenant)
            except (A2AError, OSError) as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return done

    async def _delete(self, tenant: DeletedTenant) -> bool:
        await unregister_agents(self._store.catalogue, tenant.name)
        if not await self._delete_tasks(str(tenant.id)):
            return False
        while await self.deletions.delete_rows(tenant.id):
            pass  # piece by piece: others write in between
        await self._contents.delete_of_tenant(tenant.id)
        await self._delete_folder(tenant.id)
        await self.deletions.finish(tenant)
        log.info("tenant %d is deleted", tenant.id)
        return True

    async def _delete_tasks(self, key: str) -> bool:
        """False if a node still runs one."""
        while True:
            gone, left = await self._store.purge_tenant(key, limit=BATCH)
            if not gone:
                break
        while not left and await self._store.tidy():
            pass
        return not left

    async def _delete_folder(self, tenant: int) -> None:
        if self._folder is not None:
            await asyncio.to_thread(delete_folder, self._folder, str(tenant))

    async def sweep(self, since: int) -> None:
        """Delete what this hub still has of deleted tenants: their folders, and tasks that were created at the last moment."""
        for tenant in await self.deletions.latest(since):
            await self._delete_folder(tenant.id)
            if tenant.done_at:
                await self._delete_tasks(str(tenant.id))

    async def _work(self) -> float:
        self._wake.clear()
        await self.continue_deletions()
        if time.monotonic() > self._next_sweep:
            await self.sweep(self._since)
            self._next_sweep, self._since = time.monotonic() + SWEEP_SECONDS, int(time.time()) - LATE_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await self._wake.wait()
        return 0.0


def delete_folder(workspaces: Path, key: str) -> None:
    """Delete the folder of a tenant, and the copy of it."""
    saved = workspaces / ".before"
    beside = [saved / f"t{key}{end}" for end in ("", ".removing", *RESTORING_SUFFIXES)]
    for path in (workspaces / f"t{key}", *beside):
        if path.is_symlink() or path.exists():
            remove(path, saved / f"t{key}.deleted")


_NO_LIMIT = 1 << 40


async def rename_tenant(
    tenants: Tenants, catalogue: CatalogueStore, tenant: Tenant, name: str, *, actor: str
) -> Tenant:
    """Raises `InvalidParams` and `Conflict`."""
    await tenants.check_new_name(tenant, name)
    new, copied = name.strip(), list[RegisteredAgent]()
    registered = [agent for agent in await catalogue.registered() if agent.tenant == tenant.name]
    for agent in registered:  # first copied, then renamed, then deleted: a hub that is killed loses none
        if await catalogue.register(replace(agent, tenant=new), limit=_NO_LIMIT):
            copied.append(replace(agent, tenant=new))
    try:
        renamed = await tenants.rename(tenant, name, actor=actor)
    except (Conflict, NotFound):  # somebody has the name by now, and gets none of them
        await _unregister(catalogue, copied)
        raise
    if renamed.name != new:  # it is being deleted
        await _unregister(catalogue, copied)
    elif renamed.name != tenant.name:
        await _unregister(catalogue, registered)
    return renamed


async def _unregister(catalogue: CatalogueStore, agents: Sequence[RegisteredAgent]) -> None:
    for agent in agents:
        await catalogue.unregister(agent.tenant, agent.name)


async def unregister_agents(catalogue: CatalogueStore, name: str) -> None:
    """Delete the agents elsewhere that are registered for a tenant."""
    await _unregister(catalogue, [agent for agent in await catalogue.registered() if agent.tenant == name])


# -- export ------------------------------------------------------------------------------------------------

FORMAT, VERSION = "dragoman-tenant", 1
PAGE_TASKS, PAGE_RECORDS = 100, 500
CHUNK_BYTES = 256 << 10


class _WriteBuffer:
    """A write-only file for `zipfile`: `take` returns what was written since the last call. It cannot seek."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes, /) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None: ...

    def take(self) -> bytes:
        written, self._written = b"".join(self._written), []
        return written


class TenantExport:
    """`workspaces`: where the folders of tenants are; None if there are none."""

    def __init__(
        self, database: Database, store: Store, artifacts: Artifacts, workspaces: Path | None
    ) -> None:
        self._rows, self._tenants = Exports(database), Tenants(database)
        self._store, self._artifacts, self._workspaces = store, artifacts, workspaces

    async def archive(self, tenant: Tenant) -> AsyncGenerator[bytes, None]:
        """The bytes of the archive. Raises `A2AError`: `NotFound` if the tenant is deleted meanwhile."""
        buffer, counts, began = _WriteBuffer(), Counter[str](), timestamp()
        with zipfile.ZipFile(cast(Any, buffer), "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
            async for name, content in self._members(tenant, counts, began):
                with archive.open(name, "w", force_zip64=True) as member:
                    async for chunk in _larger_pieces(content):
                        await asyncio.to_thread(member.write, chunk)
                        if data := buffer.take():
                            yield data
            now = await self._tenants.current(tenant.id)
            if now is None or now.deleted:
                raise NotFound("the tenant was deleted during the export")
            manifest = {
                "format": FORMAT,
                "version": VERSION,
                "tenant": tenant.public,
                "exported_at": began,
                "counts": dict(counts),
            }
            archive.writestr("manifest.json", msgspec.json.format(msgspec.json.encode(manifest)))
        yield buffer.take()

    async def _members(
        self, tenant: Tenant, counts: Counter[str], began: str
    ) -> AsyncIterator[tuple[str, AsyncIterator[bytes]]]:
        files: list[int] = []
        for table in EXPORTED:
            yield f"tables/{table}.jsonl", self._table(table, tenant.id, counts, files)
        for id in files:
            if (content := await self._artifacts.pieces(tenant.id, id)) is not None:  # else deleted meanwhile
                counts["files"] += 1
                yield f"files/{id}", content
        n = 0
        async for scope, task, info in self._tasks(tenant, began):
            n += 1
            counts["tasks"] += 1
            yield f"tasks/{n}.jsonl", self._task(scope, task, info, counts)
        pictures: list[dict[str, str]] = []
        async for key, media_type, image in self._rows.pictures(tenant.id):
            pictures.append({"key": key, "media_type": media_type})
            yield f"pictures/{len(pictures)}", _one_piece(image)
        if pictures:
            counts["pictures"] = len(pictures)
            yield "pictures.jsonl", _one_piece(b"".join(map(_line, pictures)))
        if self._workspaces is not None:
            root = self._workspaces / f"t{tenant.key}"
            for path in await asyncio.to_thread(_list_plain_files, root):
                counts["workspace"] += 1
                yield f"workspace/{_member_name(path)}", _read_file(root, path)

    async def _table(
        self, table: str, tenant: int, counts: Counter[str], files: list[int]
    ) -> AsyncIterator[bytes]:
        async for row in self._rows.rows(table, tenant):
            counts[table] += 1
            if table == "artifacts":
                files.append(row["id"])
            yield _line(row)

    async def _tasks(self, tenant: Tenant, began: str) -> AsyncIterator[tuple[Scope, str, TaskInfo | None]]:
        """All tasks, once each; those that changed while others were read come at the end."""
        seen: set[tuple[str, str]] = set()
        for query in (TaskQuery(tenant=tenant.key), TaskQuery(tenant=tenant.key, since=began)):
            while True:
                page = await self._store.index.find(query, limit=PAGE_TASKS)
                for info in page.tasks:
                    if (info.scope.agent, info.id) not in seen:
                        seen.add((info.scope.agent, info.id))
                        yield info.scope, info.id, info
                if page.next is None:
                    break
                query = msgspec.structs.replace(query, before=page.next)
        # also requests that were answered with a message: the index of tasks does not have them
        async for row in self._rows.rows("requests", tenant.id):
            if (row["agent_id"], row["request_id"]) not in seen:
                seen.add((row["agent_id"], row["request_id"]))
                yield Scope(tenant.key, row["agent_id"], tenant.key), row["request_id"], None

    async def _task(
        self, scope: Scope, task: str, info: TaskInfo | None, counts: Counter[str]
    ) -> AsyncIterator[bytes]:
        about: dict[str, Any] = {"id": task, "agent": scope.agent}
        if info is not None:
            about |= {"context_id": info.context, "state": info.state, "updated": info.updated}
        try:
            webhooks = await self._store.push_configs.list(scope, task)
            about["webhooks"] = [
                {"id": each.config.id, "url": each.config.url.partition("?")[0]} for each in webhooks
            ]
            yield _line(about)
            log, after = self._store.scope(scope), 0
            while records := await log.read(task, after=after, limit=PAGE_RECORDS, max_bytes=PIECE_BYTES):
                for record in records:
                    counts["records"] += 1
                    body = msgspec.Raw(record.raw)
                    yield _line({"seq": record.seq, "at": record.at, "kind": record.kind, "body": body})
                after = records[-1].seq
        except TaskNotFound:
            return  # purged meanwhile


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


async def _larger_pieces(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in larger pieces."""
    waiting, size = list[bytes](), 0
    async for chunk in content:
        waiting.append(chunk)
        size += len(chunk)
        if size >= CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


async def _one_piece(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _list_plain_files(root: Path) -> list[str]:
    try:
        return sorted(path for path, about in entries(root) if stat.S_ISREG(about.st_mode))
    except TooDeepError:
        return []


def _member_name(path: str) -> str:
    """The name of a file in the archive. Invisible characters, bytes that are not UTF-8, `%` and `\\` are percent-encoded: `%5C`."""

    def encode(character: str) -> str:
        if character.isprintable() and character not in "%\\":
            return character
        return "".join(f"%{byte:02X}" for byte in os.fsencode(character))

    return "".join(map(encode, path))


async def _read_file(root: Path, path: str) -> AsyncIterator[bytes]:
    """A plain file below a folder. Links are not followed; what is gone meanwhile is empty."""
    try:
        file = await asyncio.to_thread(open_file, root, path)
    except OSError:
        return
    with file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


def file_name(tenant: Tenant) -> str:
    return f"tenant-{tenant.id}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.zip"

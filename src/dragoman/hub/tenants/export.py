"""Everything of a tenant as a ZIP archive, written while it is read: nothing is held in memory but a page of rows.

tables/NAME.jsonl       one JSON object a line for each row: agents, agent_versions, conversations, messages, ...
tasks/N.jsonl           the first line describes a task and its webhooks (their addresses, without secrets); then its log
files/ID                the content of the file with this id in tables/artifacts.jsonl
pictures/N              images that were given to models; pictures.jsonl says which
workspace/PATH          the folder in which the tenant's commands run
manifest.json           last: the format, the tenant, the time, how many of each. An archive without it is not whole
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
import zipfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec

from dragoman.engine.protocols import Store, TaskInfo, TaskQuery
from dragoman.engine.records import PIECE_BYTES
from dragoman.errors import TaskNotFound
from dragoman.hub.sandbox.folder_copy import TooDeepError, entries
from dragoman.hub.store.artifacts import Artifacts
from dragoman.hub.store.database import Database
from dragoman.hub.store.tenant_rows import EXPORTED, Exports
from dragoman.hub.store.tenants import Tenant
from dragoman.model.ids import timestamp
from dragoman.model.ops import Scope

FORMAT, VERSION = "dragoman-tenant", 1
PAGE_TASKS, PAGE_RECORDS = 100, 500
CHUNK_BYTES = 256 << 10


class _Pipe:
    """A file that cannot be read back, as `zipfile` writes it."""

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
        self._rows, self._store, self._artifacts, self._workspaces = (
            Exports(database),
            store,
            artifacts,
            workspaces,
        )

    async def archive(self, tenant: Tenant) -> AsyncGenerator[bytes, None]:
        """The bytes of the archive. Raises `A2AError`."""
        pipe, counts, began = _Pipe(), Counter[str](), timestamp()
        with zipfile.ZipFile(cast(Any, pipe), "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
            async for name, content in self._members(tenant, counts, began):
                with archive.open(name, "w", force_zip64=True) as member:
                    async for chunk in _batches(content):
                        await asyncio.to_thread(member.write, chunk)
                        if data := pipe.take():
                            yield data
            manifest = {
                "format": FORMAT,
                "version": VERSION,
                "tenant": tenant.public,
                "exported_at": began,
                "counts": dict(counts),
            }
            archive.writestr("manifest.json", msgspec.json.format(msgspec.json.encode(manifest)))
        yield pipe.take()

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
            yield f"pictures/{len(pictures)}", _once(image)
        if pictures:
            counts["pictures"] = len(pictures)
            yield "pictures.jsonl", _once(b"".join(map(_line, pictures)))
        if self._workspaces is not None:
            root = self._workspaces / f"t{tenant.key}"
            for path in await asyncio.to_thread(_plain_files, root):
                counts["workspace"] += 1
                yield f"workspace/{path.encode('utf-8', 'replace').decode()}", _read_file(root, path)

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
        async for row in self._rows.rows(
            "requests", tenant.id
        ):  # also those that were answered with a message
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


async def _batches(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in larger pieces."""
    waiting, size = list[bytes](), 0
    async for chunk in content:
        waiting.append(chunk)
        size += len(chunk)
        if size >= CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _plain_files(root: Path) -> list[str]:
    try:
        return sorted(path for path, about in entries(root) if stat.S_ISREG(about.st_mode))
    except TooDeepError:
        return []


async def _read_file(root: Path, path: str) -> AsyncIterator[bytes]:
    """A plain file below a folder. Links are not followed; what is gone meanwhile is empty."""
    try:
        file = await asyncio.to_thread(_open_below, root, path)
    except OSError:
        return
    with file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


def _open_below(root: Path, path: str) -> Any:
    *folders, name = path.split("/")
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError("not a plain file")
    return open(found, "rb")


def file_name(tenant: Tenant) -> str:
    return f"tenant-{tenant.id}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.zip"

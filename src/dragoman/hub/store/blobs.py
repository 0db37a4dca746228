"""Where the contents of large files are: in a folder (the default) or in a bucket of S3 (`s3_blobs.py`).

The tables have the key of a content, its size and its SHA-256. Each content has a new key, so a content never changes. Keys that
no file uses, not yet or not any more, are in the table `unused_blobs`. `delete_unused` deletes their contents after
`KEEP_SECONDS`, so that a reader of a replaced or deleted file can finish.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Protocol, TypeVar

from dragoman.errors import A2AError, Unavailable
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.store.database import Database
from dragoman.server.temporary import TemporaryFolder

log = logging.getLogger(__name__)

T = TypeVar("T")

PIECE_BYTES = 256 << 10
KEEP_SECONDS = 3600
SWEEP_SECONDS = 300.0
_KEY = re.compile(r"t\d{1,19}/[0-9a-f]{32}")
_UNUSED = "select key from unused_blobs where at < ? order by at limit 100"
_OF_TENANT = "select key from unused_blobs where key like ? and key > ? order by key limit 100"
_FORGET = "delete from unused_blobs where key = ?"


class BlobMissing(A2AError):
    """There is no such content: somebody deleted it from the folder or the bucket, or hubs do not share the folder."""

    reason, rpc, http, grpc = "CONTENT_MISSING", -32603, 500, "DATA_LOSS"


class Blobs(Protocol):
    """Contents by key. What cannot be reached raises `Unavailable`."""

    async def put(self, key: str, content: AsyncIterable[bytes]) -> None:
        """Store a content, whole or not at all. When this returns, it is on disk. What `content` raises is raised."""
        ...

    def get(self, key: str) -> AsyncIterator[bytes]:
        """The content, in pieces. Raises `BlobMissing` before the first."""
        ...

    async def delete(self, key: str) -> None:
        """Delete a content, if there is one."""
        ...


def new_key(tenant: int) -> str:
    return f"t{tenant}/{secrets.token_hex(16)}"


class FileBlobs:
    """Contents in a folder. Without one, in a temporary folder that is deleted in the end."""

    def __init__(self, folder: Path | None) -> None:
        self._temporary: TemporaryFolder | None = None
        self._folder = folder

    async def put(self, key: str, content: AsyncIterable[bytes]) -> None:
        path = self._path(key)
        part = _part(path)

        def begin() -> IO[bytes]:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _sync_folder(path.parent.parent)
                _sync_folder(path.parent.parent.parent)  # the folder of all contents may be new, too
            return open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")

        def finish() -> None:
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(part, path)
            _sync_folder(path.parent)

        file = await _thread(begin)
        try:
            async for piece in content:
                await _thread(lambda piece=piece: file.write(piece))  # type: ignore[misc]
            await _thread(finish)
        except FileNotFoundError:
            file.close()
            raise Unavailable("the content took too long to arrive; send it again") from None
        except BaseException:
            file.close()
            with suppress(OSError):
                part.unlink()
            raise

    async def get(self, key: str) -> AsyncIterator[bytes]:
        path = self._path(key)
        try:
            file = await _thread(lambda: path.open("rb"))
        except FileNotFoundError:
            log.error(
                "%s is missing: somebody deleted it, or the hubs do not share the folder (--blobs)", path
            )
            raise BlobMissing("the content of this file is gone") from None
        try:
            while piece := await _thread(lambda: file.read(PIECE_BYTES)):
                yield piece
        finally:
            file.close()

    async def delete(self, key: str) -> None:
        def delete() -> None:
            path = self._path(key)
            path.unlink(missing_ok=True)
            _part(path).unlink(missing_ok=True)  # of a hub that was killed, or of an upload that is too late

        await _thread(delete)

    def _path(self, key: str) -> Path:
        assert _KEY.fullmatch(key), key
        if self._folder is None:
            self._temporary = TemporaryFolder("blobs")
            self._folder = self._temporary.make()
        return self._folder / key


def _part(path: Path) -> Path:
    """The file of a content that is still arriving."""
    return path.with_name(f".{path.name}")


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names of new files in it are on disk."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


async def _thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except FileNotFoundError:
        raise
    except OSError as error:
        log.error("the folder of files: %s", error)
        raise Unavailable("the folder of files cannot be used right now") from error


class BlobSweeper:
    """Deletes contents that no file uses."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._db, self._blobs = database, blobs
        self.periodic = PeriodicWork("deleting unused contents of files", self._sweep, retry=SWEEP_SECONDS)

    async def delete_unused(self, before: float | None = None) -> int:
        """Delete contents that nobody has used since before a time. Returns how many."""
        count, at = 0, int(time.time() - KEEP_SECONDS if before is None else before)
        while keys := [row["key"] for row in await self._db.all(_UNUSED, (at,))]:
            for key in keys:
                await self._blobs.delete(key)
                await self._db.change(_FORGET, (key,))
            count += len(keys)
        return count

    async def delete_of_tenant(self, tenant: int) -> None:
        """Delete the contents of a tenant whose files are deleted. Their keys stay for `delete_unused`: an upload may still run."""
        after = ""
        while keys := [row["key"] for row in await self._db.all(_OF_TENANT, (f"t{tenant}/%", after))]:
            for key in keys:
                await self._blobs.delete(key)
            after = keys[-1]

    async def _sweep(self) -> float:
        await self.delete_unused()
        return SWEEP_SECONDS


def open_blobs(where: str, folder: Path | None) -> Blobs:
    """`where` is a folder or `s3://bucket/prefix`; empty: `folder`. Raises `ValueError`."""
    if where.startswith("s3://"):
        if find_spec("obstore") is None:
            raise ValueError("files in S3 need an extra: pip install 'dragoman[s3]'")
        from dragoman.hub.store.s3_blobs import open_bucket

        return open_bucket(where)
    if "://" in where:
        raise ValueError(
            f"blobs is a folder or s3://bucket/prefix, not {where.partition('://')[0][:20]}://..."
        )
    return FileBlobs(Path(where).expanduser() if where else folder)

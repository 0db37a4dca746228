"""Files of conversations, by path, with quotas; and images that commands gave to a model.

A content of up to `INLINE_BYTES` is in the table. A larger one is in the blobs (`blobs.py`), in pieces on its way in and out. Images are
stored for a turn that runs again after a crash.
"""

from __future__ import annotations

import hashlib
import logging
import mimetypes
import re
import time
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence

from msgspec import Struct

from dragoman.errors import A2AError, InvalidParams, QuotaExceeded, Unavailable, keep_going
from dragoman.hub.models import Image
from dragoman.hub.store.blobs import PIECE_BYTES, Blobs, new_key
from dragoman.hub.store.database import Database, Repository, Row, Transaction, transaction
from dragoman.hub.store.policies import check_room, policy_of

log = logging.getLogger(__name__)

INLINE_BYTES = 64 << 10
"""Larger contents are in the blobs, if there are any."""
FILE_LIMIT = 1 << 20
"""Bytes of a file that comes in one piece: of an agent, or in a JSON body."""
UPLOAD_LIMIT = 50 << 20
"""Bytes of a file that comes in pieces."""
CONVERSATION_LIMIT = 50 << 20

_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
"""Categories of invisible characters."""
_MIME = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}(; ?[\w.+-]{1,64}=[\w.+\"-]{1,64}){0,4}", re.ASCII)
_COLUMNS = "id, tenant_id, conversation_id, path, mime, sha256, size, created_at, updated_at"
_RESERVE = "insert into unused_blobs (key, at) values (?, ?)"
_USE = "delete from unused_blobs where key = ?"
_CONTENT = "select content, blob from artifacts where tenant_id = ? and id = ?"
_DELETE = "delete from artifacts where tenant_id = ? and id = ?"
_CONVERSATION = "select 1 from conversations where id = ? and tenant_id = ?"
_BY_PATH = "select id, size from artifacts where tenant_id = ? and conversation_id = ? and path = ?"
_PUT_FILE = f"""
insert into artifacts (tenant_id, conversation_id, path, mime, sha256, size, content, blob, created_at, updated_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (tenant_id, conversation_id, path) do update
set mime = excluded.mime, sha256 = excluded.sha256, size = excluded.size, content = excluded.content,
blob = excluded.blob, updated_at = excluded.updated_at returning {_COLUMNS}
"""


class StoredFile(Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"mime": "mime_type"}):
    """A file without its content."""

    id: int
    tenant_id: int
    conversation_id: int
    path: str
    mime: str
    sha256: str
    size: int
    created_at: int
    updated_at: int
    created: bool = False
    """`put` created it, and did not replace one."""


def clean_path(path: str) -> str:
    """Normalize a relative path. Raises `InvalidParams`."""
    path = re.sub(r"/+", "/", path.strip().replace("\\", "/"))
    if path.startswith("/"):
        raise InvalidParams(f"the path {path[:80]!r} must be relative")
    path = path.rstrip("/")
    if not path or len(path) > 256:
        raise InvalidParams("a path has 1 to 256 characters")
    # Other systems read full-width dots and slashes as ASCII.
    plain = unicodedata.normalize("NFKC", path).replace("\\", "/")
    if ":" in plain or any(unicodedata.category(char) in _UNSEEN for char in path):
        raise InvalidParams(f"the path {path[:80]!r} has characters that paths do not have")
    if plain.count("/") != path.count("/"):
        raise InvalidParams(f"the path {path[:80]!r} has characters that look like others")
    for name in plain.split("/"):
        if name.lstrip().startswith(".") or len(name) > 128 or _DEVICES.fullmatch(name.strip()):
            raise InvalidParams(f"{name[:80]!r} cannot be part of a path")
    return path


class Artifacts(Repository):
    """The files of all tenants. Every method finds only files of its tenant."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        *,
        file_limit: int = FILE_LIMIT,
        conversation_limit: int = CONVERSATION_LIMIT,
        tenant_limit: int | None = None,
    ) -> None:
        """`tenant_limit`: instead of the policy's."""
        super().__init__(database)
        self._blobs = blobs
        self._limits = file_limit, conversation_limit, tenant_limit

    async def put(
        self, tenant: str | int, conversation: int, path: str, content: bytes, mime: str = ""
    ) -> StoredFile:
        """Create or replace a file. Raises `InvalidParams`, `QuotaExceeded`."""
        size, of_file = len(content), self._limits[0]
        if size > of_file:
            raise QuotaExceeded(f"{clean_path(path)} has {size} bytes; a file may have {of_file}")
        digest = hashlib.sha256(content).hexdigest()
        if size <= INLINE_BYTES:
            return await self._store(tenant, conversation, path, mime, digest, size, content, "")
        return await self.put_pieces(tenant, conversation, path, _pieces(content), mime)

    async def put_pieces(
        self, tenant: str | int, conversation: int, path: str, pieces: AsyncIterable[bytes], mime: str = ""
    ) -> StoredFile:
        """`put`, for a content that comes in pieces. It is not all in memory. Raises what `pieces` raises, too."""
        path, source = clean_path(path), aiter(pieces)
        _check_mime(mime)
        digest, size, begin = hashlib.sha256(), 0, bytearray()

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for piece in source:
                size += len(piece)
                if size > UPLOAD_LIMIT:
                    raise QuotaExceeded(f"{path} has more than {UPLOAD_LIMIT} bytes")
                digest.update(piece)
                yield piece

        reading = counted()
        async for piece in reading:
            begin += piece
            if len(begin) > INLINE_BYTES:
                break
        else:
            found = digest.hexdigest(), size, bytes(begin), ""
            return await self._store(tenant, conversation, path, mime, *found)

        async def whole() -> AsyncIterator[bytes]:
            yield bytes(begin)
            async for piece in reading:
                yield piece

        key = new_key(int(tenant))
        await self._db.change(_RESERVE, (key, int(time.time())))
        used = False
        try:
            await self._blobs.put(key, whole())
            stored = await self._store(tenant, conversation, path, mime, digest.hexdigest(), size, b"", key)
            used = (await self._db.one(_CONTENT, (int(tenant), stored.id)) or {"blob": ""})["blob"] == key
            return stored
        finally:
            if not used:  # it was refused, or stored before: do not wait for the sweeper
                with keep_going(log, "deleting the content of a refused file", A2AError):
                    await self._drop_unused(key)

    async def _drop_unused(self, key: str) -> None:
        """Delete a content, unless a file uses it."""
        if await self._db.change(_USE, (key,)):
            await self._db.change(_RESERVE, (key, int(time.time())))
            await self._blobs.delete(key)
            await self._db.change(_USE, (key,))

    @transaction
    async def _store(
        self,
        db: Transaction,
        tenant: int,
        conversation: int,
        path: str,
        mime: str,
        digest: str,
        size: int,
        content: bytes,
        blob: str,
    ) -> StoredFile:
        """Create or replace the row of a file."""
        path, now = clean_path(path), int(time.time())
        mime = mime or mimetypes.guess_type(path)[0] or "text/plain"
        _check_mime(mime)
        _, of_conversation, of_tenant = self._limits
        if not await db.one(_CONVERSATION, (conversation, tenant)):
            raise InvalidParams(f"there is no conversation {conversation}")
        old = await db.one(_BY_PATH, (tenant, conversation, path))
        more = size - (old["size"] if old else 0)
        if old is None:
            await check_room(self._db, db, tenant, "artifacts")
        if of_tenant is None:
            of_tenant = (await policy_of(self._db, db, tenant)).max_artifact_mb << 20
        for limit, where, values in (
            (of_conversation, "conversation_id = ? and tenant_id = ?", (conversation, tenant)),
            (of_tenant, "tenant_id = ?", (tenant,)),
        ):
            used = (await db.one(f"select coalesce(sum(size), 0) from artifacts where {where}", values))[0]
            if limit and used + more > limit:
                raise QuotaExceeded(
                    f"no room for {path}: {used} of {limit} bytes are used",
                    metadata={"reason": "storage_limit"},
                )
        row = await db.one(
            _PUT_FILE, (tenant, conversation, path, mime, digest, size, content, blob, now, now)
        )
        if blob and not await db.change(_USE, (blob,)):
            raise Unavailable("the content took too long to arrive; send it again")
        return StoredFile(**row, created=old is None)

    async def get(self, tenant: str | int, id: int) -> StoredFile | None:
        return await self._one("id = ?", (int(tenant), id))

    async def by_path(self, tenant: str | int, conversation: int, path: str) -> StoredFile | None:
        try:
            path = clean_path(path)
        except InvalidParams:
            return None
        return await self._one("conversation_id = ? and path = ?", (int(tenant), conversation, path))

    async def content(self, tenant: str | int, id: int, limit: int = UPLOAD_LIMIT) -> bytes | None:
        """The first `limit` bytes of a content."""
        pieces = await self.pieces(tenant, id)
        if pieces is None:
            return None
        content = bytearray()
        async for piece in pieces:
            content += piece
            if len(content) >= limit:
                break
        await pieces.aclose()
        return bytes(content[:limit])

    async def pieces(self, tenant: str | int, id: int) -> AsyncGenerator[bytes, None] | None:
        """A content in pieces; None if there is no such file. Reading it may raise `BlobMissing` and `Unavailable`."""
        row = await self._db.one(_CONTENT, (int(tenant), id))
        if row is None:
            return None
        return self._read(row["content"], row["blob"])

    async def _read(self, content: bytes, blob: str) -> AsyncGenerator[bytes, None]:
        if not blob:
            yield bytes(content)
            return
        async for piece in self._blobs.get(blob):
            yield piece

    async def list(
        self, tenant: str | int, conversation: int | None = None, *, limit: int = 200
    ) -> list[StoredFile]:
        """Those of a conversation by path, or of the tenant, newest first."""
        where, order = ("", "updated_at desc, id desc")
        values: tuple[int, ...] = (int(tenant),)
        if conversation is not None:
            where, order, values = " and conversation_id = ?", "path", (int(tenant), conversation)
        statement = f"select {_COLUMNS} from artifacts where tenant_id = ?{where} order by {order} limit ?"
        rows = await self._db.all(statement, (*values, limit))
        return [StoredFile(**row) for row in rows]

    async def delete(self, tenant: str | int, id: int) -> bool:
        """False if there was none."""
        return await self._db.change(_DELETE, (int(tenant), id)) > 0

    async def _one(self, where: str, values: tuple[object, ...]) -> StoredFile | None:
        statement = f"select {_COLUMNS} from artifacts where tenant_id = ? and {where}"
        row = await self._db.one(statement, values)
        return None if row is None else StoredFile(**row)


def _check_mime(mime: str) -> None:
    if mime and not _MIME.fullmatch(mime):  # it becomes a header of responses
        raise InvalidParams(f"{mime[:80]!r} is not a media type")


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), PIECE_BYTES):
        yield content[at : at + PIECE_BYTES]


# -- images -------------------------------------------------------------------------------------------------

_PICTURE_SECONDS = 7 * 86_400
"""How long images are stored."""
MAX_PICTURE_BYTES = 256 << 20
"""Bytes of stored images per tenant; older ones are deleted."""
_PUT = """
insert into pictures (key, media_type, content, at) values (?, ?, ?, ?)
on conflict (key) do update set media_type = excluded.media_type, content = excluded.content, at = excluded.at
"""
_DROP_OLD = "delete from pictures where at < ?"
_MAKE_ROOM = """
delete from pictures where key in (select key from (select key, sum(length(content)) over (order by n desc) as bytes
from pictures where key > ? and key < ?) as counted where bytes > ?)
"""
_FIND = "select media_type, content from pictures where key = ?"


class StoredPictures:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def put(self, tenant: str, key: str, image: Image) -> None:
        """Store an image under `key`, which begins with the tenant. The oldest of a tenant that has too many go."""
        now = int(time.time())

        async def put(db: Transaction) -> None:
            await db.change(_DROP_OLD, (now - _PICTURE_SECONDS,))
            await db.change(_PUT, (key, image.media_type, image.content, now))
            await db.change(_MAKE_ROOM, (f"{tenant}/", f"{tenant}0", MAX_PICTURE_BYTES))  # "0" follows "/"

        await self._db.run(put)

    async def find(self, keys: Sequence[str]) -> list[Image]:
        """The stored images of these keys."""

        async def find(db: Transaction) -> list[Row]:
            return [await db.one(_FIND, (key,)) for key in keys]

        return [Image(**row) for row in await self._db.read(find) if row is not None]

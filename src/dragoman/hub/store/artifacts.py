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
from msgspec.structs import replace

from dragoman.errors import A2AError, InvalidParams, QuotaExceeded, Unavailable, keep_going
from dragoman.hub.models import Image
from dragoman.hub.store.blobs import KEEP_SECONDS, PIECE_BYTES, Blobs, new_key
from dragoman.hub.store.database import (
    NEWEST,
    Database,
    Place,
    Repository,
    Row,
    Transaction,
    read_row,
    transaction,
)
from dragoman.hub.store.policies import check_room, policy_of

log = logging.getLogger(__name__)

INLINE_BYTES = 64 << 10
"""Larger contents are in the blobs, if there are any."""
FILE_LIMIT = 1 << 20
"""Bytes of a file that comes in one piece: of an agent, or in a JSON body."""
UPLOAD_LIMIT = 50 << 20
"""Bytes of a file that comes in pieces."""
CONVERSATION_LIMIT = 50 << 20

_DEVICE_NAME = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_INVISIBLE = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
"""Categories of invisible characters."""
_MIME = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}(; ?[\w.+-]{1,64}=[\w.+\"-]{1,64}){0,4}", re.ASCII)
_COLUMNS = "id, tenant_id, conversation_id, path, mime as mime_type, sha256, size, created_at, updated_at"
_LIST = f"""
select {_COLUMNS} from artifacts where tenant_id = ?1 and updated_at <= ?2 and (updated_at < ?2 or id < ?3)
order by updated_at desc, id desc limit ?4
"""
_LIST_OF = f"select {_COLUMNS} from artifacts where tenant_id = ? and conversation_id = ? order by path"
_RESERVE = "insert into unused_blobs (key, tenant_id, size, arriving, at) values (?, ?, ?, 1, ?)"
_UNUSED = """
select key, size, case when at > ?2 then arriving else 0 end as arriving from unused_blobs where tenant_id = ?1 order by at, key
"""
"""The parameter `?2` is a time: a content that began to arrive before it counts as unused."""
_EXPIRE = "update unused_blobs set at = ? where key = ?"
_USE = "delete from unused_blobs where key = ? and at > ?"
"""Only a content that is new enough: the sweeper may be deleting older ones."""
_FORGET = "delete from unused_blobs where key = ?"
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
    # Some systems treat full-width dots and slashes as ASCII ones.
    plain = unicodedata.normalize("NFKC", path).replace("\\", "/")
    if ":" in plain or any(unicodedata.category(char) in _INVISIBLE for char in path):
        raise InvalidParams(f"the path {path[:80]!r} has characters that a path may not have")
    if plain.count("/") != path.count("/"):
        raise InvalidParams(f"the path {path[:80]!r} has characters that look like a slash")
    for name in plain.split("/"):
        if name.lstrip().startswith(".") or len(name) > 128 or _DEVICE_NAME.fullmatch(name.strip()):
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
    ) -> None:
        super().__init__(database)
        self._blobs, self._file_limit, self._conversation_limit = blobs, file_limit, conversation_limit

    async def put(
        self, tenant: str | int, conversation: int, path: str, content: bytes, mime: str = ""
    ) -> StoredFile:
        """Create or replace a file. Raises `InvalidParams`, `QuotaExceeded`."""
        size = len(content)
        if size > self._file_limit:
            raise QuotaExceeded(f"{clean_path(path)} has {size} bytes; a file may have {self._file_limit}")
        digest = hashlib.sha256(content).hexdigest()
        if size <= INLINE_BYTES:
            return await self._store(tenant, conversation, path, mime, digest, size, content, "")
        return await self.put_pieces(tenant, conversation, path, _split(content), mime, size=size)

    async def put_pieces(
        self,
        tenant: str | int,
        conversation: int,
        path: str,
        pieces: AsyncIterable[bytes],
        mime: str = "",
        *,
        size: int | None = None,
    ) -> StoredFile:
        """`put`, for a content that comes in pieces and is never in memory as a whole. Raises what `pieces` raises, too.

        `size`: its bytes; None if they are not known before.
        """
        path, source = clean_path(path), aiter(pieces)
        _check_mime(mime)
        digest, arrived, begin = hashlib.sha256(), 0, bytearray()

        async def read_source() -> AsyncIterator[bytes]:
            nonlocal arrived
            async for piece in source:
                arrived += len(piece)
                if arrived > UPLOAD_LIMIT:
                    raise QuotaExceeded(f"{path} has more than {UPLOAD_LIMIT} bytes")
                digest.update(piece)
                yield piece

        arriving_pieces = read_source()
        async for piece in arriving_pieces:
            begin += piece
            if len(begin) > INLINE_BYTES:
                break
        else:
            found = digest.hexdigest(), arrived, bytes(begin), ""
            return await self._store(tenant, conversation, path, mime, *found)

        async def all_pieces() -> AsyncIterator[bytes]:
            yield bytes(begin)
            async for piece in arriving_pieces:
                yield piece

        key = new_key(int(tenant))
        await self._reserve(int(tenant), key, UPLOAD_LIMIT if size is None else size)
        used = False
        try:
            await self._blobs.put(key, all_pieces())
            stored = await self._store(
                tenant, conversation, path, mime, digest.hexdigest(), arrived, b"", key
            )
            used = (await self._db.one(_CONTENT, (int(tenant), stored.id)) or {"blob": ""})["blob"] == key
            return stored
        finally:
            if not used:  # it was refused, or stored before: do not wait for the sweeper
                with keep_going(log, "deleting the content of a refused file", A2AError):
                    await self._drop_unused(key)

    async def _reserve(self, tenant: int, key: str, size: int) -> None:
        """Reserve room for a content that arrives. Contents without a file (they arrive, or their file was replaced or deleted) may
        have as many bytes together as the files of a tenant. If there are more, the oldest contents of replaced and deleted files are
        deleted. Raises `QuotaExceeded` if the arriving ones alone have more."""

        async def reserve(db: Transaction) -> list[str]:
            limit, now = (await policy_of(db, tenant)).max_artifact_mb << 20, int(time.time())
            rows = await db.all(_UNUSED, (tenant, int(now - KEEP_SECONDS / 2)))
            arriving = sum(row["size"] for row in rows if row["arriving"])
            if limit and arriving and arriving + size > limit:
                raise QuotaExceeded(
                    f"files with {arriving} bytes are being uploaded, at most {limit} at a time: try again when one is finished",
                    metadata={"reason": "storage_limit"},
                )
            before = [(row["key"], row["size"]) for row in rows if not row["arriving"]]
            over, gone = sum(each for _, each in before) + arriving + size - limit, list[str]()
            for old, freed in before if limit else ():
                if over <= 0:
                    break
                await db.change(_EXPIRE, (now - KEEP_SECONDS, old))
                gone.append(old)
                over -= freed
            await db.change(_RESERVE, (key, tenant, size, now))
            return gone

        for old in await self._db.run(reserve, tenant=tenant):
            await self._drop_unused(old)

    async def _drop_unused(self, key: str) -> None:
        """Delete a content, unless a file uses it."""
        if await self._db.change(_EXPIRE, (int(time.time() - KEEP_SECONDS), key)):  # no file can use it now
            await self._blobs.delete(key)
            await self._db.change(_FORGET, (key,))

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
        if not await db.one(_CONVERSATION, (conversation, tenant)):
            raise InvalidParams(f"there is no conversation {conversation}")
        old = await db.one(_BY_PATH, (tenant, conversation, path))
        more = size - (old["size"] if old else 0)
        if old is None:
            await check_room(db, tenant, "artifacts")
        of_tenant = (await policy_of(db, tenant)).max_artifact_mb << 20
        for limit, where, values in (
            (self._conversation_limit, "conversation_id = ? and tenant_id = ?", (conversation, tenant)),
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
        if blob and not await db.change(_USE, (blob, int(time.time() - KEEP_SECONDS / 2))):
            raise Unavailable("the content took too long to arrive; send it again")
        return replace(read_row(StoredFile, row), created=old is None)

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

    async def list(self, tenant: str | int, *, before: Place = NEWEST, limit: int = 200) -> list[StoredFile]:
        """Those of a tenant, newest first, from a place on."""
        return await self._db.select(StoredFile, _LIST, (int(tenant), *before, limit))

    async def of_conversation(self, tenant: str | int, conversation: int) -> Sequence[StoredFile]:
        """All of a conversation, by path."""
        return await self._db.select(StoredFile, _LIST_OF, (int(tenant), conversation))

    async def delete(self, tenant: str | int, id: int) -> bool:
        """False if there was none."""
        return await self._db.change(_DELETE, (int(tenant), id)) > 0

    async def _one(self, where: str, values: tuple[object, ...]) -> StoredFile | None:
        statement = f"select {_COLUMNS} from artifacts where tenant_id = ? and {where}"
        return await self._db.find(StoredFile, statement, values)


def _check_mime(mime: str) -> None:
    if mime and not _MIME.fullmatch(mime):  # it becomes a header of responses
        raise InvalidParams(f"{mime[:80]!r} is not a media type")


async def _split(content: bytes) -> AsyncIterator[bytes]:
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

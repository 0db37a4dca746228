"""Files of conversations, by path, with quotas."""

from __future__ import annotations

import hashlib
import mimetypes
import re
import time
import unicodedata

from msgspec import Struct

from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.store.database import Database, Transaction

FILE_LIMIT = 1 << 20
CONVERSATION_LIMIT = 50 << 20
TENANT_LIMIT = 500 << 20

_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
"""Categories of invisible characters."""
_MIME = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}(; ?[\w.+-]{1,64}=[\w.+\"-]{1,64}){0,4}", re.ASCII)
_COLUMNS = "id, tenant_id, conversation_id, path, mime, sha256, size, created_at, updated_at"
_DELETE = "delete from artifacts where tenant_id = ? and id = ?"


class QuotaExceeded(A2AError):
    reason, rpc, http, grpc = "QUOTA_EXCEEDED", -32000, 413, "RESOURCE_EXHAUSTED"


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


class Artifacts:
    """The files of all tenants. Every method finds only files of its tenant."""

    def __init__(
        self,
        database: Database,
        *,
        file_limit: int = FILE_LIMIT,
        conversation_limit: int = CONVERSATION_LIMIT,
        tenant_limit: int = TENANT_LIMIT,
    ) -> None:
        self._db = database
        self._limits = file_limit, conversation_limit, tenant_limit

    async def put(
        self,
        tenant: str | int,
        conversation: int,
        path: str,
        content: bytes,
        mime: str = "",
        *,
        once: str = "",
    ) -> StoredFile:
        """Create or replace a file. Raises `InvalidParams`, `QuotaExceeded`."""
        path, tenant, now = clean_path(path), int(tenant), int(time.time())
        mime = mime or mimetypes.guess_type(path)[0] or "text/plain"
        if not _MIME.fullmatch(mime):  # it becomes a header of responses
            raise InvalidParams(f"{mime[:80]!r} is not a media type")
        size = len(content)
        of_file, of_conversation, of_tenant = self._limits
        if size > of_file:
            raise QuotaExceeded(f"{path} has {size} bytes; a file may have {of_file}")
        digest = hashlib.sha256(content).hexdigest()

        async def work(db: Transaction) -> StoredFile:
            if not await db.one(
                "select 1 from conversations where id = ? and tenant_id = ?", (conversation, tenant)
            ):
                raise InvalidParams(f"there is no conversation {conversation}")
            old = await db.one(
                "select id, size from artifacts where tenant_id = ? and conversation_id = ? and path = ?",
                (tenant, conversation, path),
            )
            more = size - (old["size"] if old else 0)
            for limit, where, values in (
                (of_conversation, "conversation_id = ? and tenant_id = ?", (conversation, tenant)),
                (of_tenant, "tenant_id = ?", (tenant,)),
            ):
                used = (await db.one(f"select coalesce(sum(size), 0) from artifacts where {where}", values))[
                    0
                ]
                if used + more > limit:
                    raise QuotaExceeded(f"no room for {path}: {used} of {limit} bytes are used")
            await db.change(
                "insert into artifacts (tenant_id, conversation_id, path, mime, sha256, size, content, created_at, "
                "updated_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (tenant_id, conversation_id, path) do update "
                "set mime = excluded.mime, sha256 = excluded.sha256, size = excluded.size, content = excluded.content, "
                "updated_at = excluded.updated_at",
                (tenant, conversation, path, mime, digest, size, content, now, now),
            )
            row = await db.one(
                f"select {_COLUMNS} from artifacts where tenant_id = ? and conversation_id = ? and path = ?",
                (tenant, conversation, path),
            )
            return StoredFile(**row, created=old is None)

        return await self._db.run_once(once, work, StoredFile, tenant=tenant)

    async def get(self, tenant: str | int, id: int) -> StoredFile | None:
        return await self._one("id = ?", (int(tenant), id))

    async def by_path(self, tenant: str | int, conversation: int, path: str) -> StoredFile | None:
        try:
            path = clean_path(path)
        except InvalidParams:
            return None
        return await self._one("conversation_id = ? and path = ?", (int(tenant), conversation, path))

    async def content(self, tenant: str | int, id: int) -> bytes | None:
        row = await self._db.one(
            "select content from artifacts where tenant_id = ? and id = ?", (int(tenant), id)
        )
        return None if row is None else bytes(row["content"])

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

        async def work(db: Transaction) -> bool:
            return await db.change(_DELETE, (int(tenant), id)) > 0

        return await self._db.run(work, tenant=int(tenant))

    async def _one(self, where: str, values: tuple[object, ...]) -> StoredFile | None:
        statement = f"select {_COLUMNS} from artifacts where tenant_id = ? and {where}"
        row = await self._db.one(statement, values)
        return None if row is None else StoredFile(**row)

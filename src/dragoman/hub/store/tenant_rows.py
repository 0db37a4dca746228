"""What a tenant has in the tables of the hub: read for an export, and deleted with the tenant.

An export reads page by page. No secret is in it: no hash of a token, no content of a file.

A deletion begins with one transaction that removes the name and the tokens of the tenant and disables it. Its rows are deleted in
pieces, and its own row last. Until then `deleted_tenants` says that the deletion is not finished.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Struct

from dragoman.hub.store.database import Database, Transaction
from dragoman.hub.store.tenants import DELETED, Tenant
from dragoman.hub.store.tokens import next_generation, write_audit

PAGE_ROWS = 200

_BY_ID = (
    *("conversations", "messages", "artifacts", "memories", "relations", "todos", "schedules", "runs"),
    *("tokens", "audit"),
)
"""Tables with an id."""
_OTHERS = {
    "agents": "agent_id",
    "agent_versions": "agent_id, version",
    "requests": "n",
    "scratchpads": "scope",
    "usage": "day, agent_id, model, currency",
    "policies": "tenant_id",
    "spending": "day",
    "budget_alerts": "day, budget, percent",
}
"""Tables with other keys."""
EXPORTED = (*_BY_ID, *_OTHERS)
NOT_EXPORTED = ("idempotency_keys", "notifications", "workspace_leases")
"""Tables of tenants whose rows last for hours only."""
_OMITTED = frozenset({"tenant_id", "hash", "content_blob", "blob", "words"})
"""Columns that are left out. `content` of artifacts is, too: the files themselves are in the archive."""
_PICTURES = (
    "select n, key, media_type, content from pictures where key > ? and key < ? and n > ? order by n limit 1"
)


class Exports:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def rows(self, table: str, tenant: int) -> AsyncIterator[dict[str, Any]]:
        async for page in self._pages(table, tenant):
            for row in page:
                left_out = _OMITTED | ({"content"} if table == "artifacts" else set())
                yield {name: value for name, value in row.items() if name not in left_out}

    async def _pages(self, table: str, tenant: int) -> AsyncIterator[Sequence[dict[str, Any]]]:
        after = 0
        while True:
            if table in _BY_ID:
                statement = (
                    f"select {_columns(table)} from {table} where {_of_tenant(table)} and id > ?2 "
                    f"order by id limit {PAGE_ROWS}"
                )
            else:
                statement = (
                    f"select * from {table} where tenant_id = ?1 order by {_OTHERS[table]} "
                    f"limit {PAGE_ROWS} offset ?2"
                )
            page = [dict(row) for row in await self._db.all(statement, (tenant, after))]
            yield page
            if len(page) < PAGE_ROWS:
                return
            after = page[-1]["id"] if table in _BY_ID else after + len(page)

    async def pictures(self, tenant: int) -> AsyncIterator[tuple[str, str, bytes]]:
        """Images that commands gave to a model: key, media type, content."""
        after = 0
        while True:
            values = (f"{tenant}/", f"{tenant}0", after)  # "0" follows "/"
            row = await self._db.one(_PICTURES, values)
            if row is None:
                return
            after = row["n"]
            yield row["key"], row["media_type"], bytes(row["content"])


def _of_tenant(table: str) -> str:
    """Which rows of a table a tenant has."""
    if table == "messages":
        return "conversation_id in (select id from conversations where tenant_id = ?1)"
    return "tenant_id = ?1"


def _columns(table: str) -> str:
    """Large contents are not read at all."""
    if table == "artifacts":
        return "id, conversation_id, path, mime, sha256, size, created_at, updated_at"
    return "*"


# -- deletion -----------------------------------------------------------------------------------------------

PIECE_ROWS = 500
"""What one transaction deletes of a table."""

_TABLES = (
    *("notifications", "runs", "requests", "relations", "memories", "todos", "artifacts", "messages"),
    *("conversations", "schedules"),
)
"""Tables that may have many rows of a tenant. The others go with the row of the tenant."""
_KEYED = ("done", "pictures")
"""Tables whose keys begin with the number of a tenant and a slash."""

_MARK = "insert into deleted_tenants (id, name, at, actor) values (?, ?, ?, ?) on conflict do nothing"
_DISABLE = "update tenants set disabled = 1, name = ? where id = ?"
_DROP_TOKENS = "delete from tokens where tenant_id = ?"
_PENDING = "select id, name, at, done_at from deleted_tenants where done_at = 0 order by id"
_LATEST = "select id, name, at, done_at from deleted_tenants where done_at > ? or done_at = 0 order by id desc limit ?"
_DROP_TENANT = "delete from tenants where id = ?"
_DONE = "update deleted_tenants set done_at = ?, name = '' where id = ? and done_at = 0"


class DeletedTenant(Struct, frozen=True, kw_only=True):
    id: int
    name: str
    """Empty when everything is deleted; the audit has it."""
    at: int
    done_at: int
    """0: the deletion goes on."""


class Deletions:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def begin(self, tenant: Tenant, *, actor: str) -> None:
        """Disable the tenant for ever, and free its name."""

        async def begin(db: Transaction) -> None:
            await next_generation(db, tenant.id)  # every hub notices; raises `NotFound`
            await db.change(_MARK, (tenant.id, tenant.name, int(time.time()), actor))
            await db.change(_DISABLE, (f"{DELETED}{tenant.id}", tenant.id))
            await db.change(_DROP_TOKENS, (tenant.id,))
            await write_audit(db, actor, "tenant.delete", tenant.id, tenant.name)

        await self._db.run(begin, tenant=tenant.id)

    async def pending(self) -> Sequence[DeletedTenant]:
        return [DeletedTenant(**row) for row in await self._db.all(_PENDING)]

    async def latest(self, since: int = 0, limit: int = 1000) -> Sequence[DeletedTenant]:
        """Those that were done since a time, and those that are not done."""
        return [DeletedTenant(**row) for row in await self._db.all(_LATEST, (since, limit))]

    async def delete_rows(self, tenant: int) -> bool:
        """Delete a piece of what the tenant had. True if there may be more."""
        for table in _TABLES:
            key = "n" if table == "requests" else "id"
            piece = f"select {key} from {table} where {_of_tenant(table)} limit {PIECE_ROWS}"
            statement = f"delete from {table} where {key} in ({piece})"
            if await self._db.change(statement, (tenant,)):
                return True
        for table in _KEYED:
            statement = (
                f"delete from {table} where key in (select key from {table} where key > ? and key < ? "
                f"limit {PIECE_ROWS})"
            )
            if await self._db.change(statement, (f"{tenant}/", f"{tenant}0")):  # "0" follows "/"
                return True
        return False

    async def finish(self, tenant: DeletedTenant) -> None:
        """Delete the row of the tenant, with all that refers to it."""

        async def finish(db: Transaction) -> None:
            await db.change(_DROP_TENANT, (tenant.id,))
            if await db.change(_DONE, (int(time.time()), tenant.id)):
                await write_audit(db, "hub", "tenant.deleted", tenant.id, tenant.name)

        await self._db.run(finish, tenant=tenant.id)

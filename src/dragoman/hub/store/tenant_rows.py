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

_KEY_COLUMNS = {
    **dict.fromkeys(("conversations", "messages", "artifacts", "memories", "relations", "todos"), "id"),
    **dict.fromkeys(("schedules", "runs", "tokens", "audit"), "id"),
    "agents": "agent_id",
    "agent_versions": "agent_id, version",
    "requests": "n",
    "scratchpads": "scope",
    "usage": "day, agent_id, model, currency",
    "policies": "tenant_id",
    "spending": "day",
    "budget_alerts": "day, budget, percent",
}
"""Tables, and the columns that identify a row of a tenant."""
EXPORTED = tuple(_KEY_COLUMNS)
_OMITTED_COLUMNS = frozenset({"tenant_id", "hash", "content_blob", "blob", "words"})
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
                left_out = _OMITTED_COLUMNS | ({"content"} if table == "artifacts" else set())
                yield {name: value for name, value in row.items() if name not in left_out}

    async def _pages(self, table: str, tenant: int) -> AsyncIterator[Sequence[dict[str, Any]]]:
        """The rows, page by page. A page begins after the key of the last row before it, so deletions in between hide no row."""
        key, after = _KEY_COLUMNS[table], list[Any]()
        while True:
            where, values = _of_tenant(table), (tenant, *after)
            if after:
                where += f" and ({key}) > ({', '.join(f'?{n + 2}' for n in range(len(after)))})"
            statement = (
                f"select {_columns(table)} from {table} where {where} order by {key} limit {PAGE_ROWS}"
            )
            page = [dict(row) for row in await self._db.all(statement, values)]
            yield page
            if len(page) < PAGE_ROWS:
                return
            after = [page[-1][column] for column in key.split(", ")]

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
    """The condition for the rows of a tenant (`?1`) in a table."""
    if table == "messages":
        return "conversation_id in (select id from conversations where tenant_id = ?1)"
    return "tenant_id = ?1"


def _columns(table: str) -> str:
    """The columns to read: not the contents of files, which may be large."""
    if table == "artifacts":
        return "id, conversation_id, path, mime, sha256, size, created_at, updated_at"
    return "*"


# -- deletion -----------------------------------------------------------------------------------------------

MAX_LISTED = 1000
PIECE_ROWS = 500
"""How many rows of a table one transaction deletes."""

_TABLES = (
    *("notifications", "runs", "requests", "relations", "memories", "todos", "artifacts", "messages"),
    *("conversations", "schedules"),
)
"""Tables that may have many rows of a tenant. The others go with the row of the tenant."""
_TABLES_BY_KEY = ("done", "pictures")
"""Tables whose keys begin with the number of a tenant and a slash."""

_ADD_DELETION = "insert into deleted_tenants (id, name, at, actor) values (?, ?, ?, ?) on conflict do nothing"
_DISABLE = "update tenants set disabled = 1, name = ? where id = ?"
_DROP_TOKENS = "delete from tokens where tenant_id = ?"
_PENDING = "select id, name, at, done_at from deleted_tenants where done_at = 0 order by id"
_LATEST = "select id, name, at, done_at from deleted_tenants where done_at > ? or done_at = 0 order by id desc limit ?"
_DROP_TENANT = "delete from tenants where id = ?"
_FINISH_DELETION = "update deleted_tenants set done_at = ?, name = '' where id = ? and done_at = 0"


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
            await next_generation(
                db, tenant.id
            )  # changes the version that every hub watches; raises `NotFound`
            await db.change(_ADD_DELETION, (tenant.id, tenant.name, int(time.time()), actor))
            await db.change(_DISABLE, (f"{DELETED}{tenant.id}", tenant.id))
            await db.change(_DROP_TOKENS, (tenant.id,))
            await write_audit(db, actor, "tenant.delete", tenant.id, tenant.name)

        await self._db.run(begin, tenant=tenant.id)

    async def pending(self) -> Sequence[DeletedTenant]:
        return await self._db.select(DeletedTenant, _PENDING)

    async def latest(self, since: int = 0) -> Sequence[DeletedTenant]:
        """Those that were done since a time, and those that are not done."""
        return await self._db.select(DeletedTenant, _LATEST, (since, MAX_LISTED))

    async def delete_rows(self, tenant: int) -> bool:
        """Delete a piece of what the tenant had. True if there may be more."""
        for table in _TABLES:
            key = "n" if table == "requests" else "id"
            piece = f"select {key} from {table} where {_of_tenant(table)} limit {PIECE_ROWS}"
            statement = f"delete from {table} where {key} in ({piece})"
            if await self._db.change(statement, (tenant,)):
                return True
        for table in _TABLES_BY_KEY:
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
            if await db.change(_FINISH_DELETION, (int(time.time()), tenant.id)):
                await write_audit(db, "hub", "tenant.deleted", tenant.id, tenant.name)

        await self._db.run(finish, tenant=tenant.id)

"""Tenants that are deleted, and the rows that they had in the hub's tables.

A deletion begins with one transaction: the tenant has no token and no name any more, and counts as disabled for ever. What it
had is deleted in pieces, and its row last. Until then `deleted_tenants` says that the deletion has to go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from dragoman.hub.store.database import Database, Transaction
from dragoman.hub.store.tenants import DELETED, Tenant
from dragoman.hub.store.tokens import next_number, note

PIECE_ROWS = 500
"""What one transaction deletes of a table."""

_IN_CONVERSATIONS = "conversation_id in (select id from conversations where tenant_id = ?1)"
_TABLES = {
    "notifications": ("id", "tenant_id = ?1"),
    "runs": ("id", "tenant_id = ?1"),
    "requests": ("n", "tenant_id = ?1"),
    "relations": ("id", "tenant_id = ?1"),
    "memories": ("id", "tenant_id = ?1"),
    "todos": ("id", "tenant_id = ?1"),
    "artifacts": ("id", "tenant_id = ?1"),
    "messages": ("id", _IN_CONVERSATIONS),
    "conversations": ("id", "tenant_id = ?1"),
    "schedules": ("id", "tenant_id = ?1"),
}
"""Tables that may have many rows of a tenant: their key, and which rows. The others go with the row of the tenant."""
_KEYED = ("done", "pictures")
"""Tables whose keys begin with the number of a tenant and a slash."""

_MARK = "insert into deleted_tenants (id, name, at, actor) values (?, ?, ?, ?) on conflict do nothing"
_SHUT_OUT = "update tenants set disabled = 1, name = ? where id = ?"
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
        """From now on nobody can use the tenant, and its name is free."""

        async def begin(db: Transaction) -> None:
            await next_number(db, tenant.id)  # every hub notices; raises `NotFound`
            await db.change(_MARK, (tenant.id, tenant.name, int(time.time()), actor))
            await db.change(_SHUT_OUT, (f"{DELETED}{tenant.id}", tenant.id))
            await db.change(_DROP_TOKENS, (tenant.id,))
            await note(db, actor, "tenant.delete", tenant.id, tenant.name)

        await self._db.run(begin, tenant=tenant.id)

    async def pending(self) -> Sequence[DeletedTenant]:
        return [DeletedTenant(**row) for row in await self._db.all(_PENDING)]

    async def latest(self, since: int = 0, limit: int = 1000) -> Sequence[DeletedTenant]:
        """Those that were done since a time, and those that are not done."""
        return [DeletedTenant(**row) for row in await self._db.all(_LATEST, (since, limit))]

    async def delete_rows(self, tenant: int) -> bool:
        """Delete a piece of what the tenant had. True if there may be more."""
        for table, (key, which) in _TABLES.items():
            statement = f"delete from {table} where {key} in (select {key} from {table} where {which} limit {PIECE_ROWS})"
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
                await note(db, "hub", "tenant.deleted", tenant.id, tenant.name)

        await self._db.run(finish, tenant=tenant.id)

"""Scratchpads: notes of one agent, and notes that all agents of a tenant share.

`once` is the key of a write that may be repeated after a crash (`Database.run_once`).
"""

from __future__ import annotations

import time

from dragoman.errors import InvalidParams
from dragoman.hub.store.database import Database, Transaction
from dragoman.hub.store.policies import check_room, policy_of
from dragoman.model.ids import timestamp

MAX_BYTES = 4 << 20
_COUNT = "select count(*) from scratchpads where tenant_id = ?"
_BYTES = "select coalesce(sum(size), 0) from scratchpads where tenant_id = ?"
SHARED = ""
"""The scope of the shared scratchpad."""


class Scratchpads:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def read(self, tenant: str | int, scope: str) -> str:
        row = await self._db.one(
            "select content from scratchpads where tenant_id = ? and scope = ?", (int(tenant), scope)
        )
        return row["content"] if row is not None else ""

    async def add(self, tenant: str | int, scope: str, text: str, *, once: str = "") -> None:
        """Add a line with the time. Raises `InvalidParams` if the scratchpad is full, and `QuotaExceeded`."""
        line = f"[{timestamp()}] {text}\n"
        size = len(line.encode())

        async def work(db: Transaction) -> None:
            row = await db.one(
                "select size from scratchpads where tenant_id = ? and scope = ?",
                (int(tenant), scope),
            )
            if (row["size"] if row else 0) + size > MAX_BYTES:
                raise InvalidParams(f"the scratchpad is full ({MAX_BYTES} bytes): clear it first")
            policy = await policy_of(self._db, db, int(tenant))
            if row is None:
                await check_room(db, policy.max_scratchpads, _COUNT, (int(tenant),), "scratchpads")
            room = policy.max_scratchpad_mb << 20
            await check_room(db, room, _BYTES, (int(tenant),), "bytes in scratchpads", more=size)
            await db.change(
                "insert into scratchpads (tenant_id, scope, content, size, updated_at) values (?, ?, ?, ?, ?) "
                "on conflict (tenant_id, scope) do update set content = scratchpads.content || excluded.content, "
                "size = scratchpads.size + excluded.size, updated_at = excluded.updated_at",
                (int(tenant), scope, line, size, int(time.time())),
            )

        await self._db.run_once(once, work, None, tenant=int(tenant))

    async def clear(self, tenant: str | int, scope: str, *, once: str = "") -> None:
        async def work(db: Transaction) -> None:
            await db.change("delete from scratchpads where tenant_id = ? and scope = ?", (int(tenant), scope))

        await self._db.run_once(once, work, None, tenant=int(tenant))

    async def list(self, tenant: str | int) -> list[tuple[str, int, int]]:
        """All scratchpads: (scope, bytes, updated_at)."""
        rows = await self._db.all(
            "select scope, size, updated_at from scratchpads where tenant_id = ? order by scope",
            (int(tenant),),
        )
        return [(row["scope"], row["size"], row["updated_at"]) for row in rows]

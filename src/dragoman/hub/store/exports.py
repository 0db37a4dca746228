"""Reads the rows of a tenant for an export, page by page. No secret is among them: no hash of a token, no content of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from dragoman.hub.store.database import Database

PAGE_ROWS = 200

_BY_ID = {
    "conversations": "tenant_id = ?1",
    "messages": "conversation_id in (select id from conversations where tenant_id = ?1)",
    "artifacts": "tenant_id = ?1",
    "memories": "tenant_id = ?1",
    "relations": "tenant_id = ?1",
    "todos": "tenant_id = ?1",
    "schedules": "tenant_id = ?1",
    "runs": "tenant_id = ?1",
    "tokens": "tenant_id = ?1",
    "audit": "tenant_id = ?1",
}
"""Tables with an id, and which rows."""
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
"""Tables of tenants with what lasts for hours only."""
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
                    f"select {_columns(table)} from {table} where {_BY_ID[table]} and id > ?2 "
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


def _columns(table: str) -> str:
    """Large contents are not read at all."""
    if table == "artifacts":
        return "id, conversation_id, path, mime, sha256, size, created_at, updated_at"
    return "*"

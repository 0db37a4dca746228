"""What differs from the policy of the hub for a tenant, and the checks of storage that need the database.

It is a JSON object in the table `policies`, so it holds on every hub of the database from the next request on. The policy of the
hub is `Database.policy`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import InvalidParams, QuotaExceeded
from dragoman.hub.store.database import Database, Repository, Row, Transaction, transaction
from dragoman.hub.store.tokens import write_audit
from dragoman.hub.tenants.policy import Policy, override_policy

_OVERRIDE = "select document from policies where tenant_id = ?"
_PUT = """
insert into policies (tenant_id, document, updated_at) values (?, ?, ?)
on conflict (tenant_id) do update set document = excluded.document, updated_at = excluded.updated_at
"""
_DELETE = "delete from policies where tenant_id = ?"
_STORED = {
    "agents": "select count(*) from agents where tenant_id = ?",
    "versions": "select count(*) from agent_versions where tenant_id = ?",
    "conversations": "select count(*) from conversations where tenant_id = ?",
    "memories": "select count(*) from memories where tenant_id = ?",
    "artifacts": "select count(*) from artifacts where tenant_id = ?",
    "artifact_bytes": "select coalesce(sum(size), 0) from artifacts where tenant_id = ?",
    "scratchpads": "select count(*) from scratchpads where tenant_id = ?",
    "scratchpad_bytes": "select coalesce(sum(size), 0) from scratchpads where tenant_id = ?",
    "todos": "select count(*) from todos where tenant_id = ?",
    "schedules": "select count(*) from schedules where tenant_id = ?",
    "requests": "select count(*) from requests where tenant_id = ?",
}
_COUNTS = {**_STORED, "relations": "select count(*) from relations where tenant_id = ?"}
_WORDS = {
    "artifacts": "files",
    "memories": "entries in its memory",
    "relations": "relations in its memory",
    "scratchpad_bytes": "bytes in scratchpads",
    "versions": "versions of agents, which requests still use,",
}


class Policies(Repository):
    """The policies of all tenants."""

    async def of(self, tenant: str | int) -> Policy:
        row = await self._db.look_up(_OVERRIDE, (int(tenant),))
        return _policy(self._db.policy, row)

    async def own(self, tenant: int) -> dict[str, Any]:
        """What differs for a tenant."""
        row = await self._db.look_up(_OVERRIDE, (tenant,))
        return {} if row is None else dict(msgspec.json.decode(row["document"]))

    async def stored(self, tenant: int) -> dict[str, int]:
        """How much a tenant stores of what has a limit."""

        async def count(db: Transaction) -> dict[str, int]:
            return {name: int((await db.one(of, (tenant,)))[0]) for name, of in _STORED.items()}

        return await self._db.read(count)

    @transaction
    async def change(
        self, db: Transaction, tenant: int, changes: Mapping[str, Any], *, actor: str = "admin"
    ) -> Policy:
        """Change members of a tenant's own policy; null removes one. Raises `InvalidParams`."""
        row = await db.one(_OVERRIDE, (tenant,))
        own = {} if row is None else dict(msgspec.json.decode(row["document"]))
        for name, value in changes.items():
            if name not in Policy.__struct_fields__:
                raise InvalidParams(f"a policy has no {name[:80]!r}", fields=((name[:80], "is unknown"),))
            own[name] = value
        own = {name: value for name, value in own.items() if value is not None}
        policy = override_policy(self._db.policy, own)
        if own:
            await db.change(_PUT, (tenant, msgspec.json.encode(own).decode(), int(time.time())))
        else:
            await db.change(_DELETE, (tenant,))
        await write_audit(db, actor, "tenant.policy", tenant, msgspec.json.encode(dict(changes)).decode())
        return policy


async def policy_of(database: Database, db: Transaction, tenant: int) -> Policy:
    """The policy of a tenant, read in a transaction."""
    return _policy(database.policy, await db.one(_OVERRIDE, (tenant,)))


def _policy(default: Policy, row: Row) -> Policy:
    if row is None:
        return default
    own = msgspec.json.decode(row["document"])
    known = {name: value for name, value in own.items() if name in Policy.__struct_fields__}
    return override_policy(default, known)


async def check_room(
    database: Database, db: Transaction, tenant: int, table: str, *, limit: int | None = None, more: int = 1
) -> None:
    """Raise `QuotaExceeded` if a tenant has no room for `more` in a table. `limit`: instead of that of its policy; 0: none."""
    if limit is None:
        limit = getattr(await policy_of(database, db, tenant), f"max_{table}")
    if not limit:
        return
    used = (await db.one(_COUNTS[table], (tenant,)))[0]
    if used + more > limit:
        raise QuotaExceeded(
            f"this tenant has {used} {_WORDS.get(table, table)}, and may have {limit}: delete some first",
            metadata={"reason": "storage_limit"},
        )

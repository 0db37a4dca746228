"""The policies of tenants, and the checks of their limits that need the database.

The table `policies` has, as a JSON object, how the policy of a tenant differs from that of the hub (`Database.policy`). A change applies on
every hub of the database from the next request on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from dragoman.errors import InvalidParams, QuotaExceeded
from dragoman.hub.store.database import Repository, Row, Transaction, transaction
from dragoman.hub.store.tokens import write_audit
from dragoman.hub.tenants.policy import Policy, override_policy

_OVERRIDE = "select document from policies where tenant_id = ?"
_PUT = """
insert into policies (tenant_id, document, updated_at) values (?, ?, ?)
on conflict (tenant_id) do update set document = excluded.document, updated_at = excluded.updated_at
"""
_DELETE = "delete from policies where tenant_id = ?"
_COUNT = "select count(*) from {} where tenant_id = ?"
_SUM = "select coalesce(sum(size), 0) from {} where tenant_id = ?"
_COUNTED_TABLES = (
    "agents",
    "conversations",
    "memories",
    "artifacts",
    "scratchpads",
    "todos",
    "schedules",
    "requests",
)
_STORED = {
    **{table: _COUNT.format(table) for table in _COUNTED_TABLES},
    "versions": _COUNT.format("agent_versions"),
    "artifact_bytes": _SUM.format("artifacts"),
    "scratchpad_bytes": _SUM.format("scratchpads"),
}
_COUNTS = {**_STORED, "relations": _COUNT.format("relations")}
_DESCRIPTIONS = {
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
        """The members of a tenant's policy that differ from the hub's."""
        return _own(await self._db.look_up(_OVERRIDE, (tenant,)))

    async def stored(self, tenant: int) -> dict[str, int]:
        """How much a tenant stores of everything that has a limit."""

        async def count(db: Transaction) -> dict[str, int]:
            return {name: int((await db.one(of, (tenant,)))[0]) for name, of in _STORED.items()}

        return await self._db.read(count)

    @transaction
    async def change(
        self, db: Transaction, tenant: int, changes: Mapping[str, Any], *, actor: str = "admin"
    ) -> Policy:
        """Change members of a tenant's own policy; null removes one. Raises `InvalidParams`."""
        own = _own(await db.one(_OVERRIDE, (tenant,)))
        for name, value in changes.items():
            if name not in Policy.__struct_fields__:
                close = get_close_matches(name[:80], Policy.__struct_fields__, 1)
                hint = f": did you mean {close[0]!r}?" if close else ""
                raise InvalidParams(
                    f"a policy has no {name[:80]!r}{hint}", fields=((name[:80], "is unknown"),)
                )
            own[name] = value
        own = {name: value for name, value in own.items() if value is not None}
        policy = override_policy(self._db.policy, own)
        if own:
            await db.change(_PUT, (tenant, msgspec.json.encode(own).decode(), int(time.time())))
        else:
            await db.change(_DELETE, (tenant,))
        await write_audit(db, actor, "tenant.policy", tenant, msgspec.json.encode(dict(changes)).decode())
        return policy


async def policy_of(db: Transaction, tenant: int) -> Policy:
    """The policy of a tenant, read in a transaction."""
    return _policy(db.policy, await db.one(_OVERRIDE, (tenant,)))


def _policy(default: Policy, row: Row) -> Policy:
    known = {name: value for name, value in _own(row).items() if name in Policy.__struct_fields__}
    return override_policy(default, known) if known else default


def _own(row: Row) -> dict[str, Any]:
    return {} if row is None else dict(msgspec.json.decode(row["document"]))


async def check_room(
    db: Transaction, tenant: int, table: str, *, limit: int | None = None, more: int = 1
) -> None:
    """Raise `QuotaExceeded` if a tenant has no room for `more` in a table. `limit`: instead of that of its policy; 0: none."""
    if limit is None:
        limit = getattr(await policy_of(db, tenant), f"max_{table}")
    if not limit:
        return
    used = (await db.one(_COUNTS[table], (tenant,)))[0]
    if used + more > limit:
        raise QuotaExceeded(
            f"this tenant has {used} {_DESCRIPTIONS.get(table, table)}, and may have {limit}: delete some first",
            metadata={"reason": "storage_limit"},
        )

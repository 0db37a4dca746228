"""The agents of each tenant: constitutions, `index`, and agents that are code.

Every version of a constitution is stored, because a task continues with the version it started with; `delete_unused` deletes
old ones. Every tenant has `index` and the agents that are code, and cannot change them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dragoman.agent.agent import Agent
from dragoman.errors import InvalidParams, QuotaExceeded
from dragoman.hub.agents.constitution import INDEX, INDEX_ID, Constitution, build_card, read_constitution
from dragoman.hub.models.names import ModelNames
from dragoman.hub.store.database import Database, Row, Transaction, Work
from dragoman.hub.store.policies import Policies, check_room, policy_of
from dragoman.model.card import AgentCard
from dragoman.server.routes import Conflict, NotFound

T = TypeVar("T")

MAX_LISTED_AGENTS = 1000
MAX_LISTED_VERSIONS = 200
_STARTING_SECONDS = 60
"""After an inline version is stored, its request may be missing for so long."""
VERSIONS_FACTOR = 20
"""The limit of versions of all agents of a tenant, as a multiple of the limit of one agent."""

_ENTRY = """
select agents.version, document, created_at, updated_at from agents
join agent_versions using (tenant_id, agent_id, version) where tenant_id = ?
"""
_ONE = _ENTRY + "and agent_id = ?"
_ALL = _ENTRY + "order by updated_at desc, agent_id limit ?"
_VERSION = """
select version, document, at as created_at, at as updated_at from agent_versions
where tenant_id = ? and agent_id = ? and version = ?
"""
_VERSIONS = """
select version, at from agent_versions where tenant_id = ? and agent_id = ? and inline = 0 order by version desc limit ?
"""
_HAS_VERSIONS = "select 1 from agent_versions where tenant_id = ? and agent_id = ? limit 1"
_NEXT = "select coalesce(max(version), 0) + 1 from agent_versions where tenant_id = ? and agent_id = ?"
_ADD_VERSION = """
insert into agent_versions (tenant_id, agent_id, version, inline, document, at) values (?, ?, ?, ?, ?, ?)
"""
_PUT = """
insert into agents (tenant_id, agent_id, version, created_at, updated_at) values (?, ?, ?, ?, ?)
on conflict (tenant_id, agent_id) do update set version = excluded.version, updated_at = excluded.updated_at
"""
_DELETE_UNUSED = """
delete from agent_versions where (tenant_id, agent_id, version) in (
    select tenant_id, agent_id, version from agent_versions as old where at < ?1
    and (inline = 1 or exists (
        select 1 from agent_versions where tenant_id = old.tenant_id and agent_id = old.agent_id
        and version > old.version and inline = 0 and at < ?1
    ))
    and not exists (
        select 1 from requests where tenant_id = old.tenant_id and agent_id = old.agent_id
        and (version = old.version or version is null)
    )
    and not exists (
        select 1 from agents where tenant_id = old.tenant_id and agent_id = old.agent_id and version = old.version
    ) limit ?2
)
"""
_FIND_SAME = """
update agent_versions set at = ? where tenant_id = ? and agent_id = ? and inline = 1 and document = ? returning version
"""
_PRUNE = """
delete from agent_versions where tenant_id = ?1 and agent_id = ?2 and inline = 0 and version < coalesce((
    select version from agent_versions where tenant_id = ?1 and agent_id = ?2 and inline = 0
    order by version desc limit 1 offset ?3
), 0)
and not exists (select 1 from agents where tenant_id = ?1 and agent_id = ?2 and agents.version = agent_versions.version)
and not exists (
    select 1 from requests where tenant_id = ?1 and agent_id = ?2
    and (requests.version = agent_versions.version or requests.version is null)
)
"""
_DELETE_RELEASED = """
delete from agent_versions where tenant_id = ?1 and inline = 1 and at < ?2
and not exists (
    select 1 from requests where tenant_id = ?1 and agent_id = agent_versions.agent_id
    and (version = agent_versions.version or version is null)
)
"""
_DELETE = "delete from agents where tenant_id = ? and agent_id = ?"


class CatalogueEntry(Struct, frozen=True, kw_only=True):
    """One version of an agent that is a constitution. `index` has version 0."""

    constitution: Constitution
    version: int = 0
    created_at: int = 0
    updated_at: int = 0

    @property
    def id(self) -> str:
        return self.constitution.id

    @property
    def card(self) -> AgentCard:
        return build_card(self.constitution, self.id, str(self.updated_at or 1))

    @property
    def public(self) -> dict[str, Any]:
        """The agent as the API shows it, with every member."""
        out: dict[str, Any] = {
            field.name: msgspec.to_builtins(getattr(self.constitution, field.name))
            for field in msgspec.structs.fields(Constitution)
        }
        if self.constitution.advisor is None:
            del out["advisor"]
        if self.updated_at:
            out |= {"created_at": self.created_at, "updated_at": self.updated_at, "version": self.version}
        return out


class Catalogue:
    def __init__(
        self,
        database: Database,
        code: Sequence[Agent] = (),
        *,
        index: Constitution = INDEX,
        names: ModelNames | None = None,
    ) -> None:
        """`names`: the models that agents may name; None: any."""
        self._db, self._policies, self._names = database, Policies(database), names
        self.release_versions: Callable[[int], Awaitable[int]] | None = None
        """Releases the versions of requests that have ended, so that they can be deleted. Returns how many requests."""
        self.index = CatalogueEntry(constitution=index)
        self.code = {agent.id: agent for agent in code}
        if len(self.code) != len(code) or INDEX_ID in self.code:
            raise ValueError(f"agents that are code need ids of their own, and none may be {INDEX_ID!r}")

    # -- reading -----------------------------------------------------------------------------------------------

    async def find(self, tenant: int, agent: str) -> CatalogueEntry | Agent | None:
        """The agent that has this id now."""
        if agent == INDEX_ID:
            return self.index
        if (code := self.code.get(agent)) is not None:
            return code
        row = await self._db.look_up(_ONE, (tenant, agent))
        return None if row is None else _entry(row)

    async def version(self, tenant: int, agent: str, version: int) -> CatalogueEntry | None:
        """A version of an agent; `index` has only version 0."""
        if version == 0:
            return self.index if agent == INDEX_ID else None
        row = await self._db.look_up(_VERSION, (tenant, agent, version))
        return None if row is None else _entry(row)

    async def versions(self, tenant: int, agent: str) -> list[dict[str, int]]:
        """The stored versions of a constitution and when each was made, newest first."""
        rows = await self._db.all(_VERSIONS, (tenant, agent, MAX_LISTED_VERSIONS))
        return [{"version": row["version"], "created_at": row["at"]} for row in rows]

    async def existed(self, tenant: int, agent: str) -> bool:
        """True if there is or was such an agent: its tasks outlive it."""
        if agent == INDEX_ID or agent in self.code:
            return True
        return await self._db.look_up(_HAS_VERSIONS, (tenant, agent)) is not None

    async def list(self, tenant: int) -> list[CatalogueEntry]:
        """`index`, then the latest changed first."""

        async def read(db: Transaction) -> list[CatalogueEntry]:
            return [_entry(row) for row in await db.all(_ALL, (tenant, MAX_LISTED_AGENTS))]

        # decoded inside `read`, which for SQLite is on the reader's thread: together they may have fifty megabytes
        return [self.index, *await self._db.read(read)]

    async def constitutions(self, tenant: int) -> Sequence[Constitution]:
        """All agents of a tenant, those that are code included."""
        written = [entry.constitution for entry in await self.list(tenant)]
        return written + [
            Constitution(id=agent.id, name=agent.name, role="code", goal=agent.card.description)
            for agent in self.code.values()
        ]

    # -- writing -----------------------------------------------------------------------------------------------

    async def create(self, tenant: int, document: Any) -> CatalogueEntry:
        """Raises `InvalidParams` and `Conflict`."""
        constitution = self._read(document)
        await self._check_allowed(tenant, constitution)

        async def create(db: Transaction) -> CatalogueEntry:
            if (row := await db.one(_ONE, (tenant, constitution.id))) is not None:
                raise Conflict(f"there is an agent {constitution.id!r} already", existing=_entry(row).public)
            await check_room(db, tenant, "agents")
            return await self._put(db, tenant, constitution)

        return await self._run(create, tenant)

    async def replace(
        self, tenant: int, agent: str, document: Any, *, create: bool = False
    ) -> CatalogueEntry:
        """Replace a whole constitution; `create`: or create it. Raises `NotFound`, `Conflict`."""
        constitution = self._read(document, agent)
        if constitution.id != agent:
            why = f"differs from {agent!r}, which the address says"
            raise InvalidParams(f"the id of an agent does not change: it {why}", fields=(("id", why),))
        await self._check_allowed(tenant, constitution)

        async def replace(db: Transaction) -> CatalogueEntry:
            if await db.one(_ONE, (tenant, agent)) is None:
                if not create:
                    raise NotFound(f"there is no agent {agent!r}")
                await check_room(db, tenant, "agents")
            return await self._put(db, tenant, constitution)

        return await self._run(replace, tenant)

    async def delete(self, tenant: int, agent: str) -> None:
        """Raises `NotFound`. Running tasks continue."""
        self._check_editable(agent)
        gone = await self._db.change(_DELETE, (tenant, agent))
        if not gone:
            raise NotFound(f"there is no agent {agent[:80]!r}")

    async def read_inline(self, tenant: int, document: Any, id: str = "") -> Constitution:
        """Read an agent that comes with a request or a conversation. Raises `InvalidParams`."""
        constitution = read_constitution(document, id=id)
        self._check_editable(constitution.id)
        await self._check_allowed(tenant, constitution)
        return constitution

    async def _check_allowed(self, tenant: int, constitution: Constitution) -> None:
        """Raises `InvalidParams` for an agent that names a model which its tenant may not use."""
        if self._names is not None:
            self._names.check(await self._policies.of(tenant), constitution)

    async def store_inline(self, tenant: int, constitution: Constitution) -> int:
        """Store an agent that comes with a request, and return its version. The same document is stored once. Raises `QuotaExceeded`."""

        async def store(db: Transaction) -> int:
            now = int(time.time())
            same = await db.one(_FIND_SAME, (now, tenant, constitution.id, _encode(constitution)))
            if same is not None:
                return int(same["version"])
            return await self._store_version(db, tenant, constitution, now, inline=True)

        return await self._run(store, tenant)

    async def _run(self, work: Work[T], tenant: int) -> T:
        """Run `work`; if the tenant stores too many versions, once more after those of ended requests are deleted."""
        try:
            return await self._db.run(work, tenant=tenant)
        except QuotaExceeded:
            if self.release_versions is None or not await self.release_versions(tenant):
                raise
            await self._db.change(_DELETE_RELEASED, (tenant, int(time.time()) - _STARTING_SECONDS))
            return await self._db.run(work, tenant=tenant)

    async def _store_version(
        self, db: Transaction, tenant: int, constitution: Constitution, now: int, *, inline: bool = False
    ) -> int:
        """Store a version, delete old ones that no request uses, and return its number."""
        most = (await policy_of(db, tenant)).max_versions
        if most:
            await db.change(_PRUNE, (tenant, constitution.id, max(0, most - 2)))
            await check_room(db, tenant, "versions", limit=most * VERSIONS_FACTOR)
        version = int((await db.one(_NEXT, (tenant, constitution.id)))[0])
        await db.change(_ADD_VERSION, (tenant, constitution.id, version, inline, _encode(constitution), now))
        return version

    async def _put(self, db: Transaction, tenant: int, constitution: Constitution) -> CatalogueEntry:
        id, now = constitution.id, int(time.time())
        version = await self._store_version(db, tenant, constitution, now)
        await db.change(_PUT, (tenant, id, version, now, now))
        return _entry(await db.one(_ONE, (tenant, id)))

    async def delete_unused(self, before: int, limit: int) -> int:
        """Delete versions that no stored request uses: inline ones from before a time, and those replaced before it. Returns
        how many."""
        return await self._db.change(_DELETE_UNUSED, (before, limit))

    def _read(self, document: Any, id: str = "") -> Constitution:
        if isinstance(document, dict) and (wrapped := document.get("agent_def")) is not None:
            document = wrapped
        self._check_editable(id)
        constitution = read_constitution(document, id=id)
        self._check_editable(constitution.id)
        return constitution

    def _check_editable(self, agent: str) -> None:
        """Raises `InvalidParams` for agents that no tenant can change."""
        if agent == INDEX_ID or agent in self.code:
            kind = "built in" if agent == INDEX_ID else "code"
            raise InvalidParams(f"agent {agent!r} is {kind} and cannot be changed", fields=(("id", kind),))


def _encode(constitution: Constitution) -> str:
    return msgspec.json.encode(constitution).decode()


def _entry(row: Row) -> CatalogueEntry:
    return CatalogueEntry(
        constitution=msgspec.json.decode(row["document"], type=Constitution),
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )

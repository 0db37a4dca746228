"""Tasks in a PostgreSQL database: for any number of processes on any number of machines.

A task's row has its lease: `ready` says that there is work, `node` who does it, `fence` how often it was claimed. Whether a node
is alive is decided by the clock of the database, not by those of the machines; and on the node's own machine by its process
(`node_locks.py`), if it has a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from dragoman.engine.protocols import HeldLease, Lease
from dragoman.errors import Unavailable
from dragoman.model.ops import Scope
from dragoman.stores.node_locks import NodeLocks, machine_name
from dragoman.stores.postgres.address import LONG_COMMAND_SECONDS, Connection
from dragoman.stores.postgres.audit import PostgresAudit
from dragoman.stores.postgres.catalogue import PostgresCatalogue
from dragoman.stores.postgres.database import Database
from dragoman.stores.postgres.index import PostgresIndex
from dragoman.stores.postgres.log import PostgresLog
from dragoman.stores.postgres.push_queue import PostgresPushQueue
from dragoman.stores.postgres.state import StoreState
from dragoman.stores.rows import DEDUPE_SECONDS, claim_task

T = TypeVar("T")

_JOIN = """
insert into dragoman.nodes (node, until) values ($1, dragoman.clock() + $2)
on conflict (node) do update set until = excluded.until
"""
_HOLDS = "select key, fence, mail from dragoman.tasks where ready and node = $1 order by key"
_COUNT_UNCLAIMED = "select count(*) from dragoman.tasks where ready and node is null"
_COUNT_UNCLAIMED_OF = """
select tenant, agent, owner, n from
(select scope, count(*) as n from dragoman.tasks where ready and node is null group by scope) as waiting
join dragoman.scopes using (scope)
"""
_FIND_BEHIND = """
select asked.place from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::integer[])
with ordinality as asked(tenant, agent, owner, id, seq, place)
left join dragoman.scopes using (tenant, agent, owner)
left join dragoman.tasks on tasks.scope = scopes.scope and tasks.id = asked.id
where tasks.seq is null or tasks.seq > asked.seq
"""
_LEAVE = """
update dragoman.tasks set node = null where key in
(select key from dragoman.tasks where ready and node = $1 order by key for update)
"""
_LEAVE_WEBHOOKS = "update dragoman.webhooks set node = null where node = $1"
_END_NODE = "update dragoman.nodes set until = dragoman.clock() where node = $1"
_FREE = "ready and node is null"
_ORPHANED = (
    "ready and node <> $1 and node in (select node from dragoman.nodes where until <= dragoman.clock())"
)
_LAPSED = "select until <= dragoman.clock() from dragoman.nodes where node = $1"
_RENEW_NODE = """
with was as (select until <= dragoman.clock() as lapsed from dragoman.nodes where node = $1 for update), stays as (
    update dragoman.nodes set until = greatest(until, dragoman.clock() + $2::double precision) where node = $1
) select lapsed from was
"""
_SCOPES = f"""
select scope, tenant, agent, owner from dragoman.scopes where scope in
(select scope from dragoman.tasks where {_ORPHANED} union select scope from dragoman.tasks where {_FREE})
"""
# Two searches, because together they would look at all that runs.
_CANDIDATES = """
select key, scope, id, node, fence, attempt from dragoman.tasks
where {which} and $1::text is not null and scope = any($2::integer[]) order by key limit $3 for update skip locked
"""
_CLAIM = """
update dragoman.tasks set node = n.node, fence = n.fence, attempt = n.attempt
from unnest($1::bigint[], $2::text[], $3::integer[], $4::integer[]) as n(key, node, fence, attempt) where tasks.key = n.key
"""
_SEARCHES = (_CANDIDATES.format(which=_ORPHANED), _CANDIDATES.format(which=_FREE))
_OLD = """
select key, seq, size from dragoman.tasks where done = $3 and (done or node is null) and updated < $1
and (not webhooks or not exists
(select 1 from dragoman.webhooks where webhooks.key = tasks.key and cursor < last and not dead))
order by updated limit $2 for update skip locked
"""
_OF_TENANT = """
select key, seq, size from dragoman.tasks where scope in (select scope from dragoman.scopes where tenant = $1)
and (done or node is null) limit $2 for update skip locked
"""
_NAMED = """
select key, seq, size from dragoman.tasks where (scope, id) in (
    select scope, task from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as n(tenant, agent, owner, task)
    join dragoman.scopes using (tenant, agent, owner)
) and (done or node is null) for update
"""
_LEFT = """
select 1 from dragoman.tasks where scope in (select scope from dragoman.scopes where tenant = $1) limit 1
"""
_FORGET_SEEN = """
delete from dragoman.seen where scope in (select scope from dragoman.scopes where tenant = $1)
"""
_PURGE = (
    "delete from dragoman.log where key = any($1::bigint[]) and not key = any($2::bigint[])",
    "insert into dragoman.purged (key) select * from unnest($1::bigint[]) as n(key) where key = any($2::bigint[])",
    "delete from dragoman.webhooks where key = any($1::bigint[]) or key = any($2::bigint[])",
    """
    with gone as (
        delete from dragoman.tasks where key = any($1::bigint[]) or key = any($2::bigint[]) returning scope, state, reply
    ) insert into dragoman.counts as c (scope, state, slot, n)
    select scope, state, -1, -count(*) from gone where not reply or state <> 'TASK_STATE_SUBMITTED' group by scope, state
    order by scope, state on conflict (scope, state, slot) do update set n = c.n + excluded.n
    """,
)
_PIECE_ROWS, _PIECE_BYTES = 1000, 8 << 20
"""What one transaction deletes of a log. A single append may be larger."""
KEEP_NODES_SECONDS = 24 * 60 * 60.0
"""How long dead nodes and writers stay listed."""
_PURGE_SEEN = """
delete from dragoman.seen where (scope, dedupe) in
(select scope, dedupe from dragoman.seen where at <= dragoman.clock() - $1::double precision limit 1000)
"""
_NEXT_PURGED = "select key from dragoman.purged order by key limit 1 for update skip locked"
_PURGE_PIECE = f"""
delete from dragoman.log where key = $1 and seq in
(select seq from dragoman.log where key = $1 order by seq limit {_PIECE_ROWS})
"""
_NO_LOG = "delete from dragoman.purged where key = $1"
_PURGE_NODES = """
delete from dragoman.nodes where until <= dragoman.clock() - $1::double precision
and not exists (select 1 from dragoman.tasks where ready and tasks.node = nodes.node)
"""
_PURGE_WRITERS = "delete from dragoman.writers where at <= dragoman.clock() - $1::double precision"
_QUOTA = "select body, dragoman.clock() from dragoman.quotas where key = $1 for update"
_NEW_QUOTA = "insert into dragoman.quotas (key, body, until) values ($1, '', 0) on conflict do nothing"
_PUT_QUOTA = "update dragoman.quotas set body = $2, until = $3 where key = $1"
_PURGE_QUOTAS = """
delete from dragoman.quotas where key in
(select key from dragoman.quotas where until <= dragoman.clock() limit 1000 for update skip locked)
"""
MAX_CACHED_LOGS = 10_000
MAX_READERS, MAX_WRITERS = 4, 3
"""Connections to the database."""
LEAVE_SECONDS = 5.0
"""How long `leave` may take: a process that stops waits for it."""

HOLD_ATTEMPTS, HOLD_PAUSE_SECONDS = 30, 0.1
"""How often, and after which pause, a node tries to take its lock."""


class PostgresQuotas:
    """`QuotaStore` of one database."""

    spans_machines = True

    def __init__(self, database: Database) -> None:
        self._database = database

    async def change(self, key: str, change: Callable[[bytes, float], tuple[bytes, float, T]]) -> T:
        async def work(db: Connection) -> T:
            while (row := await db.fetchrow(_QUOTA, key)) is None:
                await db.execute(_NEW_QUOTA, key)  # waits for a transaction that inserts it at the same time
            body, until, answer = change(row[0], row[1])
            await db.execute(_PUT_QUOTA, key, body, until)
            return answer

        return await self._database.write(work)


class PostgresStore:
    persistent = True

    def __init__(
        self,
        url: str,
        *,
        outage_timeout: float = 5.0,
        cached_snapshots: int = 256,
        folder: Path | None = None,
    ) -> None:
        """`outage_timeout`: for how many seconds operations wait for a database that is away. `cached_snapshots`: how many stay in
        memory. `folder`: where the nodes hold their locks."""
        self._locks = None if folder is None else NodeLocks(folder / f"nodes-{machine_name()}")
        self._database = Database(
            url, outage_timeout=outage_timeout, readers=MAX_READERS, writers=MAX_WRITERS
        )
        self.push_configs = self.push_queue = PostgresPushQueue(self._database)
        self.audit = PostgresAudit(self._database)
        self.catalogue = PostgresCatalogue(self._database)
        self.index = PostgresIndex(self._database)
        self.quotas = PostgresQuotas(self._database)
        self.state = StoreState(self._database, self.push_configs, cached_snapshots=cached_snapshots)
        self._logs: dict[Scope, PostgresLog] = {}
        self._waiting = 0
        self._ttls: dict[str, float] = {}
        """Seconds that a heartbeat of each node that joined here counts."""

    async def open(self) -> None:
        await self.state.open()
        self.audit.open()

    async def close(self) -> None:
        self._database.stop_waiting()
        await self.audit.close()
        await self.state.close()
        if self._locks is not None:
            self._locks.drop_all()

    def scope(self, scope: Scope) -> PostgresLog:
        log = self._logs.get(scope)
        if log is None:
            if len(self._logs) >= MAX_CACHED_LOGS:
                self._logs.clear()
            log = self._logs[scope] = PostgresLog(self.state, scope)
        return log

    async def join(self, node: str, *, ttl: float) -> None:
        if self._locks is not None:
            with suppress(OSError):  # a file system without locks: other nodes wait until our lease lapses
                await self._hold(self._locks, node)
        await self.renew(node, ttl=ttl)

        async def tidy(db: Connection) -> None:
            await db.execute(_LEAVE, node)
            await db.execute(_LEAVE_WEBHOOKS, node)
            for statement in (_PURGE_NODES, _PURGE_WRITERS):
                await db.execute(statement, KEEP_NODES_SECONDS)

        await self._database.write(tidy)

    async def _hold(self, locks: NodeLocks, node: str) -> None:
        """Take the lock of a node. Another node may just be removing one of the same name that died: wait a moment for that."""
        for _ in range(HOLD_ATTEMPTS):
            try:
                return locks.hold(node)
            except RuntimeError:
                await asyncio.sleep(HOLD_PAUSE_SECONDS)
        locks.hold(node)

    async def renew(self, node: str, *, ttl: float) -> Sequence[HeldLease]:
        async def work(db: Connection) -> Sequence[HeldLease]:
            for each in gone:
                await _leave(db, each)
            await db.execute(_JOIN, node, ttl)
            self._waiting = await db.fetchval(_COUNT_UNCLAIMED)
            return [HeldLease(*row) for row in await db.fetch(_HOLDS, node)]

        with ExitStack() as stack:
            gone = [] if self._locks is None else stack.enter_context(self._locks.dead_nodes())
            held = await self._database.write(work)
        self.state.nodes.add(node)
        self._ttls[node] = ttl
        return held

    async def leave(self, node: str) -> None:
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._database.finish_writes()  # a claim that goes on would bring the node back
                await self._database.write(lambda db: _leave(db, node))
        except TimeoutError:  # our lease lapses by itself
            raise Unavailable("the database does not answer") from None
        if self._locks is not None:
            self._locks.drop(node)

    async def claim(
        self,
        node: str,
        *,
        limit: int,
        serves: Callable[[Scope], bool] | None = None,
        may_take_over: Callable[[], bool] | None = None,
    ) -> Sequence[Lease]:
        await self.state.ensure_node(node)
        waiting = await self._database.read(lambda db: db.fetch(_SCOPES, node))
        scopes = {number: Scope(*names) for number, *names in waiting}
        ours = [number for number, scope in scopes.items() if serves is None or serves(scope)]
        if not ours and not await self._database.read(lambda db: db.fetchval(_LAPSED, node)):
            return ()

        async def work(db: Connection) -> Sequence[Lease]:
            leases: list[Lease] = []
            ttl = self._ttls.get(node)  # None if the node never joined
            lapsed = ttl is not None and await db.fetchval(_RENEW_NODE, node, ttl)
            # After an outage of the database, nodes without a heartbeat need not be dead.
            alone = lapsed or self._database.recovering or not (may_take_over is None or may_take_over())
            for search in _SEARCHES[alone:]:
                if len(leases) < limit:
                    rows = await db.fetch(search, node, ours, limit - len(leases))
                    for key, scope, task, *held in rows:
                        leases.append(claim_task(node, scopes[scope], task, key, *held))
            if leases:
                columns = zip(
                    *[(lease.key, node, lease.fence, lease.attempt) for lease in leases], strict=True
                )
                await db.execute(_CLAIM, *map(list, columns))
            return leases

        return await self._database.write(work)

    async def release(self, lease: Lease, *, failed: bool = False) -> None:
        await self.state.release(lease, failed=failed)

    async def purge(self, before: str, *, limit: int, unfinished: bool = False) -> int:
        return await self._purge(_OLD, before, limit, not unfinished)

    async def _purge(self, which: str, *values: object) -> int:
        """Delete the tasks that a statement finds."""

        async def work(db: Connection) -> Sequence[int]:
            room = _PIECE_BYTES
            now: list[int] = []
            later: list[int] = []
            for key, seq, size in await db.fetch(which, *values):
                room -= size
                (now if seq <= _PIECE_ROWS and room >= 0 else later).append(key)
            if now or later:
                for statement in _PURGE:
                    await db.execute(statement, now, later, timeout=LONG_COMMAND_SECONDS)
            return [*now, *later]

        purged = await self._database.write(work)
        for key in purged:
            self.state.reads.snapshots.drop(key)
        return len(purged)

    async def purge_tenant(self, tenant: str, *, limit: int) -> tuple[int, bool]:
        gone = await self._purge(_OF_TENANT, tenant, limit)

        async def look(db: Connection) -> bool:
            await db.execute(_FORGET_SEEN, tenant)
            return await db.fetchval(_LEFT, tenant) is not None

        return gone, await self._database.write(look)

    async def purge_tasks(self, tasks: Sequence[tuple[Scope, str]]) -> int:
        names = [(scope.tenant, scope.agent, scope.owner, task) for scope, task in tasks]
        return await self._purge(_NAMED, *map(list, zip(*names, strict=True))) if names else 0

    async def tidy(self) -> bool:
        async def work(db: Connection) -> bool:
            more = False
            if (key := await db.fetchval(_NEXT_PURGED)) is not None:
                more = True
                if _count(await db.execute(_PURGE_PIECE, key, timeout=LONG_COMMAND_SECONDS)) < _PIECE_ROWS:
                    await db.execute(_NO_LOG, key)
            more |= _count(await db.execute(_PURGE_SEEN, DEDUPE_SECONDS)) >= 1000
            more |= _count(await db.execute(_PURGE_QUOTAS)) >= 1000
            await db.execute(_PURGE_NODES, KEEP_NODES_SECONDS)
            await db.execute(_PURGE_WRITERS, KEEP_NODES_SECONDS)
            return more

        return await self._database.write(work)

    def damage(self) -> str:
        return str(self.state.reads.damage)

    def count_unclaimed(self) -> int:
        """As of the last heartbeat."""
        return self._waiting

    async def count_unclaimed_of(self, serves: Callable[[Scope], bool]) -> int:
        rows = await self._database.read(lambda db: db.fetch(_COUNT_UNCLAIMED_OF))
        return sum(n for *names, n in rows if serves(Scope(*names)))

    def time_commits(self, report: Callable[[float], None]) -> None:
        self.state.on_commit = report

    async def find_behind(self, cursors: Sequence[tuple[Scope, str, int]]) -> Sequence[int]:
        asked = [(scope.tenant, scope.agent, scope.owner, task, after) for scope, task, after in cursors]
        if not asked:
            return ()
        columns = [list(column) for column in zip(*asked, strict=True)]
        rows = await self._database.read(lambda db: db.fetch(_FIND_BEHIND, *columns))
        return [place - 1 for (place,) in rows]


async def _leave(db: Connection, node: str) -> None:
    """Release everything that a node holds."""
    for statement in (_LEAVE, _LEAVE_WEBHOOKS, _END_NODE):
        await db.execute(statement, node)


def _count(status: str) -> int:
    """How many rows a statement changed, from the status that the database returns: `DELETE 3`."""
    return int(status.rpartition(" ")[2])

"""Tasks in one SQLite file: for one process, or for several processes of one machine.

A task's row has its lease: `ready` says that there is work, `node` who does it, `fence` how often it was claimed.
Every change is one job in a shared transaction (`sqlite/commits.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

from msgspec import json

from dragoman.engine.protocols import HeldLease, Lease
from dragoman.model.ops import Scope
from dragoman.stores import lease_clock
from dragoman.stores.node_locks import NodeLocks
from dragoman.stores.rows import claim_task
from dragoman.stores.sqlite import purge, push_queue
from dragoman.stores.sqlite.audit import SqliteAudit
from dragoman.stores.sqlite.catalogue import SqliteCatalogue
from dragoman.stores.sqlite.commits import NOTHING, Finish
from dragoman.stores.sqlite.file import SqliteFile
from dragoman.stores.sqlite.index import SqliteIndex
from dragoman.stores.sqlite.log import SET_LEASE, SqliteLog, submit_release
from dragoman.stores.sqlite.push_queue import SqlitePushQueue

T = TypeVar("T")

_NODES = "select node from nodes"
_JOIN = "insert or replace into nodes (node, until) values (?, ?)"
_UNTIL = "select until from nodes where node = ?"
_END_NODE = "delete from nodes where node = ?"
_LEAVE = "update tasks set node = null where ready = 1 and node = ?"
_HOLDS = "select key, fence, mail from tasks where ready = 1 and node = ? order by key"
_TASKS = """
select key, tenant, agent, owner, id, node, fence, attempt
from tasks indexed by tasks_ready cross join scopes using (scope) where ready = 1
"""
_ORPHANED = (
    _TASKS
    + """
and node is not null and node <> ? and node not in (select node from nodes where until > ?) order by key
"""
)
_FREE = _TASKS + "and node is null order by key"
_COUNT_UNCLAIMED = "select count(*) from tasks where ready = 1 and node is null"
_COUNT_UNCLAIMED_OF = """
select tenant, agent, owner, n from
(select scope, count(*) as n from tasks indexed by tasks_ready where ready = 1 and node is null group by scope)
cross join scopes using (scope)
"""
_FIND_BEHIND = """
select asked.key from json_each(?) as asked
left join tasks on tasks.scope = asked.value ->> 0 and tasks.id = asked.value ->> 1
where tasks.seq is null or tasks.seq > asked.value ->> 2
"""
_QUOTA = "select body from quotas where key = ?"
_PUT_QUOTA = "insert or replace into quotas (key, body, until) values (?, ?, ?)"
READERS_PER_SEARCH = 1000
"""Readers in one statement of `find_behind`."""
MAX_CACHED_LOGS = 10_000


class SqliteQuotas:
    """`QuotaStore` of one file."""

    spans_machines = False

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def change(self, key: str, change: Callable[[bytes, float], tuple[bytes, float, T]]) -> T:
        def job(db: Connection) -> Finish[T]:
            row = db.execute(_QUOTA, (key,)).fetchone()
            body, until, answer = change(row[0] if row else b"", lease_clock.now())
            db.execute(_PUT_QUOTA, (key, body, until))
            return lambda: answer

        return await self._file.commits.submit(job)


class SqliteStore:
    persistent = True

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "full",
        busy_timeout: float = 10.0,
        cached_snapshots: int = 128,
    ) -> None:
        """`busy_timeout`: seconds to wait while another process writes. `cached_snapshots`: how many stay in memory, few enough for
        the cache of the processor.

        `synchronous` is SQLite's. With `normal`, the last commits may be lost in a power cut, but not in a crash.
        """
        if str(path) == ":memory:":
            raise ValueError("SQLite's :memory: is for one connection; use MemoryStore")
        self.file = SqliteFile(
            Path(path), synchronous=synchronous, busy_timeout=busy_timeout, cached_snapshots=cached_snapshots
        )
        self._locks = NodeLocks(Path(f"{path}-nodes"))
        self.push_configs = self.push_queue = SqlitePushQueue(self.file, self._remove_dead_nodes)
        self.audit = SqliteAudit(self.file)
        self.catalogue = SqliteCatalogue(self.file)
        self.index = SqliteIndex(self.file, self._locks)
        self.quotas = SqliteQuotas(self.file)
        self._logs: dict[Scope, SqliteLog] = {}
        self._ttls: dict[str, float] = {}
        """Seconds that a heartbeat of each node that joined here counts."""

    async def open(self) -> None:
        await self.file.open()

    async def close(self) -> None:
        await self.file.close()
        self._locks.drop_all()

    def scope(self, scope: Scope) -> SqliteLog:
        log = self._logs.get(scope)
        if log is None:
            if len(self._logs) >= MAX_CACHED_LOGS:
                self._logs.clear()
            log = self._logs[scope] = SqliteLog(self.file, scope, self.push_configs)
        return log

    async def join(self, node: str, *, ttl: float) -> None:
        self._locks.hold(node)
        self._ttls[node] = ttl
        await self.file.commits.submit(partial(self._join_job, node, ttl))

    async def renew(self, node: str, *, ttl: float) -> Sequence[HeldLease]:
        self._locks.hold(node)
        self._ttls[node] = ttl
        return await self.file.commits.submit(partial(self._renew_job, node, ttl))

    async def leave(self, node: str) -> None:
        await self.file.commits.submit(partial(_leave_job, node))
        self._ttls.pop(node, None)
        self._locks.drop(node)

    async def claim(
        self,
        node: str,
        *,
        limit: int,
        serves: Callable[[Scope], bool] | None = None,
        may_take_over: Callable[[], bool] | None = None,
    ) -> Sequence[Lease]:
        return await self.file.commits.submit(partial(self._claim_job, node, limit, serves, may_take_over))

    async def release(self, lease: Lease, *, failed: bool = False) -> None:
        await submit_release(self.file.commits, lease, failed=failed)

    async def purge(self, before: str, *, limit: int, unfinished: bool = False) -> int:
        old = await self.file.reads.in_thread(partial(purge.find, before, limit, unfinished))
        return await self.file.commits.submit(partial(purge.purge, self.file, before, old))

    async def purge_tenant(self, tenant: str, *, limit: int) -> tuple[int, bool]:
        gone = await self._purge_found(partial(purge.find_of_tenant, tenant, limit))
        return gone, await self.file.commits.submit(partial(purge.forget_tenant, tenant))

    async def purge_tasks(self, tasks: Sequence[tuple[Scope, str]]) -> int:
        return await self._purge_found(partial(purge.find_named, tasks))

    async def _purge_found(self, find: Callable[[Connection], Sequence[tuple[int]]]) -> int:
        if found := await self.file.reads.in_thread(find):
            return await self.file.commits.submit(partial(purge.purge, self.file, purge.LAST_TIME, found))
        return 0

    async def tidy(self) -> bool:
        return await self.file.commits.submit(partial(purge.tidy, self.file))

    def damage(self) -> str:
        return str(self.file.reads.damage)

    def count_unclaimed(self) -> int:
        row = self.file.reads.one(_COUNT_UNCLAIMED, ())
        return int(row[0]) if row else 0

    async def count_unclaimed_of(self, serves: Callable[[Scope], bool]) -> int:
        rows = await self.file.reads.in_thread(lambda db: db.execute(_COUNT_UNCLAIMED_OF).fetchall())
        return sum(n for *names, n in rows if serves(Scope(*names)))

    def time_commits(self, report: Callable[[float], None]) -> None:
        self.file.on_commit = report

    async def find_behind(self, cursors: Sequence[tuple[Scope, str, int]]) -> Sequence[int]:
        if not self.file.commits.changed():
            return ()
        reads, places = self.file.reads, []
        known = [(reads.scope(scope), task, after) for scope, task, after in cursors]
        for start in range(0, len(known), READERS_PER_SEARCH):
            asked = json.encode(known[start : start + READERS_PER_SEARCH]).decode()
            places += [start + place for (place,) in await reads.in_thread(partial(_find_behind, asked))]
        return places

    def _join_job(self, node: str, ttl: float, db: Connection) -> Finish[None]:
        _leave_job(node, db)
        self._renew_job(node, ttl, db)
        return NOTHING

    def _renew_job(self, node: str, ttl: float, db: Connection) -> Finish[Sequence[HeldLease]]:
        self._remove_dead_nodes(db)
        db.execute(_JOIN, (node, lease_clock.now() + ttl))
        held = [HeldLease(*row) for row in db.execute(_HOLDS, (node,))]
        return lambda: held

    def _claim_job(
        self,
        node: str,
        limit: int,
        serves: Callable[[Scope], bool] | None,
        may_take_over: Callable[[], bool] | None,
        db: Connection,
    ) -> Finish[Sequence[Lease]]:
        self._remove_dead_nodes(db)
        now, joined = lease_clock.now(), db.execute(_UNTIL, (node,)).fetchone()
        lapsed = joined is not None and joined[0] <= now
        # Nodes whose processes are gone were removed. Other nodes without a heartbeat may have waited for the file, as this one did.
        only_free = lapsed or not (may_take_over is None or may_take_over())
        # Two statements: one for both would sort all waiting tasks.
        orphaned = db.execute(_ORPHANED, (node, float("-inf") if only_free else now))
        waiting = chain(orphaned, db.execute(_FREE))
        free = ((Scope(*row[1:4]), row) for row in waiting)
        chosen = list(islice((each for each in free if serves is None or serves(each[0])), limit))
        if (lapsed or chosen) and joined is not None and (ttl := self._ttls.get(node)) is not None:
            db.execute(_JOIN, (node, max(joined[0], now + ttl)))  # so that no other node claims them at once
        leases = [claim_task(node, scope, task, key, *held) for scope, (key, _, _, _, task, *held) in chosen]
        db.executemany(SET_LEASE, [(node, lease.fence, lease.attempt, lease.key) for lease in leases])
        return lambda: leases

    def _remove_dead_nodes(self, db: Connection) -> None:
        """Delete the nodes whose processes are gone. Their tasks can be claimed."""
        for (node,) in db.execute(_NODES).fetchall():
            if self._locks.is_dead(node):
                db.execute(_END_NODE, (node,))


def _find_behind(asked: str, db: Connection) -> list[tuple[int]]:
    return db.execute(_FIND_BEHIND, (asked,)).fetchall()


def _leave_job(node: str, db: Connection) -> Finish[None]:
    db.execute(_LEAVE, (node,))
    push_queue.leave(db, node)
    db.execute(_END_NODE, (node,))
    return NOTHING

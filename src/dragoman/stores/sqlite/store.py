"""Tasks in one SQLite file: for one process, or for several beside each other on one machine.

A task's row carries its lease: `ready` says that there is work, `node` who does it, `fence` how often it was claimed.
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
from dragoman.engine.records import CACHE_BYTES
from dragoman.engine.transition import Claim, TaskRow, decide
from dragoman.model.ops import Scope
from dragoman.stores import heartbeat
from dragoman.stores.node_locks import NodeLocks
from dragoman.stores.sqlite import purge, push_queue
from dragoman.stores.sqlite.audit import SqliteAudit
from dragoman.stores.sqlite.catalogue import SqliteCatalogue
from dragoman.stores.sqlite.commits import NOTHING, Finish
from dragoman.stores.sqlite.file import SqliteFile
from dragoman.stores.sqlite.index import SqliteIndex
from dragoman.stores.sqlite.log import SqliteLog, release
from dragoman.stores.sqlite.push_queue import SqlitePushQueue

T = TypeVar("T")

_NODES = "select node from nodes"
_JOIN = "insert or replace into nodes (node, until) values (?, ?)"
_UNTIL = "select until from nodes where node = ?"
_GONE = "delete from nodes where node = ?"
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
_WAITING = "select count(*) from tasks where ready = 1 and node is null"
_BACKLOG = """
select tenant, agent, owner, n from
(select scope, count(*) as n from tasks indexed by tasks_ready where ready = 1 and node is null group by scope)
cross join scopes using (scope)
"""
_BEHIND = """
select asked.key from json_each(?) as asked
left join tasks on tasks.scope = asked.value ->> 0 and tasks.id = asked.value ->> 1
where tasks.seq is null or tasks.seq > asked.value ->> 2
"""
_QUOTA = "select body from quotas where key = ?"
_PUT_QUOTA = "insert or replace into quotas (key, body, until) values (?, ?, ?)"
READERS_PER_SEARCH = 1000
"""Readers that are looked for in one search."""
_CLAIM = "update tasks set node = ?, fence = ?, attempt = ? where key = ?"
MAX_CACHED_LOGS = 10_000


class SqliteQuotas:
    """`QuotaStore` of one file."""

    spans_machines = False

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def change(self, key: str, change: Callable[[bytes, float], tuple[bytes, float, T]]) -> T:
        def work(db: Connection) -> Finish[T]:
            row = db.execute(_QUOTA, (key,)).fetchone()
            body, until, answer = change(row[0] if row else b"", heartbeat.now())
            db.execute(_PUT_QUOTA, (key, body, until))
            return lambda: answer

        return await self._file.commits.submit(work)


class SqliteStore:
    persistent = True

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "full",
        patience: float = 10.0,
        keep: int = 128,
        keep_bytes: int = CACHE_BYTES,
    ) -> None:
        """`patience` is how long to wait while another process writes; `keep` is how many snapshots stay in memory, few
        enough for the processor's own, and `keep_bytes` how large they are together.

        `synchronous` is SQLite's. With `normal`, a power cut may take the last moments with it; a crash does not.
        """
        if str(path) == ":memory:":
            raise ValueError("SQLite's :memory: is for one connection; use MemoryStore")
        self.file = SqliteFile(
            Path(path), synchronous=synchronous, patience=patience, keep=keep, keep_bytes=keep_bytes
        )
        self._locks = NodeLocks(Path(f"{path}-nodes"))
        self.push_configs = self.push_queue = SqlitePushQueue(self.file, self._remove_dead_nodes)
        self.audit = SqliteAudit(self.file)
        self.catalogue = SqliteCatalogue(self.file)
        self.index = SqliteIndex(self.file, self._locks)
        self.quotas = SqliteQuotas(self.file)
        self._logs: dict[Scope, SqliteLog] = {}
        self._ttls: dict[str, float] = {}
        """How long each node that joined here is alive after it says so."""

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
        await self.file.commits.submit(partial(self._join, node, ttl))

    async def renew(self, node: str, *, ttl: float) -> Sequence[HeldLease]:
        self._locks.hold(node)
        self._ttls[node] = ttl
        return await self.file.commits.submit(partial(self._renew, node, ttl))

    async def leave(self, node: str) -> None:
        await self.file.commits.submit(partial(_leave, node))
        self._ttls.pop(node, None)
        self._locks.drop(node)

    async def claim(
        self,
        node: str,
        *,
        limit: int,
        fits: Callable[[Scope], bool] | None = None,
        takes_over: Callable[[], bool] | None = None,
    ) -> Sequence[Lease]:
        return await self.file.commits.submit(partial(self._claim, node, limit, fits, takes_over))

    async def release(self, lease: Lease, *, failed: bool = False) -> None:
        await self.file.commits.submit(partial(release, lease, failed))

    async def purge(self, before: str, *, limit: int, unfinished: bool = False) -> int:
        old = await self.file.reads.in_thread(partial(purge.find, before, limit, unfinished))
        return await self.file.commits.submit(partial(purge.purge, self.file, before, old))

    async def purge_tenant(self, tenant: str, *, limit: int) -> tuple[int, bool]:
        found = await self.file.reads.in_thread(partial(purge.find_of_tenant, tenant, limit))
        gone = (
            await self.file.commits.submit(partial(purge.purge, self.file, purge.LAST_TIME, found))
            if found
            else 0
        )
        return gone, await self.file.commits.submit(partial(purge.forget_tenant, tenant))

    async def tidy(self) -> bool:
        return await self.file.commits.submit(partial(purge.tidy, self.file))

    def damage(self) -> str:
        return str(self.file.reads.damage)

    def waiting(self) -> int:
        row = self.file.reads.one(_WAITING, ())
        return int(row[0]) if row else 0

    async def backlog(self, fits: Callable[[Scope], bool]) -> int:
        rows = await self.file.reads.in_thread(lambda db: db.execute(_BACKLOG).fetchall())
        return sum(n for *names, n in rows if fits(Scope(*names)))

    def time_commits(self, report: Callable[[float], None]) -> None:
        self.file.on_commit = report

    async def behind(self, cursors: Sequence[tuple[Scope, str, int]]) -> Sequence[int]:
        if not self.file.commits.changed():
            return ()
        reads, places = self.file.reads, []
        known = [(reads.scope(scope), task, after) for scope, task, after in cursors]
        for start in range(0, len(known), READERS_PER_SEARCH):
            asked = json.encode(known[start : start + READERS_PER_SEARCH]).decode()
            rows = await reads.in_thread(lambda db, asked=asked: db.execute(_BEHIND, (asked,)).fetchall())  # type: ignore[misc]
            places += [start + place for (place,) in rows]
        return places

    def _join(self, node: str, ttl: float, db: Connection) -> Finish[None]:
        _leave(node, db)
        self._renew(node, ttl, db)
        return NOTHING

    def _renew(self, node: str, ttl: float, db: Connection) -> Finish[Sequence[HeldLease]]:
        self._remove_dead_nodes(db)
        db.execute(_JOIN, (node, heartbeat.now() + ttl))
        held = [HeldLease(*row) for row in db.execute(_HOLDS, (node,))]
        return lambda: held

    def _claim(
        self,
        node: str,
        limit: int,
        fits: Callable[[Scope], bool] | None,
        takes_over: Callable[[], bool] | None,
        db: Connection,
    ) -> Finish[Sequence[Lease]]:
        self._remove_dead_nodes(db)
        now, joined = heartbeat.now(), db.execute(_UNTIL, (node,)).fetchone()
        lapsed = joined is not None and joined[0] <= now
        # Who is buried is dead; who is only silent may have had to wait for the file, as we had.
        patient = lapsed or not (takes_over is None or takes_over())
        # Two searches, because together they would sort everything that waits.
        orphaned = db.execute(_ORPHANED, (node, float("-inf") if patient else now))
        waiting = chain(orphaned, db.execute(_FREE))
        free = ((Scope(*row[1:4]), row) for row in waiting)
        chosen = list(islice((each for each in free if fits is None or fits(each[0])), limit))
        leases = []
        if (lapsed or chosen) and joined is not None and (ttl := self._ttls.get(node)) is not None:
            db.execute(_JOIN, (node, max(joined[0], now + ttl)))  # what we take is not anybody else's at once
        for scope, (key, _, _, _, task, holder, fence, attempt) in chosen:
            held = TaskRow(ready=True, node=holder or "", fence=fence, attempt=attempt)
            row = decide(held, Claim(node, holder_alive=False)).row
            db.execute(_CLAIM, (row.node, row.fence, row.attempt, key))
            leases.append(Lease(scope, task, key, row.fence, row.attempt))
        return lambda: leases

    def _remove_dead_nodes(self, db: Connection) -> None:
        """Forget the nodes whose processes are gone: what they held is free."""
        for (node,) in db.execute(_NODES).fetchall():
            if self._locks.dead(node):
                db.execute(_GONE, (node,))


def _leave(node: str, db: Connection) -> Finish[None]:
    db.execute(_LEAVE, (node,))
    push_queue.leave(db, node)
    db.execute(_GONE, (node,))
    return NOTHING

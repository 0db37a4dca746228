"""Tasks in one SQLite file: a single node, or several processes beside each other on one machine.

Writing is one transaction per batch (`commits.py`), reading is separate (`reads.py`). A task's row carries its lease:
`ready` says that there is work, `node` who does it, `fence` how often it was claimed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.engine.log import Cancel, Mail, Record, Snapshot, number, pack
from dragoman.engine.seams import Delivered, Found, Held, Lease, LeaseLost, NewMail, TaskExists
from dragoman.errors import TaskClosed, TaskNotFound, Unavailable
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from dragoman.stores.commits import Commits, Finish
from dragoman.stores.migrate import migrate
from dragoman.stores.nodes import NodeLocks
from dragoman.stores.reads import Reads

DAY = 24 * 60 * 60.0

_SCOPE = "select scope from scopes where tenant = ? and agent = ? and owner = ?"
_NEW_SCOPE = "insert into scopes (tenant, agent, owner) values (?, ?, ?)"
_CREATE = """
insert into tasks (scope, id, context, updated, state, reply, seq, mail, node, fence, attempt)
values (?, ?, ?, ?, 'TASK_STATE_SUBMITTED', ?, 1, 1, ?, ?, ?)
"""
_LOG = "insert into log (key, seq, body) values (?, ?, ?)"
_TASK = "select key, seq, state, updated, done, node, fence, attempt from tasks where scope = ? and id = ?"
_DELIVER = (
    "update tasks set seq = ?1, mail = ?1, ready = 1, node = ?2, fence = ?3, attempt = ?4 where key = ?5"
)
_ALIVE = "select 1 from nodes where node = ? and until > ?"
_HELD = "select seq, mail from tasks where key = ? and fence = ? and node is not null"
_APPEND = "update tasks set seq = ? where key = ?"
_SETTLE = "update tasks set seq = ?, ready = 0, node = null, attempt = 0 where key = ?"
_STATUS = "update tasks set state = ?, updated = ? where key = ?"
_DONE = "update tasks set done = 1 where key = ?"
_SEEN = """
select seen.key, seen.seq from seen join tasks on tasks.key = seen.key
where seen.scope = ? and dedupe = ? and at > ?
"""
_REMEMBER = "insert or replace into seen (scope, dedupe, key, seq, at) values (?, ?, ?, ?, ?)"
_NODES = "select node from nodes"
_JOIN = "insert or replace into nodes (node, until) values (?, ?)"
_GONE = "delete from nodes where node = ?"
_LEAVE = "update tasks set node = null where ready = 1 and node = ?"
_HOLDS = "select key, fence, mail from tasks where ready = 1 and node = ? order by key"
_CLAIMABLE = """
select key, tenant, agent, owner, id, fence, attempt from tasks join scopes using (scope)
where ready = 1 and (node is null or node not in (select node from nodes where until > ?)) order by key limit ?
"""
_CLAIM = "update tasks set node = ?, fence = ?, attempt = ? where key = ?"
_RELEASE = "update tasks set node = null where key = ? and fence = ?"
_OLD = "select key from tasks where done = 1 and updated < ? order by key limit ?"
_PURGE = ("delete from log where key = ?", "delete from tasks where key = ?")
_PURGE_SEEN = "delete from seen where at <= ?"


class SqliteStore:
    def __init__(
        self, path: str | Path, *, synchronous: str = "full", patience: float = 10.0, keep: int = 1000
    ) -> None:
        """`patience` is how long to wait for another process that writes; `keep` how many snapshots stay in memory."""
        if synchronous not in ("off", "normal", "full", "extra"):
            raise ValueError(f"synchronous is off, normal, full or extra, not {synchronous!r}")
        self._path = Path(path)
        self._synchronous = synchronous
        self._patience = patience
        self._keep = keep
        self._locks = NodeLocks(Path(f"{self._path}-nodes"))
        self._opened: tuple[sqlite3.Connection, Commits, Reads] | None = None
        self._version = 0

    async def open(self) -> None:
        """Raises `NewerDatabase` if a newer version of the program wrote the file."""
        try:
            db = self._connect()
            try:
                db.execute("pragma journal_mode = wal")
                migrate(db)
                db.execute("pragma busy_timeout = 0")
                self._version = _version(db)
            except BaseException:
                db.close()
                raise
        except sqlite3.Error as error:
            raise Unavailable(f"the database {self._path.name} cannot be opened: {error}") from error
        self._opened = (db, Commits(db, patience=self._patience), Reads(self._connect, keep=self._keep))

    async def close(self) -> None:
        if self._opened is None:
            return
        (db, commits, reads), self._opened = self._opened, None
        await commits.close()
        reads.close()
        db.execute("pragma wal_checkpoint(truncate)")
        db.close()
        self._locks.drop_all()

    def scope(self, scope: Scope) -> SqliteLog:
        return SqliteLog(self, scope)

    async def join(self, node: str, *, ttl: float) -> None:
        self._locks.hold(node)
        await self.commits.submit(partial(self._join, node, ttl))

    async def renew(self, node: str, *, ttl: float) -> Sequence[Held]:
        self._locks.hold(node)
        return await self.commits.submit(partial(self._join, node, ttl))

    async def leave(self, node: str) -> None:
        await self.commits.submit(partial(self._leave, node))
        self._locks.drop(node)

    async def claim(self, node: str, *, limit: int) -> Sequence[Lease]:
        return await self.commits.submit(partial(self._claim, node, limit))

    async def release(self, lease: Lease) -> None:
        def job() -> Finish[None]:
            self.db.execute(_RELEASE, (lease.key, lease.fence))
            return _nothing

        await self.commits.submit(job)

    async def purge(self, before: str, *, limit: int) -> int:
        old = await self.reads.elsewhere(lambda db: db.execute(_OLD, (before, limit)).fetchall())
        return await self.commits.submit(partial(self._purge, old))

    def changed(self) -> bool:
        """Whether another process has written since the last time this was asked."""
        if self._opened is None or self.commits.committing:
            return False  # the next one to ask will hear of it
        version = _version(self.db)
        changed, self._version = version != self._version, version
        return changed

    @property
    def db(self) -> sqlite3.Connection:
        """The connection that writes. For jobs only."""
        return self._parts[0]

    @property
    def commits(self) -> Commits:
        return self._parts[1]

    @property
    def reads(self) -> Reads:
        return self._parts[2]

    @property
    def _parts(self) -> tuple[sqlite3.Connection, Commits, Reads]:
        if self._opened is None:
            raise Unavailable("the store is closed")
        return self._opened

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self._path,
            timeout=self._patience,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        db.execute(f"pragma synchronous = {self._synchronous}")
        return db

    def _join(self, node: str, ttl: float) -> Finish[Sequence[Held]]:
        self._bury()
        self.db.execute(_JOIN, (node, time.time() + ttl))
        held = [Held(*row) for row in self.db.execute(_HOLDS, (node,))]
        return lambda: held

    def _leave(self, node: str) -> Finish[None]:
        self.db.execute(_LEAVE, (node,))
        self.db.execute(_GONE, (node,))
        return _nothing

    def _claim(self, node: str, limit: int) -> Finish[Sequence[Lease]]:
        self._bury()
        leases = []
        for key, tenant, agent, owner, task, fence, attempt in self.db.execute(
            _CLAIMABLE, (time.time(), limit)
        ).fetchall():
            self.db.execute(_CLAIM, (node, fence + 1, attempt + 1, key))
            leases.append(Lease(Scope(tenant, agent, owner), task, key, fence + 1, attempt + 1))
        return lambda: leases

    def _bury(self) -> None:
        """Forget the nodes whose processes are gone: what they held is free."""
        for (node,) in self.db.execute(_NODES).fetchall():
            if self._locks.dead(node):
                self.db.execute(_GONE, (node,))

    def _purge(self, keys: Sequence[tuple[int]]) -> Finish[int]:
        for sql in _PURGE:
            purged = self.db.executemany(sql, keys).rowcount
        self.db.execute(_PURGE_SEEN, (time.time() - DAY,))

        def finish() -> int:
            self.reads.forget([key for (key,) in keys])
            return purged

        return finish


class SqliteLog:
    """One scope's tasks. The scope is bound here, so no statement can forget it."""

    def __init__(self, store: SqliteStore, scope: Scope) -> None:
        self._store = store
        self._scope = scope

    async def create(
        self, task: str, context: str, mail: Mail, *, dedupe: str = "", node: str = ""
    ) -> Delivered:
        return await self._store.commits.submit(partial(self._create, task, context, mail, dedupe, node))

    async def deliver(self, task: str, mail: Mail | Cancel, *, dedupe: str = "", node: str = "") -> Delivered:
        return await self._store.commits.submit(partial(self._deliver, task, mail, dedupe, node))

    async def seen(self, dedupe: str) -> Delivered | None:
        reads = self._store.reads
        scope = reads.scope(self._scope)
        row = None if scope is None else reads.one(_SEEN, (scope, dedupe, time.time() - DAY))
        return None if row is None else self._duplicate(*row)

    async def append(self, lease: Lease, records: Sequence[Record]) -> int:
        return await self._store.commits.submit(partial(self._append, lease, records))

    async def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> int:
        return await self._store.commits.submit(partial(self._settle, lease, records, mail))

    async def read(self, task: str, *, after: int = 0) -> Sequence[Record]:
        return await self._store.reads.read(self._scope, task, after)

    async def load(self, task: str) -> Snapshot:
        return await self._store.reads.load(self._scope, task)

    async def find(self, query: ListTasks, *, limit: int) -> Found:
        return await self._store.reads.find(self._scope, query, limit)

    def _create(self, task: str, context: str, mail: Mail, dedupe: str, node: str) -> Finish[Delivered]:
        db, reads = self._store.db, self._store.reads
        scope = reads.scope(self._scope)
        if scope is None:
            scope = self._new_scope()
        if dedupe and (seen := self._seen(db, scope, dedupe)):
            return partial(self._duplicate, *seen)
        claimed = 1 if node else 0
        try:
            key = db.execute(
                _CREATE, (scope, task, context, mail.at, mail.reply, node or None, claimed, claimed)
            ).lastrowid
        except sqlite3.IntegrityError:
            raise TaskExists(task) from None
        assert key is not None
        record = Record("message", mail, 1)
        db.execute(_LOG, (key, 1, pack((record,))))
        if dedupe:
            db.execute(_REMEMBER, (scope, dedupe, key, 1, time.time()))
        lease = Lease(self._scope, task, key, 1, 1) if node else None

        def finish() -> Delivered:
            snapshot = Snapshot(self._scope, task, context)
            snapshot.apply(record)
            reads.keep(key, snapshot)
            return Delivered(snapshot, 1, lease)

        return finish

    def _deliver(self, task: str, mail: Mail | Cancel, dedupe: str, node: str) -> Finish[Delivered]:
        db, reads = self._store.db, self._store.reads
        scope = reads.scope(self._scope)
        if scope is None:
            raise TaskNotFound(task)
        if dedupe and (seen := self._seen(db, scope, dedupe)):
            return partial(self._duplicate, *seen)
        row = db.execute(_TASK, (scope, task)).fetchone()
        if row is None:
            raise TaskNotFound(task)
        key, seq, state, updated, done, holder, fence, attempt = row
        if done:
            raise TaskClosed(f"task {task!r} is finished")
        seq += 1
        lease = None
        if node and not (holder and db.execute(_ALIVE, (holder, time.time())).fetchone()):
            holder, fence, attempt = node, fence + 1, attempt + 1
            lease = Lease(self._scope, task, key, fence, attempt)
        record = Record("message" if isinstance(mail, Mail) else "cancel", mail, seq)
        db.execute(_DELIVER, (seq, holder, fence, attempt, key))
        db.execute(_LOG, (key, seq, pack((record,))))
        if isinstance(mail, Mail):
            if TaskState(state).interrupted:
                db.execute(_STATUS, (TaskState.SUBMITTED.value, mail.at or updated, key))
            elif not updated:
                db.execute(_STATUS, (state, mail.at, key))
        if dedupe:
            db.execute(_REMEMBER, (scope, dedupe, key, seq, time.time()))

        def finish() -> Delivered:
            snapshot = reads.move(key, (record,)) or reads.load_key(self._scope, key)
            if snapshot is None:
                raise TaskNotFound(task)
            return Delivered(snapshot, seq, lease)

        return finish

    def _append(self, lease: Lease, records: Sequence[Record]) -> Finish[int]:
        seq, _ = self._held(lease)
        return self._write(_APPEND, lease.key, seq, records)

    def _settle(self, lease: Lease, records: Sequence[Record], mail: int) -> Finish[int]:
        seq, last_mail = self._held(lease)
        if last_mail != mail:
            raise NewMail(lease.task)
        return self._write(_SETTLE, lease.key, seq, records)

    def _held(self, lease: Lease) -> tuple[int, int]:
        """The last record and the last mail of a task that is still ours."""
        if lease.scope != self._scope:
            raise TaskNotFound(lease.task)
        row: tuple[int, int] | None = self._store.db.execute(_HELD, (lease.key, lease.fence)).fetchone()
        if row is None:
            raise LeaseLost(lease.task)
        return row

    def _write(self, update: str, key: int, seq: int, records: Sequence[Record]) -> Finish[int]:
        db = self._store.db
        if records:
            number(records, seq + 1)
            seq += len(records)
            db.execute(_LOG, (key, seq, pack(records)))
        db.execute(update, (seq, key))
        status = next((r.body.status for r in reversed(records) if r.kind in ("status", "ask")), None)  # type: ignore[union-attr]
        if status is not None:
            db.execute(_STATUS, (status.state.value, status.timestamp, key))
        if any(record.terminal for record in records):
            db.execute(_DONE, (key,))
        return partial(self._moved, key, records, seq)

    def _moved(self, key: int, records: Sequence[Record], seq: int) -> int:
        self._store.reads.move(key, records)
        return seq

    def _seen(self, db: sqlite3.Connection, scope: int, dedupe: str) -> Any:
        return db.execute(_SEEN, (scope, dedupe, time.time() - DAY)).fetchone()

    def _duplicate(self, key: int, seq: int) -> Delivered:
        snapshot = self._store.reads.load_key(self._scope, key)
        if snapshot is None:
            raise Unavailable("the task of this request was just removed")
        return Delivered(snapshot, seq, duplicate=True)

    def _new_scope(self) -> int:
        db, names = self._store.db, (self._scope.tenant, self._scope.agent, self._scope.owner)
        row = db.execute(_SCOPE, names).fetchone()  # an earlier job of this batch may have made it
        number = row[0] if row else db.execute(_NEW_SCOPE, names).lastrowid
        assert isinstance(number, int)
        return number


def _nothing() -> None:
    pass


def _version(db: sqlite3.Connection) -> int:
    version: int = db.execute("pragma data_version").fetchone()[0]
    return version

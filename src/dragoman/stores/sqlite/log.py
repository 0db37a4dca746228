"""One scope's tasks in a SQLite file: mail in, output on. Each method is one job in a shared transaction.

A job loads a row, asks `decide` what happens to it, and writes that. It looks first and writes last, so an answer like
`LeaseLost` leaves nothing behind. A sender that waits for the end of a task need not wait for its beginning: the task may run
while its first message is on its way to disk (`Opening`). If it has ended by then, it is one row and one entry of the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial
from sqlite3 import Connection, IntegrityError
from typing import Any, NoReturn

from msgspec import Struct

from dragoman.engine.protocols import Delivered, Lease, LeaseLost, TaskExists
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, Snapshot, number, pack
from dragoman.engine.transition import (
    Append,
    Create,
    Decision,
    Deliver,
    Release,
    Settle,
    TaskRow,
    decide,
    outcome,
)
from dragoman.errors import TaskNotFound, TaskUnreadable, Unavailable
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores.sqlite.commits import NOTHING, SEQ_BITS, Finish, Job
from dragoman.stores.sqlite.file import SqliteFile
from dragoman.stores.sqlite.push_queue import SqlitePushQueue
from dragoman.stores.sqlite.reads import LogReads

_CREATE = """
insert into tasks (scope, id, context, reply, size, seq, mail, updated, state, done, ready, node, fence, attempt)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SCOPE = "select scope from scopes where tenant = ? and agent = ? and owner = ?"
_NEW_SCOPE = "insert into scopes (tenant, agent, owner) values (?, ?, ?)"


class Opening(Lease, kw_only=True, gc=True):
    """A task on its way to disk, and the lease to run it meanwhile."""

    log: SqliteLog
    snapshot: Snapshot
    mail: Record
    node: str
    webhook: StoredPushConfig | None
    end: Sequence[Record] = ()
    open: bool = False
    """Its end can still be stored together with its beginning."""
    stored: asyncio.Future[Snapshot] | None = None
    """The task, when it is on disk."""

    @property
    def lost(self) -> bool:
        """It could not be stored: there is nothing to write to, also while nobody can look whether there is."""
        stored = self.stored
        return stored is not None and stored.done() and (stored.cancelled() or stored.exception() is not None)

    def store(self, db: Connection) -> Finish[Snapshot]:
        """The job that does it."""
        self.open = False
        log, mail, records = self.log, self.mail.body, [self.mail, *self.end]
        assert isinstance(mail, Mail)
        scope, file = log.number_in(db), log.file
        row = decide(TaskRow(), Create(self.mail, mail.at, self.node)).row
        if self.end:
            row = decide(row, Settle(self.task, row.fence, self.end, 1)).row
        body = pack(records)
        task = (scope, self.task, self.snapshot.context_id, mail.reply, len(body))
        lease = (row.ready, row.node or None, row.fence, row.attempt)
        try:
            key = db.execute(
                _CREATE, (*task, row.seq, row.mail, row.updated, row.state.value, row.done, *lease)
            ).lastrowid
        except IntegrityError:
            raise TaskExists(self.task) from None
        assert key is not None
        self.key = key
        file.commits.records.append((key << SEQ_BITS | len(records), body))
        file.commits.count(scope, mail.reply, None, row.state)
        if self.webhook is not None:
            log.webhooks.add(db, key, self.webhook, cursor=1, last=1)
        return partial(file.reads.snapshots.keep, key, self.snapshot.after(records).share())


DAY = 24 * 60 * 60.0
"""How long a key is remembered."""
RETRY_SECONDS = 0.1
"""Seconds until what has to be written is tried once more."""

_ROW = "select key, scope, reply, seq, mail, state, updated, done, ready, node, fence, attempt, webhooks from tasks "
_BY_ID = _ROW + "where scope = ? and id = ?"
# A key that was never committed may come again, so a lease also says whose it was.
_BY_KEY = _ROW + "where key = ? and id = ?"
_CHANGE = """
update tasks set seq = ?, size = size + ?, done = ?, state = ?, updated = ?, mail = ?, ready = ?, node = ?, fence = ?,
attempt = ?, webhooks = ? where key = ?
"""
# Without the columns of the lease, whose indexes would be written for nothing.
_ADD_OUTPUT = "update tasks set seq = ?, size = size + ?, done = ?, state = ?, updated = ? where key = ?"
# What `decide` does in most cases: nobody else has written to the task, and nobody is to be notified. One statement is enough.
_NEXT = "where key = ? and id = ? and fence = ? and seq = ? and webhooks = 0 and node is not null"
_APPEND_NEXT = "update tasks set seq = ?, size = size + ? " + _NEXT
_SETTLE_NEXT = f"""
update tasks set seq = ?, size = size + ?, done = done or ?, ready = 0, node = null, attempt = 0, state = ?, updated = ?
{_NEXT} and mail = ?
"""
_LEASE = "update tasks set node = ?, fence = ?, attempt = ? where key = ?"
_SEEN = """
select seen.key, seen.seq from seen join tasks on tasks.key = seen.key
where seen.scope = ? and dedupe = ? and at > ?
"""
_REMEMBER = "insert or replace into seen (scope, dedupe, key, seq, at) values (?, ?, ?, ?, ?)"


class _Unfolded(Struct, frozen=True):
    """A delivery whose task is still to be read."""

    key: int
    seq: int
    lease: Lease | None = None
    duplicate: bool = False
    unclaimed: bool = False


class SqliteLog(LogReads):
    """The scope is bound here, so no statement can forget it."""

    def __init__(self, file: SqliteFile, scope: Scope, webhooks: SqlitePushQueue) -> None:
        super().__init__(file, scope)
        self.file = file
        self.webhooks = webhooks

    def create(
        self,
        task: str,
        context: str,
        mail: Mail,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Awaitable[Delivered]:
        return self._deliver_job(partial(self._create, task, context, mail, dedupe, node, webhook))

    def begin(
        self, task: str, context: str, mail: Mail, *, node: str, webhook: StoredPushConfig | None = None
    ) -> Delivered | None:
        commits = self.file.commits
        if commits.failing:
            return None
        opening = self._opening(task, context, mail, node, webhook)
        opening.open = webhook is None
        opening.stored = commits.submit(opening.store)
        return Delivered(opening.snapshot.share(), 1, opening, stored=opening.stored)

    def deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Awaitable[Delivered]:
        return self._deliver_job(partial(self._deliver, task, mail, dedupe, node, webhook))

    async def _deliver_job(self, job: Job[Delivered | _Unfolded]) -> Delivered:
        """What a delivery gives. A caller that is cancelled meanwhile runs nothing, so a lease of its goes back."""
        future = self.file.commits.submit(job, self._drop)
        try:
            delivered = await future
            return delivered if isinstance(delivered, Delivered) else await self._folded(delivered)
        except (asyncio.CancelledError, Unavailable, TaskUnreadable):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._drop(future.result())  # it came, and we cannot take it
            raise

    async def _folded(self, delivered: _Unfolded) -> Delivered:
        snapshot = await self._load_key(delivered.key)
        return Delivered(
            snapshot, delivered.seq, delivered.lease, delivered.duplicate, unclaimed=delivered.unclaimed
        )

    def _drop(self, delivered: Delivered | _Unfolded) -> None:
        if delivered.lease is not None:
            self._release_later(delivered.lease)

    def _release_later(self, lease: Lease) -> None:
        with suppress(Unavailable):  # closed: then its node is gone, and the lease with it
            given = self.file.commits.submit(partial(release, lease, False))
            given.add_done_callback(partial(self._release_done, lease))

    def _release_done(self, lease: Lease, given: asyncio.Future[None]) -> None:
        if not given.cancelled() and isinstance(given.exception(), Unavailable):
            # As long as we live, nobody else would run it.
            given.get_loop().call_later(RETRY_SECONDS, self._release_later, lease)

    async def seen(self, dedupe: str) -> Delivered | None:
        scope = self.number
        row = None if scope is None else self.file.reads.one(_SEEN, (scope, dedupe, time.time() - DAY))
        return None if row is None else await self._folded(_Unfolded(row[0], row[1], duplicate=True))

    def append(self, lease: Lease, records: Sequence[Record]) -> Awaitable[int]:
        if isinstance(lease, Opening):
            if lease.lost:
                return _lost(lease)
            lease.open = False
        return self.file.commits.submit(partial(self._append, lease, records))

    def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> Awaitable[Snapshot | None]:
        if isinstance(lease, Opening):
            if lease.lost:
                return _lost(lease)
            if lease.open and mail == 1 and records and lease.stored is not None:
                lease.open, lease.end = False, records  # it ends in the row that it begins with
                return lease.stored
        return self.file.commits.submit(partial(self._settle, lease, records, mail))

    def _create(
        self,
        task: str,
        context: str,
        mail: Mail,
        dedupe: str,
        node: str,
        webhook: StoredPushConfig | None,
        db: Connection,
    ) -> Finish[Delivered | _Unfolded]:
        scope = self.number_in(db)
        if dedupe and (earlier := self._earlier(db, scope, dedupe)):
            return earlier
        opening = self._opening(task, context, mail, node, webhook)
        stored = opening.store(db)
        if dedupe:
            db.execute(_REMEMBER, (scope, dedupe, opening.key, 1, time.time()))

        def finish() -> Delivered:
            lease = Lease(self._scope, task, opening.key, opening.fence, opening.attempt) if node else None
            return Delivered(stored(), 1, lease, unclaimed=not node)

        return finish

    def _opening(
        self, task: str, context: str, mail: Mail, node: str, webhook: StoredPushConfig | None
    ) -> Opening:
        claims = 1 if node else 0
        record = Record("message", mail, 1)
        snapshot = Snapshot(self._scope, task, context, mail.at).after((record,))
        return Opening(
            self._scope,
            task,
            0,
            claims,
            claims,
            log=self,
            snapshot=snapshot,
            mail=record,
            node=node,
            webhook=webhook,
        )

    def _deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        dedupe: str,
        node: str,
        webhook: StoredPushConfig | None,
        db: Connection,
    ) -> Finish[Delivered | _Unfolded]:
        scope = self.number
        if scope is None:
            raise TaskNotFound(task)
        if dedupe and (earlier := self._earlier(db, scope, dedupe)):
            return earlier
        held = find_row(db, _BY_ID, (scope, task))
        if held is None:
            raise TaskNotFound(task)
        record = Record("message" if isinstance(mail, Mail) else "cancel", mail)
        at = mail.at if isinstance(mail, Mail) else ""
        decision = decide(held.row, Deliver(task, record, at, node, webhook is not None, held.reply))
        if webhook is not None:
            webhook = self.webhooks.check(db, held.key, webhook)
        key, row = held.key, decision.row
        lease = Lease(self._scope, task, key, row.fence, row.attempt) if decision.leased else None
        self._change(db, held, decision)
        seq = row.seq
        if dedupe:
            db.execute(_REMEMBER, (scope, dedupe, key, seq, time.time()))
        if webhook is not None:
            self.webhooks.add(db, key, webhook, cursor=seq, last=seq)

        def finish() -> Delivered | _Unfolded:
            snapshot = self.file.reads.snapshots.move(key, (record,), share=True)
            if snapshot is not None:
                return Delivered(snapshot, seq, lease, unclaimed=not row.node)
            return _Unfolded(key, seq, lease, unclaimed=not row.node)

        return finish

    def _append(self, lease: Lease, records: Sequence[Record], db: Connection) -> Finish[int]:
        done, status = outcome(records)
        snapshot = self.file.reads.snapshots.get(lease.key)
        seq = snapshot.seq if snapshot is not None else 0
        plain = bool(records) and status is None and not done
        if seq and plain and lease.attempt == 1 and lease.scope == self._scope:
            last, body = seq + len(records), pack(records)
            if db.execute(_APPEND_NEXT, (last, len(body), lease.key, lease.task, lease.fence, seq)).rowcount:
                number(records, seq + 1)
                self.file.commits.records.append((lease.key << SEQ_BITS | last, body))
                return partial(self._moved, lease.key, records, last, 0)
        return self._write(lease, Append(lease.task, lease.fence, records), db)

    def _settle(
        self, lease: Lease, records: Sequence[Record], mail: int, db: Connection
    ) -> Finish[Snapshot | None]:
        done, status = outcome(records)
        snapshot = self.file.reads.snapshots.get(lease.key)
        if snapshot is not None and status is not None and lease.scope == self._scope:
            seq, last, body = snapshot.seq, snapshot.seq + len(records), pack(records)
            how = (last, len(body), done, status.state.value, status.timestamp)
            if db.execute(_SETTLE_NEXT, (*how, lease.key, lease.task, lease.fence, seq, mail)).rowcount:
                scope, reply = self.number_in(db), snapshot.mails[0][1].reply
                if status.state is not snapshot.status.state:  # at `seq`, as in the row
                    self.file.commits.count(scope, reply, snapshot.status.state, status.state)
                number(records, seq + 1)
                self.file.commits.records.append((lease.key << SEQ_BITS | last, body))
                return partial(self.file.reads.snapshots.move, lease.key, records, share=True)
        written = self._write(lease, Settle(lease.task, lease.fence, records, mail), db)

        def finish() -> Snapshot | None:
            seq, cached = written(), self.file.reads.snapshots.get(lease.key)
            return cached.share() if cached is not None and cached.seq == seq else None

        return finish

    def _write(self, lease: Lease, job: Append | Settle, db: Connection) -> Finish[int]:
        """Do what `decide` makes of a job of the holder of a lease."""
        if lease.scope != self._scope:
            raise TaskNotFound(lease.task)
        held = find_row(db, _BY_KEY, (lease.key, lease.task))
        if held is None:
            raise LeaseLost(lease.task)
        decision = decide(held.row, job)
        self._change(db, held, decision)
        if decision.notify:
            self.webhooks.notify(db, lease.key, decision.notify)
        return partial(self._moved, lease.key, decision.records, decision.row.seq, decision.notify)

    def _change(self, db: Connection, held: HeldRow, decision: Decision) -> None:
        """Write the row and the records of a decision."""
        before, row, body = held.row, decision.row, b""
        if decision.records:
            body = pack(decision.records)
            self.file.commits.records.append((held.key << SEQ_BITS | row.seq, body))
        output = (row.seq, len(body), row.done, row.state.value, row.updated)
        if (row.mail, row.ready, row.node, row.attempt) == (
            before.mail,
            before.ready,
            before.node,
            before.attempt,
        ):
            db.execute(_ADD_OUTPUT, (*output, held.key))
        else:
            lease = (row.mail, row.ready, row.node or None, row.fence, row.attempt, row.push)
            db.execute(_CHANGE, (*output, *lease, held.key))
        if row.state is not before.state:
            self.file.commits.count(held.scope, held.reply, before.state, row.state)

    def number_in(self, db: Connection) -> int:
        """The number of the scope in this transaction, which gives it one if it has none."""
        if (number := self._number or self.number) is None:
            names = (self._scope.tenant, self._scope.agent, self._scope.owner)
            row = db.execute(_SCOPE, names).fetchone()  # an earlier job of this batch may have made it
            number = row[0] if row else db.execute(_NEW_SCOPE, names).lastrowid
            assert number is not None
        return number

    def _moved(self, key: int, records: Sequence[Record], seq: int, notify: int) -> int:
        self.file.reads.snapshots.move(key, records)
        if notify:
            self.webhooks.wake()
        return seq

    def _earlier(self, db: Connection, scope: int, dedupe: str) -> Finish[_Unfolded] | None:
        row = db.execute(_SEEN, (scope, dedupe, time.time() - DAY)).fetchone()
        return None if row is None else partial(_Unfolded, row[0], row[1], duplicate=True)


async def _lost(lease: Lease) -> NoReturn:
    raise LeaseLost(lease.task)


class HeldRow(Struct, frozen=True, gc=False):
    """A task's row inside a transaction, and what does not change of it."""

    key: int
    scope: int
    reply: bool
    row: TaskRow


def find_row(db: Connection, sql: str, values: tuple[Any, ...]) -> HeldRow | None:
    found = db.execute(sql, values).fetchone()
    if found is None:
        return None
    key, scope, reply, seq, mail, state, updated, done, ready, node, fence, attempt, webhooks = found
    row = TaskRow(
        seq=seq,
        mail=mail,
        state=TaskState(state),
        updated=updated,
        done=bool(done),
        ready=bool(ready),
        node=node or "",
        fence=fence,
        attempt=attempt,
        push=bool(webhooks),
    )
    return HeldRow(key, scope, bool(reply), row)


def release(lease: Lease, failed: bool, db: Connection) -> Finish[None]:
    """Give a task back unfinished."""
    held = find_row(db, _BY_KEY, (lease.key, lease.task))
    if held is not None:
        row = decide(held.row, Release(lease.fence, failed)).row
        if row is not held.row:
            db.execute(_LEASE, (row.node or None, row.fence, row.attempt, held.key))
    return NOTHING

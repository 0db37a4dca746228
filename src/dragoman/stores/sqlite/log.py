"""The tasks of one scope in a SQLite file. Each write is a job of a shared transaction (`sqlite/commits.py`).

`deliver` submits `_deliver_job`, and so on. A job loads a row, calls `decide`, and writes the decision. It makes all checks before
it writes, so an error such as `LeaseLost` writes nothing. `append` and `settle` try a shortcut first (`_try_append`).

If the sender waits for the end of a task, the task may run while its first message is on its way to disk (`PendingTask`). If it
ends before that, its beginning and its end are written together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial
from sqlite3 import Connection, IntegrityError
from typing import Any, NoReturn, Unpack

from msgspec import Struct

from dragoman.engine.protocols import Delivered, DeliverOptions, Lease, LeaseLost, TaskExists
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, number, pack
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.transition import (
    Append,
    Create,
    Decision,
    Deliver,
    Release,
    Settle,
    TaskRow,
    decide,
    find_end,
)
from dragoman.errors import TaskNotFound, TaskUnreadable, Unavailable
from dragoman.model.ops import Scope
from dragoman.stores.rows import DEDUPE_SECONDS, read_task_row
from dragoman.stores.sqlite.commits import NOTHING, SEQ_BITS, Commits, Finish, Job
from dragoman.stores.sqlite.file import SqliteFile
from dragoman.stores.sqlite.log_reads import LogReads
from dragoman.stores.sqlite.push_queue import SqlitePushQueue
from dragoman.stores.sqlite.reads import SCOPE_NUMBER

RETRY_SECONDS = 0.1
"""Between attempts to release a lease."""

_CREATE = """
insert into tasks (scope, id, context, reply, size, seq, mail, updated, state, done, ready, node, fence, attempt)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_NEW_SCOPE = "insert into scopes (tenant, agent, owner) values (?, ?, ?)"
_ROW = "select key, scope, reply, seq, mail, state, updated, done, ready, node, fence, attempt, webhooks from tasks "
_BY_ID = _ROW + "where scope = ? and id = ?"
# A key that was never committed may be used again, so the id of the task is compared, too.
_BY_KEY = _ROW + "where key = ? and id = ?"
_CHANGE = """
update tasks set seq = ?, size = size + ?, done = ?, state = ?, updated = ?, mail = ?, ready = ?, node = ?, fence = ?,
attempt = ?, webhooks = ? where key = ?
"""
# Without the columns of the lease, so that their indexes are not written.
_ADD_OUTPUT = "update tasks set seq = ?, size = size + ?, done = ?, state = ?, updated = ? where key = ?"
# See `_try_append`.
_NEXT = "where key = ? and id = ? and fence = ? and seq = ? and webhooks = 0 and node is not null"
_APPEND_NEXT = "update tasks set seq = ?, size = size + ? " + _NEXT
_SETTLE_NEXT = f"""
update tasks set seq = ?, size = size + ?, done = done or ?, ready = 0, node = null, attempt = 0, state = ?, updated = ?
{_NEXT} and mail = ? and state = ?
"""
SET_LEASE = "update tasks set node = ?, fence = ?, attempt = ? where key = ?"
_SEEN = """
select seen.key, seen.seq from seen join tasks on tasks.key = seen.key
where seen.scope = ? and dedupe = ? and at > ?
"""
_REMEMBER = "insert or replace into seen (scope, dedupe, key, seq, at) values (?, ?, ?, ?, ?)"


class PendingTask(Struct, kw_only=True):
    """A new task on its way to disk. `store` writes it."""

    log: SqliteLog
    mail: Record
    snapshot: Snapshot
    row: TaskRow
    """The task with its first message, as a snapshot and as a row."""
    webhook: StoredPushConfig | None
    end: Sequence[Record] = ()
    """The output that settles it, if it ended before it was written."""
    can_end: bool = False
    """Its end can still be written together with its beginning."""
    key: int = 0
    """The store's key of the task; 0 until it is written."""

    def store(self, lease: Lease | None, db: Connection) -> Finish[Snapshot]:
        """The job that writes the task. Its `lease` gets the key."""
        self.can_end = False
        log, mail, row, records = self.log, self.mail.body, self.row, [self.mail, *self.end]
        assert isinstance(mail, Mail)
        scope, file, id = log.number_in(db), log.file, self.snapshot.task_id
        if self.end:
            row = decide(row, Settle(id, row.fence, self.end, 1)).row
        body = pack(records)
        task = (scope, id, self.snapshot.context_id, mail.reply, len(body))
        values = (row.seq, row.mail, row.updated, row.state.value, row.done)
        try:
            key = db.execute(
                _CREATE, (*task, *values, row.ready, row.node or None, row.fence, row.attempt)
            ).lastrowid
        except IntegrityError:
            raise TaskExists(id) from None
        assert key is not None
        self.key = key
        if lease is not None:
            lease.key = key
        file.commits.records.append((key << SEQ_BITS | len(records), body))
        file.commits.count(scope, mail.reply, None, row.state)
        if self.webhook is not None:
            log.webhooks.add(db, key, self.webhook, cursor=1, last=1)
        return partial(file.reads.snapshots.keep, key, self.snapshot.after(records).share())


class PendingLease(Lease, kw_only=True, gc=True):
    """The lease to run a task while it is on its way to disk."""

    pending: PendingTask
    stored: asyncio.Future[Snapshot] | None = None
    """Done when the task is on disk."""

    @property
    def lost(self) -> bool:
        """True if the task could not be stored: then nothing can be written for it."""
        stored = self.stored
        return stored is not None and stored.done() and (stored.cancelled() or stored.exception() is not None)


class _DeliveredRow(Struct, frozen=True):
    """A delivery whose task is not loaded yet."""

    key: int
    seq: int
    lease: Lease | None = None
    duplicate: bool = False
    unclaimed: bool = False


class SqliteLog(LogReads):
    """The scope is set here, so no statement can leave it out."""

    def __init__(self, file: SqliteFile, scope: Scope, webhooks: SqlitePushQueue) -> None:
        super().__init__(file, scope)
        self.webhooks = webhooks

    def create(
        self, task: str, context: str, mail: Mail, **options: Unpack[DeliverOptions]
    ) -> Awaitable[Delivered]:
        return self._submit_delivery(partial(self._create_job, task, context, mail, **options))

    def begin(
        self, task: str, context: str, mail: Mail, *, node: str, webhook: StoredPushConfig | None = None
    ) -> Delivered | None:
        commits = self.file.commits
        if commits.failing:
            return None
        pending = self._make_pending(task, context, mail, node, webhook)
        pending.can_end = webhook is None
        lease = PendingLease(self._scope, task, 0, pending.row.fence, pending.row.attempt, pending=pending)
        # A task that ends at once needs one job, and not two that change the same row and its indexes.
        lease.stored = commits.submit(partial(pending.store, lease), wait=lambda: pending.can_end)
        return Delivered(pending.snapshot.share(), 1, lease, stored=lease.stored)

    def deliver(
        self, task: str, mail: Mail | Cancel, **options: Unpack[DeliverOptions]
    ) -> Awaitable[Delivered]:
        return self._submit_delivery(partial(self._deliver_job, task, mail, **options))

    async def _submit_delivery(self, job: Job[Delivered | _DeliveredRow]) -> Delivered:
        """Submit a delivery. If the caller is cancelled meanwhile, nobody runs the task here, so its lease is released."""
        future = self.file.commits.submit(job, self._release_undelivered)
        try:
            delivered = await future
            return delivered if isinstance(delivered, Delivered) else await self._load_delivered(delivered)
        except (asyncio.CancelledError, Unavailable, TaskUnreadable):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release_undelivered(future.result())  # it is stored, and the caller does not get it
            raise

    async def _load_delivered(self, delivered: _DeliveredRow) -> Delivered:
        snapshot = await self._load_key(delivered.key)
        return Delivered(
            snapshot, delivered.seq, delivered.lease, delivered.duplicate, unclaimed=delivered.unclaimed
        )

    def _release_undelivered(self, delivered: Delivered | _DeliveredRow) -> None:
        if delivered.lease is not None:
            self._release_later(delivered.lease)

    def _release_later(self, lease: Lease) -> None:
        with suppress(Unavailable):  # the store is closed, so the node is gone
            given = submit_release(self.file.commits, lease, failed=False)
            given.add_done_callback(partial(self._release_done, lease))

    def _release_done(self, lease: Lease, given: asyncio.Future[None]) -> None:
        if not given.cancelled() and isinstance(given.exception(), Unavailable):
            # While this process lives, no other node runs the task.
            given.get_loop().call_later(RETRY_SECONDS, self._release_later, lease)

    async def find_delivered(self, dedupe: str) -> Delivered | None:
        scope = self.number
        if scope is None:
            return None
        row = self.file.reads.one(_SEEN, (scope, dedupe, time.time() - DEDUPE_SECONDS))
        if row is None:
            return None
        key, seq = row
        return await self._load_delivered(_DeliveredRow(key, seq, duplicate=True))

    def append(self, lease: Lease, records: Sequence[Record]) -> Awaitable[int]:
        if isinstance(lease, PendingLease):
            if lease.lost:
                return _raise_lease_lost(lease)
            lease.pending.can_end = False
        return self.file.commits.submit(partial(self._try_append, lease, records))

    def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> Awaitable[Snapshot | None]:
        if isinstance(lease, PendingLease):
            if lease.lost:
                return _raise_lease_lost(lease)
            pending = lease.pending
            if pending.can_end and mail == 1 and records and lease.stored is not None:
                pending.can_end, pending.end = False, records
                return lease.stored
        return self.file.commits.submit(partial(self._try_settle, lease, records, mail))

    def _create_job(
        self,
        task: str,
        context: str,
        mail: Mail,
        db: Connection,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Finish[Delivered | _DeliveredRow]:
        scope = self.number_in(db)
        if dedupe and (earlier := self._find_earlier(db, scope, dedupe)):
            return earlier
        pending = self._make_pending(task, context, mail, node, webhook)
        lease = Lease(self._scope, task, 0, pending.row.fence, pending.row.attempt) if node else None
        stored = pending.store(lease, db)
        if dedupe:
            db.execute(_REMEMBER, (scope, dedupe, pending.key, 1, time.time()))
        return lambda: Delivered(stored(), 1, lease, unclaimed=not node)

    def _make_pending(
        self, task: str, context: str, mail: Mail, node: str, webhook: StoredPushConfig | None
    ) -> PendingTask:
        message = Record("message", mail)
        row = decide(TaskRow(), Create(message, mail.at, node)).row
        snapshot = Snapshot(self._scope, task, context).after((message,))
        return PendingTask(log=self, mail=message, snapshot=snapshot, row=row, webhook=webhook)

    def _deliver_job(
        self,
        task: str,
        mail: Mail | Cancel,
        db: Connection,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Finish[Delivered | _DeliveredRow]:
        scope = self.number
        if scope is None:
            raise TaskNotFound(task)
        if dedupe and (earlier := self._find_earlier(db, scope, dedupe)):
            return earlier
        held = _find_row(db, _BY_ID, (scope, task))
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

        def finish() -> Delivered | _DeliveredRow:
            snapshot = self.file.reads.snapshots.advance(key, (record,), share=True)
            if snapshot is not None:
                return Delivered(snapshot, seq, lease, unclaimed=not row.node)
            return _DeliveredRow(key, seq, lease, unclaimed=not row.node)

        return finish

    def _try_append(self, lease: Lease, records: Sequence[Record], db: Connection) -> Finish[int]:
        """`_append_job`, if possible in one statement that does not load the row.

        The rule for this and `_try_settle`: the statement writes what `decide` would return, and it finds the row only if that is known
        without looking: the last record is that of the cached snapshot, the fence is that of the lease, and there are no webhooks.
        """
        done, status = find_end(records)
        snapshot = self.file.reads.snapshots.get(lease.key)
        plain = bool(records) and status is None and not done
        if snapshot is not None and plain and lease.attempt == 1 and lease.scope == self._scope:
            seq, last, body = snapshot.seq, snapshot.seq + len(records), pack(records)
            if db.execute(_APPEND_NEXT, (last, len(body), lease.key, lease.task, lease.fence, seq)).rowcount:
                number(records, seq + 1)
                self.file.commits.records.append((lease.key << SEQ_BITS | last, body))
                return partial(self._update_cache, lease.key, records, last, 0)
        return self._append_job(lease, records, db)

    def _try_settle(
        self, lease: Lease, records: Sequence[Record], mail: int, db: Connection
    ) -> Finish[Snapshot | None]:
        """`_settle_job`, if possible in one statement: see `_try_append`. It also compares the last mail, and the state, which is counted."""
        done, status = find_end(records)
        snapshot = self.file.reads.snapshots.get(lease.key)
        if snapshot is not None and status is not None and lease.scope == self._scope:
            seq, last, body = snapshot.seq, snapshot.seq + len(records), pack(records)
            before, state = snapshot.status.state, status.state
            change = (last, len(body), done, state.value, status.timestamp)
            known = (lease.key, lease.task, lease.fence, seq, mail, before.value)
            if db.execute(_SETTLE_NEXT, (*change, *known)).rowcount:
                if state is not before:
                    reply = snapshot.mails[0][1].reply
                    self.file.commits.count(self.number_in(db), reply, before, state)
                number(records, seq + 1)
                self.file.commits.records.append((lease.key << SEQ_BITS | last, body))
                return partial(self.file.reads.snapshots.advance, lease.key, records, share=True)
        return self._settle_job(lease, records, mail, db)

    def _append_job(self, lease: Lease, records: Sequence[Record], db: Connection) -> Finish[int]:
        return self._write(lease, Append(lease.task, lease.fence, records), db)

    def _settle_job(
        self, lease: Lease, records: Sequence[Record], mail: int, db: Connection
    ) -> Finish[Snapshot | None]:
        written = self._write(lease, Settle(lease.task, lease.fence, records, mail), db)

        def finish() -> Snapshot | None:
            seq, cached = written(), self.file.reads.snapshots.get(lease.key)
            return cached.share() if cached is not None and cached.seq == seq else None

        return finish

    def _write(self, lease: Lease, job: Append | Settle, db: Connection) -> Finish[int]:
        """Apply a job of the holder of a lease."""
        if lease.scope != self._scope:
            raise TaskNotFound(lease.task)
        held = _find_row(db, _BY_KEY, (lease.key, lease.task))
        if held is None:
            raise LeaseLost(lease.task)
        decision = decide(held.row, job)
        self._change(db, held, decision)
        if decision.notify:
            self.webhooks.notify(db, lease.key, decision.notify)
        return partial(self._update_cache, lease.key, decision.records, decision.row.seq, decision.notify)

    def _change(self, db: Connection, held: _HeldRow, decision: Decision) -> None:
        """Write the row and the records of a decision."""
        before, row, body = held.row, decision.row, b""
        if decision.records:
            body = pack(decision.records)
            self.file.commits.records.append((held.key << SEQ_BITS | row.seq, body))
        output = (row.seq, len(body), row.done, row.state.value, row.updated)
        lease = (row.mail, row.ready, row.node, row.attempt)
        if lease == (before.mail, before.ready, before.node, before.attempt):
            db.execute(_ADD_OUTPUT, (*output, held.key))
        else:
            rest = (row.mail, row.ready, row.node or None, row.fence, row.attempt, row.push)
            db.execute(_CHANGE, (*output, *rest, held.key))
        if row.state is not before.state:
            self.file.commits.count(held.scope, held.reply, before.state, row.state)

    def number_in(self, db: Connection) -> int:
        """The number of the scope. Inserts the scope if it is new."""
        if (number := self._number or self.number) is None:
            names = (self._scope.tenant, self._scope.agent, self._scope.owner)
            # perhaps an earlier job of this batch inserted it
            row = db.execute(SCOPE_NUMBER, names).fetchone()
            number = row[0] if row else db.execute(_NEW_SCOPE, names).lastrowid
            assert number is not None
        return number

    def _update_cache(self, key: int, records: Sequence[Record], seq: int, notify: int) -> int:
        self.file.reads.snapshots.advance(key, records)
        if notify:
            self.webhooks.wake()
        return seq

    def _find_earlier(self, db: Connection, scope: int, dedupe: str) -> Finish[_DeliveredRow] | None:
        row = db.execute(_SEEN, (scope, dedupe, time.time() - DEDUPE_SECONDS)).fetchone()
        return None if row is None else partial(_DeliveredRow, row[0], row[1], duplicate=True)


async def _raise_lease_lost(lease: Lease) -> NoReturn:
    raise LeaseLost(lease.task)


class _HeldRow(Struct, frozen=True, gc=False):
    """A task's row in a transaction, and its columns that never change."""

    key: int
    scope: int
    reply: bool
    row: TaskRow


def _find_row(db: Connection, sql: str, values: tuple[Any, ...]) -> _HeldRow | None:
    found = db.execute(sql, values).fetchone()
    if found is None:
        return None
    key, scope, reply, *columns = found
    return _HeldRow(key, scope, bool(reply), read_task_row(columns))


def submit_release(commits: Commits, lease: Lease, *, failed: bool) -> asyncio.Future[None]:
    """Give a task back unfinished."""
    if isinstance(lease, PendingLease):
        lease.pending.can_end = False  # it is written before the lease is released
    return commits.submit(partial(_release_job, lease, failed))


def _release_job(lease: Lease, failed: bool, db: Connection) -> Finish[None]:
    held = _find_row(db, _BY_KEY, (lease.key, lease.task))
    if held is not None:
        row = decide(held.row, Release(lease.fence, failed)).row
        if row is not held.row:
            db.execute(SET_LEASE, (row.node or None, row.fence, row.attempt, held.key))
    return NOTHING

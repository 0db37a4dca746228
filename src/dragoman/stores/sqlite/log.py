"""One scope's tasks in a SQLite file: mail in, output on. Each method is one job in a shared transaction.

A job looks first and writes last, so an answer like `LeaseLost` leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial
from sqlite3 import Connection

from msgspec import Struct

from dragoman.engine.protocols import Admit, Delivered, FoundTasks, Head, Lease, LeaseLost, NewMail
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, Snapshot, number, pack
from dragoman.errors import TaskClosed, TaskNotFound, TaskUnreadable, Unavailable
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from dragoman.stores.pages import visible
from dragoman.stores.rows import outcome
from dragoman.stores.sqlite.commits import Finish, Job
from dragoman.stores.sqlite.create import Opening, new_scope
from dragoman.stores.sqlite.file import SqliteFile
from dragoman.stores.sqlite.push_queue import SqlitePushQueue
from dragoman.stores.sqlite.reads import place

DAY = 24 * 60 * 60.0
"""How long a key is remembered."""
AGAIN = 0.1
"""Seconds until what has to be written is tried once more."""

_TASK = """
select key, seq, state, updated, done, node, fence, attempt, reply from tasks where scope = ? and id = ?
"""
_DELIVER = """
update tasks set seq = ?1, mail = ?1, ready = 1, node = ?2, fence = ?3, attempt = ?4, size = size + ?5 where key = ?6
"""
_STATUS = "update tasks set state = ?, updated = ? where key = ?"
# A key that was never committed may come again, so a lease also says whose it was.
_HELD = """
select seq, mail, webhooks, scope, reply, state from tasks where key = ? and id = ? and fence = ? and node is not null
"""
_APPEND = "update tasks set seq = ?, size = size + ?, done = done or ? where key = ?"
_APPEND_STATUS = """
update tasks set seq = ?, size = size + ?, done = done or ?, state = ?, updated = ? where key = ?
"""
_GOT_ON = "update tasks set attempt = 1 where key = ?"
_SETTLE = """
update tasks set seq = ?, size = size + ?, done = done or ?, ready = 0, node = null, attempt = 0 where key = ?
"""
_SETTLE_STATUS = """
update tasks set seq = ?, size = size + ?, done = done or ?, ready = 0, node = null, attempt = 0, state = ?, updated = ?
where key = ?
"""
# What it mostly is: nobody else has written to the task, and nobody is to be told. Then one look is enough.
_NEXT = " where key = ? and id = ? and fence = ? and seq = ? and webhooks = 0 and node is not null"
_APPEND_NEXT = "update tasks set seq = ?, size = size + ?" + _NEXT
_SETTLE_NEXT = _SETTLE_STATUS.replace("where key = ?", _NEXT + " and mail = ?")
_RELEASE = """
update tasks set node = null, attempt = attempt - ? where key = ? and id = ? and fence = ? and node is not null
"""
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
    waits: bool = False


class SqliteLog:
    """The scope is bound here, so no statement can forget it."""

    def __init__(self, file: SqliteFile, scope: Scope, webhooks: SqlitePushQueue) -> None:
        self._file = file
        self._scope = scope
        self._webhooks = webhooks

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
        return self._given(partial(self._create, task, context, mail, dedupe, node, webhook))

    def begin(
        self, task: str, context: str, mail: Mail, *, node: str, webhook: StoredPushConfig | None = None
    ) -> Delivered | None:
        commits = self._file.commits
        if commits.ailing:
            return None
        opening = self._opening(task, context, mail, node, webhook)
        opening.open = webhook is None
        opening.stored = commits.submit(opening.store)
        return Delivered(opening.snapshot, 1, opening, stored=opening.stored)

    def deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Awaitable[Delivered]:
        return self._given(partial(self._deliver, task, mail, dedupe, node, webhook))

    async def _given(self, job: Job[Delivered | _Unfolded]) -> Delivered:
        """What a delivery gives. A caller that is cancelled meanwhile runs nothing, so a lease of its goes back."""
        future = self._file.commits.submit(job, self._drop)
        try:
            return await self._folded(await future)
        except (asyncio.CancelledError, Unavailable, TaskUnreadable):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._drop(future.result())  # it came, and we cannot take it
            raise

    async def _folded(self, delivered: Delivered | _Unfolded) -> Delivered:
        if isinstance(delivered, Delivered):
            return delivered
        snapshot = await self._file.reads.load_key(self._scope, delivered.key)
        return Delivered(snapshot, delivered.seq, delivered.lease, delivered.duplicate, waits=delivered.waits)

    def _drop(self, delivered: Delivered | _Unfolded) -> None:
        if delivered.lease is not None:
            self._give_back(delivered.lease)

    def _give_back(self, lease: Lease) -> None:
        with suppress(Unavailable):  # closed: then its node is gone, and the lease with it
            given = self._file.commits.submit(partial(release, lease, False))
            given.add_done_callback(partial(self._gave_back, lease))

    def _gave_back(self, lease: Lease, given: asyncio.Future[None]) -> None:
        if not given.cancelled() and isinstance(given.exception(), Unavailable):
            # As long as we live, nobody else would run it.
            given.get_loop().call_later(AGAIN, self._give_back, lease)

    async def seen(self, dedupe: str) -> Delivered | None:
        reads = self._file.reads
        scope = reads.scope(self._scope)
        row = None if scope is None else reads.one(_SEEN, (scope, dedupe, time.time() - DAY))
        return None if row is None else await self._folded(_Unfolded(row[0], row[1], duplicate=True))

    def append(self, lease: Lease, records: Sequence[Record]) -> Awaitable[int]:
        if isinstance(lease, Opening):
            if lease.lost:
                return _lost(lease)
            lease.open = False
        return self._file.commits.submit(partial(self._append, lease, records))

    def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> Awaitable[int]:
        if isinstance(lease, Opening):
            if lease.lost:
                return _lost(lease)
            if (stored := lease.settle(records, mail)) is not None:
                return stored
        return self._file.commits.submit(partial(self._settle, lease, records, mail))

    async def read(
        self, task: str, *, after: int = 0, limit: int | None = None, max_bytes: int | None = None
    ) -> Sequence[Record]:
        return await self._file.reads.read(self._scope, task, after, limit, max_bytes)

    async def head(self, task: str) -> Head:
        return self._file.reads.head(self._scope, task)

    async def unfinished(self) -> int:
        return self._file.reads.unfinished(self._scope)

    async def load(self, task: str, *, admit: Admit | None = None) -> Snapshot:
        return await self._file.reads.load(self._scope, task, admit)

    async def find(self, query: ListTasks, *, limit: int) -> FoundTasks:
        return await self._file.reads.find(self._scope, query, limit)

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
        reads = self._file.reads
        scope = reads.scope(self._scope) or new_scope(db, self._scope)
        if dedupe and (earlier := self._earlier(db, scope, dedupe)):
            return earlier
        opening = self._opening(task, context, mail, node, webhook)
        kept = opening.store(db)
        if dedupe:
            db.execute(_REMEMBER, (scope, dedupe, opening.key, 1, time.time()))

        def finish() -> Delivered:
            kept()
            return Delivered(opening.snapshot, 1, opening if node else None, waits=not node)

        return finish

    def _opening(
        self, task: str, context: str, mail: Mail, node: str, webhook: StoredPushConfig | None
    ) -> Opening:
        claims = 1 if node else 0
        snapshot, record = Snapshot(self._scope, task, context, mail.at), Record("message", mail, 1)
        snapshot.apply(record)
        return Opening(
            self._scope,
            task,
            0,
            claims,
            claims,
            file=self._file,
            snapshot=snapshot,
            mail=record,
            node=node,
            webhook=webhook,
            webhooks=self._webhooks,
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
        reads = self._file.reads
        scope = reads.scope(self._scope)
        if scope is None:
            raise TaskNotFound(task)
        if dedupe and (earlier := self._earlier(db, scope, dedupe)):
            return earlier
        row = db.execute(_TASK, (scope, task)).fetchone()
        if row is None:
            raise TaskNotFound(task)
        key, seq, state, updated, done, holder, fence, attempt, reply = row
        if done:
            raise TaskClosed(f"task {task!r} is finished")
        if webhook is not None:
            webhook = self._webhooks.check(db, key, webhook)
        seq += 1
        lease = None
        if node and not holder:
            holder, fence, attempt = node, fence + 1, attempt + 1
            lease = Lease(self._scope, task, key, fence, attempt)
        record = Record("message" if isinstance(mail, Mail) else "cancel", mail, seq)
        body = pack((record,))
        db.execute(_DELIVER, (seq, holder, fence, attempt, len(body), key))
        if isinstance(mail, Mail):  # what Snapshot.apply does to the status
            if TaskState(state).interrupted:
                db.execute(_STATUS, (TaskState.SUBMITTED.value, mail.at or updated, key))
                self._count(scope, reply, state, TaskState.SUBMITTED)
            elif not updated:
                db.execute(_STATUS, (state, mail.at, key))
        self._file.commits.records.append((place(key, seq), body))
        if dedupe:
            db.execute(_REMEMBER, (scope, dedupe, key, seq, time.time()))
        if webhook is not None:
            self._webhooks.add(db, key, webhook, cursor=seq, last=seq)

        def finish() -> Delivered | _Unfolded:
            snapshot = reads.move(key, (record,))
            if snapshot:
                return Delivered(snapshot, seq, lease, waits=not holder)
            return _Unfolded(key, seq, lease, waits=not holder)

        return finish

    def _append(self, lease: Lease, records: Sequence[Record], db: Connection) -> Finish[int]:
        done, status = outcome(records)
        body = pack(records)
        seq = self._file.reads.seq(lease.key)
        if seq and status is None and not done and lease.attempt == 1 and lease.scope == self._scope:
            row = (seq + len(records), len(body), lease.key, lease.task, lease.fence, seq)
            if db.execute(_APPEND_NEXT, row).rowcount:
                seq = self._write(lease.key, seq, records, body)
                return partial(self._moved, lease.key, records, seq, False)
        seq, _, hooked, scope, reply, state = self._held(lease, db)
        seq = self._write(lease.key, seq, records, body)
        if status is None:
            db.execute(_APPEND, (seq, len(body), done, lease.key))
        else:
            how = (seq, len(body), done, status.state.value, status.timestamp)
            db.execute(_APPEND_STATUS, (*how, lease.key))
            self._count(scope, reply, state, status.state)
        if lease.attempt > 1 and any(record.progress for record in records):
            db.execute(_GOT_ON, (lease.key,))
        news = bool(hooked) and self._webhooks.mark(db, lease.key, records)
        return partial(self._moved, lease.key, records, seq, news)

    def _settle(self, lease: Lease, records: Sequence[Record], mail: int, db: Connection) -> Finish[int]:
        done, status = outcome(records)
        body = pack(records)
        snapshot = self._file.reads.kept(lease.key)
        if snapshot is not None and status is not None and lease.scope == self._scope:
            seq = snapshot.seq
            how = (seq + len(records), len(body), done, status.state.value, status.timestamp)
            if db.execute(_SETTLE_NEXT, (*how, lease.key, lease.task, lease.fence, seq, mail)).rowcount:
                number, reply = self._file.reads.scope(self._scope), snapshot.mails[0][1].reply
                assert number is not None
                self._count(
                    number, reply, snapshot.status.state.value, status.state
                )  # at `seq`, as in the row
                seq = self._write(lease.key, seq, records, body)
                return partial(self._moved, lease.key, records, seq, False)
        seq, last_mail, hooked, scope, reply, state = self._held(lease, db)
        if last_mail != mail:
            raise NewMail(lease.task)
        seq = self._write(lease.key, seq, records, body)
        if status is None:
            db.execute(_SETTLE, (seq, len(body), done, lease.key))
        else:
            how = (seq, len(body), done, status.state.value, status.timestamp)
            db.execute(_SETTLE_STATUS, (*how, lease.key))
            self._count(scope, reply, state, status.state)
        news = bool(hooked) and self._webhooks.mark(db, lease.key, records)
        return partial(self._moved, lease.key, records, seq, news)

    def _write(self, key: int, seq: int, records: Sequence[Record], body: bytes) -> int:
        """Add `records`, packed as `body`, after `seq`; return the new last one."""
        if records:
            number(records, seq + 1)
            seq += len(records)
            self._file.commits.records.append((place(key, seq), body))
        return seq

    def _count(self, scope: int, reply: bool, before: str, now: TaskState) -> None:
        """Move a task from one state to another in `counts`."""
        commits, after = self._file.commits, now.value
        if after != before:
            if visible(before, reply):
                commits.count(scope, before, -1)
            if visible(after, reply):
                commits.count(scope, after, 1)

    def _held(self, lease: Lease, db: Connection) -> tuple[int, int, int, int, bool, str]:
        """Of a task that is still ours: the last record, the last mail, whether it has webhooks; its scope, `reply` and state."""
        if lease.scope != self._scope:
            raise TaskNotFound(lease.task)
        row: tuple[int, int, int, int, bool, str] | None = db.execute(
            _HELD, (lease.key, lease.task, lease.fence)
        ).fetchone()
        if row is None:
            raise LeaseLost(lease.task)
        return row

    def _moved(self, key: int, records: Sequence[Record], seq: int, news: bool) -> int:
        self._file.reads.move(key, records)
        if news:
            self._webhooks.wake()
        return seq

    def _earlier(self, db: Connection, scope: int, dedupe: str) -> Finish[_Unfolded] | None:
        row = db.execute(_SEEN, (scope, dedupe, time.time() - DAY)).fetchone()
        return None if row is None else partial(_Unfolded, row[0], row[1], duplicate=True)


async def _lost(lease: Lease) -> int:
    raise LeaseLost(lease.task)


def release(lease: Lease, failed: bool, db: Connection) -> Finish[None]:
    """Give a task back unfinished."""
    db.execute(_RELEASE, (not failed, lease.key, lease.task, lease.fence))
    return lambda: None

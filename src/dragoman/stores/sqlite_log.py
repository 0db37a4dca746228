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

from dragoman.engine.hooks import Hook
from dragoman.engine.log import Cancel, Mail, Record, Snapshot, number, pack
from dragoman.engine.seams import Delivered, Found, Lease, LeaseLost, NewMail
from dragoman.errors import TaskClosed, TaskNotFound, Unavailable
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from dragoman.stores.rows import outcome
from dragoman.stores.sqlite_commits import Finish, Job
from dragoman.stores.sqlite_file import SqliteFile
from dragoman.stores.sqlite_hooks import SqliteHooks
from dragoman.stores.sqlite_opening import Opening, new_scope
from dragoman.stores.sqlite_reads import place

DAY = 24 * 60 * 60.0
"""How long a key is remembered."""
AGAIN = 0.1
"""Seconds until what has to be written is tried once more."""

_TASK = "select key, seq, state, updated, done, node, fence, attempt from tasks where scope = ? and id = ?"
_DELIVER = (
    "update tasks set seq = ?1, mail = ?1, ready = 1, node = ?2, fence = ?3, attempt = ?4 where key = ?5"
)
_STATUS = "update tasks set state = ?, updated = ? where key = ?"
# A key that was never committed may come again, so a lease also says whose it was.
_HELD = "select seq, mail, hooks from tasks where key = ? and id = ? and fence = ? and node is not null"
_APPEND = "update tasks set seq = ?, done = done or ? where key = ?"
_APPEND_STATUS = "update tasks set seq = ?, done = done or ?, state = ?, updated = ? where key = ?"
_GOT_ON = "update tasks set attempt = 1 where key = ?"
_SETTLE = "update tasks set seq = ?, done = done or ?, ready = 0, node = null, attempt = 0 where key = ?"
_SETTLE_STATUS = """
update tasks set seq = ?, done = done or ?, ready = 0, node = null, attempt = 0, state = ?, updated = ? where key = ?
"""
# What it mostly is: nobody else has written to the task, and nobody is to be told. Then one look is enough.
_NEXT = " where key = ? and id = ? and fence = ? and seq = ? and hooks = 0 and node is not null"
_APPEND_NEXT = "update tasks set seq = ?" + _NEXT
_SETTLE_NEXT = _SETTLE_STATUS.replace(" where key = ?", _NEXT + " and mail = ?")
_RELEASE = """
update tasks set node = null, attempt = attempt - ? where key = ? and id = ? and fence = ? and node is not null
"""
_SEEN = """
select seen.key, seen.seq from seen join tasks on tasks.key = seen.key
where seen.scope = ? and dedupe = ? and at > ?
"""
_REMEMBER = "insert or replace into seen (scope, dedupe, key, seq, at) values (?, ?, ?, ?, ?)"


class SqliteLog:
    """The scope is bound here, so no statement can forget it."""

    def __init__(self, file: SqliteFile, scope: Scope, hooks: SqliteHooks) -> None:
        self._file = file
        self._scope = scope
        self._hooks = hooks

    def create(
        self,
        task: str,
        context: str,
        mail: Mail,
        *,
        dedupe: str = "",
        node: str = "",
        hook: Hook | None = None,
    ) -> Awaitable[Delivered]:
        return self._given(partial(self._create, task, context, mail, dedupe, node, hook))

    def begin(
        self, task: str, context: str, mail: Mail, *, node: str, hook: Hook | None = None
    ) -> Delivered | None:
        commits = self._file.commits
        if commits.ailing:
            return None
        opening = self._opening(task, context, mail, node, hook)
        opening.open = hook is None
        opening.stored = commits.submit(opening.store)
        return Delivered(opening.snapshot, 1, opening, stored=opening.stored)

    def deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        *,
        dedupe: str = "",
        node: str = "",
        hook: Hook | None = None,
    ) -> Awaitable[Delivered]:
        return self._given(partial(self._deliver, task, mail, dedupe, node, hook))

    async def _given(self, job: Job[Delivered]) -> Delivered:
        """What a delivery gives. A caller that is cancelled meanwhile runs nothing, so a lease of its goes back."""
        future = self._file.commits.submit(job, self._drop)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self._drop(future.result())  # it came, and we were cancelled all the same
            raise

    def _drop(self, delivered: Delivered) -> None:
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
        return None if row is None else self._duplicate(*row)

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

    async def read(self, task: str, *, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return await self._file.reads.read(self._scope, task, after, limit)

    async def load(self, task: str) -> Snapshot:
        return await self._file.reads.load(self._scope, task)

    async def find(self, query: ListTasks, *, limit: int) -> Found:
        return await self._file.reads.find(self._scope, query, limit)

    def _create(
        self,
        task: str,
        context: str,
        mail: Mail,
        dedupe: str,
        node: str,
        hook: Hook | None,
        db: Connection,
    ) -> Finish[Delivered]:
        reads = self._file.reads
        scope = reads.scope(self._scope) or new_scope(db, self._scope)
        if dedupe and (earlier := self._earlier(db, scope, dedupe)):
            return earlier
        opening = self._opening(task, context, mail, node, hook)
        kept = opening.store(db)
        if dedupe:
            db.execute(_REMEMBER, (scope, dedupe, opening.key, 1, time.time()))

        def finish() -> Delivered:
            kept()
            return Delivered(opening.snapshot, 1, opening if node else None)

        return finish

    def _opening(self, task: str, context: str, mail: Mail, node: str, hook: Hook | None) -> Opening:
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
            hook=hook,
            hooks=self._hooks,
        )

    def _deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        dedupe: str,
        node: str,
        hook: Hook | None,
        db: Connection,
    ) -> Finish[Delivered]:
        reads = self._file.reads
        scope = reads.scope(self._scope)
        if scope is None:
            raise TaskNotFound(task)
        if dedupe and (earlier := self._earlier(db, scope, dedupe)):
            return earlier
        row = db.execute(_TASK, (scope, task)).fetchone()
        if row is None:
            raise TaskNotFound(task)
        key, seq, state, updated, done, holder, fence, attempt = row
        if done:
            raise TaskClosed(f"task {task!r} is finished")
        if hook is not None:
            hook = self._hooks.check(db, key, hook)
        seq += 1
        lease = None
        if node and not holder:
            holder, fence, attempt = node, fence + 1, attempt + 1
            lease = Lease(self._scope, task, key, fence, attempt)
        db.execute(_DELIVER, (seq, holder, fence, attempt, key))
        if isinstance(mail, Mail):  # what Snapshot.apply does to the status
            record = Record("message", mail, seq)
            if TaskState(state).interrupted:
                db.execute(_STATUS, (TaskState.SUBMITTED.value, mail.at or updated, key))
            elif not updated:
                db.execute(_STATUS, (state, mail.at, key))
        else:
            record = Record("cancel", mail, seq)
        self._file.commits.records.append((place(key, seq), pack((record,))))
        if dedupe:
            db.execute(_REMEMBER, (scope, dedupe, key, seq, time.time()))
        if hook is not None:
            self._hooks.add(db, key, hook, cursor=seq, last=seq)

        def finish() -> Delivered:
            try:
                snapshot = reads.move(key, (record,)) or reads.load_key(self._scope, key)
            except Unavailable:
                if lease is not None:
                    self._give_back(lease)
                raise
            return Delivered(snapshot, seq, lease)

        return finish

    def _append(self, lease: Lease, records: Sequence[Record], db: Connection) -> Finish[int]:
        done, status = outcome(records)
        seq = self._file.reads.seq(lease.key)
        if seq and status is None and not done and lease.attempt == 1 and lease.scope == self._scope:
            row = (seq + len(records), lease.key, lease.task, lease.fence, seq)
            if db.execute(_APPEND_NEXT, row).rowcount:
                return partial(self._moved, lease.key, records, self._write(lease.key, seq, records), False)
        seq, _, hooked = self._held(lease, db)
        seq = self._write(lease.key, seq, records)
        if status is None:
            db.execute(_APPEND, (seq, done, lease.key))
        else:
            db.execute(_APPEND_STATUS, (seq, done, status.state.value, status.timestamp, lease.key))
        if lease.attempt > 1 and any(record.progress for record in records):
            db.execute(_GOT_ON, (lease.key,))
        news = bool(hooked) and self._hooks.mark(db, lease.key, records)
        return partial(self._moved, lease.key, records, seq, news)

    def _settle(self, lease: Lease, records: Sequence[Record], mail: int, db: Connection) -> Finish[int]:
        done, status = outcome(records)
        seq = self._file.reads.seq(lease.key)
        if seq and status is not None and lease.scope == self._scope:
            how = (seq + len(records), done, status.state.value, status.timestamp)
            if db.execute(_SETTLE_NEXT, (*how, lease.key, lease.task, lease.fence, seq, mail)).rowcount:
                return partial(self._moved, lease.key, records, self._write(lease.key, seq, records), False)
        seq, last_mail, hooked = self._held(lease, db)
        if last_mail != mail:
            raise NewMail(lease.task)
        seq = self._write(lease.key, seq, records)
        if status is None:
            db.execute(_SETTLE, (seq, done, lease.key))
        else:
            db.execute(_SETTLE_STATUS, (seq, done, status.state.value, status.timestamp, lease.key))
        news = bool(hooked) and self._hooks.mark(db, lease.key, records)
        return partial(self._moved, lease.key, records, seq, news)

    def _write(self, key: int, seq: int, records: Sequence[Record]) -> int:
        """Add `records` after `seq`; return the new last one."""
        if records:
            number(records, seq + 1)
            seq += len(records)
            self._file.commits.records.append((place(key, seq), pack(records)))
        return seq

    def _held(self, lease: Lease, db: Connection) -> tuple[int, int, int]:
        """The last record and the last mail of a task that is still ours, and whether it has hooks."""
        if lease.scope != self._scope:
            raise TaskNotFound(lease.task)
        row: tuple[int, int, int] | None = db.execute(_HELD, (lease.key, lease.task, lease.fence)).fetchone()
        if row is None:
            raise LeaseLost(lease.task)
        return row

    def _moved(self, key: int, records: Sequence[Record], seq: int, news: bool) -> int:
        self._file.reads.move(key, records)
        if news:
            self._hooks.wake()
        return seq

    def _earlier(self, db: Connection, scope: int, dedupe: str) -> Finish[Delivered] | None:
        row = db.execute(_SEEN, (scope, dedupe, time.time() - DAY)).fetchone()
        return None if row is None else partial(self._duplicate, *row)

    def _duplicate(self, key: int, seq: int) -> Delivered:
        return Delivered(self._file.reads.load_key(self._scope, key), seq, duplicate=True)


async def _lost(lease: Lease) -> int:
    raise LeaseLost(lease.task)


def release(lease: Lease, failed: bool, db: Connection) -> Finish[None]:
    """Give a task back unfinished."""
    db.execute(_RELEASE, (not failed, lease.key, lease.task, lease.fence))
    return lambda: None

"""One transaction for many jobs on logs: a few statements read, Python decides, a few statements write.

The rows of all tasks are locked first, in the order of their keys, so that two nodes cannot wait for each other in a circle.
Then each job changes a row in memory, or ends with an error such as `LeaseLost`, which writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from random import randrange
from typing import Any

from msgspec import Struct

from dragoman.engine.protocols import Lease, LeaseLost, NewMail, TaskExists
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, pack
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.transition import Append, Create, Deliver, Settle, TaskRow, decide, visible
from dragoman.errors import InvalidParams, TaskClosed, TaskNotFound
from dragoman.model.ops import Scope
from dragoman.stores.postgres import push_queue
from dragoman.stores.postgres.address import Connection
from dragoman.stores.rows import DEDUPE_SECONDS, read_task_row

_COUNT_SLOTS = 16
"""Rows of `counts` for one scope and state. Transactions that add to different ones do not wait for each other."""
_LOCK_KEYS = "select pg_advisory_xact_lock(n) from unnest($1::bigint[]) as n"
_SEEN = """
select scope, dedupe, seen.key, seen.seq from dragoman.seen join unnest($1::integer[], $2::text[]) as n(scope, dedupe)
using (scope, dedupe) where at > dragoman.clock() - $3::double precision
and exists (select 1 from dragoman.tasks where tasks.key = seen.key)
"""
_CREATE = """
insert into dragoman.tasks
(scope, id, context, reply, size, seq, mail, state, updated, ready, node, fence, attempt, webhooks)
select scope, id, context, reply, size, seq, mail, state, updated, ready, node, fence, attempt, webhooks
from unnest($1::integer[], $2::text[], $3::text[], $4::boolean[], $5::bigint[], $6::integer[], $7::integer[], $8::text[],
$9::text[], $10::boolean[], $11::text[], $12::integer[], $13::integer[], $14::boolean[]) with ordinality
as n(scope, id, context, reply, size, seq, mail, state, updated, ready, node, fence, attempt, webhooks, place) order by place
on conflict (scope, id) do nothing returning scope, id, key
"""
_KEYS = """
select scope, id, key from dragoman.tasks join unnest($1::integer[], $2::text[]) as n(scope, id) using (scope, id)
"""
_LOCK = """
select key, seq, mail, state, updated, done, ready, node, fence, attempt, webhooks, size, scope, reply
from dragoman.tasks where key = any($1::bigint[]) order by key for update
"""
_WRITE = """
with moved as (
    update dragoman.tasks set seq = n.seq, mail = n.mail, state = n.state, updated = n.updated, done = n.done,
    ready = n.ready, node = n.node, fence = n.fence, attempt = n.attempt, webhooks = n.webhooks, size = n.size
    from unnest($1::bigint[], $2::integer[], $3::integer[], $4::text[], $5::text[], $6::boolean[], $7::boolean[],
    $8::text[], $9::integer[], $10::integer[], $11::boolean[], $12::bigint[])
    as n(key, seq, mail, state, updated, done, ready, node, fence, attempt, webhooks, size) where tasks.key = n.key
), added as (
    insert into dragoman.log (key, seq, body) select * from unnest($13::bigint[], $14::integer[], $15::bytea[])
), counted as (
    insert into dragoman.counts as c (scope, state, slot, n)
    select scope, state, $19, n from unnest($16::integer[], $17::text[], $18::bigint[]) as n(scope, state, n)
    order by scope, state on conflict (scope, state, slot) do update set n = c.n + excluded.n
) select pg_current_xact_id()::text
"""
_REMEMBER = """
insert into dragoman.seen (scope, dedupe, key, seq, at)
select *, dragoman.clock() from unnest($1::integer[], $2::text[], $3::bigint[], $4::integer[])
on conflict (scope, dedupe) do update set key = excluded.key, seq = excluded.seq, at = excluded.at
"""


class DeliverJob(Struct):
    """A message or a cancel for a task. With `node`, that node gets the lease if no node holds it."""

    scope: Scope
    number: int
    """The database's key of the scope."""
    task: str
    mail: Mail | Cancel
    dedupe: str = ""
    node: str = ""
    webhook: StoredPushConfig | None = None


class CreateJob(DeliverJob, kw_only=True):
    """The first message of a new task."""

    mail: Mail
    context: str


class OutputJob(Struct):
    """Output of the holder of a lease; with `mail_read`, also its settlement."""

    lease: Lease
    records: Sequence[Record]
    mail_read: int | None = None


LogJob = DeliverJob | OutputJob
"""A write to the log of a task; a `CreateJob` is a `DeliverJob`."""


class LogResult(Struct):
    """The result of a job. `records` were added to the log of the task `key`, up to record `seq`."""

    job: LogJob
    key: int
    seq: int
    records: Sequence[Record] = ()
    lease: Lease | None = None
    duplicate: bool = False
    unclaimed: bool = False
    """No node has the task: it waits for one."""
    notifies: bool = False
    """A webhook is to be notified."""
    snapshot: Snapshot | None = None
    """The task after this job, if its snapshot is cached."""


class _LockedTask:
    """A task's row, which this transaction has locked: as it was, and as it will be."""

    __slots__ = ("key", "scope", "reply", "row", "before", "size", "changed")

    def __init__(self, values: Sequence[Any]) -> None:
        self.key, *columns, self.size, self.scope, self.reply = values
        self.row = self.before = read_task_row(columns)
        self.changed = False

    def values(self) -> tuple[Any, ...]:
        row = self.row
        return (self.key, row.seq, row.mail, row.state.value, row.updated, row.done, row.ready, row.node or None,
                row.fence, row.attempt, row.push, self.size)  # fmt: skip


class _NewTask:
    """A task that this transaction inserts."""

    __slots__ = ("job", "message", "row", "body")

    def __init__(self, job: CreateJob) -> None:
        self.job, self.message = job, Record("message", job.mail)
        create = Create(self.message, job.mail.at, job.node, push=job.webhook is not None)
        self.row = decide(TaskRow(), create).row
        self.body = pack((self.message,))

    def values(self) -> tuple[Any, ...]:
        job, row = self.job, self.row
        return (job.number, job.task, job.context, job.mail.reply, len(self.body), row.seq, row.mail, row.state.value,
                row.updated, row.ready, row.node or None, row.fence, row.attempt, row.push)  # fmt: skip


async def perform(db: Connection, jobs: Sequence[LogJob]) -> tuple[list[LogResult | Exception], str | None]:
    """Do all `jobs`, in order. Returns the result of each, and the id of the transaction if it wrote anything.

    No two of them may have the same idempotency key.
    """
    batch = _Batch(db, jobs)
    return await batch.perform(), batch.xid


class _Batch:
    def __init__(self, db: Connection, jobs: Sequence[LogJob]) -> None:
        self._db, self._jobs = db, jobs
        self.xid: str | None = None
        self._tasks: dict[int, _LockedTask] = {}
        self._log: list[tuple[int, int, bytes]] = []
        """Rows to insert: the task's key, the last record, and the records."""
        self._counts: dict[tuple[int, str], int] = {}
        """By how much the number of tasks of a scope in a state changes."""
        self._seen: list[tuple[int, str, int, int]] = []
        """Idempotency keys to remember: the scope, the idempotency key, and the task's key and record."""
        self._notifications: dict[int, int] = {}
        """By the task's key, the last record that its webhooks are to be notified of."""
        self._new_webhooks: list[tuple[int, StoredPushConfig, int]] = []
        """To be stored: the task's key, the webhook, and the record at which it begins."""
        self._webhooks_there: dict[int, dict[str, StoredPushConfig]] = {}
        """The webhooks of each task that gets another one."""

    async def perform(self) -> list[LogResult | Exception]:
        outcomes: dict[int, LogResult | Exception] = await self._find_duplicates()
        outcomes |= await self._create(
            {i: job for i, job in enumerate(self._jobs) if isinstance(job, CreateJob) and i not in outcomes}
        )
        waiting = {i: job for i, job in enumerate(self._jobs) if i not in outcomes}
        keys = await self._lock(waiting.values())
        for i, job in waiting.items():
            try:
                if isinstance(job, OutputJob):
                    outcomes[i] = self._add_output(job)
                else:
                    outcomes[i] = self._add_mail(job, keys.get((job.number, job.task), 0))
            except (LeaseLost, NewMail, TaskNotFound, TaskClosed, InvalidParams) as answer:
                outcomes[i] = answer
        await self._write()
        return [outcomes[i] for i in range(len(self._jobs))]

    async def _find_duplicates(self) -> dict[int, LogResult | Exception]:
        """Deliveries that repeat an earlier one. Two nodes that get the same message at the same time do this one after the other."""
        keyed = {
            (job.number, job.dedupe): i
            for i, job in enumerate(self._jobs)
            if isinstance(job, DeliverJob) and job.dedupe
        }
        if not keyed:
            return {}
        await self._db.fetch(_LOCK_KEYS, sorted(_lock_number(*name) for name in keyed))
        rows = await self._db.fetch(_SEEN, *_columns(keyed, 2), DEDUPE_SECONDS)
        return {
            i: LogResult(self._jobs[i], key, seq, duplicate=True)
            for scope, dedupe, key, seq in rows
            for i in (keyed[scope, dedupe],)
        }

    async def _create(self, jobs: dict[int, CreateJob]) -> dict[int, LogResult | Exception]:
        if not jobs:
            return {}
        new = {i: _NewTask(job) for i, job in jobs.items()}
        rows = [each.values() for each in new.values()]
        made = {(scope, id): key for scope, id, key in await self._db.fetch(_CREATE, *_columns(rows, 14))}
        outcomes: dict[int, LogResult | Exception] = {}
        for i, each in new.items():
            job, row, message = each.job, each.row, each.message
            key = made.pop((job.number, job.task), None)  # the first job for this id
            if key is None:
                outcomes[i] = TaskExists(job.task)
                continue
            lease = Lease(job.scope, job.task, key, row.fence, row.attempt) if job.node else None
            self._count(job.number, row.state.value, job.mail.reply, 1)
            self._log.append((key, row.seq, each.body))
            outcomes[i] = self._finish_delivery(job, key, message, lease, row)
        return outcomes

    async def _lock(self, jobs: Collection[LogJob]) -> dict[tuple[int, str], int]:
        """Lock the tasks of these jobs, and load what is needed of them. Returns the keys of those that get mail, by scope and id."""
        mail = [job for job in jobs if isinstance(job, DeliverJob)]
        keys: dict[tuple[int, str], int] = {}
        if mail:
            names = {(job.number, job.task) for job in mail}
            keys = {(scope, id): key for scope, id, key in await self._db.fetch(_KEYS, *_columns(names, 2))}
        locked = {*keys.values(), *(job.lease.key for job in jobs if isinstance(job, OutputJob))}
        if locked:
            self._tasks = {row[0]: _LockedTask(row) for row in await self._db.fetch(_LOCK, sorted(locked))}
        with_webhook = [(job.number, job.task) for job in mail if job.webhook]
        self._webhooks_there = await push_queue.find_webhooks(
            self._db, [keys[name] for name in with_webhook if name in keys]
        )
        return keys

    def _add_mail(self, job: DeliverJob, key: int) -> LogResult:
        held = self._tasks.get(key)
        if held is None:
            raise TaskNotFound(job.task)
        message = isinstance(job.mail, Mail)
        record = Record("message" if message else "cancel", job.mail)
        at = job.mail.at if isinstance(job.mail, Mail) else ""
        decision = decide(
            held.row, Deliver(job.task, record, at, job.node, job.webhook is not None, held.reply)
        )
        if job.webhook is not None:
            there = self._webhooks_there.setdefault(key, {})
            job.webhook = push_queue.check_webhook(there, job.webhook)
            there[job.webhook.config.id] = job.webhook
        row = held.row = decision.row
        held.changed = True
        held.size += self._add_to_log(key, (record,))
        lease = Lease(job.scope, job.task, key, row.fence, row.attempt) if decision.leased else None
        return self._finish_delivery(job, key, record, lease, row)

    def _add_output(self, job: OutputJob) -> LogResult:
        lease, records = job.lease, job.records
        held = self._tasks.get(lease.key)
        if held is None:
            raise LeaseLost(lease.task)
        if job.mail_read is None:
            decision = decide(held.row, Append(lease.task, lease.fence, records))
        else:
            decision = decide(held.row, Settle(lease.task, lease.fence, records, job.mail_read))
        held.row, held.changed = decision.row, True
        if records:
            held.size += self._add_to_log(held.key, records)
        if decision.notify:
            self._notifications[held.key] = decision.notify
        return LogResult(job, held.key, held.row.seq, records, notifies=bool(decision.notify))

    def _add_to_log(self, key: int, records: Sequence[Record]) -> int:
        """Add records that are numbered. Returns their bytes."""
        body = pack(records)
        self._log.append((key, records[-1].seq, body))
        return len(body)

    def _finish_delivery(
        self, job: DeliverJob, key: int, record: Record, lease: Lease | None, row: TaskRow
    ) -> LogResult:
        if job.dedupe:
            self._seen.append((job.number, job.dedupe, key, record.seq))
        if job.webhook is not None:
            self._new_webhooks.append((key, job.webhook, record.seq))
        return LogResult(job, key, record.seq, (record,), lease, unclaimed=not row.node)

    def _count(self, scope: int, state: str, reply: bool, n: int) -> None:
        if visible(state, reply):
            self._counts[scope, state] = self._counts.get((scope, state), 0) + n

    async def _write(self) -> None:
        changed = [held for held in self._tasks.values() if held.changed]
        for held in changed:
            if held.row.state is not held.before.state:
                self._count(held.scope, held.before.state.value, held.reply, -1)
                self._count(held.scope, held.row.state.value, held.reply, 1)
        if changed or self._log:
            self.xid = await self._db.fetchval(
                _WRITE,
                *_columns([held.values() for held in changed], 12),
                *_columns(self._log, 3),
                *_columns([(scope, state, n) for (scope, state), n in self._counts.items() if n], 3),
                SLOT,
            )
        if self._seen:
            await self._db.execute(_REMEMBER, *_columns(self._seen, 4))
        for key, webhook, begins in self._new_webhooks:
            await push_queue.put_webhook(self._db, key, webhook, cursor=begins, last=begins)
        if self._notifications:
            await push_queue.notify_webhooks(self._db, self._notifications)


def _choose_slot() -> int:
    return randrange(_COUNT_SLOTS)


SLOT = _choose_slot()
"""The row of `counts` that this process adds to."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: globals().update(SLOT=_choose_slot()))


def _columns(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as the arrays of their columns."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _lock_number(scope: int, dedupe: str) -> int:
    """The number of an idempotency key's lock. Two keys may share one: then their transactions wait for each other."""
    digest = blake2b(f"{scope} {dedupe}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)

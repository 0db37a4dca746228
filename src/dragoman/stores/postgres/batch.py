"""What one transaction does for many: a few statements look, Python decides, a few statements write.

The rows of all tasks are locked first and in the order of their keys, so that two nodes wait for each other but never in a
circle. Then each job is a change to a row in memory and perhaps an answer like `LeaseLost`, which leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from random import randrange
from typing import Any

from msgspec import Struct

from dragoman.engine.protocols import Lease, LeaseLost, NewMail, TaskExists
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, Snapshot, pack
from dragoman.engine.transition import Append, Create, Deliver, Settle, TaskRow, decide, visible
from dragoman.errors import InvalidParams, TaskClosed, TaskNotFound
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores.postgres import push_queue as webhooks
from dragoman.stores.postgres.address import Connection

DAY = 24 * 60 * 60.0
"""How long a key is remembered."""

_SLOTS = 16
_GUARD = "select pg_advisory_xact_lock(n) from unnest($1::bigint[]) as n"
_SEEN = """
select scope, dedupe, seen.key, seen.seq from dragoman.seen join unnest($1::integer[], $2::text[]) as n(scope, dedupe)
using (scope, dedupe) where at > dragoman.clock() - $3::double precision
and exists (select 1 from dragoman.tasks where tasks.key = seen.key)
"""
_CREATE = """
insert into dragoman.tasks (scope, id, context, updated, state, reply, webhooks, seq, mail, node, fence, attempt, size)
select scope, id, context, updated, 'TASK_STATE_SUBMITTED', reply, webhooks, 1, 1, node, claims, claims, size
from unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::boolean[], $7::text[], $8::integer[],
$9::bigint[]) with ordinality as n(scope, id, context, updated, reply, webhooks, node, claims, size, place) order by place
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


class Job(Struct):
    """Mail for a task, which may be a `new` one. With a `lease`: its output, and with `mail_read` the end of it."""

    scope: Scope
    number: int
    """The database's own name for the scope."""
    task: str
    new: bool = False
    context: str = ""
    mail: Mail | Cancel | None = None
    dedupe: str = ""
    node: str = ""
    webhook: StoredPushConfig | None = None
    lease: Lease | None = None
    records: Sequence[Record] = ()
    mail_read: int | None = None


class Outcome(Struct):
    """What a job came to. `records` is what it added to the log of the task `key`, up to `seq`."""

    job: Job
    key: int
    seq: int
    records: Sequence[Record] = ()
    lease: Lease | None = None
    duplicate: bool = False
    unclaimed: bool = False
    """No node has the task: it waits for one."""
    news: bool = False
    """Somebody is to be told of it."""
    snapshot: Snapshot | None = None
    """The task after this job, if its snapshot is kept."""


class _Held:
    """A task's row, locked by us, and what this transaction makes of it."""

    __slots__ = ("key", "scope", "reply", "row", "was", "size", "changed")

    def __init__(self, values: Sequence[Any]) -> None:
        key, seq, mail, state, updated, done, ready, node, fence, attempt, push, size, scope, reply = values
        self.key, self.scope, self.reply, self.size = key, scope, reply, size
        self.row = self.was = TaskRow(
            seq=seq,
            mail=mail,
            state=TaskState(state),
            updated=updated,
            done=done,
            ready=ready,
            node=node or "",
            fence=fence,
            attempt=attempt,
            push=push,
        )
        self.changed = False

    def values(self) -> tuple[Any, ...]:
        row = self.row
        return (self.key, row.seq, row.mail, row.state.value, row.updated, row.done, row.ready, row.node or None,
                row.fence, row.attempt, row.push, self.size)  # fmt: skip


async def perform(db: Connection, jobs: Sequence[Job]) -> tuple[list[Outcome | Exception], str | None]:
    """Do all `jobs`, in order: what each came to, and the name of the transaction if they wrote anything.

    No two of them have the same key to be known by.
    """
    batch = _Batch(db, jobs)
    return await batch.perform(), batch.xid


class _Batch:
    def __init__(self, db: Connection, jobs: Sequence[Job]) -> None:
        self._db, self._jobs = db, jobs
        self.xid: str | None = None
        self._rows: dict[int, _Held] = {}
        self._log: list[tuple[int, int, bytes]] = []
        self._counts: dict[tuple[int, str], int] = {}
        """By how much the number of tasks of a scope in a state changes."""
        self._seen: list[tuple[int, str, int, int]] = []
        self._marks: dict[int, int] = {}
        self._webhooks: list[tuple[int, StoredPushConfig, int]] = []
        """To be kept: the task's key, the webhook, and where it begins."""
        self._others: dict[int, dict[str, StoredPushConfig]] = {}
        """The webhooks of a task that is to have another one."""

    async def perform(self) -> list[Outcome | Exception]:
        outcomes: dict[int, Outcome | Exception] = await self._duplicates()
        creating = [(i, job) for i, job in enumerate(self._jobs) if job.new and i not in outcomes]
        outcomes |= await self._create(creating)
        mail = [job for i, job in enumerate(self._jobs) if job.lease is None and i not in outcomes]
        keys = await self._keys(mail)
        await self._lock({*keys.values(), *(job.lease.key for job in self._jobs if job.lease is not None)})
        self._others = await webhooks.of_tasks(
            self._db,
            [keys[job.number, job.task] for job in mail if job.webhook and (job.number, job.task) in keys],
        )
        for i, job in enumerate(self._jobs):
            if i not in outcomes:
                try:
                    if job.lease is not None:
                        outcomes[i] = self._append(job, job.lease)
                    else:
                        outcomes[i] = self._deliver(job, keys.get((job.number, job.task), 0))
                except (LeaseLost, NewMail, TaskNotFound, TaskClosed, InvalidParams) as answer:
                    outcomes[i] = answer
        await self._write()
        return [outcomes[i] for i in range(len(self._jobs))]

    async def _duplicates(self) -> dict[int, Outcome | Exception]:
        """What was delivered before. Two nodes that hear the same at the same time come here one after the other."""
        keyed = {(job.number, job.dedupe): i for i, job in enumerate(self._jobs) if job.dedupe}
        if not keyed:
            return {}
        await self._db.fetch(_GUARD, sorted(_guard(*name) for name in keyed))
        rows = await self._db.fetch(_SEEN, *_columns(keyed, 2), DAY)
        return {
            i: Outcome(self._jobs[i], key, seq, duplicate=True)
            for scope, dedupe, key, seq in rows
            for i in (keyed[scope, dedupe],)
        }

    async def _create(self, jobs: Sequence[tuple[int, Job]]) -> dict[int, Outcome | Exception]:
        if not jobs:
            return {}
        rows = [
            (job.number, job.task, job.context, job.mail.at, job.mail.reply, job.webhook is not None, job.node or None,
             1 if job.node else 0, len(pack((Record("message", job.mail),))))
            for _, job in jobs
            if isinstance(job.mail, Mail)
        ]  # fmt: skip
        made = {(scope, id): key for scope, id, key in await self._db.fetch(_CREATE, *_columns(rows, 9))}
        outcomes: dict[int, Outcome | Exception] = {}
        for i, job in jobs:
            key = made.pop((job.number, job.task), None)  # the first of those who want the same id
            if key is None:
                outcomes[i] = TaskExists(job.task)
                continue
            assert isinstance(job.mail, Mail)
            message = Record("message", job.mail)
            made_row = decide(TaskRow(), Create(message, job.mail.at, job.node)).row
            lease = Lease(job.scope, job.task, key, made_row.fence, made_row.attempt) if job.node else None
            self._count(job.number, made_row.state.value, job.mail.reply, 1)
            outcomes[i] = self._accepted(job, key, message, lease, unclaimed=not job.node)
        return outcomes

    async def _keys(self, jobs: Sequence[Job]) -> dict[tuple[int, str], int]:
        if not jobs:
            return {}
        names = {(job.number, job.task) for job in jobs}
        return {(scope, id): key for scope, id, key in await self._db.fetch(_KEYS, *_columns(names, 2))}

    async def _lock(self, keys: set[int]) -> None:
        if keys:
            self._rows = {row[0]: _Held(row) for row in await self._db.fetch(_LOCK, sorted(keys))}

    def _deliver(self, job: Job, key: int) -> Outcome:
        held = self._rows.get(key)
        if held is None:
            raise TaskNotFound(job.task)
        assert job.mail is not None
        message = isinstance(job.mail, Mail)
        record = Record("message" if message else "cancel", job.mail)
        at = job.mail.at if isinstance(job.mail, Mail) else ""
        decision = decide(
            held.row, Deliver(job.task, record, at, job.node, job.webhook is not None, held.reply)
        )
        if job.webhook is not None:
            others = self._others.setdefault(key, {})
            job.webhook = webhooks.checked(others, job.webhook)
            others[job.webhook.config.id] = job.webhook
        row = held.row = decision.row
        held.changed = True
        lease = Lease(job.scope, job.task, key, row.fence, row.attempt) if decision.leased else None
        done = self._accepted(job, key, record, lease, unclaimed=not row.node)
        held.size += len(self._log[-1][2])
        return done

    def _accepted(
        self, job: Job, key: int, record: Record, lease: Lease | None, *, unclaimed: bool
    ) -> Outcome:
        self._log.append((key, record.seq, pack((record,))))
        if job.dedupe:
            self._seen.append((job.number, job.dedupe, key, record.seq))
        if job.webhook is not None:
            self._webhooks.append((key, job.webhook, record.seq))
        return Outcome(job, key, record.seq, (record,), lease, unclaimed=unclaimed)

    def _append(self, job: Job, lease: Lease) -> Outcome:
        held, records = self._rows.get(lease.key), job.records
        if held is None:
            raise LeaseLost(lease.task)
        if job.mail_read is None:
            decision = decide(held.row, Append(lease.task, lease.fence, records))
        else:
            decision = decide(held.row, Settle(lease.task, lease.fence, records, job.mail_read))
        held.row, held.changed = decision.row, True
        if records:
            body = pack(records)
            held.size += len(body)
            self._log.append((held.key, held.row.seq, body))
        if decision.notify:
            self._marks[held.key] = decision.notify
        return Outcome(job, held.key, held.row.seq, records, news=bool(decision.notify))

    def _count(self, scope: int, state: str, reply: bool, n: int) -> None:
        if visible(state, reply):
            self._counts[scope, state] = self._counts.get((scope, state), 0) + n

    async def _write(self) -> None:
        changed = [held for held in self._rows.values() if held.changed]
        for held in changed:
            if held.row.state is not held.was.state:
                self._count(held.scope, held.was.state.value, held.reply, -1)
                self._count(held.scope, held.row.state.value, held.reply, 1)
        if changed or self._log:
            self.xid = await self._db.fetchval(
                _WRITE,
                *_columns([held.values() for held in changed], 12),
                *_columns(self._log, 3),
                *_columns([(*which, n) for which, n in self._counts.items() if n], 3),
                SLOT,
            )
        if self._seen:
            await self._db.execute(_REMEMBER, *_columns(self._seen, 4))
        for key, webhook, begins in self._webhooks:
            await webhooks.keep(self._db, key, webhook, cursor=begins, last=begins)
        if self._marks:
            await webhooks.mark(self._db, self._marks)


def _slot() -> int:
    """The rows of `counts` that this process adds to. Nodes that share one only wait for each other."""
    return randrange(_SLOTS)


SLOT = _slot()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: globals().update(SLOT=_slot()))


def _columns(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as the arrays of their columns."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _guard(scope: int, dedupe: str) -> int:
    """The lock of a key: two may share one, and then only wait for each other."""
    digest = blake2b(f"{scope} {dedupe}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)

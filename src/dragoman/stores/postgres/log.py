"""One scope's tasks in a PostgreSQL database: mail in, output on. What is written joins the next transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from dragoman.engine.protocols import Delivered, Lease
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, Snapshot
from dragoman.errors import InvalidParams, TaskNotFound, TaskUnreadable, Unavailable
from dragoman.model.ops import Scope
from dragoman.stores.postgres.batch import DAY, Job, Outcome
from dragoman.stores.postgres.database import fits
from dragoman.stores.postgres.reads import LogReads
from dragoman.stores.postgres.state import StoreState

_SEEN = """
select seen.key, seen.seq from dragoman.seen join dragoman.tasks on tasks.key = seen.key
where seen.scope = $1 and dedupe = $2 and at > dragoman.clock() - $3::double precision
"""


class PostgresLog(LogReads):
    """The scope is bound here, so no statement can forget it."""

    def __init__(self, state: StoreState, scope: Scope) -> None:
        super().__init__(state, scope)
        self._state = state

    async def create(
        self,
        task: str,
        context: str,
        mail: Mail,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Delivered:
        if not fits(task, context, dedupe):
            raise InvalidParams("an id is text, without a NUL")
        number = await self._state.reads.new_scope(self._scope)
        return await self._deliver_job(
            Job(
                self._scope,
                number,
                task,
                new=True,
                context=context,
                mail=mail,
                dedupe=dedupe,
                node=node,
                webhook=webhook,
            )
        )

    def begin(
        self, task: str, context: str, mail: Mail, *, node: str, webhook: StoredPushConfig | None = None
    ) -> Delivered | None:
        return None

    async def deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Delivered:
        number = await self.number()
        if number is None or not fits(task):
            raise TaskNotFound(task)
        if not fits(dedupe):
            raise InvalidParams("a key is text, without a NUL")
        return await self._deliver_job(
            Job(self._scope, number, task, mail=mail, dedupe=dedupe, node=node, webhook=webhook)
        )

    async def _deliver_job(self, job: Job) -> Delivered:
        """What a delivery gives. A caller that leaves meanwhile runs nothing, so a lease of its goes back."""
        if job.node:
            await self._state.know(job.node)
        future = self._state.commits.submit(job, self._release_later)
        try:
            done: Outcome = await future
            snapshot = done.snapshot
            if snapshot is None or snapshot.seq < done.seq:
                snapshot = await self._load_key(done.key)
            return Delivered(snapshot, done.seq, done.lease, done.duplicate, unclaimed=done.unclaimed)
        except (asyncio.CancelledError, Unavailable, TaskUnreadable):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release_later(future.result())  # it came, and we cannot take it
            raise

    def _release_later(self, done: Outcome) -> None:
        if done.lease is not None:
            self._state.release_later(done.lease)

    async def seen(self, dedupe: str) -> Delivered | None:
        number = await self.number()
        if number is None or not fits(dedupe):
            return None
        row = await self._state.database.read(lambda db: db.fetchrow(_SEEN, number, dedupe, DAY))
        if row is None:
            return None
        with suppress(TaskNotFound):  # purged just now
            return Delivered(await self._load_key(row[0]), row[1], duplicate=True)
        return None

    async def append(self, lease: Lease, records: Sequence[Record]) -> int:
        return (await self._put(lease, records, None)).seq

    async def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> Snapshot | None:
        return (await self._put(lease, records, mail)).snapshot

    async def _put(self, lease: Lease, records: Sequence[Record], mail_read: int | None) -> Outcome:
        if lease.scope != self._scope:
            raise TaskNotFound(lease.task)
        job = Job(self._scope, 0, lease.task, lease=lease, records=records, mail_read=mail_read)
        done: Outcome = await self._state.commits.submit(job)
        return done

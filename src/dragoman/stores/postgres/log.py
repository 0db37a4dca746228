"""One scope's tasks in a PostgreSQL database: mail in, output on. What is written joins the next transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from dragoman.engine.protocols import Delivered, FoundTasks, Head, Lease, WaitForMemory
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, Snapshot
from dragoman.errors import InvalidParams, TaskNotFound, TaskUnreadable, Unavailable
from dragoman.model.ops import ListTasks, Scope
from dragoman.stores.postgres.batch import DAY, Job, Outcome
from dragoman.stores.postgres.database import fits
from dragoman.stores.postgres.state import StoreState

_SEEN = """
select seen.key, seen.seq from dragoman.seen join dragoman.tasks on tasks.key = seen.key
where seen.scope = $1 and dedupe = $2 and at > dragoman.clock() - $3::double precision
"""


class PostgresLog:
    """The scope is bound here, so no statement can forget it."""

    def __init__(self, state: StoreState, scope: Scope) -> None:
        self._state = state
        self._scope = scope

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
        number = await self._state.reads.scope(self._scope)
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
                snapshot = await self._state.reads.load_key(self._scope, done.key)
            return Delivered(snapshot, done.seq, done.lease, done.duplicate, unclaimed=done.unclaimed)
        except (asyncio.CancelledError, Unavailable, TaskUnreadable):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release_later(future.result())  # it came, and we cannot take it
            raise

    def _release_later(self, done: Outcome) -> None:
        if done.lease is not None:
            self._state.release_later(done.lease)

    async def seen(self, dedupe: str) -> Delivered | None:
        number = await self._state.reads.scope(self._scope)
        if number is None or not fits(dedupe):
            return None
        row = await self._state.database.read(lambda db: db.fetchrow(_SEEN, number, dedupe, DAY))
        if row is None:
            return None
        with suppress(TaskNotFound):  # purged just now
            return Delivered(await self._state.reads.load_key(self._scope, row[0]), row[1], duplicate=True)
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

    async def read(
        self, task: str, *, after: int = 0, limit: int | None = None, max_bytes: int | None = None
    ) -> Sequence[Record]:
        return await self._state.reads.read(self._scope, task, after, limit, max_bytes)

    async def head(self, task: str) -> Head:
        return await self._state.reads.head(self._scope, task)

    async def unfinished(self) -> int:
        return await self._state.reads.unfinished(self._scope)

    async def load(self, task: str, *, wait_for_memory: WaitForMemory | None = None) -> Snapshot:
        return await self._state.reads.load(self._scope, task, wait_for_memory)

    async def replies(
        self, context: str, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[tuple[str, str]]:
        return await self._state.reads.replies(self._scope, context, after, limit)

    async def find(self, query: ListTasks, *, limit: int) -> FoundTasks:
        return await self._state.reads.find(self._scope, query, limit)

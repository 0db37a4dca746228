"""The tasks of one scope in a PostgreSQL database. Each write is a job of the next transaction (`postgres/batch.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Unpack

from dragoman.engine.protocols import Delivered, DeliverOptions, Lease
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import InvalidParams, TaskNotFound, TaskUnreadable, Unavailable
from dragoman.stores.postgres.batch import CreateJob, DeliverJob, LogResult, OutputJob
from dragoman.stores.postgres.log_reads import LogReads
from dragoman.stores.postgres.text import is_storable
from dragoman.stores.rows import DEDUPE_SECONDS

_SEEN = """
select seen.key, seen.seq from dragoman.seen join dragoman.tasks on tasks.key = seen.key
where seen.scope = $1 and dedupe = $2 and at > dragoman.clock() - $3::double precision
"""


class PostgresLog(LogReads):
    """The scope is bound here, so no statement can forget it."""

    async def create(
        self, task: str, context: str, mail: Mail, **options: Unpack[DeliverOptions]
    ) -> Delivered:
        if not is_storable(task, context, options.get("dedupe", "")):
            raise InvalidParams("an id is text, without a NUL")
        number = await self._state.reads.new_scope(self._scope)
        job = CreateJob(self._scope, number, task, mail=mail, context=context, **options)
        return await self._submit_delivery(job)

    def begin(
        self, task: str, context: str, mail: Mail, *, node: str, webhook: StoredPushConfig | None = None
    ) -> Delivered | None:
        return None

    async def deliver(self, task: str, mail: Mail | Cancel, **options: Unpack[DeliverOptions]) -> Delivered:
        number = await self.number()
        if number is None or not is_storable(task):
            raise TaskNotFound(task)
        if not is_storable(options.get("dedupe", "")):
            raise InvalidParams("a key is text, without a NUL")
        return await self._submit_delivery(DeliverJob(self._scope, number, task, mail, **options))

    async def _submit_delivery(self, job: DeliverJob) -> Delivered:
        """Submit a delivery. If the caller is cancelled meanwhile, nobody runs the task here, so its lease is released."""
        if job.node:
            await self._state.ensure_node(job.node)
        future = self._state.commits.submit(job, self._release_undelivered)
        try:
            done = await future
            snapshot = done.snapshot
            if snapshot is None or snapshot.seq < done.seq:
                snapshot = await self._load_key(done.key)
            return Delivered(snapshot, done.seq, done.lease, done.duplicate, unclaimed=done.unclaimed)
        except (asyncio.CancelledError, Unavailable, TaskUnreadable):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release_undelivered(future.result())  # it is stored, and the caller does not get it
            raise

    def _release_undelivered(self, done: LogResult) -> None:
        if done.lease is not None:
            self._state.release_later(done.lease)

    async def find_delivered(self, dedupe: str) -> Delivered | None:
        number = await self.number()
        if number is None or not is_storable(dedupe):
            return None
        row = await self._state.database.read(lambda db: db.fetchrow(_SEEN, number, dedupe, DEDUPE_SECONDS))
        if row is None:
            return None
        with suppress(TaskNotFound):  # purged just now
            return Delivered(await self._load_key(row[0]), row[1], duplicate=True)
        return None

    async def append(self, lease: Lease, records: Sequence[Record]) -> int:
        return (await self._write_output(lease, records, None)).seq

    async def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> Snapshot | None:
        return (await self._write_output(lease, records, mail)).snapshot

    async def _write_output(
        self, lease: Lease, records: Sequence[Record], mail_read: int | None
    ) -> LogResult:
        if lease.scope != self._scope:
            raise TaskNotFound(lease.task)
        return await self._state.commits.submit(OutputJob(lease, records, mail_read))

"""One PostgreSQL database, open: who writes to it, who reads from it, and the nodes that it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dragoman.engine.protocols import Lease
from dragoman.engine.records import Mail, Snapshot
from dragoman.engine.transition import Release, TaskRow, decide
from dragoman.errors import Unavailable
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.batch import Outcome
from dragoman.stores.postgres.commits import Commits
from dragoman.stores.postgres.database import Database
from dragoman.stores.postgres.push_queue import PostgresPushQueue
from dragoman.stores.postgres.reads import Reads

_KNOW = "insert into dragoman.nodes (node, until) values ($1, dragoman.clock()) on conflict do nothing"
_LEASE = "select node, fence, attempt from dragoman.tasks where key = $1 for update"
_RELEASE = "update dragoman.tasks set node = $2, attempt = $3 where key = $1"

RETRY_SECONDS = 0.1
"""Seconds until what has to be written is tried once more."""


class StoreState:
    def __init__(
        self, database: Database, webhooks: PostgresPushQueue, *, keep: int, keep_bytes: int
    ) -> None:
        self.database = database
        self._webhooks, self._keep, self._keep_bytes = webhooks, keep, keep_bytes
        self.commits: Commits
        """Here, and `reads`, only while the database is open."""
        self.reads: Reads
        self.on_commit: Callable[[float], None] | None = None
        """Hears how long each transaction took, in seconds."""
        self.nodes: set[str] = set()
        """Those that have a row, so that somebody will find what they hold when they are gone."""
        self._later: set[asyncio.Future[None]] = set()
        self._open = False

    async def open(self) -> None:
        if not self._open:
            await self.database.open()
            self.reads = Reads(self.database, keep=self._keep, keep_bytes=self._keep_bytes)
            self.commits = Commits(self.database, self._committed, self.on_commit)
            self._open = True

    async def close(self) -> None:
        """Finish what was begun, then let go."""
        if self._open:
            self._open = False
            await self.commits.close()
            if self._later:
                await asyncio.wait(tuple(self._later))
            del self.commits, self.reads
            await self.database.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("commits", "reads"):
                raise Unavailable("the store is closed")
            raise AttributeError(name)

    async def know(self, node: str) -> None:
        """Have a row for a node, alive or not: leases of nodes that have none would never be found."""
        if node not in self.nodes:
            await self.database.write(lambda db: db.execute(_KNOW, node))
            self.nodes.add(node)

    async def release(self, lease: Lease, *, failed: bool) -> None:
        """Give a task back unfinished."""

        async def work(db: Connection) -> None:
            found = await db.fetchrow(_LEASE, lease.key)
            if found is not None:
                node, fence, attempt = found
                held = TaskRow(ready=True, node=node or "", fence=fence, attempt=attempt)
                row = decide(held, Release(lease.fence, failed)).row
                if row is not held:
                    await db.execute(_RELEASE, lease.key, row.node or None, row.attempt)

        await self.database.write(work)

    def release_later(self, lease: Lease) -> None:
        """`release`, for a caller that has left: nobody waits for it."""
        begun = asyncio.ensure_future(self._retry_release(lease))
        self._later.add(begun)
        begun.add_done_callback(self._done)

    async def _retry_release(self, lease: Lease) -> None:
        """As long as our node lives, nobody else would run the task."""
        while True:
            try:
                await self.release(lease, failed=False)
                return
            except Unavailable:
                if not self._open:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def _done(self, work: asyncio.Future[None]) -> None:
        self._later.discard(work)
        if not work.cancelled():
            work.exception()  # the database is away, and has said so in the log

    def _committed(self, done: Outcome) -> None:
        job = done.job
        if job.new and not done.duplicate:
            assert isinstance(job.mail, Mail)
            done.snapshot = Snapshot(job.scope, job.task, job.context, job.mail.at).after(done.records)
            self.reads.snapshots.keep(done.key, done.snapshot)
        else:
            done.snapshot = self.reads.snapshots.move(done.key, done.records)
        if done.snapshot is not None and (job.lease is None or job.mail_read is not None):
            done.snapshot.share()  # for whoever delivered or settled
        if done.news:
            self._webhooks.wake()

"""The state of a PostgreSQL store: its `Commits` and `Reads` while it is open, and the nodes that have a row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dragoman.engine.protocols import Lease
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.transition import Release, TaskRow, decide
from dragoman.errors import Unavailable
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.batch import CreateJob, DeliverJob, LogResult
from dragoman.stores.postgres.commits import Commits
from dragoman.stores.postgres.database import Database
from dragoman.stores.postgres.push_queue import PostgresPushQueue
from dragoman.stores.postgres.reads import Reads

_ADD_NODE = "insert into dragoman.nodes (node, until) values ($1, dragoman.clock()) on conflict do nothing"
_LEASE = "select node, fence, attempt from dragoman.tasks where key = $1 for update"
_RELEASE = "update dragoman.tasks set node = $2, attempt = $3 where key = $1"

RETRY_SECONDS = 0.1
"""Seconds until what has to be written is tried once more."""


class StoreState:
    def __init__(self, database: Database, webhooks: PostgresPushQueue, *, cached_snapshots: int) -> None:
        self.database = database
        self._webhooks, self._cached_snapshots = webhooks, cached_snapshots
        self.commits: Commits
        """This and `reads` exist only while the database is open."""
        self.reads: Reads
        self.on_commit: Callable[[float], None] | None = None
        """Called with the seconds of each transaction."""
        self.nodes: set[str] = set()
        """Nodes that have a row. Only leases of such nodes are found when the node is gone."""
        self._releasing: set[asyncio.Future[None]] = set()
        self._open = False

    async def open(self) -> None:
        if not self._open:
            await self.database.open()
            self.reads = Reads(self.database, cached_snapshots=self._cached_snapshots)
            self.commits = Commits(self.database, self._apply, self.on_commit)
            self._open = True

    async def close(self) -> None:
        """Finish the work that has begun, then close the database."""
        if self._open:
            self._open = False
            await self.commits.close()
            if self._releasing:
                await asyncio.wait(tuple(self._releasing))
            del self.commits, self.reads
            await self.database.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("commits", "reads"):
                raise Unavailable("the store is closed")
            raise AttributeError(name)

    async def ensure_node(self, node: str) -> None:
        """Insert a row for a node that has none. It is not alive by that."""
        if node not in self.nodes:
            await self.database.write(lambda db: db.execute(_ADD_NODE, node))
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
        """`release` in the background, for a caller that was cancelled."""
        begun = asyncio.ensure_future(self._retry_release(lease))
        self._releasing.add(begun)
        begun.add_done_callback(self._forget_release)

    async def _retry_release(self, lease: Lease) -> None:
        """Release a lease, however long the database is away: while our node lives, no other node runs the task."""
        while True:
            try:
                await self.release(lease, failed=False)
                return
            except Unavailable:
                if not self._open:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def _forget_release(self, work: asyncio.Future[None]) -> None:
        self._releasing.discard(work)
        if not work.cancelled():
            work.exception()  # the database is away, which is logged

    def _apply(self, result: LogResult) -> None:
        """Update the cached snapshot, and wake the sender of webhooks."""
        job, snapshots = result.job, self.reads.snapshots
        if isinstance(job, CreateJob) and not result.duplicate:
            snapshot = Snapshot(job.scope, job.task, job.context).after(result.records)
            result.snapshot = snapshots.keep(result.key, snapshot)
        else:
            result.snapshot = snapshots.advance(result.key, result.records)
        if result.snapshot is not None and (isinstance(job, DeliverJob) or job.mail_read is not None):
            result.snapshot.share()  # the caller that delivered or settled gets it
        if result.notifies:
            self._webhooks.wake()

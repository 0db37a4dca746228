"""Leases of the folders in which commands run, for several hubs on one PostgreSQL database: one command of a tenant at a time.

A lease ends with the command, or when it expires. It lasts longer than a command can run, so the command of a hub that died or
hangs has ended before another hub runs one. A hub that lost its lease does not touch the folder any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.errors import A2AError, Unavailable, keep_going
from dragoman.hub.store.database import Database
from dragoman.model.ids import new_id

log = logging.getLogger(__name__)

_SLACK_SECONDS = 15.0
"""A lease lasts for the time of a command and so much longer. A copy of the folder is made before and after the command."""
_RETRY_SECONDS = 0.1, 1.0
"""Seconds between two attempts to get a lease, at first and at last."""
_ACQUIRE = """
insert into workspace_leases (tenant_id, holder, until) values (?1, ?2, dragoman.clock() + ?3)
on conflict (tenant_id) do update set holder = excluded.holder, until = excluded.until
where workspace_leases.until < dragoman.clock()
"""
_RENEW = "update workspace_leases set until = dragoman.clock() + ?3 where tenant_id = ?1 and holder = ?2"
_RELEASE = "delete from workspace_leases where tenant_id = ? and holder = ?"


class WorkspaceLease:
    def __init__(self, database: Database, tenant: int, seconds: float) -> None:
        self._db, self._tenant, self._seconds, self._holder = database, tenant, seconds, new_id()

    async def acquire(self) -> bool:
        """False: another hub has it."""
        return await self._db.change(_ACQUIRE, (self._tenant, self._holder, self._seconds)) > 0

    async def renew(self) -> bool:
        """Extend the lease. False: it expired, and another hub has it."""
        return await self._db.change(_RENEW, (self._tenant, self._holder, self._seconds)) > 0

    async def release(self) -> None:
        await self._db.change(_RELEASE, (self._tenant, self._holder))


class WorkspaceLeases:
    """`seconds`: how long a command runs at most."""

    def __init__(self, database: Database, *, seconds: float) -> None:
        self._db, self._seconds = database, seconds + _SLACK_SECONDS

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[WorkspaceLease]:
        """Wait for the lease of a tenant's folder, and release it in the end. Raises `Unavailable`."""
        lease = WorkspaceLease(self._db, int(tenant), self._seconds)
        deadline, (pause, most) = time.monotonic() + 2 * self._seconds, _RETRY_SECONDS
        try:
            while not await lease.acquire():
                if time.monotonic() > deadline:
                    raise Unavailable("commands of this tenant run on another hub; try again later")
                await asyncio.sleep(pause)
                pause = min(2 * pause, most)
            yield lease
        finally:
            with keep_going(log, "releasing the lease of a workspace", A2AError):  # else it expires
                await lease.release()

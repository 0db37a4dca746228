"""Leases of the folders in which commands run, for several hubs on one PostgreSQL database: one command of a tenant at a time.

A lease ends with the command, or when it expires. It lasts longer than a command can run, so the command of a hub that died or
hangs has ended before another hub runs one. A hub that lost its lease does not touch the folder any more.

If the database is down, a lease waits for it: no other hub can take the lease meanwhile, and the result of a command that has run is not
lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.errors import A2AError, StoreUnavailable, Unavailable, keep_going
from dragoman.hub.store.database import Database
from dragoman.model.ids import new_id

log = logging.getLogger(__name__)

_EXTRA_SECONDS = 15.0
"""A lease lasts this much longer than a command may run, because the folder is copied before and after the command."""
_RETRY_SECONDS = 0.1, 1.0
"""Seconds between two attempts to get a lease, at first and at last."""
_OUTAGE_RETRY_SECONDS = 1.0
"""Seconds between two attempts while the database is away."""
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
        self.outage_seconds = 0.0
        """How long this lease has waited for a database that was down."""

    async def acquire(self) -> bool:
        """False: another hub has it."""
        return await self._change(_ACQUIRE)

    async def renew(self) -> bool:
        """Extend the lease. False: it expired, and another hub has it."""
        return await self._change(_RENEW)

    async def release(self) -> None:
        await self._db.change(_RELEASE, (self._tenant, self._holder))

    async def _change(self, statement: str) -> bool:
        while True:
            began = time.monotonic()
            try:
                return await self._db.change(statement, (self._tenant, self._holder, self._seconds)) > 0
            except StoreUnavailable as error:
                log.warning("the lease of a workspace: %s", error.message)
            await asyncio.sleep(_OUTAGE_RETRY_SECONDS)
            self.outage_seconds += time.monotonic() - began


class WorkspaceLeases:
    """`seconds`: how long a command runs at most."""

    def __init__(self, database: Database, *, seconds: float) -> None:
        self._db, self._seconds = database, seconds + _EXTRA_SECONDS

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[WorkspaceLease]:
        """Wait for the lease of a tenant's folder, and release it in the end. Raises `Unavailable`."""
        lease = WorkspaceLease(self._db, int(tenant), self._seconds)
        deadline, (pause, most) = time.monotonic() + 2 * self._seconds, _RETRY_SECONDS
        try:
            while not await lease.acquire():
                if time.monotonic() > deadline + lease.outage_seconds:
                    raise Unavailable("commands of this tenant run on another hub; try again later")
                await asyncio.sleep(pause)
                pause = min(2 * pause, most)
            yield lease
        finally:
            with keep_going(log, "releasing the lease of a workspace", A2AError):  # else it expires
                await lease.release()

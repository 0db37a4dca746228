"""Stops what runs for a tenant that was disabled, or with a token that was revoked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dragoman.errors import A2AError, keep_going
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.store.database import Database
from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.hub.tenants.quotas import Quotas

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.25
"""Seconds between two checks whether another process has written to the database."""
WATCH_RETRY_SECONDS = 1.0
"""Seconds until a tenant whose tasks could not be stopped is tried again."""


class TenantWatch:
    """Cancels the tasks of tenants and tokens that another process has disabled or revoked.

    It does not wait for the end of a task: one that does not stop, or whose hub does not answer, must not delay the others. `changed` is
    called when a tenant may have changed.
    """

    def __init__(
        self,
        database: Database,
        tenants: Tenants,
        quotas: Quotas,
        stop_tenant: Callable[[Tenant], Awaitable[tuple[int, bool]]],
        changed: Callable[[], None],
    ) -> None:
        self._database, self._tenants, self._quotas = database, tenants, quotas
        self._stop_tenant, self._changed = stop_tenant, changed
        self._checked_version: int | None = None
        """The version of the database at the last check."""
        self._checking: dict[str, bool] = {}
        """The tenants that are being checked, and whether they may have changed since that began."""
        self.periodic = PeriodicWork("checking tenants for changes", self._watch, retry=WATCH_RETRY_SECONDS)

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as stopping:
            while True:
                with keep_going(log, "checking tenants for changes", A2AError):
                    await self._check(stopping)
                await asyncio.sleep(WATCH_SECONDS)

    async def _check(self, stopping: asyncio.TaskGroup) -> None:
        if (now := await self._database.version()) != self._checked_version:
            self._changed()
            for key in self._quotas.counts():
                if key in self._checking:
                    self._checking[key] = True
                else:
                    self._checking[key] = False
                    stopping.create_task(self._stop(key))
            self._checked_version = now

    async def _stop(self, key: str) -> None:
        """Cancel a tenant's tasks if it may not run them any more. Retry until every cancel is delivered."""
        try:
            stopped = False
            while not stopped or self._checking[key]:
                stopped, self._checking[key] = False, False
                with keep_going(log, f"stopping what runs for tenant {key}", A2AError):
                    tenant = await self._tenants.current(int(key))
                    stopped = tenant is None or (await self._stop_tenant(tenant))[1]
                if not stopped:
                    await asyncio.sleep(WATCH_RETRY_SECONDS)
        finally:
            del self._checking[key]

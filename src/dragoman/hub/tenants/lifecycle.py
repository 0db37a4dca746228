"""Renames and deletes tenants.

A tenant keeps its number when it is renamed, and with it everything it has. Agents elsewhere that are registered for it are listed
under its name, so they move.

A tenant is deleted with everything it has: tasks and logs, webhooks, conversations, memory, files, schedules, folders. The order makes
a deletion safe to interrupt at any point. First the tenant is shut out and its work is canceled, on every hub. Then its tasks go, as
soon as no hub runs them, then its rows, and its own row last. A hub that starts, or that finds a deletion which another hub
began, goes on with it; several hubs may do so at once. Each hub deletes the folder that it has itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from dragoman.engine.protocols import CatalogueStore, Store
from dragoman.errors import A2AError
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.sandbox.folder_copy import remove
from dragoman.hub.store.database import Database
from dragoman.hub.store.tenant_rows import DeletedTenant, Deletions
from dragoman.hub.store.tenants import Tenant, Tenants

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""How soon a hub goes on with a deletion that another process began."""
SWEEP_SECONDS = 60.0
"""How often tasks are looked for that were created at the last moment."""
LATE_SECONDS = 3600
"""How long after its deletion a tenant may get such a task, from a hub that stood still."""
BATCH = 200


class TenantDeletion:
    """`folder`: where the folders of tenants are, `workspaces`; None if there are none."""

    def __init__(self, database: Database, store: Store, folder: Path | None) -> None:
        self._store, self._folder = store, folder
        self.deletions = Deletions(database)
        self._wake = asyncio.Event()
        self._next_sweep, self._since = 0.0, 0
        self.periodic = PeriodicWork(
            "deleting tenants", self._work, retry=CHECK_SECONDS, expected=(A2AError, OSError)
        )

    async def begin(self, tenant: Tenant, *, actor: str) -> None:
        """Shut the tenant out. The rest is done soon."""
        await self.deletions.begin(tenant, actor=actor)
        self._wake.set()

    async def go_on(self) -> bool:
        """Do what can be done now of all deletions. False if some wait for tasks to end."""
        done = True
        for tenant in await self.deletions.pending():
            done &= await self._delete(tenant)
        return done

    async def _delete(self, tenant: DeletedTenant) -> bool:
        await unregister_agents(self._store.catalogue, tenant.name)
        if not await self._delete_tasks(str(tenant.id)):
            return False
        while await self.deletions.delete_rows(tenant.id):
            pass  # piece by piece: others write in between
        await self._delete_folder(tenant.id)
        await self.deletions.finish(tenant)
        log.info("tenant %d is deleted", tenant.id)
        return True

    async def _delete_tasks(self, key: str) -> bool:
        """False if a node still runs one."""
        while True:
            gone, left = await self._store.purge_tenant(key, limit=BATCH)
            if not gone:
                break
        while not left and await self._store.tidy():
            pass
        return not left

    async def _delete_folder(self, tenant: int) -> None:
        if self._folder is not None:
            await asyncio.to_thread(delete_folder, self._folder, str(tenant))

    async def sweep(self, since: int) -> None:
        """Delete what this hub still has of tenants that are deleted: their folders, and tasks that came late."""
        for tenant in await self.deletions.latest(since):
            await self._delete_folder(tenant.id)
            if tenant.done_at:
                await self._delete_tasks(str(tenant.id))

    async def _work(self) -> float:
        self._wake.clear()
        await self.go_on()
        if time.monotonic() > self._next_sweep:
            await self.sweep(self._since)
            self._next_sweep, self._since = time.monotonic() + SWEEP_SECONDS, int(time.time()) - LATE_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await self._wake.wait()
        return 0.0


def delete_folder(workspaces: Path, key: str) -> None:
    """Delete the folder of a tenant, and the copy of it."""
    saved = workspaces / ".before"
    heap = saved / f"t{key}.removing"
    for path in (workspaces / f"t{key}", saved / f"t{key}", heap):
        if path.is_symlink() or path.exists():
            remove(path, saved / f"t{key}.deleted")


_NO_LIMIT = 1 << 40


async def rename_tenant(
    tenants: Tenants, catalogue: CatalogueStore, tenant: Tenant, name: str, *, actor: str
) -> Tenant:
    """Raises `InvalidParams` and `Conflict`."""
    await tenants.check_new_name(tenant, name)
    registered = [agent for agent in await catalogue.registered() if agent.tenant == tenant.name]
    for agent in registered:  # first copied, then renamed, then deleted: a hub that is killed loses none
        await catalogue.register(replace(agent, tenant=name.strip()), limit=_NO_LIMIT)
    renamed = await tenants.rename(tenant, name, actor=actor)
    for agent in registered:
        if renamed.name != tenant.name:
            await catalogue.unregister(agent.tenant, agent.name)
    return renamed


async def unregister_agents(catalogue: CatalogueStore, name: str) -> None:
    """Delete the agents elsewhere that are registered for a tenant."""
    for agent in await catalogue.registered():
        if agent.tenant == name:
            await catalogue.unregister(agent.tenant, agent.name)

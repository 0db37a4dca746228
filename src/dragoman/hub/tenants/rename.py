"""Renames a tenant. Its number stays, and with it everything it has. Agents elsewhere that are registered for it are listed under
its name, so they move."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.engine.protocols import CatalogueStore
from dragoman.hub.store.tenants import Tenant, Tenants

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

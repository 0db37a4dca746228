"""The agents of a hub in the catalogue that it publishes: a tenant sees its own, the operator those of all tenants, and nobody else any."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.catalogue.entry import UP, AgentHealth, Entry
from dragoman.catalogue.sources import CatalogueViewer, DescriptionCache
from dragoman.client.signature import UNSIGNED
from dragoman.errors import Forbidden, Unauthenticated
from dragoman.hub.api.access import AGENTS_PATH, authenticate
from dragoman.hub.hub import Hub
from dragoman.hub.store.tenants import Tenant
from dragoman.model.card import AgentCard

MAX_LISTED = 5000
"""Agents that an operator sees."""


class HubSource:
    """A `Source` of a catalogue."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._descriptions = DescriptionCache()

    async def entries(self, viewer: CatalogueViewer) -> Sequence[Entry]:
        hub = self._hub
        if viewer.operator:
            found: list[Entry] = []
            for tenant in await hub.tenants.list():
                if not tenant.disabled and len(found) < MAX_LISTED:
                    found += await self._of_tenant(tenant)
            return found
        if viewer.exchange is None:
            own = await hub.tenants.current(int(viewer.tenant_key)) if viewer.tenant_key else None
            return () if own is None or own.disabled else await self._of_tenant(own)
        header = viewer.exchange.header(b"authorization")
        if not header:
            return ()
        try:
            tenant = await authenticate(hub, header, viewer.exchange.path)
        except (Unauthenticated, Forbidden):
            return ()
        viewer.exchange.at_end = await hub.admission.open_request(tenant)
        await hub.admission.admit_read(tenant)
        viewer.known, viewer.tenant = True, tenant.name
        return await self._of_tenant(tenant)

    async def _of_tenant(self, tenant: Tenant) -> Sequence[Entry]:
        hub = self._hub
        shared = [(name, hub.programs.card(agent, name)) for name, agent in hub.catalogue.code.items()]
        own = [
            (entry.id, hub.programs.card(entry, entry.id)) for entry in await hub.catalogue.list(tenant.id)
        ]
        return [self._entry(tenant, name, card) for name, card in dict([*own, *shared]).items()]

    def _entry(self, tenant: Tenant, name: str, card: AgentCard) -> Entry:
        about, digest = self._descriptions.get((tenant.key, name), name, card)
        return Entry(
            name=name,
            tenant=tenant.name,
            path=AGENTS_PATH + name,
            private=True,
            health=AgentHealth(state=UP),
            signature=UNSIGNED,
            description=about,
            digest=digest,
        )

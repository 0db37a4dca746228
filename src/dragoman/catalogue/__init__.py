"""The catalogue: the agents of a server, of its bridges, and those that its operator registered; searched, checked, published.

It is a layer above the server, the client and the stores: none of them imports it. It is off unless somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dragoman.catalogue.catalogue import CatalogueSearch
from dragoman.catalogue.entry import BRIDGE, MAX_DESCRIPTION_CHARACTERS, AgentHealth
from dragoman.catalogue.publish import PublishedCatalogue
from dragoman.catalogue.registered_agents import (
    CHECK_INTERVAL_SECONDS,
    RegisteredAgents,
    check_name,
    check_url,
)
from dragoman.catalogue.sources import MountSource, Source
from dragoman.client.signature import UNKNOWN, UNSIGNED, VALID
from dragoman.engine.protocols import Store
from dragoman.observe.terminal import shorten
from dragoman.push.guard import Guard
from dragoman.server.mount import Mount
from dragoman.server.options import ServerParts

__all__ = ["AgentCatalogue"]


@dataclass(frozen=True, kw_only=True)
class AgentCatalogue:
    """The catalogue of a server of agents (`dragoman serve --catalogue`): a `ServerCatalogue`.

    `agents`: agents elsewhere that the settings register, by name and URL; None: leave what is registered as it is.
    `allow_private`: registered agents may be at private addresses. `interval`: seconds between two checks of one.
    """

    name: str = ""
    agents: Mapping[str, str] | None = None
    allow_private: bool = False
    interval: float = CHECK_INTERVAL_SECONDS

    def __post_init__(self) -> None:
        for name, url in (self.agents or {}).items():
            check_name(name)
            check_url(url)

    def open(self, parts: ServerParts) -> PublishedCatalogue:
        return self.publish(parts.store, mount_sources(parts))

    def publish(self, store: Store, sources: Sequence[Source]) -> PublishedCatalogue:
        """The catalogue of a server with these sources. Its registered agents are in the store."""
        guard = Guard(allow_private=self.allow_private, http=True)
        registered = RegisteredAgents(store.catalogue, guard, interval=self.interval)
        return PublishedCatalogue(
            CatalogueSearch(store.catalogue, sources, registered, settings=self.agents), name=self.name
        )


_SIGNATURES = {"verified": VALID, "unsigned": UNSIGNED, "unchecked": UNKNOWN}
"""What a bridge says of the signature of an agent's card, in the words of the catalogue."""


def mount_sources(parts: ServerParts) -> Sequence[Source]:
    """The agents of a server, and those behind its bridges, with the health that the bridge knows of."""
    bridged = parts.bridged

    def health(mount: Mount) -> AgentHealth:
        found = bridged[mount.agent].upstream.health()
        return AgentHealth(state=found.state, error=shorten(found.error, MAX_DESCRIPTION_CHARACTERS))

    def signature(mount: Mount) -> str:
        return _SIGNATURES.get(bridged[mount.agent].upstream.signature.state, UNKNOWN)

    own = [mount for mount in parts.mounts if mount.agent not in bridged]
    others = [mount for mount in parts.mounts if mount.agent in bridged]
    return [MountSource(own), MountSource(others, kind=BRIDGE, health=health, signature=signature)]

"""The catalogue: the agents of a server, of its bridges, and those that its operator registered; searched, checked, published.

It is a layer above the server, the client and the stores: none of them imports it. It is off unless somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman.catalogue.catalogue import Catalogue
from dragoman.catalogue.entry import BRIDGE, MAX_DESCRIPTION, Health
from dragoman.catalogue.publish import Published
from dragoman.catalogue.registered import CHECK_INTERVAL, RegisteredAgents, check_name, check_url
from dragoman.catalogue.sources import MountSource, Source
from dragoman.client.signature import UNKNOWN, UNSIGNED, VALID
from dragoman.engine.protocols import Store
from dragoman.observe.terminal import shorten
from dragoman.push.guard import Guard
from dragoman.server.mount import Mount
from dragoman.server.options import ServerParts

__all__ = ["AgentCatalogue", "open_catalogue"]


class AgentCatalogue:
    """The catalogue of a server of agents (`dragoman serve --catalogue`): a `ServerCatalogue`.

    `agents`: agents elsewhere that the settings register, by name and URL; None: leave what is registered as it is.
    `allow_private`: registered agents may be at private addresses. `interval`: seconds between two checks of one.
    """

    def __init__(
        self,
        *,
        name: str = "",
        agents: Mapping[str, str] | None = None,
        allow_private: bool = False,
        interval: float = CHECK_INTERVAL,
    ) -> None:
        for each, url in (agents or {}).items():
            check_name(each)
            check_url(url)
        self._name, self._agents = name, agents
        self._allow_private, self._interval = allow_private, interval

    def open(self, parts: ServerParts) -> Published:
        return open_catalogue(
            parts.store,
            mount_sources(parts),
            name=self._name,
            agents=self._agents,
            allow_private=self._allow_private,
            interval=self._interval,
        )


_VERDICTS = {"verified": VALID, "unsigned": UNSIGNED, "unchecked": UNKNOWN}
"""What a bridge says of the signature of an agent's card, in the words of the catalogue."""


def mount_sources(parts: ServerParts) -> Sequence[Source]:
    """The agents of a server, and those behind its bridges, with the health that the bridge knows of."""
    bridged = parts.bridged

    def health(mount: Mount) -> Health:
        found = bridged[mount.agent].upstream.health()
        return Health(state=found.state, error=shorten(found.error, MAX_DESCRIPTION))

    def signature(mount: Mount) -> str:
        return _VERDICTS.get(bridged[mount.agent].upstream.verdict.state, UNKNOWN)

    own = [mount for mount in parts.mounts if mount.agent not in bridged]
    others = [mount for mount in parts.mounts if mount.agent in bridged]
    return [MountSource(own), MountSource(others, kind=BRIDGE, health=health, signature=signature)]


def open_catalogue(
    store: Store,
    sources: Sequence[Source],
    *,
    name: str = "",
    agents: Mapping[str, str] | None = None,
    allow_private: bool = False,
    interval: float = CHECK_INTERVAL,
) -> Published:
    """The catalogue of a server with these sources. Its registered agents are in the store."""
    registered = RegisteredAgents(
        store.catalogue, Guard(allow_private=allow_private, http=True), interval=interval
    )
    return Published(Catalogue(store.catalogue, sources, registered, settings=agents), name=name)

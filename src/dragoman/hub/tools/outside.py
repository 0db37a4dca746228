"""Agents elsewhere, as the agents of a hub reach them."""

from __future__ import annotations

from dragoman.engine.protocols import Peers
from dragoman.errors import Unavailable
from dragoman.hub.agents.catalogue import Catalogue
from dragoman.hub.tools.remote_agents import PREFIX
from dragoman.model.ops import Scope, Service


class Outside:
    """Agents elsewhere: the registered ones for everybody, any at all for agents that are code.

    What a model writes never becomes an address.
    """

    def __init__(self, remotes: Peers | None, peers: Peers | None, catalogue: Catalogue) -> None:
        self._remotes, self._peers, self._catalogue = remotes, peers, catalogue

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        code = scope.agent in self._catalogue.code and not name.startswith(PREFIX)
        peers = self._peers if code else self._remotes
        if peers is None:
            raise Unavailable(f"there is no agent {name[:80]!r} here")
        return await peers.find(name, scope)

    async def close(self) -> None:
        for peers in (self._remotes, self._peers):
            if peers is not None:
                await peers.close()

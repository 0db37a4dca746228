"""A bridge as agents and options of a server: `application(*agents, **options)` and `serve(*agents, **options)` take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.agent.agent import Agent
from dragoman.bridge.route import Route
from dragoman.bridge.settings import BridgeSettings, InvalidBridge
from dragoman.server.app import App
from dragoman.server.application import application
from dragoman.server.options import Bridged


class Bridge(NamedTuple):
    """The routes of a bridge. One process has them all; several workers share what is in the store."""

    routes: Sequence[Route]

    @property
    def agents(self) -> list[Agent]:
        return [route.agent for route in self.routes]

    @property
    def bridged(self) -> Mapping[str, Bridged]:
        return {route.agent.id: route.bridged for route in self.routes}

    def app(self, **options: Any) -> App:
        """The bridge as an ASGI application. Options as for `dragoman.application`."""
        return application(*self.agents, bridged=self.bridged, **options)


def make_bridge(settings: BridgeSettings) -> Bridge:
    """Raises `InvalidBridge`."""
    try:
        return Bridge([Route(name, route) for name, route in settings.routes.items()])
    except (ValueError, OSError) as error:
        raise error if isinstance(error, InvalidBridge) else InvalidBridge(str(error)) from error

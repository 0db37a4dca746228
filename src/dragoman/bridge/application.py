"""A bridge as agents and options of a server: `application(*agents, **options)` and `serve(*agents, **options)` take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.bridge.bridged_agent import BridgedAgent
from dragoman.bridge.pass_through import PassThroughService
from dragoman.bridge.settings import PASS, BridgeSettings, InvalidBridge, RouteSettings, shares_tasks
from dragoman.bridge.upstream import Upstream
from dragoman.server.app import App
from dragoman.server.application import application
from dragoman.server.options import Bridged


class BridgeRoute:
    """One agent of a bridge: its path, its settings, the agent behind it, and how it is served.

    Raises `InvalidBridge` for settings that cannot be used together."""

    def __init__(self, name: str, settings: RouteSettings) -> None:
        if shares_tasks(settings) and not settings.shared_tasks:
            raise InvalidBridge(
                f"{name}: in mode pass the agent cannot tell your callers apart, so they would see each other's tasks: "
                'use mode = "durable", credentials that depend on the caller, or shared_tasks = true'
            )
        self.name, self.settings = name, settings
        passes = settings.mode == PASS
        # In mode pass, a stream ends when that of the agent ends.
        self.upstream = Upstream(replace(settings, stalled=0.0) if passes else settings, name=name)
        self.agent = BridgedAgent(name, settings, self.upstream)
        self.bridged = Bridged(
            path=settings.path,
            peer=self.agent.peer,
            upstream=self.upstream,
            service=PassThroughService(self.agent, self.upstream) if passes else None,
            card=self.agent.published_card,
            check_reader=self.agent.check_principal,
            deduplicates=(lambda: self.upstream.deduplicates) if passes else None,
            quota=settings.limits.quota if settings.limits else None,
            open=self.upstream.open,
            close=self.upstream.close,
        )


class Bridge(NamedTuple):
    """The routes of a bridge. Each worker process has all of them."""

    routes: Sequence[BridgeRoute]

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
        return Bridge([BridgeRoute(name, route) for name, route in settings.routes.items()])
    except (ValueError, OSError) as error:
        raise error if isinstance(error, InvalidBridge) else InvalidBridge(str(error)) from error

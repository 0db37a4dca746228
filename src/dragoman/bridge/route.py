"""One agent of a bridge: its path, its settings, the agent behind it, and how it is served."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.bridge.bridged_agent import BridgedAgent
from dragoman.bridge.passing import PassingService
from dragoman.bridge.settings import PASS, InvalidBridge, RouteSettings, shares_tasks
from dragoman.bridge.upstream import Upstream
from dragoman.server.options import Bridged


class Route:
    """Raises `InvalidBridge` for settings that cannot be used together."""

    def __init__(self, name: str, settings: RouteSettings) -> None:
        if shares_tasks(settings) and not settings.shared_tasks:
            raise InvalidBridge(
                f"{name}: in mode pass the agent cannot tell your callers apart, so they would see each other's tasks: "
                'use mode = "durable", show the agent who calls, or say shared_tasks = true'
            )
        self.name, self.settings = name, settings
        passes = settings.mode == PASS
        # A caller in mode pass is told what the agent says, for as long as it says it.
        self.upstream = Upstream(replace(settings, stalled=0.0) if passes else settings, name=name)
        self.agent = BridgedAgent(name, settings, self.upstream)
        self.bridged = Bridged(
            path=settings.path,
            peer=self.agent.peer,
            upstream=self.upstream,
            service=PassingService(self.agent, self.upstream) if passes else None,
            card=self.agent.published_card,
            check_reader=self.agent.check_principal,
            deduplicates=self._deduplicates if passes else None,
            quota=settings.limits.quota if settings.limits else None,
            open=self.upstream.open,
            close=self.upstream.close,
        )

    def _deduplicates(self) -> bool:
        return self.upstream.deduplicates

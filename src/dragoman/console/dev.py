"""Tells pages when `dragoman dev` has reloaded an agent, and the errors in its code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from dragoman.console.api import Console, ConsoleRequest, frame, stream
from dragoman.server.routes import Route, RouteList


class ReloadEvents:
    """The last event of `dragoman dev`. `publish` may be called from any thread."""

    def __init__(self) -> None:
        self._now: dict[str, Any] = {"state": "serving", "message": ""}
        self._version = 0
        self._readers: dict[tuple[asyncio.AbstractEventLoop, asyncio.Event], int] = {}
        """The version that each reader has written."""

    def publish(self, state: str, message: str) -> None:
        self._now, self._version = {"state": state, "message": message}, self._version + 1
        for loop, changed in list(self._readers):
            loop.call_soon_threadsafe(changed.set)

    def wait_for_readers(self, seconds: float) -> None:
        """Wait, in another thread than the loop's, until every page has the latest event."""
        latest = time.monotonic() + seconds
        while time.monotonic() < latest and any(
            seen != self._version for seen in list(self._readers.values())
        ):
            time.sleep(0.01)

    async def frames(self) -> AsyncIterator[bytes]:
        """The state now, and every later one."""
        changed, seen = asyncio.Event(), -1
        reader = (asyncio.get_running_loop(), changed)
        self._readers[reader] = seen
        try:
            while True:
                if seen != self._version:
                    seen = self._version
                    yield frame(self._now, event="reload")
                    self._readers[reader] = seen  # asked for more, so it was written
                else:
                    changed.clear()
                    if seen == self._version:
                        await changed.wait()
        finally:
            del self._readers[reader]


def routes(console: Console, events: ReloadEvents) -> Sequence[Route]:
    api = RouteList("dev")

    @api.add(
        "GET", "/dev/events", "When the agents are loaded again, and errors in their code.", streams=True
    )
    async def follow(request: ConsoleRequest) -> None:
        await stream(request.exchange, events.frames())

    return api

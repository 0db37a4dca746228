"""What a hub reaches outside itself: pages, search, agents elsewhere, MCP servers, a place to run commands.

Opened when first needed, closed with the hub. What the settings do not give is not there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from dragoman.errors import InvalidParams
from dragoman.hub.database import Database
from dragoman.hub.metrics import Metrics
from dragoman.hub.models.model import Model
from dragoman.hub.sandbox.container import Container
from dragoman.hub.sandbox.process import Process
from dragoman.hub.sandbox.run_as import owner, warning
from dragoman.hub.sandbox.sandbox import Cell, Sandbox
from dragoman.hub.settings import CONFIG, Settings
from dragoman.hub.tools import mcp_servers
from dragoman.hub.tools import remote_agents as remotes
from dragoman.hub.tools.fetcher import HttpFetcher
from dragoman.hub.tools.mcp_servers import McpServers
from dragoman.hub.tools.remote_agents import Remotes
from dragoman.hub.tools.search import BraveSearch
from dragoman.hub.tools.tool import Tool
from dragoman.hub.tools.toolbox import toolbox
from dragoman.push.guard import Guard

log = logging.getLogger(__name__)

T = TypeVar("T")

AGENTS, SERVERS = "a2a_agents.json", "mcp_servers.json"


class Reach:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        guard = Guard(allow_private=settings.allow_private, http=True)
        folder = settings.folder
        self._settings, self._guard = settings, guard
        self.fetcher = HttpFetcher(guard.dial)
        agents = _registry(remotes.read_registry, folder / AGENTS)
        self.remotes = Remotes(agents, guard=guard, environ=os.environ)
        self._servers = McpServers(_registry(mcp_servers.read_registry, folder / SERVERS))
        self._sandbox = _sandbox(settings, metrics) if settings.allow_exec else None

    def tools(self, database: Database, model: Model) -> tuple[Tool, ...]:
        settings = self._settings
        return toolbox(
            database,
            model=model,
            fetcher=self.fetcher,
            check=self._check,
            search=BraveSearch(settings.search_key) if settings.search_key else None,
            mcp=self._servers,
            remotes=self.remotes,
            sandbox=self._sandbox,
        )

    async def _check(self, url: str) -> None:
        """Go where a browser would go, as far as the door. Raises `OSError`."""
        self._guard.check(url.partition("#")[0])
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        (await self._guard.dial(parts.hostname or "", port)).close()

    async def close(self) -> None:
        await self.fetcher.close()
        await self._servers.close()
        if self._sandbox is not None:
            await self._sandbox.close()


def _registry(read: Callable[[Path], dict[str, T]], path: Path) -> dict[str, T]:
    """What a file lists; nothing, and a line in the log, if it is none."""
    try:
        return read(path)
    except InvalidParams as error:
        log.error("%s", error.message)
        return {}


def _sandbox(settings: Settings, metrics: Metrics) -> Sandbox:
    cell: Cell
    whose = owner()
    if said := warning():
        log.warning("%s", said)
    if settings.exec_image:
        cell = Container(
            settings.exec_image, memory_mb=settings.exec_memory_mb, owner=whose, counted=metrics.sandbox
        )
    else:
        cell = Process(
            hidden=[settings.folder, Path(CONFIG)],
            seconds=settings.exec_seconds,
            memory_mb=settings.exec_memory_mb,
            file_mb=settings.exec_disk_mb,
            owner=whose,
            unconfined=settings.exec_unconfined,
        )
    return Sandbox(
        settings.folder / "workspaces",
        cell,
        seconds=settings.exec_seconds,
        disk=settings.exec_disk_mb << 20,
        owner=whose,
        counted=metrics.sandbox,
    )

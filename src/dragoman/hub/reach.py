"""What a hub reaches outside itself: pages, search, agents elsewhere, MCP servers, a place to run commands.

Opened when first needed, closed with the hub. What the settings do not give is not there.
"""

from __future__ import annotations

import logging
import os

from dragoman.errors import InvalidParams
from dragoman.hub import mcp_servers, remotes
from dragoman.hub.database import Database
from dragoman.hub.fetcher import HttpFetcher
from dragoman.hub.mcp_servers import McpServers
from dragoman.hub.model import Model
from dragoman.hub.remotes import Remotes
from dragoman.hub.sandbox import LocalSandbox
from dragoman.hub.settings import Settings
from dragoman.hub.tool import Tool
from dragoman.hub.toolbox import toolbox
from dragoman.hub.tools.search import BraveSearch
from dragoman.push.guard import Guard

log = logging.getLogger(__name__)

AGENTS, SERVERS = "a2a_agents.json", "mcp_servers.json"


class Reach:
    def __init__(self, settings: Settings) -> None:
        guard = Guard(allow_private=settings.allow_private, http=True)
        folder = settings.folder
        self._settings = settings
        self.fetcher = HttpFetcher(guard.dial)
        try:
            agents = remotes.read_registry(folder / AGENTS)
            servers = mcp_servers.read_registry(folder / SERVERS)
        except InvalidParams as error:
            log.error("%s", error.message)
            agents, servers = {}, {}
        self.remotes = Remotes(agents, dial=guard.dial, environ=os.environ)
        self._servers = McpServers(servers)

    def tools(self, database: Database, model: Model) -> tuple[Tool, ...]:
        settings = self._settings
        return toolbox(
            database,
            model=model,
            fetcher=self.fetcher,
            search=BraveSearch(settings.search_key) if settings.search_key else None,
            mcp=self._servers,
            remotes=self.remotes,
            sandbox=LocalSandbox(settings.folder / "workspaces") if settings.allow_exec else None,
        )

    async def close(self) -> None:
        await self.fetcher.close()
        await self._servers.close()

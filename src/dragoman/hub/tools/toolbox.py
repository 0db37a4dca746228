"""All commands of a hub, and the services that they reach.

A command that the operator has not enabled answers with the reason.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from urllib.parse import urlsplit

from dragoman.client.config import CONFIG
from dragoman.client.transport.network import AddressRefused
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import Model
from dragoman.hub.quote import flatten
from dragoman.hub.sandbox import Cell, Sandbox
from dragoman.hub.sandbox.child_process import command_user, root_warning
from dragoman.hub.sandbox.container import Container
from dragoman.hub.sandbox.process import Process
from dragoman.hub.settings import Settings
from dragoman.hub.store.artifacts import Artifacts
from dragoman.hub.store.database import Database
from dragoman.hub.store.memories import Memories, Scratchpads
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.store.todos import Todos
from dragoman.hub.store.workspace_leases import WorkspaceLeases
from dragoman.hub.tools import HelpTool, Session, Tool, UnavailableTool
from dragoman.hub.tools import mcp as mcp_servers
from dragoman.hub.tools import remote_agents as remotes
from dragoman.hub.tools.advisor import AdviseTool
from dragoman.hub.tools.delegate import AgentTool, ParallelTool
from dragoman.hub.tools.fetcher import HttpFetcher, PageFetcher
from dragoman.hub.tools.files import ExecTool, ListTool, Pictures, ReadTool, WriteTool
from dragoman.hub.tools.mcp import Check, McpCommand, McpServers
from dragoman.hub.tools.memory import LessonTool, MemTool
from dragoman.hub.tools.planning import ScheduleTool, TodoTool
from dragoman.hub.tools.registry_file import RegistryFile
from dragoman.hub.tools.remote_agents import A2ATool, RemoteAgents
from dragoman.hub.tools.web import ADDRESSES, BrowseTool, FetchTool, SearchEngine, SearchTool, WebSearch
from dragoman.push.guard import Guard

log = logging.getLogger(__name__)

AGENTS_FILE, SERVERS_FILE = "a2a_agents.json", "mcp_servers.json"
_ABSENT = {
    "/map": "a hub draws no map of the workspace; use /list",
    "/pane": "there are no panes on a server; use /agent",
}


def toolbox(
    database: Database,
    *,
    model: Model,
    fetcher: PageFetcher,
    check: Check | None = None,
    search: WebSearch | None = None,
    mcp: McpServers,
    remotes: RemoteAgents,
    sandbox: Sandbox | None = None,
    artifacts: Artifacts,
    timezone: str = "",
) -> tuple[Tool, ...]:
    """Build every command. `model` answers `/advise`; `check` refuses addresses; `timezone` is that of schedules."""
    pictures = Pictures(database, model)
    memories, todo = Memories(database), TodoTool(Todos(database))

    async def context(session: Session) -> list[str]:
        """Lines about the work so far, for a delegated agent."""
        lines = []
        if session.conversation:
            known = await memories.list(session.tenant, conversation=session.conversation, limit=15)
            lines += (
                ["pipeline memory:", *(f"- #{entry.id} {flatten(entry.title)}" for entry in known)]
                if known
                else []
            )
        open_todos = await todo.lines(session)
        return [*lines, *(["open todos:", *open_todos] if open_todos else [])]

    tools: list[Tool] = [
        SearchTool(search),
        FetchTool(fetcher, pictures),
        WriteTool(artifacts, sandbox),
        ReadTool(artifacts, memories, pictures, sandbox),
        ListTool(artifacts, sandbox),
        MemTool(Scratchpads(database), memories),
        AgentTool(context),
        ParallelTool(context),
        McpCommand(mcp, check),
        A2ATool(remotes),
        AdviseTool(model),
        ExecTool(sandbox),
        todo,
        LessonTool(memories),
        ScheduleTool(Schedules(database, timezone=timezone)),
        BrowseTool(mcp, check),
    ]
    return (*tools, HelpTool(tools), *(UnavailableTool(name, why) for name, why in _ABSENT.items()))


class ExternalServices:
    """What the commands reach: pages, a search engine, remote agents, MCP servers, the sandbox."""

    def __init__(
        self, settings: Settings, metrics: HubMetrics, leases: WorkspaceLeases | None = None
    ) -> None:
        guard = Guard(allow_private=settings.allow_private, http=True)
        folder = settings.folder
        self._guard, self._timezone = guard, settings.timezone
        self.fetcher = HttpFetcher(guard.dial)
        self.remotes = RemoteAgents({}, guard=guard, environ=os.environ)
        self._servers = McpServers({})
        agents = RegistryFile(folder / AGENTS_FILE, remotes.read_registry, self.remotes.change)
        servers = RegistryFile(folder / SERVERS_FILE, mcp_servers.read_registry, self._servers.change)
        self.remotes.agents.update(agents.load())
        self._servers.add(servers.load())
        self.registries = (agents.periodic, servers.periodic)
        self._sandbox = _sandbox(settings, metrics, leases) if settings.allow_exec else None
        self._search = _search(settings)

    def follow(self, policies: Policies) -> None:
        """Show each tenant what its policy says."""

        async def allows_remote(tenant: str, name: str) -> bool:
            return (await policies.of(tenant)).allows_remote(name)

        async def allows_mcp(tenant: str, name: str) -> bool:
            return (await policies.of(tenant)).allows_mcp(name)

        self.remotes.allows, self._servers.allows = allows_remote, allows_mcp

    def tools(self, database: Database, model: Model, artifacts: Artifacts) -> tuple[Tool, ...]:
        return toolbox(
            database,
            model=model,
            fetcher=self.fetcher,
            check=self._check,
            search=self._search,
            mcp=self._servers,
            remotes=self.remotes,
            sandbox=self._sandbox,
            artifacts=artifacts,
            timezone=self._timezone,
        )

    async def _check(self, url: str) -> None:
        """Check and connect to the address of a URL. Raises `OSError`."""
        self._guard.check(url.partition("#")[0])
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        (await self._guard.dial(parts.hostname or "", port)).close()

    async def close(self) -> None:
        for registry in self.registries:
            await registry.stop()
        await self.fetcher.close()
        await self._servers.close()
        if self._search is not None:
            await self._search.close()
        if self._sandbox is not None:
            await self._sandbox.close()


def _search(settings: Settings) -> SearchEngine | None:
    """Raises `ValueError`."""
    if not settings.search:
        return None
    guard = Guard(allow_private=settings.search_private, http=True)
    try:
        guard.check(settings.search_url or ADDRESSES[settings.search])
    except AddressRefused as error:
        raise ValueError(f"the address of the search engine is refused: {error}") from None
    return SearchEngine(settings.search, key=settings.search_key, url=settings.search_url, dial=guard.dial)


def _sandbox(settings: Settings, metrics: HubMetrics, leases: WorkspaceLeases | None) -> Sandbox:
    cell: Cell
    whose = command_user()
    if warning := root_warning():
        log.warning("%s", warning)
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
        memory=0 if settings.exec_image else settings.exec_memory_mb << 20,
        owner=whose,
        counted=metrics.sandbox,
        leases=leases,
    )

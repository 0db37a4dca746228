"""All commands of a hub, and the services that they reach.

A command that the operator has not enabled answers with the reason.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.client.config import CONFIG
from dragoman.client.transport.network import AddressRefused
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import Model
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.quote import flatten
from dragoman.hub.sandbox import Isolation, Sandbox
from dragoman.hub.sandbox.child_process import command_user, root_warning
from dragoman.hub.sandbox.container import ContainerIsolation
from dragoman.hub.sandbox.process import MAX_PROCESSES, ProcessIsolation
from dragoman.hub.settings import Settings
from dragoman.hub.store.artifacts import Artifacts
from dragoman.hub.store.database import Database
from dragoman.hub.store.memories import Memories, Scratchpads
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.store.todos import Todos
from dragoman.hub.store.workspace_leases import WorkspaceLeases
from dragoman.hub.tools import HelpTool, Session, Tool, UnavailableTool, remote_agents
from dragoman.hub.tools import mcp as mcp_servers
from dragoman.hub.tools.advisor import AdviseTool
from dragoman.hub.tools.delegate import AgentTool, ParallelTool
from dragoman.hub.tools.fetcher import HttpFetcher
from dragoman.hub.tools.files import ExecTool, ListTool, Pictures, ReadTool, WriteTool
from dragoman.hub.tools.mcp import Check, McpCommand, McpServers
from dragoman.hub.tools.memory import LessonTool, MemTool
from dragoman.hub.tools.planning import ScheduleTool, TodoTool
from dragoman.hub.tools.registry_file import RegistryFile
from dragoman.hub.tools.remote_agents import A2ATool, RemoteAgents
from dragoman.hub.tools.web import ADDRESSES, BrowseTool, FetchTool, SearchEngine, SearchTool
from dragoman.push.guard import Guard

log = logging.getLogger(__name__)

AGENTS_FILE, SERVERS_FILE = "a2a_agents.json", "mcp_servers.json"
_UNAVAILABLE = {
    "/map": "a hub has no map of the workspace; use /list",
    "/pane": "there are no panes on a server; use /agent",
}


class Services(Struct, kw_only=True):
    """What the commands reach: pages, a search engine, remote agents, MCP servers, the sandbox."""

    fetcher: HttpFetcher
    mcp: McpServers
    remotes: RemoteAgents
    search: SearchEngine | None = None
    sandbox: Sandbox | None = None
    check: Check | None = None
    """Refuses addresses that a browser must not open."""
    registries: tuple[PeriodicWork, ...] = ()
    """Read the files of remote agents and MCP servers again."""

    def start(self) -> None:
        self.remotes.periodic.start()
        for registry in self.registries:
            registry.start()

    async def close(self) -> None:
        """The engine closes `remotes`."""
        for registry in self.registries:
            await registry.stop()
        await self.fetcher.close()
        await self.mcp.close()
        if self.search is not None:
            await self.search.close()
        if self.sandbox is not None:
            await self.sandbox.close()


def open_services(
    settings: Settings, metrics: HubMetrics, policies: Policies, leases: WorkspaceLeases | None = None
) -> Services:
    """The services of the settings. Each tenant sees the remote agents and MCP servers that its policy names."""
    # Two guards, so that slow DNS lookups for web pages do not delay calls of remote agents.
    guard, for_remotes = (Guard(allow_private=settings.allow_private, http=True) for _ in range(2))

    async def check(url: str) -> None:
        """Check and connect to the address of a URL. Raises `OSError`."""
        guard.check(url.partition("#")[0])
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        (await guard.dial(parts.hostname or "", port)).close()

    remotes = RemoteAgents({}, guard=for_remotes, environ=os.environ, policies=policies)
    mcp = McpServers({}, policies)
    agents = RegistryFile(settings.folder / AGENTS_FILE, remote_agents.read_registry, remotes.change)
    servers = RegistryFile(settings.folder / SERVERS_FILE, mcp_servers.read_registry, mcp.change)
    remotes.agents.update(agents.load())
    mcp.servers.update(servers.load())
    return Services(
        fetcher=HttpFetcher(guard.dial),
        mcp=mcp,
        remotes=remotes,
        search=_open_search(settings),
        sandbox=_open_sandbox(settings, metrics, leases) if settings.allow_exec else None,
        check=check,
        registries=(agents.periodic, servers.periodic),
    )


def build_tools(
    database: Database, services: Services, *, model: Model, artifacts: Artifacts, schedules: Schedules
) -> tuple[Tool, ...]:
    """Build every command. `model` answers `/advise`."""
    pictures, sandbox = Pictures(database, model), services.sandbox
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
        SearchTool(services.search),
        FetchTool(services.fetcher, pictures),
        WriteTool(artifacts, sandbox),
        ReadTool(artifacts, memories, pictures, sandbox),
        ListTool(artifacts, sandbox),
        MemTool(Scratchpads(database), memories),
        AgentTool(context),
        ParallelTool(context),
        McpCommand(services.mcp, services.check),
        A2ATool(services.remotes),
        AdviseTool(model),
        ExecTool(sandbox),
        todo,
        LessonTool(memories),
        ScheduleTool(schedules),
        BrowseTool(services.mcp, services.check),
    ]
    return (*tools, HelpTool(tools), *(UnavailableTool(name, why) for name, why in _UNAVAILABLE.items()))


def _open_search(settings: Settings) -> SearchEngine | None:
    """Raises `ValueError`."""
    if not settings.search:
        return None
    guard = Guard(allow_private=settings.search_private, http=True)
    try:
        guard.check(settings.search_url or ADDRESSES[settings.search])
    except AddressRefused as error:
        raise ValueError(f"the address of the search engine is refused: {error}") from None
    return SearchEngine(settings.search, key=settings.search_key, url=settings.search_url, dial=guard.dial)


def _hidden_paths(settings: Settings) -> list[Path]:
    """Files and folders that commands must not see, also inside the folders of programs."""
    named = [settings.tls_cert, settings.tls_key, settings.tls_client_ca, *settings.agents]
    if "://" not in settings.blobs:
        named.append(settings.blobs)
    return [settings.folder, Path(CONFIG), *(Path(each) for each in named if each)]


def _open_sandbox(settings: Settings, metrics: HubMetrics, leases: WorkspaceLeases | None) -> Sandbox:
    isolation: Isolation
    owner = command_user()
    if warning := root_warning():
        log.warning("%s", warning)
    if settings.exec_image:
        isolation = ContainerIsolation(
            settings.exec_image,
            seconds=settings.exec_seconds,
            memory_mb=settings.exec_memory_mb,
            owner=owner,
            count=metrics.count_sandbox,
        )
    else:
        isolation = ProcessIsolation(
            hidden=_hidden_paths(settings),
            seconds=settings.exec_seconds,
            memory_mb=settings.exec_memory_mb,
            file_mb=settings.exec_disk_mb,
            owner=owner,
            unconfined=settings.exec_unconfined,
        )
    return Sandbox(
        settings.folder / "workspaces",
        isolation,
        seconds=settings.exec_seconds,
        disk=settings.exec_disk_mb << 20,
        memory=0 if settings.exec_image else settings.exec_memory_mb << 20,
        processes=0 if settings.exec_image or owner is None else MAX_PROCESSES,
        owner=owner,
        count=metrics.count_sandbox,
        leases=leases,
    )

"""All commands of a hub. A command that the operator has not enabled answers with the reason."""

from __future__ import annotations

from dragoman.hub.models import Model
from dragoman.hub.quote import flatten
from dragoman.hub.sandbox import Sandbox
from dragoman.hub.store.artifacts import Artifacts
from dragoman.hub.store.database import Database
from dragoman.hub.store.memories import Memories, Scratchpads
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.store.todos import Todos
from dragoman.hub.tools import HelpTool, Session, Tool, UnavailableTool
from dragoman.hub.tools.advisor import AdviseTool
from dragoman.hub.tools.delegate import AgentTool, ParallelTool
from dragoman.hub.tools.fetcher import PageFetcher
from dragoman.hub.tools.files import ExecTool, ListTool, Pictures, ReadTool, WriteTool
from dragoman.hub.tools.mcp import Check, McpCommand, McpServers
from dragoman.hub.tools.memory import LessonTool, MemTool
from dragoman.hub.tools.planning import ScheduleTool, TodoTool
from dragoman.hub.tools.remote_agents import A2ATool, RemoteAgents
from dragoman.hub.tools.web import NO_BROWSER, BrowseTool, FetchTool, SearchTool, WebSearch

_ABSENT = {
    "/browse": NO_BROWSER,
    "/map": "a hub draws no map of the workspace; use /list",
    "/pane": "there are no panes on a server; use /agent",
}


def toolbox(
    database: Database,
    *,
    model: Model,
    fetcher: PageFetcher | None = None,
    check: Check | None = None,
    search: WebSearch | None = None,
    mcp: McpServers | None = None,
    remotes: RemoteAgents | None = None,
    sandbox: Sandbox | None = None,
    artifacts: Artifacts | None = None,
    timezone: str = "",
) -> tuple[Tool, ...]:
    """Build every command. `model` answers `/advise`; `check` refuses addresses; `timezone` is that of schedules."""
    pictures = Pictures(database, model)
    artifacts = artifacts or Artifacts(database)
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
    ]
    if mcp is not None:
        tools.append(BrowseTool(mcp, check))
    served = {name for tool in tools for name in tool.names}
    absent = (UnavailableTool(name, why) for name, why in _ABSENT.items() if name not in served)
    return (*tools, HelpTool(tools), *absent)

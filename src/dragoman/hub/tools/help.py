"""`/help`, and the commands that are known but not served here."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.hub.agents.capabilities import bundle_of
from dragoman.hub.tools.tool import Command, Session, Tool, harmless


class HelpTool:
    names = ("/help",)
    bundle = ""
    usage = "/help [command]   what a command does and how it is written"
    repeatable = harmless

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._tools = tuple(tools)

    def label(self, command: Command) -> str:
        return f"help:{command.args[:40]}" if command.args else "help"

    async def run(self, command: Command, session: Session) -> str:
        granted = session.constitution.granted
        every: tuple[Tool, ...] = (*self._tools, self)
        shown = [tool for tool in every if not tool.bundle or tool.bundle in granted]
        topic = "/" + command.args.strip().removeprefix("/").partition(" ")[0]
        if topic == "/":
            return "\n".join(tool.usage for tool in shown)
        for tool in shown:
            if topic in tool.names:
                return tool.usage
        return f"ERR: there is no command {topic} for this agent"


class AbsentTool:
    """A command that the hub knows and does not serve: refused in words, so that a model does not wait for a result."""

    usage = ""
    repeatable = harmless

    def __init__(self, name: str, why: str) -> None:
        self.names = (name,)
        self.bundle = bundle_of(name)
        self._why = why

    def label(self, command: Command) -> str:
        return command.name[1:]

    async def run(self, command: Command, session: Session) -> str:
        return f"ERR: {command.name} is not available: {self._why}"

"""`/mcp`: the tools of MCP servers."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.errors import A2AError, InvalidParams
from dragoman.hub.tools.browse import BROWSER, Check, refusal
from dragoman.hub.tools.mcp_servers import McpServers
from dragoman.hub.tools.tool import Command, Session


class McpCommand:
    names = ("/mcp",)
    bundle = "mcp"
    usage = "/mcp tools [server] | /mcp call <server> <tool> {json}   use the tools of MCP servers"

    def __init__(self, servers: McpServers | None = None, check: Check | None = None) -> None:
        self._servers, self._check = servers, check

    def label(self, command: Command) -> str:
        words = command.args.split(" ", 3)
        return f"mcp:{words[1]}.{words[2]}" if len(words) > 2 else f"mcp:{words[0]}"

    async def repeatable(self, command: Command, session: Session) -> bool:
        """Reading what tools there are is, and calling one that says so of itself."""
        verb, _, rest = command.args.partition(" ")
        if session.broken_off:
            return False
        if verb != "call" or self._servers is None:
            return True
        try:
            server, tool, _ = _asked(rest)
            return await self._servers.repeatable(session.tenant, server, tool)
        except A2AError:
            return False

    async def run(self, command: Command, session: Session) -> str:
        if self._servers is None or not self._servers.names:
            return "ERR: this hub has no MCP servers"
        verb, _, rest = command.args.partition(" ")
        try:
            if verb == "tools":
                return await self._tools(self._servers, rest.strip(), session)
            if verb == "call":
                server, tool, arguments = _asked(rest)
                if server == BROWSER and (why := await refusal(self._check, arguments)):
                    return f"ERR: {why}"
                ok, said = await self._servers.call(session.tenant, server, tool, arguments)
                return said if ok else f"ERR: {said}"
        except A2AError as error:
            return f"ERR: {error.message}"
        return f"ERR: usage: {self.usage}"

    async def _tools(self, servers: McpServers, only: str, session: Session) -> str:
        lines = []
        for name in (only,) if only else servers.names:
            try:
                found = await servers.tools(session.tenant, name)
            except A2AError as error:
                if only:
                    raise
                lines.append(f"{name}: ({error.message})")
                continue
            for tool in found:
                members = ", ".join(tool.schema.get("properties", {}))
                lines.append(f"{name} {tool.name} {{{members}}} — {tool.description}")
        return "\n".join(lines) or "(no tools)"


def _asked(rest: str) -> tuple[str, str, dict[str, Any]]:
    """The server, the tool and its arguments. Raises `InvalidParams`."""
    server, _, rest = rest.strip().partition(" ")
    tool, _, given = rest.strip().partition(" ")
    if not server or not tool:
        raise InvalidParams("usage: /mcp call <server> <tool> {json}")
    try:
        arguments = msgspec.json.decode(given.strip() or "{}")
    except msgspec.DecodeError as error:
        raise InvalidParams(f"the arguments are no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidParams("the arguments must be a JSON object")
    return server, tool, arguments

"""`/mcp`: the tools of MCP servers."""

from __future__ import annotations

import msgspec

from dragoman.errors import A2AError
from dragoman.hub.mcp_servers import McpServers
from dragoman.hub.tool import Command, Session


class McpCommand:
    names = ("/mcp",)
    bundle = "mcp"
    usage = "/mcp tools [server] | /mcp call <server> <tool> {json}   use the tools of MCP servers"

    def __init__(self, servers: McpServers | None = None) -> None:
        self._servers = servers

    def label(self, command: Command) -> str:
        words = command.args.split(" ", 3)
        return f"mcp:{words[1]}.{words[2]}" if len(words) > 2 else f"mcp:{words[0]}"

    async def run(self, command: Command, session: Session) -> str:
        if self._servers is None or not self._servers.names:
            return "ERR: this hub has no MCP servers"
        verb, _, rest = command.args.partition(" ")
        try:
            if verb == "tools":
                return await self._tools(self._servers, rest.strip(), session)
            if verb == "call":
                return await self._call(self._servers, rest.strip(), session)
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

    async def _call(self, servers: McpServers, rest: str, session: Session) -> str:
        server, _, rest = rest.partition(" ")
        tool, _, given = rest.strip().partition(" ")
        if not server or not tool:
            return "ERR: usage: /mcp call <server> <tool> {json}"
        try:
            arguments = msgspec.json.decode(given.strip() or "{}")
        except msgspec.DecodeError as error:
            return f"ERR: the arguments are no JSON: {error}"
        if not isinstance(arguments, dict):
            return "ERR: the arguments must be a JSON object"
        ok, said = await servers.call(session.tenant, server, tool, arguments)
        return said if ok else f"ERR: {said}"

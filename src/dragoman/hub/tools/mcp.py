"""`/mcp`: servers of the Model Context Protocol, from a registry file, started when first needed.

    {"servers": {"files": {"command": "mcp-files", "args": ["/data"], "env": {"LEVEL": "2"}},
                 "remote": {"url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer ..."}}}}

Each tenant has its own processes. They get only basic environment variables and those of the registry. A dead server is
restarted at its next use; an idle one is stopped.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dragoman.engine.tools import Tool as ServerTool
from dragoman.errors import A2AError, InvalidParams, Unavailable
from dragoman.hub.quote import flatten
from dragoman.hub.store.policies import Policies
from dragoman.hub.tools import Command, Session, Tool
from dragoman.hub.tools.registry_file import check_url, read_entries
from dragoman.mcp.connection import McpConnection, McpPool, McpServer

BROWSER = "playwright"
NAVIGATE, SNAPSHOT = "browser_navigate", "browser_snapshot"

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://")

Check = Callable[[str], Awaitable[None]]
"""Raises `OSError` for a forbidden address."""


async def address_refusal(check: Check | None, arguments: object) -> str:
    """Why a browser must not get these arguments; empty if it may.

    Every member named `url`, at any depth, must be an http address; other strings that look like addresses are checked too.
    """
    for name, value in _named_strings(arguments):
        address = value.strip()
        if name != "url" and not _ADDRESS.match(address):
            continue
        if not address.lower().startswith(("http://", "https://")):
            return f"refused: {address[:80]!r} is not an http or https address"
        try:
            if check is not None:
                await check(address)
        except (OSError, ValueError) as error:
            return f"refused: {error}"
    return ""


def _named_strings(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """The strings in a JSON value, each with its member name."""
    waiting = [(name, value)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, str):
            yield name.lower(), value
        elif isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += ((name, each) for each in value)


IDLE_SECONDS = 300.0
DESCRIPTION_CHARACTERS = 1000
"""Characters of a tool's description in `/mcp tools`."""


def read_registry(path: Path) -> dict[str, McpServer]:
    """The servers of a file; none if there is no such file. Raises `InvalidParams`."""
    servers, _ = read_entries(path, "servers", McpServer, "MCP servers")
    for name, server in servers.items():
        where = f"{path.name}: server {name!r}"
        if bool(server.command) == bool(server.url):
            raise InvalidParams(f"{where} needs either a command or a url")
        if server.command and server.headers:
            raise InvalidParams(f"{where}: headers do not go with a command")
        if server.url:
            check_url(server.url, where)
            if server.args or server.env:
                raise InvalidParams(f"{where}: {'args do' if server.args else 'env does'} not go with a url")
    return servers


class McpServers:
    """The servers of the registry. Each tenant has its own connections. `policies` say which servers a tenant sees (None: all); for
    it, the others do not exist."""

    def __init__(self, servers: dict[str, McpServer], policies: Policies | None = None) -> None:
        self.servers, self._policies, self._pool = dict(servers), policies, McpPool(idle=IDLE_SECONDS)

    async def change(self, servers: dict[str, McpServer]) -> None:
        """Replace the registry. Calls that run go on."""
        self.servers = dict(servers)

    async def visible(self, tenant: str) -> tuple[str, ...]:
        """The servers that a tenant sees."""
        return tuple([name for name in self.servers if await self._allows(tenant, name)])

    async def _allows(self, tenant: str, name: str) -> bool:
        return self._policies is None or (await self._policies.of(tenant)).allows_mcp(name)

    async def tools(self, tenant: str, name: str) -> list[ServerTool]:
        """Raises `A2AError`."""
        return await (await self._connection(tenant, name)).tools()

    async def repeatable(self, tenant: str, name: str, tool: str) -> bool:
        """True if an interrupted call may be repeated. Raises `A2AError`."""
        tools = await self.tools(tenant, name)
        return any(each.read_only or each.idempotent for each in tools if each.name == tool)

    async def call(self, tenant: str, name: str, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        """Whether the call succeeded, and its text. Raises `A2AError` if the server cannot be reached."""
        connection = await self._connection(tenant, name)
        async with connection.in_use():
            result = await connection.await_answer(connection.client.call_tool(tool, arguments))
        texts = [_content_text(content) for content in result.content]
        return not result.is_error, "\n".join(texts) or "(nothing)"

    async def close(self) -> None:
        await self._pool.close()

    async def find(self, tenant: str, name: str) -> McpServer:
        """A server that a tenant sees. Raises `InvalidParams`."""
        server = self.servers.get(name)
        if server is None or not await self._allows(tenant, name):
            known = ", ".join(await self.visible(tenant)) or "none"
            raise InvalidParams(f"no MCP server {name[:80]!r} configured. Available: {known}")
        return server

    async def _connection(self, tenant: str, name: str) -> McpConnection:
        server = await self.find(tenant, name)
        # a server that changes in the registry gets a new connection; the old one is closed when it is idle
        key = tenant, name, msgspec.json.encode(server, order="deterministic")
        return await self._pool.connect(key, name, server)


def _content_text(content: Any) -> str:
    if content.type == "text":
        return str(content.text)
    return f"[{content.type} {getattr(content, 'mime_type', '') or ''}]".replace(" ]", "]")


class McpCommand(Tool):
    names = ("/mcp",)
    usage = "/mcp tools [server] | /mcp call <server> <tool> {json}   use the tools of MCP servers"

    def __init__(self, servers: McpServers, check: Check | None = None) -> None:
        self._servers, self._check = servers, check

    def label(self, command: Command) -> str:
        words = command.args.split(" ", 3)
        return f"mcp:{words[1]}.{words[2]}" if len(words) > 2 else f"mcp:{words[0]}"

    async def repeatable(self, command: Command, session: Session) -> bool:
        """True for a list of tools, and for a call of a tool that the server declares read-only or idempotent."""
        verb, _, rest = command.args.partition(" ")
        if session.was_interrupted:
            return False
        if verb != "call":
            return True
        try:
            server, tool, _ = _parse_call(rest)
            return await self._servers.repeatable(session.tenant, server, tool)
        except A2AError:
            return False

    async def check(self, command: Command, session: Session) -> None:
        if not await self._servers.visible(session.tenant):
            raise Unavailable("this hub has no MCP servers")
        verb, _, rest = command.args.partition(" ")
        if verb == "call":
            await self._servers.find(session.tenant, _parse_call(rest)[0])

    async def run(self, command: Command, session: Session) -> str:
        await self.check(command, session)
        verb, _, rest = command.args.partition(" ")
        if verb == "tools":
            return await self._tools(rest.strip(), session)
        if verb == "call":
            server, tool, arguments = _parse_call(rest)
            if server == BROWSER and (why := await address_refusal(self._check, arguments)):
                return f"ERR: {why}"
            ok, text = await self._servers.call(session.tenant, server, tool, arguments)
            return text if ok else f"ERR: {text}"
        return f"ERR: usage: {self.usage}"

    async def _tools(self, only: str, session: Session) -> str:
        servers, lines = self._servers, []
        for name in (only,) if only else await servers.visible(session.tenant):
            try:
                found = await servers.tools(session.tenant, name)
            except A2AError as error:
                if only:
                    raise
                lines.append(f"{name}: ({flatten(error.message)})")
                continue
            for tool in found:
                members = flatten(", ".join(tool.input_schema.get("properties", {})))
                about = flatten(tool.description, DESCRIPTION_CHARACTERS)
                lines.append(f"{name} {flatten(tool.name)} {{{members}}} — {about}")
        return "\n".join(lines) or "(no tools)"


def _parse_call(rest: str) -> tuple[str, str, dict[str, Any]]:
    """The server, the tool and its arguments. Raises `InvalidParams`."""
    server, _, rest = rest.strip().partition(" ")
    tool, _, given = rest.strip().partition(" ")
    if not server or not tool:
        raise InvalidParams("usage: /mcp call <server> <tool> {json}")
    try:
        arguments = msgspec.json.decode(given.strip() or "{}")
    except msgspec.DecodeError as error:
        raise InvalidParams(f"the arguments are not valid JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidParams("the arguments must be a JSON object")
    return server, tool, arguments

"""`/mcp`: servers of the Model Context Protocol, from a registry file, started when first needed.

    {"servers": {"files": {"command": "mcp-files", "args": ["/data"], "env": {"LEVEL": "2"}},
                 "remote": {"url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer ..."}}}}

Each tenant has its own processes. They get only basic environment variables and those of the registry. A dead server is
restarted at its next use; an idle one is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import A2AError, InvalidParams, Unreachable
from dragoman.hub.tools.tool import Command, Session
from dragoman.observe.logs import describe

logger = logging.getLogger("dragoman.mcp")

BROWSER = "playwright"
NAVIGATE, SNAPSHOT = "browser_navigate", "browser_snapshot"

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://")

Check = Callable[[str], Awaitable[None]]
"""Raises `OSError` for a forbidden address."""


async def refuse_addresses(check: Check | None, arguments: object) -> str:
    """Why a browser must not get these arguments; empty if it may.

    Every member named `url`, at any depth, must be an http address; other strings that look like addresses are checked too.
    """
    for name, value in _named_strings(arguments):
        address = value.strip()
        if name != "url" and not _ADDRESS.match(address):
            continue
        if not address.lower().startswith(("http://", "https://")):
            return f"refused: {address[:80]!r} is no http or https address"
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
_MAX_TOOL_PAGES = 20
"""Pages of tools that are read."""
_CLOSED = -32000
"""The library's code for a closed connection."""


class McpServer(Struct, frozen=True, kw_only=True):
    """One server of the registry: a command, or a URL."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    init_timeout_ms: Annotated[int, Meta(gt=0)] = 60_000
    call_timeout_ms: Annotated[int, Meta(gt=0)] = 30_000


class McpTool(Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
    schema: dict[str, Any] = {}
    repeatable: bool = False
    """The server declares it read-only or idempotent."""


class _ServersFile(Struct, frozen=True):
    servers: dict[str, McpServer] = {}


def read_registry(path: Path) -> dict[str, McpServer]:
    """The servers of a file; none if there is no such file. Raises `InvalidParams`."""
    if not path.is_file():
        return {}
    try:
        servers = msgspec.json.decode(path.read_bytes(), type=_ServersFile).servers
    except (msgspec.DecodeError, OSError) as error:
        raise InvalidParams(f"{path.name} is no registry of MCP servers: {error}") from error
    for name, server in servers.items():
        if not name or name.split() != [name]:
            raise InvalidParams(f"{path.name}: {name!r} is no name to call a server by")
        if bool(server.command) == bool(server.url):
            raise InvalidParams(f"{path.name}: server {name!r} needs either a command or a url")
    return servers


class McpServers:
    def __init__(self, servers: dict[str, McpServer], *, idle: float = IDLE_SECONDS) -> None:
        self._servers, self._idle = servers, idle
        self._open: dict[tuple[str, str], _McpConnection] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._servers)

    async def tools(self, tenant: str, name: str) -> list[McpTool]:
        """Raises `A2AError`."""
        connection = await self._connection(tenant, name)
        found: list[McpTool] = []
        async with connection.used():
            page, cursor = 0, None
            while page == 0 or (cursor and page < _MAX_TOOL_PAGES):
                some = await connection.within(connection.client.list_tools(cursor=cursor))
                found += map(_tool, some.tools)
                page, cursor = page + 1, some.next_cursor
        connection.repeatable = frozenset(tool.name for tool in found if tool.repeatable)
        return found

    async def repeatable(self, tenant: str, name: str, tool: str) -> bool:
        """True if an interrupted call may be repeated. Raises `A2AError`."""
        connection = await self._connection(tenant, name)
        if connection.repeatable is None:
            await self.tools(tenant, name)
        return tool in (connection.repeatable or ())

    async def call(self, tenant: str, name: str, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        """Whether the call succeeded, and its text. Raises `A2AError` if the server cannot be reached."""
        connection = await self._connection(tenant, name)
        async with connection.used():
            result = await connection.within(connection.client.call_tool(tool, arguments))
        texts = [_content(content) for content in result.content]
        return not result.is_error, "\n".join(texts) or "(nothing)"

    async def close(self) -> None:
        opened, self._open = list(self._open.values()), {}
        for connection in opened:
            await connection.close()

    async def _connection(self, tenant: str, name: str) -> _McpConnection:
        server = self._servers.get(name)
        if server is None:
            known = ", ".join(self._servers) or "none"
            raise InvalidParams(f"no MCP server {name[:80]!r} configured. Available: {known}")
        key = tenant, name
        connection = self._open.get(key)
        if connection is None or connection.gone:
            connection = self._open[key] = _McpConnection(name, server, self._idle)
        await connection.ready()
        return connection


class _McpConnection:
    """A client in its own asyncio task, because the library must open and close it in the same task."""

    def __init__(self, name: str, server: McpServer, idle: float) -> None:
        self._name, self._server, self._idle = name, server, idle
        self._begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._users = 0
        self.repeatable: frozenset[str] | None = None
        """The repeatable tools, once they are known."""
        self._used = asyncio.Event()
        self._task = asyncio.create_task(self._live(), name=f"mcp-{name}")

    @property
    def gone(self) -> bool:
        return self._task.done() or self._stop.is_set()

    @property
    def client(self) -> Any:
        return self._begun.result()

    async def ready(self) -> None:
        try:
            async with asyncio.timeout(self._server.init_timeout_ms / 1000):
                await asyncio.shield(self._begun)
        except TimeoutError:
            self._stop.set()
            self._task.cancel()
            raise Unreachable(f"the MCP server {self._name!r} did not start in time") from None

    def used(self) -> _Use:
        return _Use(self)

    async def within(self, asked: Any) -> Any:
        """Await an answer within the server's timeout; the death of the server ends the wait."""
        work = asyncio.ensure_future(asked)
        try:
            done, _ = await asyncio.wait(
                [work, self._task],
                timeout=self._server.call_timeout_ms / 1000,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if work not in done:
                if self._task in done:
                    raise Unreachable(f"the MCP server {self._name!r} died")
                raise Unreachable(f"the MCP server {self._name!r} did not answer in time")
            return work.result()
        except A2AError:
            self._stop.set()
            raise
        except Exception as error:  # the library's and the server's own
            logger.info("the MCP server %s failed: %s", self._name, describe(error))
            if getattr(getattr(error, "error", None), "code", _CLOSED) == _CLOSED:
                self._stop.set()  # no answer of the server: reconnect at the next use
            raise Unreachable(f"the MCP server {self._name!r} failed: {str(error)[:300]}") from error
        finally:
            if not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await work

    async def close(self) -> None:
        self._stop.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.wait([self._task])
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _live(self) -> None:
        try:
            async with _client(self._server) as client:
                self._begun.set_result(client)
                await self._until_idle()
        except Exception as error:  # whatever the library meets
            logger.info("the MCP server %s ended: %s", self._name, describe(error))
            if not self._begun.done():
                self._begun.set_exception(Unreachable(f"the MCP server {self._name!r} could not be started"))
                self._begun.exception()
        finally:
            self._stop.set()
            if not self._begun.done():
                self._begun.cancel()

    async def _until_idle(self) -> None:
        while not self._stop.is_set():
            self._used.clear()
            waits = [asyncio.ensure_future(self._stop.wait()), asyncio.ensure_future(self._used.wait())]
            done, _ = await asyncio.wait(waits, timeout=self._idle, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if not done and not self._users:
                return


class _Use:
    def __init__(self, connection: _McpConnection) -> None:
        self._connection = connection

    async def __aenter__(self) -> None:
        self._connection._users += 1
        self._connection._used.set()

    async def __aexit__(self, *_: object) -> None:
        self._connection._users -= 1
        self._connection._used.set()


def _client(server: McpServer) -> Any:
    from mcp import Client, StdioServerParameters, stdio_client

    if server.command:
        parameters = StdioServerParameters(command=server.command, args=list(server.args), env=server.env)
        return Client(stdio_client(parameters, errlog=_null_file()))
    from mcp.client import streamable_http

    http = streamable_http.create_mcp_http_client(headers=server.headers)
    return Client(streamable_http.streamable_http_client(server.url, http_client=http))


def _null_file() -> Any:
    """Receives the stderr of servers."""
    global _sink
    if _sink is None:
        _sink = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    return _sink


_sink: Any = None


def _tool(tool: Any) -> McpTool:
    hints = tool.annotations
    return McpTool(
        name=tool.name,
        description=tool.description or "",
        schema=tool.input_schema or {},
        repeatable=hints is not None and bool(hints.read_only_hint or hints.idempotent_hint),
    )


def _content(content: Any) -> str:
    if content.type == "text":
        return str(content.text)
    return f"[{content.type} {getattr(content, 'mime_type', '') or ''}]".replace(" ]", "]")


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
        """Listing tools is, and calling a tool that the server declares repeatable."""
        verb, _, rest = command.args.partition(" ")
        if session.was_interrupted:
            return False
        if verb != "call" or self._servers is None:
            return True
        try:
            server, tool, _ = _parse_call(rest)
            return await self._servers.repeatable(session.tenant, server, tool)
        except A2AError:
            return False

    async def run(self, command: Command, session: Session) -> str:
        if self._servers is None or not self._servers.names:
            return "ERR: this hub has no MCP servers"
        verb, _, rest = command.args.partition(" ")
        if verb == "tools":
            return await self._tools(self._servers, rest.strip(), session)
        if verb == "call":
            server, tool, arguments = _parse_call(rest)
            if server == BROWSER and (why := await refuse_addresses(self._check, arguments)):
                return f"ERR: {why}"
            ok, text = await self._servers.call(session.tenant, server, tool, arguments)
            return text if ok else f"ERR: {text}"
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


def _parse_call(rest: str) -> tuple[str, str, dict[str, Any]]:
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

"""Servers of the Model Context Protocol, from a registry file, started when first needed.

    {"servers": {"files": {"command": "mcp-files", "args": ["/data"], "env": {"LEVEL": "2"}},
                 "remote": {"url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer ..."}}}}

Each tenant has processes of its own, which see none of the hub's environment but the few variables any program needs,
and what the registry gives them. A server that died is started again at its next use; an idle one is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import A2AError, InvalidParams, Unreachable
from dragoman.observe.logs import describe

logger = logging.getLogger("dragoman.mcp")

IDLE = 300.0
_PAGES = 20
"""Of tools, that a server may have."""
_CLOSED = -32000
"""The library's code for a connection that is gone."""


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
    """It says that it only reads, or that calling it twice does no more than calling it once."""


class _Registry(Struct, frozen=True):
    servers: dict[str, McpServer] = {}


def read_registry(path: Path) -> dict[str, McpServer]:
    """The servers of a file; none if there is no such file. Raises `InvalidParams`."""
    if not path.is_file():
        return {}
    try:
        servers = msgspec.json.decode(path.read_bytes(), type=_Registry).servers
    except (msgspec.DecodeError, OSError) as error:
        raise InvalidParams(f"{path.name} is no registry of MCP servers: {error}") from error
    for name, server in servers.items():
        if not name or name.split() != [name]:
            raise InvalidParams(f"{path.name}: {name!r} is no name to call a server by")
        if bool(server.command) == bool(server.url):
            raise InvalidParams(f"{path.name}: server {name!r} needs either a command or a url")
    return servers


class McpServers:
    def __init__(self, servers: dict[str, McpServer], *, idle: float = IDLE) -> None:
        self._servers, self._idle = servers, idle
        self._open: dict[tuple[str, str], _Connection] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._servers)

    async def tools(self, tenant: str, name: str) -> list[McpTool]:
        """Raises `A2AError`."""
        connection = await self._connection(tenant, name)
        found: list[McpTool] = []
        async with connection.used():
            page, cursor = 0, None
            while page == 0 or (cursor and page < _PAGES):
                some = await connection.within(connection.client.list_tools(cursor=cursor))
                found += map(_tool, some.tools)
                page, cursor = page + 1, some.next_cursor
        connection.repeatable = frozenset(tool.name for tool in found if tool.repeatable)
        return found

    async def repeatable(self, tenant: str, name: str, tool: str) -> bool:
        """Whether a call that was broken off may be made again. Raises `A2AError`."""
        connection = await self._connection(tenant, name)
        if connection.repeatable is None:
            await self.tools(tenant, name)
        return tool in (connection.repeatable or ())

    async def call(self, tenant: str, name: str, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        """Whether it went well, and what it said. Raises `A2AError` if the server cannot be asked."""
        connection = await self._connection(tenant, name)
        async with connection.used():
            result = await connection.within(connection.client.call_tool(tool, arguments))
        said = [_content(content) for content in result.content]
        return not result.is_error, "\n".join(said) or "(nothing)"

    async def close(self) -> None:
        opened, self._open = list(self._open.values()), {}
        for connection in opened:
            await connection.close()

    async def _connection(self, tenant: str, name: str) -> _Connection:
        server = self._servers.get(name)
        if server is None:
            known = ", ".join(self._servers) or "none"
            raise InvalidParams(f"no MCP server {name[:80]!r} configured. Available: {known}")
        key = tenant, name
        connection = self._open.get(key)
        if connection is None or connection.gone:
            connection = self._open[key] = _Connection(name, server, self._idle)
        await connection.ready()
        return connection


class _Connection:
    """A client, in a task of its own: the library wants the same one to open and to close it."""

    def __init__(self, name: str, server: McpServer, idle: float) -> None:
        self._name, self._server, self._idle = name, server, idle
        self._begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._users = 0
        self.repeatable: frozenset[str] | None = None
        """The tools that may be called twice, once they are known."""
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
        """An answer within the server's time; a server that dies meanwhile ends the wait."""
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
                self._stop.set()  # no answer of the server's: the next use begins anew
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
    def __init__(self, connection: _Connection) -> None:
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
        return Client(stdio_client(parameters, errlog=_nowhere()))
    from mcp.client import streamable_http

    http = streamable_http.create_mcp_http_client(headers=server.headers)
    return Client(streamable_http.streamable_http_client(server.url, http_client=http))


def _nowhere() -> Any:
    """For what servers say on the side: not our terminal."""
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

"""Tools inside a turn: what `turn.tools()` lists and `turn.tool(...)` calls.

A tool belongs to a server (`ToolServer`), such as `dragoman.mcp.mcp(...)`. `ToolBox` has the servers of one agent: it gives
every tool a name, and finds the tool for a name. A call is a step: its outcome is recorded, and a run of the turn after a
crash gets it from the record, without a connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.engine.recorded import Recorded, digest
from dragoman.errors import A2AError, ToolFailed
from dragoman.model.content import Part, plain, text_of

logger = logging.getLogger("dragoman.tools")

MAX_NAME_CHARACTERS = 64
"""The longest name of a function that models accept."""


class Tool(Struct, frozen=True, kw_only=True):
    """A tool that a turn may call."""

    name: str
    """The name for `turn.tool`, of letters, digits, `_` and `-`, so that a model may use it."""
    server: str
    """The name of the server that it belongs to."""
    title: str = ""
    description: str = ""
    input_schema: dict[str, Any] = {}
    """The JSON Schema of its arguments."""
    output_schema: dict[str, Any] | None = None
    """The JSON Schema of its `data`; None: it may return no data."""
    read_only: bool = False
    """Its server says that it changes nothing."""
    idempotent: bool = False
    """Its server says that a second call with the same arguments changes nothing more."""
    destructive: bool = True
    """It may change or delete something. True if the server does not say."""
    original: str = ""
    """Its name on its server."""

    @property
    def function(self) -> dict[str, Any]:
        """The tool as most models take functions: `{"type": "function", "function": {...}}`."""
        about = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": about}


class ToolResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tool returned."""

    parts: tuple[Part, ...] = ()
    """Text, files and data, in the order of the tool."""
    data: Any = None
    """The structured result, if the tool has one."""
    truncated: bool = False
    """Something was left out because the result was too large."""

    @property
    def text(self) -> str:
        """The text of it; the data as JSON if there is no text."""
        text = text_of(self.parts)
        return text if text or self.data is None else msgspec.json.encode(self.data).decode()

    @property
    def files(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.raw is not None or part.url is not None)


class ToolOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recorded outcome of a call."""

    result: ToolResult = ToolResult()
    why: str = ""
    """The reason of a failure, in a word (`ToolFailed.why`); empty if it succeeded."""
    message: str = ""
    explanation: str = ""

    def unwrap(self) -> ToolResult:
        """The result. Raises `ToolFailed`."""
        if self.why:
            raise ToolFailed(self.message, why=self.why, explanation=self.explanation)
        return self.result


class ToolServer(Protocol):
    """A server of tools: a member of `Agent(tools=[...])`."""

    @property
    def name(self) -> str: ...

    @property
    def prefix(self) -> str | None:
        """The prefix of its tools' names. None: its own name, if the agent has other servers as well."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """Its tools, under their own names. Raises `A2AError`."""
        ...

    async def call(
        self, recorded: Recorded, tool: Tool, arguments: dict[str, Any], key: str, trace: dict[str, str]
    ) -> ToolOutcome:
        """Call a tool for the turn of `recorded`. Steps of it are recorded below `key`. Raises `A2AError`, `Parked`."""
        ...

    def open(self) -> None:
        """Called when the server of the agent starts."""
        ...

    async def close(self) -> None:
        """Called when the server of the agent stops."""
        ...


class ToolBox:
    """The tools of one agent."""

    def __init__(self, servers: Sequence[ToolServer]) -> None:
        self._servers = tuple(servers)
        for server in self._servers:
            if not callable(getattr(server, "tools", None)) or not callable(getattr(server, "call", None)):
                raise TypeError(
                    f"tools= takes servers of tools, such as dragoman.mcp.mcp(...), not {server!r}"
                )
        names = [server.name for server in self._servers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"two servers of tools have the name {name!r}: give one of them another, mcp(..., name=)"
                )

    async def list_tools(self) -> list[Tool]:
        """All tools, without those of a server that cannot be reached, which is logged."""
        tools: dict[str, Tool] = {}
        lists = await asyncio.gather(
            *(self._list(server) for server in self._servers), return_exceptions=True
        )
        for server, found in zip(self._servers, lists, strict=True):
            if isinstance(found, A2AError):
                logger.warning("the tools of %s are left out: %s", server.name, found)
                continue
            if isinstance(found, BaseException):
                raise found
            for tool in found:
                if tool.name in tools:
                    logger.warning("the tool %s of %s is left out: there is another", tool.name, server.name)
                else:
                    tools[tool.name] = tool
        return list(tools.values())

    async def call(
        self, recorded: Recorded, name: str, arguments: Mapping[str, Any], key: str, trace: dict[str, str]
    ) -> ToolResult:
        """Call a tool, or return the recorded result. Raises `ToolFailed`, `Parked`."""
        given: dict[str, Any] = {argument: plain(value) for argument, value in arguments.items()}
        if key:
            key = f"tool/{key}"
        else:
            content = name.encode() + b" " + msgspec.json.encode(given, order="sorted")
            key = recorded.count_key(f"tool/{digest(content)}")
        if (step := recorded.steps.get(key)) is not None:
            return msgspec.json.decode(step.value, type=ToolOutcome).unwrap()
        server, tool = await self._find(name)
        with recorded.running(key):
            outcome = await server.call(recorded, tool, given, key, trace)
            await recorded.record_step(key, outcome)
        return outcome.unwrap()

    def open(self) -> None:
        for server in self._servers:
            server.open()

    async def close(self) -> None:
        for server in self._servers:
            await server.close()

    def _prefix(self, server: ToolServer) -> str:
        if server.prefix is not None:
            return server.prefix
        return "" if len(self._servers) == 1 else f"{server.name}_"

    async def _list(self, server: ToolServer) -> list[Tool]:
        prefix = self._prefix(server)
        return [
            replace(tool, name=_to_tool_name(prefix + tool.name), original=tool.name)
            for tool in await server.tools()
        ]

    async def _find(self, name: str) -> tuple[ToolServer, Tool]:
        """The tool with this name. Raises `ToolFailed`.

        A name with the prefix of a server is looked up on that server only, any other on all servers. If one of these cannot
        be reached, it may have a tool with this name, so no tool of another server is called.
        """
        prefixed = [s for s in self._servers if (p := self._prefix(s)) and name.startswith(_to_tool_name(p))]
        found = await self._matches(prefixed, name)
        if not found:
            found = await self._matches([s for s in self._servers if s not in prefixed], name)
        if len(found) == 1:
            return found[0]
        if found:
            names = " and ".join(tool.name for _, tool in found)
            raise ToolFailed(f"several tools are called {name!r}: use {names}", why="unknown-tool")
        known = ", ".join([tool.name for tool in await self.list_tools()][:50]) or "none"
        raise ToolFailed(
            f"there is no tool {name[:80]!r}", why="unknown-tool", explanation=f"the tools are: {known}"
        )

    async def _matches(self, servers: Sequence[ToolServer], name: str) -> list[tuple[ToolServer, Tool]]:
        try:
            lists = await asyncio.gather(*map(self._list, servers))
        except A2AError as error:
            raise ToolFailed(
                f"the tool {name[:80]!r} cannot be looked for: {error.message}", why="unreachable"
            ) from error
        return [
            (server, tool)
            for server, tools in zip(servers, lists, strict=True)
            for tool in tools
            if name in (tool.name, tool.original)
        ]


def _to_tool_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_NAME_CHARACTERS]

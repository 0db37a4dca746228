"""`wrap(mcp("npx some-server"))`: the tools of an MCP server as the skills of an agent.

The server is started once when the agent is made, to read which tools it has, and stopped again. What a skill takes and returns are
the schemas of its tool: a data part comes in, and data, text and files go out. A call is a step of the turn, with everything
that `turn.tool` does: approval, questions, progress, cancel, and no second call of a tool that may not be repeated.
"""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from dragoman.agent.agent import Agent, add_skill
from dragoman.agent.parameters import JSON, TEXT, Parameter
from dragoman.agent.skill import SkillFunction, words
from dragoman.engine.tools import Tool
from dragoman.engine.turn import Turn
from dragoman.errors import A2AError, InvalidParams, ToolFailed
from dragoman.mcp.content import without_repeated_data
from dragoman.mcp.tools import McpTools, ServerDescription
from dragoman.model.card import Skill
from dragoman.model.content import Message, Part
from dragoman.model.schema import SkillSchema
from dragoman.model.task import TaskState
from dragoman.model.values import with_whole_numbers

SKILL_OPTIONS = ("tags", "scopes")
"""Options of `wrap` that are for every skill."""
_PARAMETERS = (
    Parameter("turn", Turn, inspect.Parameter.empty, "turn"),
    Parameter("message", Message, inspect.Parameter.empty, "message"),
)


def make_agent(server: McpTools, name: str, description: str, options: dict[str, Any]) -> Agent:
    """Raises `ValueError` if the server cannot be started, or has no tools."""
    found = _describe_server(server)
    if not found.tools:
        raise ValueError(f"the MCP server {server.name!r} has no tools to serve")
    scopes = words(options.pop("scopes", ()))
    tags = words(options.pop("tags", ()))
    options.setdefault("version", found.version or "1.0.0")
    about = description or found.instructions or f"The tools of the MCP server {server.name}"
    agent = Agent(name, about, tools=[server], **options)
    for tool in found.tools:
        add_skill(
            agent, _skill(server, tool, tags or ("mcp", server.name), scopes, only=len(found.tools) == 1)
        )
    return agent


def _describe_server(server: McpTools) -> ServerDescription:
    """The tools of a server that runs only for this, on an event loop of its own: the caller may have one or not."""
    with ThreadPoolExecutor(1, "dragoman-mcp") as thread:
        try:
            return thread.submit(asyncio.run, server.describe()).result()
        except A2AError as error:
            raise ValueError(error.message) from error


def _skill(
    server: McpTools, tool: Tool, tags: tuple[str, ...], scopes: tuple[str, ...], *, only: bool
) -> SkillFunction:
    def check(message: Message) -> None:
        try:
            server.check_arguments(tool, arguments_for(tool, message))
        except ToolFailed as error:
            raise InvalidParams(error.message, fields=(("message.parts", error.message),)) from error

    async def call(turn: Turn, message: Message) -> list[Part] | None:
        try:
            result = await turn.tool(tool.original, arguments_for(tool, message))
        except ToolFailed as error:
            turn.finish(TaskState.FAILED, error.text)
            return None
        return list(without_repeated_data(result)) or None

    title = tool.title or tool.original.replace("_", " ").replace("-", " ").strip().capitalize()
    return SkillFunction(
        function=call,
        skill=Skill(
            id=tool.original,
            name=title or tool.original,
            description=tool.description or title or tool.original,
            tags=tags,
            input_modes=(JSON, TEXT),
            output_modes=(JSON, TEXT, "*/*"),
        ),
        parameters=_PARAMETERS,
        reply=False,
        scopes=frozenset(scopes),
        default=only,
        coroutine=True,
        blocks=False,
        holds=False,
        particular=False,
        schema=SkillSchema(input=tool.input_schema, output=tool.output_schema),
        check=check,
    )


def arguments_for(tool: Tool, message: Message) -> dict[str, Any]:
    """The arguments in a message: its data, or its text as JSON, or its text for the one argument that there can be.

    Raises `ToolFailed`.
    """
    data: Any = message.data
    text = message.text.strip()
    if data is None and text[:1] == "{":
        try:
            data = msgspec.json.decode(text)
        except msgspec.DecodeError:
            data = None
    if isinstance(data, dict):
        # JSON has one kind of number, and peers that keep data in protobuf write 2 as 2.0
        found: dict[str, Any] = with_whole_numbers(data)
        return found
    properties: dict[str, Any] = tool.input_schema.get("properties") or {}
    required = [name for name in properties if name in (tool.input_schema.get("required") or ())]
    names = required if len(required) == 1 else list(properties)
    if not names or (not required and not text and data is None):
        return {}
    if len(names) > 1:
        raise ToolFailed(f"send data with {', '.join(names)[:300]}", why="arguments")
    value: Any = text if data is None else data
    kind = properties[names[0]].get("type") if isinstance(properties[names[0]], dict) else "string"
    if data is None and kind != "string":
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = text
    return {names[0]: value}

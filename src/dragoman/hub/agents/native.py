"""Commands as tools, for models that call tools natively: one tool for each command, and each call is a command."""

from __future__ import annotations

from dragoman.hub.agents.commands import ENDS
from dragoman.hub.models.model import ToolCall, ToolSpec
from dragoman.hub.tools.tool import Command, Tool


def spec(tool: Tool, name: str) -> ToolSpec:
    """A tool for a model that calls tools: the words that would follow the command, and the block's body if it has one."""
    properties = {"args": {"type": "string", "description": "What follows the command on its line."}}
    if name in ENDS:
        properties["body"] = {"type": "string", "description": f"What stands before {ENDS[name]}."}
    parameters = {"type": "object", "properties": properties}
    return ToolSpec(name=name[1:], description=tool.usage, parameters=parameters)


def called(call: ToolCall) -> Command:
    args, body = call.arguments.get("args", ""), call.arguments.get("body")
    return Command(
        name=f"/{call.name}",
        args=" ".join(str(args).split("\n")).strip(),
        body=None if body is None else str(body),
    )

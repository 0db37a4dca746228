"""An MCP server of the official SDK, to be run as a process: it notes every call in a file of the folder it is given."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp.types import (
    CallToolResult,
    ElicitRequestURLParams,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".")
READ = ToolAnnotations(read_only_hint=True)

KEY = os.environ.get("STATE_KEY", "")
server = MCPServer("tools", request_state_security=RequestStateSecurity(keys=[KEY]) if KEY else None)


def note(name: str) -> None:
    with (FOLDER / name).open("a") as file:
        file.write("called\n")


async def until_there(name: str) -> None:
    while not (FOLDER / name).exists():
        await asyncio.sleep(0.01)


class Sum(BaseModel):
    sum: int


@server.tool(annotations=READ)
def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    note("add")
    return Sum(sum=a + b)


@server.tool()
def pay(amount: int) -> str:
    """Changes something for good."""
    note("pay")
    return f"paid {amount}"


@server.tool()
async def slow_pay() -> str:
    """Changes something for good, slowly."""
    note("slow_pay")
    await until_there("go")
    return "paid"


@server.tool(annotations=READ)
async def slow_look() -> str:
    """Changes nothing, slowly."""
    note("slow_look")
    try:
        await until_there("go")
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return "looked"


@server.tool()
def fail(secret: str) -> str:
    """Fails."""
    raise ToolError(f"no: {secret}")


@server.tool(annotations=READ)
async def count(ctx: Context[Any], to: int) -> str:
    """Counts, and reports progress."""
    for n in range(1, to + 1):
        await ctx.report_progress(n, to, f"counted\x1b[31m {n}")
        await until_there(f"counted {n}")
    return "done"


@server.tool(annotations=READ, structured_output=False)
def picture() -> list[Any]:
    """A picture, a link, a resource and a text."""
    return [
        TextContent(type="text", text="look"),
        ImageContent(type="image", data="aGVsbG8=", mime_type="image/png"),
        ResourceLink(type="resource_link", uri="https://example.com/a.pdf", name="a.pdf"),
        ResourceLink(type="resource_link", uri="inner://b", name="b"),
        EmbeddedResource(
            type="resource",
            resource=TextResourceContents(uri="file:///notes/c.txt", text="c", mime_type="text/plain"),
        ),
    ]


@server.tool(annotations=READ, structured_output=False)
def long(characters: int) -> str:
    """A long text."""
    return "x" * characters


class City(BaseModel):
    city: str


async def which_city() -> Elicit[City]:
    return Elicit("Which\x1b[31m city?", City)


@server.tool()
def book(city: Annotated[City, Resolve(which_city)]) -> str:
    """Asks for a city before it books."""
    note("book")
    return f"booked {city.city}"


@server.tool()
async def book_now(ctx: Context[Any]) -> str:
    """Asks for a city in the middle of its work."""
    note("book_now")
    answer = await ctx.elicit("Which city?", City)
    note("answered")
    return f"booked {answer.data.city}" if answer.action == "accept" else f"not booked: {answer.action}"


@server.tool(annotations=READ)
def find(city: Annotated[City, Resolve(which_city)]) -> str:
    """Asks for a city before it looks."""
    return f"found {city.city}"


@server.tool(annotations=READ)
async def look_up(ctx: Context[Any]) -> str:
    """Asks for a city in the middle of its work, and changes nothing."""
    note("look_up")
    answer = await ctx.elicit("Which city?", City)
    return f"found {answer.data.city}" if answer.action == "accept" else answer.action


@server.tool()
def login() -> str:
    """Wants a page to be visited before it works."""
    note("login")
    if len((FOLDER / "login").read_text().splitlines()) < 2:
        page = ElicitRequestURLParams(
            message="Please log in", url="https://example.com/login", elicitation_id="1"
        )
        raise UrlElicitationRequiredError([page])
    return "logged in"


@server.tool(annotations=READ)
def trace(ctx: Context[Any]) -> str:
    """The trace that the call belongs to."""
    return str((ctx.request_context.meta or {}).get("traceparent", ""))


@server.tool(annotations=READ)
async def think(ctx: Context[Any]) -> str:
    """Wants a model of the client."""
    from mcp.types import SamplingMessage

    message = SamplingMessage(role="user", content=TextContent(type="text", text="think"))
    await ctx.session.create_message([message], max_tokens=10)
    return "thought"


@server.tool(annotations=READ)
def environment(name: str) -> str:
    """What an environment variable holds."""
    return os.environ.get(name, "(unset)")


@server.tool(annotations=READ)
def process() -> str:
    """The process of the server."""
    return str(os.getpid())


@server.tool()
def die() -> str:
    """Ends the process."""
    note("die")
    os._exit(1)


@server.tool(annotations=READ, structured_output=False)
def lie() -> CallToolResult:
    """Returns what its schema forbids."""
    return CallToolResult(content=[], structured_content={"sum": "no number"})


for tool in server._tool_manager.list_tools():
    if tool.name == "lie":
        tool.__dict__["output_schema"] = Sum.model_json_schema()

if __name__ == "__main__":
    print("the tools are ready", file=sys.stderr)
    server.run()

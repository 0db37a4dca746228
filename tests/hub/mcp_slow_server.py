"""An MCP server whose tools leave a line in a file and then wait for another file: to be interrupted inside."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

FOLDER = Path(sys.argv[1])

server = MCPServer("slow")


async def begin(name: str) -> str:
    with (FOLDER / name).open("a") as file:
        file.write("called\n")
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.01)
    return f"{name} is done"


@server.tool()
async def pay() -> str:
    """Changes something for good."""
    return await begin("pay")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look() -> str:
    """Changes nothing."""
    return await begin("look")


@server.tool(annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=True))
async def put() -> str:
    """Changes the same, however often."""
    return await begin("put")


if __name__ == "__main__":
    server.run()

"""An MCP server, to be run as a process of its own."""

from __future__ import annotations

import os

from mcp.server.mcpserver import MCPServer

server = MCPServer("adder")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def environment(name: str) -> str:
    """What an environment variable holds."""
    return os.environ.get(name, "(unset)")


@server.tool()
def die() -> str:
    """Ends the process."""
    os._exit(1)


if __name__ == "__main__":
    server.run()

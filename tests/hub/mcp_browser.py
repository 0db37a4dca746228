"""An MCP server that does as if it were a browser, to be run as a process of its own."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("playwright")
page = ["about:blank"]


@server.tool()
def browser_navigate(url: str) -> str:
    """Opens a page."""
    if "broken" in url:
        raise ValueError("the page does not load")
    page[0] = url
    return "ok"


@server.tool()
def browser_snapshot() -> str:
    """What the page shows."""
    return f"- heading: welcome to {page[0]}"


if __name__ == "__main__":
    server.run()

"""The Model Context Protocol (extra `mcp`).

mcp         the tools of an MCP server, for `Agent(tools=[mcp("npx some-server")])` and for `wrap(mcp(...))`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.mcp.tools import McpTools, mcp

__all__ = ["McpTools", "mcp"]


if not TYPE_CHECKING:  # else type checkers accept every name

    def __getattr__(name: str) -> Any:
        """Import what is used, when it is first used."""
        if name in __all__:
            from dragoman.mcp import tools

            return getattr(tools, name)
        raise AttributeError(f"module 'dragoman.mcp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

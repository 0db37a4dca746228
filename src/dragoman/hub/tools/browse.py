"""`/browse`: open a page in a browser, which an MCP server named `playwright` has, and read what it shows.

The address is looked at before the browser gets it. Where the page itself sends the browser is beyond us: give that
server a network that it may see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dragoman.errors import A2AError
from dragoman.hub.mcp_servers import McpServers
from dragoman.hub.tool import Command, Session, harmless

BROWSER = "playwright"
NAVIGATE, SNAPSHOT = "browser_navigate", "browser_snapshot"

Check = Callable[[str], Awaitable[None]]
"""Raises `OSError` for an address that is not to be opened."""


class BrowseTool:
    names = ("/browse",)
    bundle = "web"
    usage = "/browse <url>   open a page in a browser and read it (3 in one reply)"
    repeatable = harmless

    def __init__(self, servers: McpServers, check: Check | None = None) -> None:
        self._servers, self._check = servers, check
        self._busy: dict[str, asyncio.Lock] = {}

    def label(self, command: Command) -> str:
        return f"browse:{command.args.partition(' ')[0]}"

    async def run(self, command: Command, session: Session) -> str:
        url = command.args.partition(" ")[0]
        if not url.lower().startswith(("http://", "https://")):
            return "ERR: usage: /browse <url>"
        try:
            if self._check is not None:
                await self._check(url)
        except OSError as error:
            return f"ERR: refused: {error}"
        try:
            async with self._busy.setdefault(session.tenant, asyncio.Lock()):  # a browser shows one page
                ok, said = await self._servers.call(session.tenant, BROWSER, NAVIGATE, {"url": url})
                if ok:
                    ok, said = await self._servers.call(session.tenant, BROWSER, SNAPSHOT, {})
        except A2AError as error:
            return f"ERR: {error.message}"
        return said if ok else f"ERR: {said}"

"""`/browse`: open a page in a browser, which an MCP server named `playwright` has, and read what it shows.

The address is looked at before the browser gets it. Where the page itself sends the browser is beyond us: give that
server a network that it may see.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator

from dragoman.errors import A2AError
from dragoman.hub.tools.mcp_servers import McpServers
from dragoman.hub.tools.tool import Command, Session, harmless

BROWSER = "playwright"
NAVIGATE, SNAPSHOT = "browser_navigate", "browser_snapshot"

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://")

Check = Callable[[str], Awaitable[None]]
"""Raises `OSError` for an address that is not to be opened."""


async def refusal(check: Check | None, arguments: object) -> str:
    """Why a browser is not to be given these arguments of a tool; empty if it may have them.

    Whatever is called `url`, at any depth, has to be an address of the web; what begins like an address is checked, too.
    """
    for name, value in _strings(arguments):
        address = value.strip()
        if name != "url" and not _ADDRESS.match(address):
            continue
        if not address.lower().startswith(("http://", "https://")):
            return f"refused: {address[:80]!r} is no http or https address"
        try:
            if check is not None:
                await check(address)
        except (OSError, ValueError) as error:
            return f"refused: {error}"
    return ""


def _strings(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """The strings in a JSON value, each with the member that it is in."""
    waiting = [(name, value)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, str):
            yield name.lower(), value
        elif isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += ((name, each) for each in value)


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
        if why := await refusal(self._check, {"url": url}):
            return f"ERR: {why}"
        try:
            async with self._busy.setdefault(session.tenant, asyncio.Lock()):  # a browser shows one page
                ok, said = await self._servers.call(session.tenant, BROWSER, NAVIGATE, {"url": url})
                if ok:
                    ok, said = await self._servers.call(session.tenant, BROWSER, SNAPSHOT, {})
        except A2AError as error:
            return f"ERR: {error.message}"
        return said if ok else f"ERR: {said}"

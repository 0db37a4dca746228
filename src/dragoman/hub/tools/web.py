"""`/fetch`, `/search` and `/browse`: read a page, ask a search engine, open a page in a browser.

The operator chooses the search engine (`search_engines.py`). The browser is an MCP server named `playwright`. An address is
checked before the browser gets it, but not where the page then sends the browser: restrict the network of that server.
"""

from __future__ import annotations

import asyncio

from dragoman.hub.models.model import Image
from dragoman.hub.quote import flatten
from dragoman.hub.tools.fetcher import PageFetcher
from dragoman.hub.tools.files import Pictures
from dragoman.hub.tools.mcp import BROWSER, NAVIGATE, SNAPSHOT, Check, McpServers, refuse_addresses
from dragoman.hub.tools.search_engines import WebSearch
from dragoman.hub.tools.tool import Command, Session, always_repeatable


class FetchTool:
    names = ("/fetch",)
    bundle = "web"
    usage = "/fetch <url>   read a web page as text, or see a picture (3 in one reply)"
    repeatable = always_repeatable

    def __init__(self, fetcher: PageFetcher | None = None, pictures: Pictures | None = None) -> None:
        self._fetcher, self._pictures = fetcher, pictures

    def label(self, command: Command) -> str:
        return f"fetch:{command.args.partition(' ')[0]}"

    async def run(self, command: Command, session: Session) -> str:
        url = command.args.partition(" ")[0]
        if not url:
            return "ERR: usage: /fetch <url>"
        if self._fetcher is None:
            return "ERR: this hub does not read the web"
        page = await self._fetcher.fetch(url)
        if page.status >= 400:
            return f"ERR: HTTP {page.status}"
        if page.content and self._pictures is not None:
            image = Image(media_type=page.media_type, content=page.content)
            return await self._pictures.show(session, image)
        return page.text or "(an empty page)"


MAX_HITS = 20
NO_PROVIDER = "web search unavailable: this hub has no search engine (the operator sets search_engine, and its key or address)"


class SearchTool:
    names = ("/search",)
    bundle = "web"
    usage = "/search <words> [top=N]   search the web (4 in one reply)"
    repeatable = always_repeatable

    def __init__(self, search: WebSearch | None = None) -> None:
        self._search = search

    def label(self, command: Command) -> str:
        return f"search:{command.args[:200]}"

    async def run(self, command: Command, session: Session) -> str:
        query, top = command.args.rstrip(), 10
        words, _, last = query.rpartition("top=")
        if last.isascii() and last.isdigit() and words[-1:].isspace():
            query, top = words, min(MAX_HITS, max(1, int(last[-15:])))
        if not query.strip():
            return "ERR: usage: /search <words> [top=N]"
        if self._search is None:
            return f"ERR: {NO_PROVIDER}"
        hits = await self._search.search(query.strip(), top)
        lines = [
            f"{n}. {flatten(hit.title)} — {flatten(hit.snippet, 600)}\n   {flatten(hit.url, 2000)}"
            for n, hit in enumerate(hits, 1)
        ]
        return "\n".join(lines) or f"(nothing found for {query.strip()!r})"


NO_BROWSER = f"this hub has no browser (an MCP server {BROWSER!r} would be one); use /fetch"


class BrowseTool:
    names = ("/browse",)
    bundle = "web"
    repeatable = always_repeatable

    def __init__(self, servers: McpServers, check: Check | None = None) -> None:
        self._servers, self._check = servers, check
        self._busy: dict[str, asyncio.Lock] = {}

    @property
    def usage(self) -> str:
        """Empty if there is no browser now."""
        there = BROWSER in self._servers.names
        return "/browse <url>   open a page in a browser and read it (3 in one reply)" if there else ""

    def label(self, command: Command) -> str:
        return f"browse:{command.args.partition(' ')[0]}"

    async def run(self, command: Command, session: Session) -> str:
        url = command.args.partition(" ")[0]
        if BROWSER not in self._servers.names:
            return f"ERR: /browse is not available: {NO_BROWSER}"
        if not url.lower().startswith(("http://", "https://")):
            return "ERR: usage: /browse <url>"
        if why := await refuse_addresses(self._check, {"url": url}):
            return f"ERR: {why}"
        async with self._busy.setdefault(session.tenant, asyncio.Lock()):  # a browser shows one page
            ok, text = await self._servers.call(session.tenant, BROWSER, NAVIGATE, {"url": url})
            if ok:
                ok, text = await self._servers.call(session.tenant, BROWSER, SNAPSHOT, {})
        return text if ok else f"ERR: {text}"

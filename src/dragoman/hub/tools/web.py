"""`/fetch`, `/search` and `/browse`: read a page, ask a search engine, open a page in a browser.

The operator chooses the search engine: Brave, SearXNG or Tavily. It is reached through a guard of addresses, so its address is public
unless the operator says otherwise, and its answer is limited in size and time. The browser is an MCP server named `playwright`. An
address is checked before the browser gets it, but not where the page then sends the browser: restrict the network of that server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from dragoman.client.transport.network import Dial, HttpTransport
from dragoman.client.transport.transport import Transport, read_at_most
from dragoman.errors import Unavailable, Unreachable
from dragoman.hub.models import Image
from dragoman.hub.quote import flatten
from dragoman.hub.tools import Command, Session, Tool
from dragoman.hub.tools.fetcher import PageFetcher
from dragoman.hub.tools.files import Pictures
from dragoman.hub.tools.mcp import BROWSER, NAVIGATE, SNAPSHOT, Check, McpServers, address_refusal


class FetchTool(Tool):
    names = ("/fetch",)
    usage = "/fetch <url>   read a web page as text, or see a picture (3 in one reply)"

    def __init__(self, fetcher: PageFetcher, pictures: Pictures) -> None:
        self._fetcher, self._pictures = fetcher, pictures

    def label(self, command: Command) -> str:
        return f"fetch:{command.args.partition(' ')[0]}"

    async def run(self, command: Command, session: Session) -> str:
        url = command.args.partition(" ")[0]
        if not url:
            return "ERR: usage: /fetch <url>"
        page = await self._fetcher.fetch(url)
        if page.status >= 400:
            return f"ERR: HTTP {page.status}"
        if page.content:
            image = Image(media_type=page.media_type, content=page.content)
            return await self._pictures.show(session, image)
        return page.text or "(an empty page)"


MAX_HITS = 20
NO_SEARCH_ENGINE = "web search unavailable: this hub has no search engine (the operator sets search_engine, and its key or address)"


class SearchTool(Tool):
    names = ("/search",)
    usage = "/search <words> [top=N]   search the web (4 in one reply)"

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
            return f"ERR: {NO_SEARCH_ENGINE}"
        hits = await self._search.search(query.strip(), top)
        lines = [
            f"{n}. {flatten(hit.title)} — {flatten(hit.snippet, 600)}\n   {flatten(hit.url, 2000)}"
            for n, hit in enumerate(hits, 1)
        ]
        return "\n".join(lines) or f"(nothing found for {query.strip()!r})"


NO_BROWSER = f"this hub has no browser (an MCP server {BROWSER!r} would be one); use /fetch"


class BrowseTool(Tool):
    names = ("/browse",)

    def __init__(self, servers: McpServers, check: Check | None = None) -> None:
        self._servers, self._check = servers, check
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By tenant, while a page is opened: a browser shows one page at a time."""

    @property
    def usage(self) -> str:
        """Empty if there is no browser now."""
        has_browser = BROWSER in self._servers.servers
        return "/browse <url>   open a page in a browser and read it (3 in one reply)" if has_browser else ""

    def label(self, command: Command) -> str:
        return f"browse:{command.args.partition(' ')[0]}"

    async def check(self, command: Command, session: Session) -> None:
        if BROWSER not in await self._servers.visible(session.tenant):
            raise Unavailable(f"/browse is not available: {NO_BROWSER}")

    async def run(self, command: Command, session: Session) -> str:
        await self.check(command, session)
        url = command.args.partition(" ")[0]
        if not url.lower().startswith(("http://", "https://")):
            return "ERR: usage: /browse <url>"
        if why := await address_refusal(self._check, {"url": url}):
            return f"ERR: {why}"
        async with self._locks.setdefault(session.tenant, asyncio.Lock()):
            ok, text = await self._servers.call(session.tenant, BROWSER, NAVIGATE, {"url": url})
            if ok:
                ok, text = await self._servers.call(session.tenant, BROWSER, SNAPSHOT, {})
        return text if ok else f"ERR: {text}"


# -- search engines -----------------------------------------------------------------------------------------

MAX_ANSWER_BYTES = 4 << 20
SEARCH_SECONDS = 12.0
ADDRESSES = {
    "brave": "https://api.search.brave.com/res/v1/web/search",
    "searxng": "",
    "tavily": "https://api.tavily.com/search",
}
"""The engines and their addresses; that of SearXNG is the operator's own."""
_TAG = re.compile(r"<[^<>]+>")


class Hit(Struct, frozen=True):
    title: str
    url: str
    snippet: str = ""


class WebSearch(Protocol):
    async def search(self, query: str, top: int) -> Sequence[Hit]:
        """Raises `A2AError`."""
        ...


class _Result(Struct, frozen=True):
    """What the three engines say of a page, under their names for it."""

    title: str | None = None
    url: str | None = None
    description: str | None = None
    content: str | None = None


class _Web(Struct, frozen=True):
    results: tuple[_Result, ...] = ()


class _Answer(Struct, frozen=True):
    web: _Web = _Web()
    results: tuple[_Result, ...] = ()


class SearchEngine:
    """`engine`: one of `ADDRESSES`. `url` replaces its address. `dial` opens connections, and refuses some."""

    def __init__(
        self,
        engine: str,
        *,
        key: str = "",
        url: str = "",
        dial: Dial | None = None,
        transport: Transport | None = None,
        timeout: float = SEARCH_SECONDS,
    ) -> None:
        self._engine, self._key, self._timeout = engine, key, timeout
        self._url = _searxng_url(url) if engine == "searxng" else url or ADDRESSES[engine]
        self._http: Transport = transport or HttpTransport(dial=dial)

    async def search(self, query: str, top: int) -> Sequence[Hit]:
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._http.request(*self._request(query, top))
                body = await read_at_most(response, MAX_ANSWER_BYTES, "the search engine")
        except TimeoutError:
            raise Unreachable("the search engine did not answer in time") from None
        if response.status != 200:
            hint = ""
            if self._engine == "searxng" and response.status == 403:
                hint = ": its settings.yml must have `json` in search.formats"
            raise Unreachable(f"the search engine answered HTTP {response.status}{hint}")
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unreachable("the search engine's answer could not be read") from None
        found = answer.web.results if self._engine == "brave" else answer.results
        return [_to_hit(each) for each in found[:top]]

    async def close(self) -> None:
        await self._http.close()

    def _request(self, query: str, top: int) -> tuple[str, str, Mapping[str, str], bytes]:
        headers = {"Accept": "application/json"}
        if self._engine == "tavily":
            headers |= {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            body: dict[str, Any] = {"query": query, "max_results": top}
            return "POST", self._url, headers, msgspec.json.encode(body)
        if self._engine == "brave":
            headers["X-Subscription-Token"] = self._key
            parameters = {"q": query, "count": top}
        else:
            if self._key:  # for a proxy in front of it
                headers["Authorization"] = f"Bearer {self._key}"
            parameters = {"q": query, "format": "json"}
        mark = "&" if "?" in self._url else "?"
        return "GET", f"{self._url}{mark}{urlencode(parameters)}", headers, b""


def _searxng_url(url: str) -> str:
    """The address of its search, also if only that of the server is given."""
    base, mark, query = url.partition("?")
    base = base.rstrip("/")
    return (base if base.endswith("/search") else f"{base}/search") + mark + query


def _to_hit(result: _Result) -> Hit:
    snippet = result.description or result.content
    return Hit(_without_tags(result.title), _without_tags(result.url), _without_tags(snippet))


def _without_tags(text: str | None) -> str:
    return " ".join(_TAG.sub("", text or "").split())

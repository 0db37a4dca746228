"""Web search engines: Brave, SearXNG and Tavily. The operator chooses one.

Every engine is reached through a guard of addresses, so its address is public unless the operator says otherwise, and its answer
is limited in size and time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from dragoman.client.transport.network import Dial, HttpTransport
from dragoman.client.transport.transport import Transport, read_at_most
from dragoman.errors import Unreachable

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
            raise Unreachable("the search engine's answer made no sense") from None
        found = answer.web.results if self._engine == "brave" else answer.results
        return [_hit(each) for each in found[:top]]

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
            asked = {"q": query, "count": top}
        else:
            if self._key:  # for a proxy in front of it
                headers["Authorization"] = f"Bearer {self._key}"
            asked = {"q": query, "format": "json"}
        mark = "&" if "?" in self._url else "?"
        return "GET", f"{self._url}{mark}{urlencode(asked)}", headers, b""


def _searxng_url(url: str) -> str:
    """The address of its search, also if only that of the server is given."""
    base, mark, query = url.partition("?")
    base = base.rstrip("/")
    return (base if base.endswith("/search") else f"{base}/search") + mark + query


def _hit(result: _Result) -> Hit:
    snippet = result.description or result.content
    return Hit(_plain(result.title), _plain(result.url), _plain(snippet))


def _plain(text: str | None) -> str:
    return " ".join(_TAG.sub("", text or "").split())

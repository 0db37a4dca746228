"""Read a page that a model has asked for, as text.

The address is a stranger's choice, so the one who builds a fetcher decides which connections may be made: `dial` is that
decision (`push/guard.py` has one that keeps to the public internet). Redirects go through it again.
"""

from __future__ import annotations

import asyncio
import re
from typing import Protocol
from urllib.parse import urljoin

from msgspec import Struct

from dragoman.client.http import Dial, HttpTransport
from dragoman.client.transport import Response
from dragoman.errors import Unreachable
from dragoman.hub.markup import html_text

LIMIT = 8 << 20
REDIRECTS = 10


class Page(Struct, frozen=True, kw_only=True):
    url: str
    status: int
    media_type: str
    text: str
    content: bytes = b""
    """Of a picture."""


class Fetcher(Protocol):
    async def fetch(self, url: str, *, limit: int = LIMIT) -> Page:
        """At most `limit` bytes. Raises `A2AError` with a sentence for the model."""
        ...


class HttpFetcher:
    def __init__(self, dial: Dial, *, timeout: float = 30.0, agent: str = "dragoman") -> None:
        self._http = HttpTransport(dial=dial)
        self._timeout, self._agent = timeout, agent

    async def fetch(self, url: str, *, limit: int = LIMIT) -> Page:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._fetch(url, limit)
        except TimeoutError:
            raise Unreachable(f"{_shown(url)} did not answer within {self._timeout:g} s") from None

    async def close(self) -> None:
        await self._http.close()

    async def _fetch(self, url: str, limit: int) -> Page:
        headers = {
            "User-Agent": self._agent,
            "Accept": "text/html, text/plain;q=0.9, image/*;q=0.8, */*;q=0.5",
        }
        for _ in range(REDIRECTS + 1):
            if not url.lower().startswith(("http://", "https://")):
                raise Unreachable(f"{_shown(url)} is not an http or https URL")
            response = await self._http.request("GET", url.partition("#")[0], headers)
            where = response.headers.get("location", "")
            if response.status in (301, 302, 303, 307, 308) and where:
                await response.close()
                url = _joined(url, where)
                continue
            return await _page(url, response, limit)
        raise Unreachable(f"{_shown(url)}: more than {REDIRECTS} redirects")


async def _page(url: str, response: Response, limit: int) -> Page:
    body = bytearray()
    async for chunk in response.chunks():
        body += chunk
        if len(body) > limit:
            await response.close()
            raise Unreachable(f"{_shown(url)} has more than {limit >> 20} MB")
    kind, _, rest = response.headers.get("content-type", "text/plain").partition(";")
    kind = kind.strip().lower()
    if kind.startswith("image/") and not kind.endswith("xml"):
        return Page(url=url, status=response.status, media_type=kind, text="", content=bytes(body))
    charset = re.search(r"charset=[\"']?([\w-]+)", rest)
    try:
        text = bytes(body).decode(charset[1] if charset else "utf-8", "replace")
    except LookupError:
        text = bytes(body).decode("utf-8", "replace")
    if kind in ("text/html", "application/xhtml+xml"):
        text = await asyncio.to_thread(html_text, text)  # a page may be large
    elif not kind.startswith("text/") and not kind.endswith(("json", "xml", "javascript")):
        text = f"({kind}, {len(body)} bytes: not text)"
    return Page(url=url, status=response.status, media_type=kind, text=text)


def _joined(url: str, where: str) -> str:
    try:
        return urljoin(url, where)
    except ValueError:
        raise Unreachable(f"{_shown(url)} points at {where[:200]!r}, which is no URL") from None


def _shown(url: str) -> str:
    return url.partition("?")[0][:200]

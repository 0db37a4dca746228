"""Fetch a web page as text.

The address is not trusted: `dial` decides which connections are allowed, also for redirects (`push/guard.py` allows only
public addresses). The page is not trusted either: every function here takes linear time for any content, which the HTML parser
of the standard library does not.
"""

from __future__ import annotations

import asyncio
import codecs
import html
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol
from urllib.parse import urljoin

from msgspec import Struct

from dragoman.client.transport.network import Dial, HttpTransport
from dragoman.client.transport.transport import Response
from dragoman.errors import Unreachable
from dragoman.hub.models import IMAGE_TYPE

FETCH_SECONDS = 30.0
"""For a page, with all redirects that lead to it."""
MAX_PAGE_BYTES = 8 << 20
MAX_REDIRECTS = 10
MAX_URL_CHARACTERS = 8192
MAX_HTML_CHARACTERS = 2 << 20
"""Characters of a page that are parsed."""
READER_THREADS = 2
"""Threads that turn pages into text."""

_HEADERS = {
    "User-Agent": "dragoman",
    "Accept": "text/html, text/plain;q=0.9, image/*;q=0.8, */*;q=0.5",
}
_DECODE_BYTES = 65_536
_CHARSET = re.compile(r"charset=[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_CODECS = {
    label: codec
    for codec, labels in {
        "utf-8": "utf8",
        "utf-16-le": "utf-16 utf16 utf-16le",
        "utf-16-be": "utf-16be",
        "cp1252": "ascii us-ascii iso-8859-1 iso8859-1 latin1 latin-1 windows-1252",
        "iso8859-15": "iso-8859-15 latin9 latin-9",
        "gb18030": "gb2312 gbk gb-2312",
        "big5hkscs": "big5 big5-hkscs",
        "euc-jp": "eucjp x-euc-jp",
        "shift_jis": "shift-jis sjis x-sjis windows-31j",
        "iso2022_jp": "iso-2022-jp",
        "euc-kr": "euckr ks_c_5601-1987 windows-949",
        "koi8-r": "koi8",
        "koi8-u": "",
        "mac-roman": "macintosh",
        **{f"iso8859-{n}": f"iso-8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 14, 16)},
        **{f"cp{n}": f"windows-{n}" for n in (1250, 1251, 1253, 1254, 1255, 1256, 1257, 1258, 874)},
    }.items()
    for label in (codec, *labels.split())
}
"""The character encodings of the web, by the names that pages use. Python has others that are not for text (`punycode`, `idna`),
take quadratic time, or stay in memory."""


class Page(Struct, frozen=True, kw_only=True):
    url: str
    status: int
    media_type: str
    text: str
    content: bytes = b""
    """Of a picture."""


class PageFetcher(Protocol):
    async def fetch(self, url: str, *, limit: int = MAX_PAGE_BYTES) -> Page:
        """At most `limit` bytes. Raises `A2AError` with a sentence for the model."""
        ...


class HttpFetcher:
    def __init__(self, dial: Dial) -> None:
        self._http = HttpTransport(dial=dial)
        self._readers = ThreadPoolExecutor(READER_THREADS, "dragoman-pages")

    async def fetch(self, url: str, *, limit: int = MAX_PAGE_BYTES) -> Page:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await self._fetch(url, limit)
        except TimeoutError:
            raise Unreachable(f"{_short_url(url)} did not answer within {FETCH_SECONDS:g} s") from None

    async def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        await self._http.close()

    async def _fetch(self, url: str, limit: int) -> Page:
        for _ in range(MAX_REDIRECTS + 1):
            if len(url) > MAX_URL_CHARACTERS:
                raise Unreachable(f"{_short_url(url)} is longer than {MAX_URL_CHARACTERS} characters")
            if not url.lower().startswith(("http://", "https://")):
                raise Unreachable(f"{_short_url(url)} is not an http or https URL")
            response = await self._http.request("GET", url.partition("#")[0], _HEADERS)
            location = response.headers.get("location", "")
            if response.status in (301, 302, 303, 307, 308) and location:
                await response.close()
                url = _join(url, location)
                continue
            return await self._read_page(url, response, limit)
        raise Unreachable(f"{_short_url(url)}: more than {MAX_REDIRECTS} redirects")

    async def _read_page(self, url: str, response: Response, limit: int) -> Page:
        body = bytearray()
        async for chunk in response.chunks():
            body += chunk
            if len(body) > limit:
                await response.close()
                raise Unreachable(f"{_short_url(url)} has more than {limit >> 20} MB")
        kind, _, rest = response.headers.get("content-type", "text/plain").partition(";")
        kind = kind.strip().lower()
        if IMAGE_TYPE.fullmatch(kind) and not kind.endswith("xml"):
            return Page(url=url, status=response.status, media_type=kind, text="", content=bytes(body))
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(self._readers, page_text, bytes(body), kind, rest)
        return Page(url=url, status=response.status, media_type=kind, text=text)


def page_text(body: bytes, kind: str, parameters: str = "") -> str:
    """The text of a page. It blocks: do not call it on the event loop."""
    if not kind.startswith("text/") and not kind.endswith(("json", "xml", "javascript")):
        return f"({kind[:100]}, {len(body)} bytes: not text)"
    named = _CHARSET.search(parameters)
    codec = _CODECS.get(named[1].lower(), "utf-8") if named is not None else "utf-8"
    if kind not in ("text/html", "application/xhtml+xml"):
        return _decode(body, codec)
    return html_text(_decode(body, codec, MAX_HTML_CHARACTERS))


def _decode(body: bytes, codec: str, limit: int | None = None) -> str:
    """Decode in pieces, because a codec holds the GIL. `limit`: at most this many characters."""
    decoder = codecs.getincrementaldecoder(codec)("replace")
    out: list[str] = []
    size = 0
    for at in range(0, len(body), _DECODE_BYTES):
        out.append(decoder.decode(body[at : at + _DECODE_BYTES], final=at + _DECODE_BYTES >= len(body)))
        size += len(out[-1])
        if limit is not None and size > limit:
            break
    return "".join(out)[:limit].removeprefix("\ufeff")


def _join(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise Unreachable(f"{_short_url(url)} redirects to {location[:200]!r}, which is not a URL") from None


def _short_url(url: str) -> str:
    return url.partition("?")[0][:200]


_NAME = re.compile(r"/?[A-Za-z][A-Za-z0-9]*")
_LONG_NUMBER = re.compile(r"&#(?:[0-9]{20,}+|[xX][0-9a-fA-F]{20,}+);?")
"""Character references with too many digits, which Python refuses to parse."""
_UNESCAPE_CHARACTERS = 32_768
_LONGEST_NAME = 40
"""Characters of the longest reference: `&CounterClockwiseContourIntegral;`."""
_HIDDEN_TAGS = frozenset(["script", "style", "noscript", "template", "svg", "head", "title"])
_END = {name: re.compile(rf"</{name}\b", re.IGNORECASE) for name in _HIDDEN_TAGS} | {
    "head": re.compile(r"</head\b|<body\b", re.IGNORECASE)  # pages need not close it
}
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "p div br li ul ol tr table h1 h2 h3 h4 h5 h6 section article header footer pre blockquote dt dd main nav aside hr",
    )
)


def html_text(source: str) -> str:
    """The text of a page, a line for each block."""
    lines = [" ".join(line.split()) for line in "".join(_text_pieces(source)).splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _text_pieces(source: str) -> list[str]:
    out: list[str] = []
    at, hidden = 0, set(_HIDDEN_TAGS)
    while (tag := source.find("<", at)) >= 0:
        out.append(_unescape(source[at:tag]))
        named = _NAME.match(source, tag + 1)
        if named is None and source[tag + 1 : tag + 2] not in ("!", "?", "/"):
            out.append("<")  # not a tag
            at = tag + 1
            continue
        comment = source.startswith("<!--", tag)
        end = source.find("-->" if comment else ">", tag + 1)
        if end < 0:
            return out
        at = end + (3 if comment else 1)
        name = named[0].lower() if named is not None else ""
        if name.lstrip("/") in _BLOCKS:
            out.append("\n")
        elif name in hidden and source[end - 1] != "/":
            if (closed := _END[name].search(source, at)) is not None:
                at = closed.start()
            else:
                hidden.discard(name)  # it is never closed: do not search again
    out.append(_unescape(source[at:]))
    return out


def _unescape(text: str) -> str:
    """Unescape in pieces, because a regular expression holds the GIL."""
    if "&" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        end = at + _UNESCAPE_CHARACTERS
        if end < len(text) and (reference := text.rfind("&", end - _LONGEST_NAME, end)) > at:
            end = reference
        out.append(html.unescape(_LONG_NUMBER.sub("\ufffd", text[at:end])))
        at = end
    return "".join(out)

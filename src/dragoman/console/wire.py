"""The bytes of requests and responses, for people: masked, cut, and with server-sent events as single frames.

`WireView` is a tap of a client (`client/transport/tap.py`). It stores at most `MAX_TEXT_BYTES` of a body or a frame, so long or endless
answers need no more memory.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from dragoman.client.transport.tap import BODY, END, MESSAGE, REQUEST, RESPONSE, WireEvent
from dragoman.dialects.sse import MEDIA_TYPE
from dragoman.model.ids import timestamp
from dragoman.observe.redact import MASK, is_secret_name, redact_text

MAX_TEXT_BYTES = 64 << 10
"""Bytes of a body, a frame or a header that are shown."""
MAX_OPEN_REQUESTS = 64
"""Requests whose answers are being read."""
_MIN_SECRET_CHARACTERS = 4
"""Shorter secrets are not masked: they would occur by chance in every text."""

_FRAME_END = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_MEMBER = re.compile(r'"([^"\\]{1,100})"(\s*:\s*)"((?:[^"\\]|\\.)*)("|\Z)')
_PAIR = re.compile(r"(^|&)([^=&]{1,100})=([^&]*)")
_OAUTH = {
    "code",
    "code_verifier",
    "device_code",
    "client_secret",
    "client_assertion",
    "assertion",
    "state",
    "key",
    "sig",
}
"""Names of secrets in forms and queries, beside those that `is_secret_name` knows."""


class Masker:
    """Masks secrets in headers, URLs and bodies: by their names, by their shape, and the values of `secrets`."""

    def __init__(self, secrets: Callable[[], Collection[str]] = tuple) -> None:
        self._secrets = secrets

    def text(self, text: str) -> str:
        """A body: JSON, a form, or anything else."""
        text = self._values(text)
        text = _MEMBER.sub(_mask_member, text)
        return redact_text(text)

    def form(self, text: str) -> str:
        return self._values(_PAIR.sub(_mask_pair, text))

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: self._header(name, value) for name, value in headers.items()}

    def _header(self, name: str, value: str) -> str:
        scheme, space, rest = value.partition(" ")
        if name.lower() in ("authorization", "proxy-authorization") and space and rest:
            return f"{scheme} {MASK}"
        if is_secret_name(name) or name.lower() in ("set-cookie", "cookie"):
            return MASK
        return redact_text(self._values(value))[:MAX_TEXT_BYTES]

    def url(self, url: str) -> str:
        try:
            parts = urlsplit(url)
        except ValueError:
            return MASK
        host = parts.netloc.rpartition("@")[2]
        user = f"{MASK}@" if "@" in parts.netloc else ""
        query = _PAIR.sub(_mask_pair, parts.query)
        return self._values(urlunsplit((parts.scheme, user + host, parts.path, query, "")))

    def _values(self, text: str) -> str:
        for secret in self._secrets():
            if len(secret) >= _MIN_SECRET_CHARACTERS:
                for form in {secret, quote(secret, safe="")}:
                    text = text.replace(form, MASK)
        return text


def _mask_member(found: re.Match[str]) -> str:
    name, colon, value, end = found.groups()
    if not value or not (is_secret_name(name) or name in _OAUTH - {"code", "state", "key"}):
        return found[0]
    return f'"{name}"{colon}"{MASK}{end}'


def _mask_pair(found: re.Match[str]) -> str:
    before, name, value = found.groups()
    secret = value and (is_secret_name(name) or name.lower() in _OAUTH)
    return f"{before}{name}={MASK}" if secret else found[0]


class FrameSplitter:
    """Splits a stream of server-sent events into frames. It stores at most `MAX_TEXT_BYTES` of each."""

    def __init__(self) -> None:
        self._beginning = bytearray()
        self._size = 0
        self._tail = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        """The frames that end in `chunk`: the beginning of each, and its size."""
        joined, begin, frame = self._tail + chunk, len(self._tail), 0
        for found in _FRAME_END.finditer(joined):
            self._add(joined[begin : found.end()])
            begin = frame = found.end()
            yield from self.end()
        self._add(joined[begin:])
        self._tail = joined[frame:][-3:]

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        self._beginning += piece[: max(0, MAX_TEXT_BYTES - len(self._beginning))]

    def end(self) -> Iterator[tuple[bytes, int]]:
        """The last frame, which has no end yet, if there is one."""
        beginning, size = bytes(self._beginning), self._size
        self._beginning.clear()
        self._size, self._tail = 0, b""
        if beginning.strip(b"\r\n"):
            yield beginning, size


class _Answer:
    """A response that is being read."""

    def __init__(self, n: int, began: float) -> None:
        self.n, self.began = n, began
        self.status, self.headers = 0, dict[str, str]()
        self.frames: FrameSplitter | None = None
        self.beginning, self.size = bytearray(), 0


class WireView:
    """A tap that calls `show` with each event for the page (`event: wire`)."""

    def __init__(
        self, show: Callable[[dict[str, Any]], Awaitable[None]], masker: Masker | None = None
    ) -> None:
        self._show, self._mask = show, masker or Masker()
        self._open: dict[int, _Answer] = {}
        self._requests = 0

    async def __call__(self, event: WireEvent) -> None:
        if event.kind == REQUEST:
            await self._request(event)
            return
        answer = self._open.get(event.n)
        if answer is None:
            return
        if event.kind == RESPONSE:
            answer.status, answer.headers = event.status, self._mask.headers(event.headers)
            if event.headers.get("content-type", "").lower().startswith(MEDIA_TYPE):
                answer.frames = FrameSplitter()
                await self._emit(event, "response", status=event.status, headers=answer.headers)
        elif event.kind == MESSAGE:
            await self._emit(event, "message", event.body, len(event.body))
        elif event.kind == BODY and answer.frames is not None:
            for beginning, size in answer.frames.feed(event.body):
                await self._emit(event, "frame", beginning, size)
        elif event.kind == BODY:
            answer.size += len(event.body)
            answer.beginning += event.body[: max(0, MAX_TEXT_BYTES - len(answer.beginning))]
        elif event.kind == END:
            await self._end(event, answer)

    async def _request(self, event: WireEvent) -> None:
        while len(self._open) >= MAX_OPEN_REQUESTS:
            del self._open[next(iter(self._open))]
        self._requests += 1
        self._open[event.n] = _Answer(self._requests, event.time)
        is_form = "x-www-form-urlencoded" in event.headers.get("Content-Type", "")
        await self._emit(
            event,
            "request",
            event.body,
            len(event.body),
            form=is_form,
            method=event.method,
            url=self._mask.url(event.url),
            headers=self._mask.headers(event.headers),
        )

    async def _end(self, event: WireEvent, answer: _Answer) -> None:
        if answer.frames is not None:
            for beginning, size in answer.frames.end():
                await self._emit(event, "frame", beginning, size)
        elif answer.status:
            await self._emit(
                event,
                "response",
                bytes(answer.beginning),
                answer.size,
                status=answer.status,
                headers=answer.headers,
            )
        error = redact_text(event.error)
        await self._emit(event, "end", error=error, headers=self._mask.headers(event.headers))
        del self._open[event.n]

    async def _emit(
        self,
        event: WireEvent,
        kind: str,
        body: bytes = b"",
        size: int = 0,
        *,
        form: bool = False,
        **about: Any,
    ) -> None:
        text = body[:MAX_TEXT_BYTES].decode("utf-8", "replace")
        answer = self._open[event.n]
        await self._show(
            {
                "n": answer.n,
                "direction": "out" if event.sent else "in",
                "time": timestamp(event.time),
                "kind": kind,
                "text": self._mask.form(text) if form else self._mask.text(text),
                "headers": {},
                "bytes": size,
                "cut": size > MAX_TEXT_BYTES,
                "ms": round((event.time - answer.began) * 1000, 1),
                **about,
            }
        )

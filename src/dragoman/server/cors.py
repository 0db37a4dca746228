"""CORS: which web pages of other origins may call the agents.

A browser sends a preflight request first, without credentials, and gives a page the response only if our headers allow it.
Cookies and client certificates, which a browser adds by itself, are never allowed: callers authenticate with a header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.server.exchange import Exchange
from dragoman.server.mount import Header

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:[ \t]*,[ \t]*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")

_METHODS: Header = (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
_SENT = (
    b"Authorization, X-API-Key, Content-Type, Accept, Idempotency-Key, If-None-Match, Last-Event-ID, "
    b"A2A-Version, A2A-Extensions, X-A2A-Extensions"
)
_SEEN: Header = (
    b"access-control-expose-headers",
    b"A2A-Extensions, X-A2A-Extensions, Dragoman, ETag, Location, Retry-After, WWW-Authenticate, X-Request-Id",
)
_MAX_AGE: Header = (b"access-control-max-age", b"600")
_VARY: Header = (b"vary", b"Origin")
_ANYBODY: Sequence[Header] = ((b"access-control-allow-origin", b"*"), _SEEN)


class Cors:
    """`origins`: `https://app.example.com`, or `*` for all of them. Raises ValueError for what is neither."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = {_read_origin(origin) for origin in origins}

    def allows(self, exchange: Exchange) -> bool:
        return b"*" in self._origins or exchange.headers.get(b"origin", b"") in self._origins

    def headers(self, exchange: Exchange) -> Sequence[Header]:
        """For every answer (`Exchange.always`)."""
        if b"*" in self._origins:
            return _ANYBODY
        if self.allows(exchange):
            return ((b"access-control-allow-origin", exchange.headers[b"origin"]), _VARY, _SEEN)
        return (_VARY,)

    async def preflight(self, exchange: Exchange) -> None:
        """Respond to a preflight request. All headers are allowed, because an agent's key may be in any."""
        asked = exchange.headers.get(b"access-control-request-headers", b"").strip()
        sent = asked if _NAMES.fullmatch(asked) else _SENT
        allowed = (_METHODS, (b"access-control-allow-headers", sent), _MAX_AGE)
        await exchange.respond(204, headers=allowed)


def _read_origin(origin: str) -> bytes:
    text = origin.strip().lower().rstrip("/")
    if text != "*" and not _ORIGIN.fullmatch(text):
        raise ValueError(f"{origin!r} is no origin; write https://app.example.com, or * for all")
    return text.encode()

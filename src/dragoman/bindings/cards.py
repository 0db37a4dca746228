"""Agent cards over HTTP: one document for clients of every version, or 1.0's own for those who ask for it.

An address may be fetched as often as a client likes: bodies are made once per base URL, and a client that holds the
current one is told so (304).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate, parsedate_to_datetime
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dragoman.bindings.exchange import JSON, Exchange, Header
from dragoman.bindings.mount import Handler, Mount
from dragoman.dialects import cards
from dragoman.model.card import AgentCard, Interface

WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
BESIDE = "/agent-card.json"
"""Where Arbiter looks. It asks for version 1.0 and expects a card of 0.3, so here everybody gets the whole card."""

_HELD = 64
"""How many bodies are kept: clients choose the base URL, in `Host`."""


class _Document(NamedTuple):
    card: AgentCard
    body: bytes
    etag: bytes


class Cards:
    """The `Binding` that serves them."""

    def __init__(
        self,
        interfaces: Callable[[Mount, str], Sequence[Interface]],
        *,
        max_age: int = 300,
        allow_origin: str = "*",
    ) -> None:
        self._interfaces = interfaces
        self._headers: tuple[Header, ...] = (
            (b"cache-control", b"public, max-age=%d" % max_age),
            (b"vary", b"A2A-Version"),
        )
        if allow_origin:
            self._headers += ((b"access-control-allow-origin", allow_origin.encode()),)
        self.methods: Mapping[str, Handler] = {
            "GET": self._get,
            "HEAD": self._get,
            "OPTIONS": self._preflight,
        }
        self._documents: dict[tuple[str, str, bool], _Document] = {}
        self._seen: dict[str, tuple[AgentCard, int]] = {}
        """By mount: the card, and since when."""

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        return self.methods if path in WELL_KNOWN or path == BESIDE else None

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        return ()

    async def _get(self, exchange: Exchange, mount: Mount) -> None:
        card, since = self._current(mount)
        pure = mount.versions == ("1.0",) or (
            exchange.path.endswith(WELL_KNOWN) and cards.version_of(exchange.version()).startswith("1.")
        )
        document = self._document(mount, card, exchange.base_url(), pure)
        headers = (
            *self._headers,
            (b"etag", document.etag),
            (b"last-modified", formatdate(since, usegmt=True).encode()),
        )
        if _holds(exchange, document.etag, since):
            await exchange.respond(304, headers=headers)
        else:
            await exchange.respond(200, document.body, (JSON, *headers))

    async def _preflight(self, exchange: Exchange, mount: Mount) -> None:
        allowed = (
            (b"access-control-allow-methods", b"GET, HEAD"),
            (b"access-control-allow-headers", b"A2A-Version, Authorization"),
        )
        await exchange.respond(204, headers=(*self._headers, *allowed))

    def _current(self, mount: Mount) -> tuple[AgentCard, int]:
        card = mount.current_card()
        seen = self._seen.get(mount.path)
        if seen is None or (seen[0] is not card and seen[0] != card):
            seen = self._seen[mount.path] = card, int(time.time())
        return seen

    def _document(self, mount: Mount, card: AgentCard, base: str, pure: bool) -> _Document:
        key = mount.path, base, pure
        document = self._documents.get(key)
        if document is None or document.card is not card:
            here = self._interfaces(mount, base + mount.path)
            whole = replace(card, supported_interfaces=(*here, *card.supported_interfaces))
            body = msgspec.json.encode(cards.write_card(whole, "1.0") if pure else cards.superset_card(whole))
            document = _Document(card, body, b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode())
            if len(self._documents) >= _HELD:
                self._documents.clear()
            self._documents[key] = document
        return document


def _holds(exchange: Exchange, etag: bytes, since: int) -> bool:
    """Whether the client has this document already (RFC 9110, 13.2.2)."""
    known = exchange.headers.get(b"if-none-match")
    if known is not None:
        return any(each.strip().removeprefix(b"W/") in (etag, b"*") for each in known.split(b","))
    try:
        return parsedate_to_datetime(exchange.header(b"if-modified-since")).timestamp() >= since
    except (ValueError, OverflowError):
        return False

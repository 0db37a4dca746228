"""Agent cards over HTTP: one document for clients of every version, or that of 1.0 for clients that ask for it.

Bodies are made once per base URL, and a client that has the current one gets 304. Both documents have signatures, which
cover the members of 1.0 and not those of older versions. The public keys are served beside them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from email.utils import formatdate, parsedate_to_datetime
from typing import NamedTuple

import msgspec

from dragoman.dialects import cards, select
from dragoman.dialects.dialect import Dialect
from dragoman.errors import A2AError, Forbidden, RateLimited, Unauthenticated, Unavailable
from dragoman.model.card import AgentCard, Interface
from dragoman.model.ops import EXTENDED_CARD, GetExtendedCard
from dragoman.server.exchange import JSON, Exchange
from dragoman.server.mount import Header, Mount
from dragoman.server.pipeline import Handler, call_of

WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
BESIDE = "/agent-card.json"
"""Arbiter's path. Its clients ask for version 1.0 and expect a card of 0.3, so this path has the card for all versions."""
EXTENDED = "/agent/authenticatedExtendedCard"
"""The path of the extended card in 0.2; later versions have an operation for it."""
JWKS = "/.well-known/jwks.json"

_PUBLIC: Sequence[Header] = (
    (b"cache-control", b"public, max-age=300"),
    (b"vary", b"A2A-Version"),
    (b"access-control-allow-origin", b"*"),
)
_PRIVATE: Sequence[Header] = (
    (b"cache-control", b"private, no-store"),
    (b"vary", b"A2A-Version, Authorization"),
)
_MAX_DOCUMENTS = 64
"""Bodies in memory: clients choose the base URL, in `Host`."""


class _Document(NamedTuple):
    card: AgentCard
    stamp: object
    body: bytes
    etag: bytes


class Cards:
    """The `Binding` that serves them."""

    def __init__(self) -> None:
        self._methods: Mapping[str, Handler] = {"GET": self._get, "HEAD": self._get, "OPTIONS": _preflight}
        self._documents: dict[tuple[str, str, bool], _Document] = {}
        self._seen: dict[str, tuple[AgentCard, int]] = {}
        """By mount: the card, and when it was first seen."""

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        if path in WELL_KNOWN or path == BESIDE:
            return self._methods
        if path == JWKS and mount.signer is not None:
            return _KEY_METHODS
        return _EXTENDED_METHODS if path == EXTENDED else None

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        return ()

    async def _get(self, exchange: Exchange, mount: Mount) -> None:
        try:
            if mount.private:
                await exchange.card_reader(mount)
            card, since = self._current(mount)  # a bridge may not have reached the agent yet
        except A2AError as error:
            dialect = select.before_body(exchange.version(), allowed=mount.versions)
            await _refuse(exchange, mount, error, dialect)
            return
        pure = mount.versions == ("1.0",) or (
            exchange.path.endswith(WELL_KNOWN) and cards.version_of(exchange.version()).startswith("1.")
        )
        document = self._document(exchange, mount, card, pure)
        headers = (
            *(_PRIVATE if mount.private else _PUBLIC),
            *mount.marks,
            (b"etag", document.etag),
            (b"last-modified", formatdate(since, usegmt=True).encode()),
        )
        if _holds(exchange, document.etag, since):
            await exchange.respond(304, headers=headers)
        else:
            await exchange.respond(200, document.body, (JSON, *headers))

    def _current(self, mount: Mount) -> tuple[AgentCard, int]:
        card = mount.current_card()
        seen = self._seen.get(mount.path)
        if seen is None or (seen[0] is not card and seen[0] != card):
            seen = self._seen[mount.path] = card, int(time.time())
        return seen

    def _document(self, exchange: Exchange, mount: Mount, card: AgentCard, pure: bool) -> _Document:
        key = mount.path, exchange.base_url(), pure
        document = self._documents.get(key)
        stamp = mount.signer.stamp if mount.signer is not None else None
        if document is None or document.card is not card or document.stamp != stamp:
            whole = exchange.place(card, mount)
            if pure:
                served = cards.write_card(whole, "1.0")
            else:
                home = mount.home or select.default_version(mount.versions)
                served = cards.superset_card(whole, home=home, versions=mount.versions)
            body = msgspec.json.encode(served)
            # The tag is made of the card and the keys, because two signatures of one card differ.
            tag = hashlib.sha256(body + repr(stamp).encode()).hexdigest()[:32]
            if mount.signer is not None and (signatures := mount.signer.sign(served)):
                body = msgspec.json.encode({**served, "signatures": signatures})
            document = _Document(card, stamp, body, b'"%s"' % tag.encode())
            if len(self._documents) >= _MAX_DOCUMENTS:
                self._documents.clear()
            self._documents[key] = document
        return document


async def _preflight(exchange: Exchange, mount: Mount) -> None:
    allowed = (
        (b"access-control-allow-methods", b"GET, HEAD"),
        (b"access-control-allow-headers", b"A2A-Version, Authorization"),
    )
    await exchange.respond(204, headers=(*_PUBLIC, *allowed))


async def _get_keys(exchange: Exchange, mount: Mount) -> None:
    assert mount.signer is not None
    await exchange.respond(200, msgspec.json.encode(mount.signer.public()), (JSON, *_PUBLIC))


async def _get_extended(exchange: Exchange, mount: Mount) -> None:
    dialect = select.DIALECTS["0.2"]
    try:
        call = call_of(exchange, mount, await exchange.principal(mount), dialect)
        card = await mount.service.call(call, GetExtendedCard())
    except A2AError as error:
        await _refuse(exchange, mount, error, dialect)
    else:
        body = dialect.write_result(EXTENDED_CARD, exchange.place(card, mount))
        await exchange.respond(200, body, (JSON, (b"cache-control", b"private, no-store")))


_KEY_METHODS: Mapping[str, Handler] = {"GET": _get_keys, "HEAD": _get_keys}
_EXTENDED_METHODS: Mapping[str, Handler] = {"GET": _get_extended, "HEAD": _get_extended}


async def _refuse(exchange: Exchange, mount: Mount, error: A2AError, dialect: Dialect) -> None:
    # An agent without such a card is a missing page here, not a bad request.
    known = isinstance(error, Unauthenticated | Forbidden | RateLimited | Unavailable)
    status = error.http if known else 404
    headers = (JSON, (b"cache-control", b"private, no-store"), *mount.refusal(error, status))
    await exchange.respond(status, msgspec.json.encode({"error": dialect.write_error(error)}), headers)


def _holds(exchange: Exchange, etag: bytes, since: int) -> bool:
    """True if the client has this document (RFC 9110, 13.2.2)."""
    known = exchange.headers.get(b"if-none-match")
    if known is not None:
        return any(each.strip().removeprefix(b"W/") in (etag, b"*") for each in known.split(b","))
    try:
        return parsedate_to_datetime(exchange.header(b"if-modified-since")).timestamp() >= since
    except (ValueError, OverflowError):
        return False

"""What every HTTP binding says around its answers: which extensions are active, and how it refuses."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dragoman.dialects.dialect import Dialect
from dragoman.errors import (
    A2AError,
    ContentTypeNotSupported,
    ExtendedCardNotConfigured,
    InvalidRequest,
    Unavailable,
    UnsupportedOperation,
)
from dragoman.model.ops import CANCEL, EXTENDED_CARD, SEND, Call, Op, Request
from dragoman.server.cards import placed, signed
from dragoman.server.exchange import Exchange, Header
from dragoman.server.mount import SOON, Mount

log = logging.getLogger(__name__)

OURS: Header = (b"dragoman", b"1")
"""Tells our own client that events are numbered and that an `Idempotency-Key` is honoured."""

_MAY_LAST = frozenset({SEND, CANCEL})


class WrongContentType(ContentTypeNotSupported):
    """That of the request itself."""


class Compressed(InvalidRequest):
    http = 415


def check_type(exchange: Exchange) -> None:
    """No type is fine, but not from a web page: what a browser sends for any page, without asking us, is not."""
    headers = exchange.headers
    kind = headers.get(b"content-type", b"")
    if b"json" not in kind.split(b";")[0].lower() if kind else b"origin" in headers:
        named = kind.decode("latin-1")[:80] or "none"
        raise WrongContentType(f"content type {named!r} is not supported: a request is application/json")
    if headers.get(b"content-encoding", b"identity").strip(b" \t").lower() != b"identity":
        raise Compressed("a request is not compressed")


async def perform(
    exchange: Exchange, mount: Mount, dialect: Dialect, op: Op, call: Call, request: Request
) -> bytes:
    """A unary operation and its result as JSON. Raises `Disconnected` if the client does not wait for it."""
    answer = mount.service.call(call, request)
    try:
        result = await (exchange.shared.attendance.attend(exchange, answer) if op in _MAY_LAST else answer)
    except UnsupportedOperation as error:
        if op is EXTENDED_CARD and dialect.extended_card_has_one_error:
            raise ExtendedCardNotConfigured(error.message, metadata=error.metadata) from error
        raise
    if op is EXTENDED_CARD:
        result = placed(result, exchange, mount)
        if dialect.signs_cards:
            result = signed(result, mount)
    return dialect.write_result(op, result, request)


def activated(mount: Mount, dialect: Dialect, call: Call) -> Sequence[Header]:
    """Which of the extensions that were asked for the agent has, in the spelling of the version."""
    if not call.extensions:
        return ()
    known = {extension.uri for extension in mount.current_card().capabilities.extensions}
    active = ", ".join(uri for uri in call.extensions if uri in known)
    return ((dialect.extensions_header, active.encode("latin-1")),) if active else ()


def kept(op: Op) -> Sequence[Header]:
    """An extended card is for one caller: nobody between us keeps it, and who has it asks again for a newer one."""
    return ((b"cache-control", b"private, no-cache"),) if op is EXTENDED_CARD else ()


def said(error: Exception) -> A2AError:
    """What a peer may hear of an error. Anything that is not meant for it is logged, once, and stays here."""
    if isinstance(error, A2AError):
        if isinstance(error, Unavailable) and error.retry_after is None:
            error.retry_after = SOON
        return error
    log.error("a call failed", exc_info=error)
    return A2AError()


def refusal(mount: Mount, error: A2AError, status: int) -> Sequence[Header]:
    """The headers that go with a refusal."""
    return [OURS, *mount.refusal(error, status)]

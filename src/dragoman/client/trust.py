"""Whose word a card is: `connect(..., signed_by=...)` talks to an agent only if a trusted key has signed its card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dragoman.auth.signing import Trust
from dragoman.client.discover import Found
from dragoman.client.fetch import Fetcher
from dragoman.client.transport.transport import Transport
from dragoman.dialects.cards import read_card


def trust_of(given: Trust | Mapping[str, Any] | str | Path) -> Trust:
    """The keys of a JWK set: the set itself, a file with it, its URL, or a `Trust` with all the choices there are."""
    if isinstance(given, Trust):
        return given
    if isinstance(given, Mapping):
        return Trust(given)
    if isinstance(given, str) and "://" in given:
        return Trust(jwks_url=given)
    try:
        return Trust(msgspec.json.decode(Path(given).read_bytes()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{given} has no keys to trust: {error}") from error


async def vouched(
    found: Found, signed_by: Trust | Mapping[str, Any] | str | Path, transport: Transport
) -> Found:
    """The card as somebody we trust has signed it, and nothing else that came along. Raises `InvalidAgentResponse`."""
    verified = await trust_of(signed_by).verify(found.document, Fetcher(transport))
    card, _ = read_card(verified.document, found_at=found.url)
    return Found(verified.document, card, found.url, found.ours, verified)

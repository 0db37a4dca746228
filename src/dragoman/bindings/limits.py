"""What one request may cost us."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dragoman.dialects.sse import MAX_EVENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_body: int = 8 << 20
    """Bytes in a request."""
    max_depth: int = 64
    """How deep its JSON may nest."""
    max_event: int = MAX_EVENT
    """Bytes in one event of a stream we write."""
    body_timeout: float = 30.0
    """Seconds a request may take to arrive."""


# The closing quote is optional, so that a string without one is one match and not one search per quote in it.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_A_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_ONE_KIND = bytes.maketrans(b"[]{}", b"()()")


def deeper_than(limit: int, document: bytes) -> bool:
    """Whether brackets nest deeper than `limit`, without decoding. The work is linear in the document.

    Strings are cut out, then the innermost pairs, once per level: what is left after `limit` rounds was deeper.
    """
    if document.count(b"{") + document.count(b"[") <= limit:
        return False
    brackets = _STRING.sub(b"", document).translate(_ONE_KIND, _NOT_A_BRACKET)
    for _ in range(limit):
        shorter = brackets.replace(b"()", b"")
        if len(shorter) == len(brackets):
            break  # nothing closes: deeper, or not JSON at all
        brackets = shorter
    return b"()" in brackets or brackets.count(b"(") > limit

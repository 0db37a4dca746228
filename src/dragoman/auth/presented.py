"""What a caller shows to prove who it is: the head of its request, and the certificate of its connection."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from dragoman.errors import Unauthenticated

MAX_SECRET = 16 << 10
"""Characters in a credential; a JWT with many claims needs a few thousand."""


class Presented(Struct, frozen=True):
    """Schemes look here for what is theirs. Whatever is there twice is refused: two readers could see two things."""

    headers: Mapping[str, str]
    """By lower-case name; the lines of a repeated one are joined with a comma."""
    query: str = ""
    certificate: bytes = b""
    """The client's, in DER, if it showed one and TLS found it good."""

    def authorization(self, word: str) -> str:
        """What follows `word` in `Authorization`; empty if it is for another scheme."""
        shown, _, rest = self.headers.get("authorization", "").strip().partition(" ")
        return _bounded(rest.strip()) if shown.lower() == word.lower() else ""

    def header(self, name: str) -> str:
        return _bounded(self.headers.get(name.lower(), "").strip())

    def parameter(self, name: str) -> str:
        if name not in self.query:
            return ""
        try:
            pairs = parse_qsl(self.query, keep_blank_values=True, max_num_fields=100)
        except ValueError:
            raise Unauthenticated("the query has too many parameters") from None
        return _single(name, [value for key, value in pairs if key == name])

    def cookie(self, name: str) -> str:
        pairs = [pair.strip().partition("=") for pair in self.headers.get("cookie", "").split(";")]
        return _single(name, [unquote(value.strip('"')) for key, _, value in pairs if key == name])


def _single(name: str, values: list[str]) -> str:
    if len(values) > 1:
        raise Unauthenticated(f"{name} is there more than once")
    return _bounded(values[0]) if values else ""


def _bounded(secret: str) -> str:
    if len(secret) > MAX_SECRET:
        raise Unauthenticated("the credential is too long")
    return secret

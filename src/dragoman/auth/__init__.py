"""Authentication of callers, and signatures of cards.

    Agent(..., auth=[Bearer({"alice": hashed(token)}), JWT(issuer, audience, jwks_url=...)])

Bearer, ApiKey, Basic, JWT, OIDC, Introspection, MutualTLS, Custom
                                                         authentication schemes; `All(...)` needs several at once
Holder, hashed, hashed_password, new_token               hashes of secrets
Presented                                                the credentials in a request, for a check of your own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.auth.requirements import All
from dragoman.auth.schemes import ApiKey, Basic, Bearer, Custom, MutualTLS, Presented
from dragoman.auth.secrets import Holder, hashed, hashed_password, new_token
from dragoman.model.ops import Principal

if TYPE_CHECKING:
    from dragoman.auth.introspection import Introspection
    from dragoman.auth.jwt import JWT, OIDC

__all__ = [
    "JWT",
    "OIDC",
    "All",
    "ApiKey",
    "Basic",
    "Bearer",
    "Custom",
    "Holder",
    "Introspection",
    "MutualTLS",
    "Presented",
    "Principal",
    "hashed",
    "hashed_password",
    "new_token",
]

_LAZY = {
    "JWT": "dragoman.auth.jwt",
    "OIDC": "dragoman.auth.jwt",
    "Introspection": "dragoman.auth.introspection",
}


if not TYPE_CHECKING:  # else type checkers accept every name

    def __getattr__(name: str) -> Any:
        """Schemes that check signatures are imported when first used: cryptography is slow to import."""
        if name in _LAZY:
            from importlib import import_module

            return getattr(import_module(_LAZY[name]), name)
        raise AttributeError(f"module 'dragoman.auth' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

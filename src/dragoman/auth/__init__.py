"""Who is calling, and whose word a card is.

    Agent(..., auth=[Bearer({"alice": hashed(token)}), JWT(issuer, audience, jwks_url=...)])

Bearer, ApiKey, Basic, JWT, OIDC, Introspection, MutualTLS, Custom
                                                         ways to say who one is; `All(...)` asks for several at once
Holder, hashed, hashed_password, new_token               what is kept of a secret
Presented                                                what a check of one's own is given
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.auth.presented import Presented
from dragoman.auth.requirements import All
from dragoman.auth.schemes import ApiKey, Basic, Bearer, Custom, MutualTLS
from dragoman.auth.secrets import Holder, hashed, hashed_password, new_token
from dragoman.model.ops import Principal

if TYPE_CHECKING:
    from dragoman.auth.introspection import Introspection
    from dragoman.auth.jwt import JWT
    from dragoman.auth.oidc import OIDC

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
    "OIDC": "dragoman.auth.oidc",
    "Introspection": "dragoman.auth.introspection",
}


def __getattr__(name: str) -> Any:
    """Those that check signatures are imported when they are first asked for: cryptography takes its time."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'dragoman.auth' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

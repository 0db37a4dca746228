"""An issuer of valid and invalid tokens."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from dragoman.errors import Unreachable

ISSUER, AUDIENCE = "https://login.example", "my-agent"

EC, OTHER_EC = ECKey.generate_key("P-256"), ECKey.generate_key("P-256")
RSA = RSAKey.generate_key(2048)
ED = OKPKey.generate_key("Ed25519")
SECRET = OctKey.import_key("s" * 40)


def b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def jwk(key: Key, kid: str, **more: Any) -> dict[str, Any]:
    return {**key.as_dict(private=False), "kid": kid, **more}


def jwks(*keys: dict[str, Any]) -> dict[str, Any]:
    return {"keys": list(keys)}


PUBLISHED = jwks(jwk(EC, "ec"), jwk(RSA, "rsa"), jwk(ED, "ed"))


def claims(**more: Any) -> dict[str, Any]:
    """Good ones; a value of None takes one away."""
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 300, "scope": "read write"}
    return {name: value for name, value in (good | more).items() if value is not None}


def mint(
    said: Any = None, *, key: Key = EC, alg: str = "ES256", kid: str | None = "ec", **header: Any
) -> str:
    """A token. `header` goes into its header as it is."""
    head = {"alg": alg, **({"kid": kid} if kid is not None else {}), "typ": "JWT", **header}
    signed = (
        f"{b64(json.dumps(head).encode())}.{b64(json.dumps(claims() if said is None else said).encode())}"
    )
    return f"{signed}.{b64(JWSRegistry.algorithms[alg].sign(signed.encode(), key))}"


class Pages:
    """A `Fetch` over pages that are here, and a count of what was asked."""

    def __init__(self, **pages: Any) -> None:
        self.pages: dict[str, Any] = pages
        self.asked: list[str] = []

    async def __call__(
        self, url: str, form: Mapping[str, str] | None = None, authorization: str = ""
    ) -> bytes:
        self.asked.append(url)
        if url not in self.pages:
            raise Unreachable(f"{url} is not there")
        page = self.pages[url]
        return page if isinstance(page, bytes) else json.dumps(page).encode()

"""OpenID Connect: the issuer's own page says where its keys are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.auth.jose import ASYMMETRIC, NOT_JSON
from dragoman.auth.jwks import FetchedKeys
from dragoman.auth.jwt import Check, Identify
from dragoman.auth.presented import Presented
from dragoman.auth.schemes import AUTHORIZATION, Fetch
from dragoman.errors import Unavailable
from dragoman.model.card import OpenIdConnectScheme, SecurityScheme
from dragoman.model.ops import Principal

WELL_KNOWN = "/.well-known/openid-configuration"


class OIDC:
    """`OIDC("https://login.example.com", audience="my-agent")`: the issuer, or the URL of its configuration."""

    challenge = "Bearer"

    def __init__(
        self,
        url: str,
        audience: str | Sequence[str],
        *,
        issuer: str = "",
        algorithms: Sequence[str] = ASYMMETRIC,
        skew: float = 60.0,
        tenant_claim: str = "",
        identify: Identify | None = None,
        scopes: Sequence[str] = (),
        name: str = "oidc",
        description: str = "",
    ) -> None:
        self._url = url if url.endswith(WELL_KNOWN) else url.rstrip("/") + WELL_KNOWN
        self._issuer = issuer or (url.removesuffix(WELL_KNOWN) if url.endswith(WELL_KNOWN) else url)
        self._check = Check(
            self._issuer,
            audience,
            FetchedKeys(self._keys_url),
            algorithms=algorithms,
            skew=skew,
            tenant_claim=tenant_claim,
            identify=identify,
        )
        self.name, self.scopes = name, tuple(scopes)
        self.declaration = SecurityScheme(
            open_id_connect_security_scheme=OpenIdConnectScheme(
                open_id_connect_url=self._url, description=description
            )
        )

    def place(self, presented: Presented) -> str:
        return AUTHORIZATION if presented.authorization("bearer") else ""

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        token = presented.authorization("bearer")
        return await self._check(token, fetch) if token else None

    async def _keys_url(self, fetch: Fetch) -> str:
        try:
            page: dict[str, Any] = msgspec.json.decode(await fetch(self._url), type=dict[str, Any])
        except NOT_JSON as error:
            raise Unavailable(f"{self._url} is not an OpenID configuration") from error
        # A page that speaks for somebody else may have been put there by somebody else.
        if page.get("issuer") != self._issuer or not isinstance(page.get("jwks_uri"), str):
            raise Unavailable(f"{self._url} does not speak for {self._issuer}")
        url: str = page["jwks_uri"]
        return url

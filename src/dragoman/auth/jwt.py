"""Signed tokens (JWT): whoever the issuer says is calling, as long as the token is meant for us.

A token proves nothing until its signature, issuer, audience and times are right; only then is a claim looked at. The
principal is `issuer#subject`, because two issuers may use the same subject for different people.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.auth.jose import ASYMMETRIC, NOT_JSON, SYMMETRIC, BadSignature, check, decode, read_header
from dragoman.auth.jwks import FetchedKeys, GivenKeys, Keys
from dragoman.auth.presented import Presented
from dragoman.auth.schemes import AUTHORIZATION, Fetch
from dragoman.errors import Unauthenticated
from dragoman.model.card import HttpAuthScheme, OAuth2Scheme, OAuthFlows, SecurityScheme
from dragoman.model.ops import Principal

Identify = Callable[[Mapping[str, Any]], Principal]

_LATEST = 1 << 53
"""No moment is later: this one is in some hundred million years."""
_TYPES = ("", "jwt", "at+jwt", "application/jwt", "application/at+jwt")


class JWT:
    """`JWT(issuer, audience, jwks_url=...)`: bearer tokens that `issuer` signed for `audience`.

    `jwks` are the issuer's keys, `jwks_url` is where they are. `algorithms` are the only ones believed. `skew`: how far
    clocks may be apart, in seconds. `tenant_claim` names the claim with the tenant. `identify` makes the principal from
    the claims in a way of one's own. `flows` tells clients, on the card, how to get a token.
    """

    challenge = "Bearer"

    def __init__(
        self,
        issuer: str,
        audience: str | Sequence[str],
        *,
        jwks: Mapping[str, Any] | None = None,
        jwks_url: str = "",
        algorithms: Sequence[str] = ASYMMETRIC,
        skew: float = 60.0,
        tenant_claim: str = "",
        identify: Identify | None = None,
        flows: OAuthFlows | None = None,
        scopes: Sequence[str] = (),
        name: str = "jwt",
        description: str = "",
    ) -> None:
        if (jwks is None) == (not jwks_url):
            raise ValueError("give the issuer's keys as jwks= or say where they are with jwks_url=")
        keys: Keys = GivenKeys(jwks) if jwks is not None else FetchedKeys(jwks_url)
        self._check = Check(
            issuer,
            audience,
            keys,
            algorithms=algorithms,
            skew=skew,
            tenant_claim=tenant_claim,
            identify=identify,
        )
        self.name, self.scopes = name, tuple(scopes)
        self.declaration = (
            SecurityScheme(
                http_auth_security_scheme=HttpAuthScheme(
                    scheme="bearer", bearer_format="JWT", description=description
                )
            )
            if flows is None
            else SecurityScheme(oauth2_security_scheme=OAuth2Scheme(flows=flows, description=description))
        )

    def place(self, presented: Presented) -> str:
        return AUTHORIZATION if presented.authorization("bearer") else ""

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        token = presented.authorization("bearer")
        return await self._check(token, fetch) if token else None


class Check:
    """Whether a token is good, and whose it is."""

    def __init__(
        self,
        issuer: str,
        audience: str | Sequence[str],
        keys: Keys,
        *,
        algorithms: Sequence[str],
        skew: float,
        tenant_claim: str,
        identify: Identify | None,
    ) -> None:
        self._issuer = issuer
        self._audience = frozenset((audience,) if isinstance(audience, str) else audience)
        if not issuer or not self._audience or "" in self._audience:
            raise ValueError("a token without an issuer and an audience could be anybody's, for anybody")
        unknown = set(algorithms) - {*ASYMMETRIC, *SYMMETRIC}
        if not algorithms or unknown:
            raise ValueError(f"not algorithms we would trust: {', '.join(sorted(unknown)) or 'none at all'}")
        if set(algorithms) & set(SYMMETRIC) and set(algorithms) & set(ASYMMETRIC):
            raise ValueError(
                "shared secrets and public keys do not go together: accept either HS* or the others"
            )
        self._algorithms, self._keys, self._skew = tuple(algorithms), keys, skew
        self._tenant_claim, self._identify = tenant_claim, identify

    async def __call__(self, token: str, fetch: Fetch) -> Principal:
        """Raises `Unauthenticated`."""
        try:
            claims = await self._claims(token, fetch)
            self._check_claims(claims)
        except BadSignature as why:
            raise Unauthenticated(f"the token is not good here: {why}") from None
        return self._identify(claims) if self._identify is not None else self._principal(claims)

    async def _claims(self, token: str, fetch: Fetch) -> dict[str, Any]:
        parts = token.split(".")
        if len(parts) != 3:
            raise BadSignature("it is not a JWT")
        header = read_header(parts[0], self._algorithms)
        if header.typ.lower() not in _TYPES:
            raise BadSignature("it is a token for something else")
        key = await self._keys.find(header.kid, header.alg, fetch)
        if key is None:
            raise BadSignature("it is signed with a key that the issuer does not have")
        check(key, header.alg, f"{parts[0]}.{parts[1]}".encode(), parts[2])
        try:
            return msgspec.json.decode(decode(parts[1]), type=dict[str, Any])
        except NOT_JSON as error:
            raise BadSignature("its claims are not a JSON object") from error

    def _check_claims(self, claims: Mapping[str, Any]) -> None:
        now = time.time()
        if claims.get("iss") != self._issuer:
            raise BadSignature("somebody else issued it")
        if not audience_of(claims) & self._audience:
            raise BadSignature("it is meant for somebody else")
        ends = moment(claims, "exp")
        if ends is None:
            raise BadSignature("it never expires")
        if now >= ends + self._skew:
            raise BadSignature("it has expired")
        for name in ("nbf", "iat"):
            begins = moment(claims, name)
            if begins is not None and begins > now + self._skew:
                raise BadSignature("it is not valid yet")

    def _principal(self, claims: dict[str, Any]) -> Principal:
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise Unauthenticated("the token names nobody")
        tenant = claims.get(self._tenant_claim, "") if self._tenant_claim else ""
        if not isinstance(tenant, str) or (self._tenant_claim and not tenant):
            raise Unauthenticated("the token does not say for which tenant it is")
        return Principal(
            id=f"{self._issuer}#{subject}", tenant=tenant, scopes=scopes_of(claims), claims=dict(claims)
        )


def audience_of(claims: Mapping[str, Any]) -> frozenset[str]:
    meant = claims.get("aud")
    return frozenset(
        (meant,) if isinstance(meant, str) else map(str, meant) if isinstance(meant, list) else ()
    )


def moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LATEST:
        raise BadSignature(f"its {name} is no time")
    return float(value)


def scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """`scope` is a text with blanks (RFC 8693); some issuers have a list, or call it `scp`."""
    out: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        if isinstance(value, str):
            out.update(value.split())
        elif isinstance(value, list):
            out.update(each for each in value if isinstance(each, str))
    return frozenset(out)

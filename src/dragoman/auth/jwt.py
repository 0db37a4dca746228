"""Signed tokens (JWT), and OpenID Connect, where the issuer publishes the URL of its keys.

A claim is used only after the signature, issuer, audience and times of its token were checked. The principal is
`issuer#subject`, because two issuers may use the same subject for different people.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from joserfc.errors import ExpiredTokenError, InvalidClaimError, MissingClaimError
from joserfc.jwt import ClaimsOption, JWTClaimsRegistry

from dragoman.auth.jose import (
    ASYMMETRIC,
    NOT_JSON,
    SYMMETRIC,
    BadSignature,
    VerifyingKey,
    check,
    decode,
    read_header,
    read_keys,
)
from dragoman.auth.jwks import FetchedKeys, GivenKeys, Keys
from dragoman.auth.schemes import Fetch, InAuthorization, http_scheme
from dragoman.errors import Unauthenticated, Unavailable
from dragoman.model.card import OAuth2Scheme, OAuthFlows, OpenIdConnectScheme, SecurityScheme
from dragoman.model.ops import Principal

Identify = Callable[[Mapping[str, Any]], Principal]

_MAX_TIME = 1 << 53
WELL_KNOWN = "/.well-known/openid-configuration"
_TYPES = ("", "jwt", "at+jwt", "application/jwt", "application/at+jwt")


class JWT(InAuthorization):
    """`JWT(issuer, audience, jwks_url=...)`: bearer tokens that `issuer` signed for `audience`.

    `jwks` are the issuer's keys, `jwks_url` is where they are. `algorithms` are the only ones accepted. `skew`: how far
    clocks may differ, in seconds. `tenant_claim` names the claim with the tenant. `identify` makes the principal from the
    claims. `flows` tells clients, on the card, how to get a token.
    """

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
            raise ValueError("give the issuer's keys as jwks=, or their URL as jwks_url=")
        keys: Keys = GivenKeys(jwks) if jwks is not None else FetchedKeys(jwks_url)
        self._check = TokenCheck(
            issuer,
            audience,
            keys,
            algorithms=algorithms,
            skew=skew,
            tenant_claim=tenant_claim,
            identify=identify,
        )
        super().__init__(name, scopes, token_scheme(flows, description, bearer_format="JWT"))

    async def _principal(self, credential: str, fetch: Fetch) -> Principal:
        return await self._check(credential, fetch)


def token_scheme(flows: OAuthFlows | None, description: str, *, bearer_format: str = "") -> SecurityScheme:
    if flows is None:
        return http_scheme("bearer", description, bearer_format=bearer_format)
    return SecurityScheme(oauth2_security_scheme=OAuth2Scheme(flows=flows, description=description))


class OIDC(InAuthorization):
    """`OIDC("https://login.example.com", audience="my-agent")`: an issuer, or the URL of its configuration."""

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
        self._check = TokenCheck(
            self._issuer,
            audience,
            FetchedKeys(self._keys_url),
            algorithms=algorithms,
            skew=skew,
            tenant_claim=tenant_claim,
            identify=identify,
        )
        about = OpenIdConnectScheme(open_id_connect_url=self._url, description=description)
        super().__init__(name, scopes, SecurityScheme(open_id_connect_security_scheme=about))

    async def _principal(self, credential: str, fetch: Fetch) -> Principal:
        return await self._check(credential, fetch)

    async def fetch_keys(self, fetch: Fetch) -> Sequence[VerifyingKey]:
        """The keys of the issuer as they are now, to check its address. Raises an `A2AError` that says what is wrong."""
        url = await self._keys_url(fetch)
        try:
            return read_keys(msgspec.json.decode(await fetch(url)))
        except (ValueError, *NOT_JSON) as error:
            raise Unavailable(f"{url} has no keys: {error}") from error

    async def _keys_url(self, fetch: Fetch) -> str:
        try:
            page: dict[str, Any] = msgspec.json.decode(await fetch(self._url), type=dict[str, Any])
        except NOT_JSON as error:
            raise Unavailable(f"{self._url} is not an OpenID configuration") from error
        # A page of another issuer may come from an attacker.
        if page.get("issuer") != self._issuer or not isinstance(page.get("jwks_uri"), str):
            raise Unavailable(f"{self._url} is not the configuration of {self._issuer}")
        url: str = page["jwks_uri"]
        # An issuer elsewhere must not name a port of this machine.
        if self._url.startswith("https:") and not url.startswith("https:"):
            raise Unavailable(f"{self._url} names keys that are not at an https URL")
        return url


class TokenCheck:
    """Checks a token, and makes its principal."""

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
            raise ValueError("tokens need an issuer and an audience to be checked against")
        unknown = set(algorithms) - {*ASYMMETRIC, *SYMMETRIC}
        if not algorithms or unknown:
            raise ValueError(f"not accepted as algorithms: {', '.join(sorted(unknown)) or 'none at all'}")
        if set(algorithms) & set(SYMMETRIC) and set(algorithms) & set(ASYMMETRIC):
            raise ValueError(
                "shared secrets and public keys cannot be mixed: accept either HS* or the others"
            )
        self._algorithms, self._keys = tuple(algorithms), keys
        self._registry = claims_registry(issuer, self._audience, skew, needs_expiry=True)
        self._tenant_claim, self._identify = tenant_claim, identify

    async def __call__(self, token: str, fetch: Fetch) -> Principal:
        """Raises `Unauthenticated`."""
        try:
            claims = await self._claims(token, fetch)
            check_claims(self._registry, claims)
        except BadSignature as why:
            raise Unauthenticated(f"the token is not accepted: {why}") from None
        if self._identify is not None:
            return self._identify(claims)
        return principal_of(claims, claims.get("sub"), self._issuer, self._tenant_claim)

    async def _claims(self, token: str, fetch: Fetch) -> dict[str, Any]:
        parts = token.split(".")
        if len(parts) != 3:
            raise BadSignature("it is not a JWT")
        header = read_header(parts[0], self._algorithms)
        if header.typ.lower() not in _TYPES:
            raise BadSignature("it is a token of another type")
        key = await self._keys.find(header.kid, header.alg, fetch)
        if key is None:
            raise BadSignature("it is signed with a key that the issuer does not have")
        check(key, header.alg, f"{parts[0]}.{parts[1]}".encode(), parts[2])
        try:
            return msgspec.json.decode(decode(parts[1]), type=dict[str, Any])
        except NOT_JSON as error:
            raise BadSignature("its claims are not a JSON object") from error


def principal_of(claims: dict[str, Any], subject: Any, issuer: str, tenant_claim: str) -> Principal:
    """The principal of checked claims. Raises `Unauthenticated`."""
    if not isinstance(subject, str) or not subject:
        raise Unauthenticated("the token has no subject")
    tenant = claims.get(tenant_claim, "") if tenant_claim else ""
    if not isinstance(tenant, str) or (tenant_claim and not tenant):
        raise Unauthenticated("the token names no tenant")
    return Principal(id=f"{issuer}#{subject}", tenant=tenant, scopes=scopes_of(claims), claims=claims)


def claims_registry(
    issuer: str,
    audience: Collection[str],
    skew: float,
    *,
    needs_expiry: bool,
    clock: Callable[[], float] = time.time,
) -> JWTClaimsRegistry:
    """The checks of a token's claims: `iss` and `aud` if they are given, and its times."""
    options: dict[str, ClaimsOption] = {"exp": {"essential": needs_expiry}}
    if issuer:
        options["iss"] = {"essential": True, "value": issuer}
    if audience:
        options["aud"] = {"essential": True, "values": sorted(audience)}
    return JWTClaimsRegistry(lambda: int(clock()), int(skew), **options)


def check_claims(registry: JWTClaimsRegistry, claims: Mapping[str, Any]) -> None:
    """Raises `BadSignature`."""
    present = {name: value for name, value in claims.items() if value is not None}
    for name in ("exp", "nbf", "iat"):
        if isinstance(present.get(name), int | float) and abs(present[name]) > _MAX_TIME:
            raise BadSignature(f"its {name} is not a time")
    try:
        registry.validate(present)
    except ExpiredTokenError:
        raise BadSignature("it has expired") from None
    except MissingClaimError as error:
        raise BadSignature(f"it has no {error.claim}") from None
    except InvalidClaimError as error:
        raise BadSignature(f"its {error.claim} is not valid here: {error.description}") from None


def scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """`scope` is a string with blanks (RFC 8693). Some issuers have a list, or call it `scp`."""
    out: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        if isinstance(value, str):
            out.update(value.split())
        elif isinstance(value, list):
            out.update(each for each in value if isinstance(each, str))
    return frozenset(out)

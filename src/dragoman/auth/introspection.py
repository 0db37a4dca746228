"""Tokens that only their issuer can read: it is asked what they are good for (RFC 7662).

What it says is believed for a little while, yes and no alike, so a caller costs it a question now and then, and a stranger
who makes up tokens costs no more than a few at a time. When it does not answer, nobody comes in.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from dragoman.auth.jose import NOT_JSON, BadSignature
from dragoman.auth.jwt import Identify, audience_of, moment, scopes_of
from dragoman.auth.presented import Presented
from dragoman.auth.schemes import AUTHORIZATION, Fetch
from dragoman.errors import A2AError, RateLimited, Unauthenticated, Unavailable
from dragoman.model.card import HttpAuthScheme, OAuth2Scheme, OAuthFlows, SecurityScheme
from dragoman.model.ops import Principal

log = logging.getLogger(__name__)

_REMEMBERED = 10_000
_AT_ONCE = 32
"""Questions that may be on their way."""


class Introspection:
    """`Introspection("https://login.example.com/introspect", "my-agent", client=("my-agent", SECRET))`.

    `audience` is who a token must be meant for; empty: the issuer says `active` only to those it is meant for. `client`
    is how we log in there; `token`, if it wants a bearer token instead. `issuer` is what the answer must say in `iss`, and
    part of the principal's id; without it, the URL is. `fresh`: for how many seconds an answer is believed.
    """

    challenge = "Bearer"

    def __init__(
        self,
        url: str,
        audience: str | Sequence[str],
        *,
        client: tuple[str, str] | None = None,
        token: str = "",
        issuer: str = "",
        fresh: float = 30.0,
        skew: float = 60.0,
        tenant_claim: str = "",
        identify: Identify | None = None,
        flows: OAuthFlows | None = None,
        scopes: Sequence[str] = (),
        name: str = "oauth",
        description: str = "",
        clock: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._issuer, self._fresh, self._skew = url, issuer, fresh, skew
        self._audience = frozenset((audience,) if isinstance(audience, str) else audience) - {""}
        self._login = f"Bearer {token}" if token else ""
        if client is not None:
            pair = ":".join(quote(each, safe="") for each in client)  # RFC 6749, 2.3.1
            self._login = f"Basic {b64encode(pair.encode()).decode()}"
        self._tenant_claim, self._identify = tenant_claim, identify
        # what an issuer has said grows old, also if the clock is set
        self._clock, self._stopwatch = clock, stopwatch
        self._said: OrderedDict[bytes, tuple[float, dict[str, Any]]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[dict[str, Any]]] = {}
        self.name, self.scopes = name, tuple(scopes)
        self.declaration = (
            SecurityScheme(http_auth_security_scheme=HttpAuthScheme(scheme="bearer", description=description))
            if flows is None
            else SecurityScheme(oauth2_security_scheme=OAuth2Scheme(flows=flows, description=description))
        )

    def place(self, presented: Presented) -> str:
        return AUTHORIZATION if presented.authorization("bearer") else ""

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        token = presented.authorization("bearer")
        if not token:
            return None
        claims = await self._claims(token, fetch)
        if claims.get("active") is not True:
            raise Unauthenticated("the token is not good here")
        try:
            self._check(claims)
        except BadSignature as why:
            raise Unauthenticated(f"the token is not good here: {why}") from None
        return self._identify(claims) if self._identify is not None else self._principal(claims)

    async def _claims(self, token: str, fetch: Fetch) -> dict[str, Any]:
        """What the issuer says of a token, or said a moment ago. Those who ask meanwhile wait for the same answer."""
        key, now = hashlib.sha256(token.encode()).digest(), self._stopwatch()
        known = self._said.get(key)
        if known is not None and now < known[0]:
            return known[1]
        asking = self._asking.get(key)
        if asking is None:
            if len(self._asking) >= _AT_ONCE:
                raise RateLimited("too many tokens have to be checked at the moment", retry_after=1)
            asking = self._asking[key] = asyncio.create_task(self._ask(token, fetch))
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        claims = await asyncio.shield(asking)
        self._said[key] = now + self._fresh, claims
        self._said.move_to_end(key)
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        return claims

    async def _ask(self, token: str, fetch: Fetch) -> dict[str, Any]:
        form = {"token": token, "token_type_hint": "access_token"}
        try:
            return msgspec.json.decode(await fetch(self._url, form, self._login), type=dict[str, Any])
        except (A2AError, *NOT_JSON) as error:
            log.warning("the issuer of tokens could not be asked: %s", error)
            raise Unavailable("the issuer of tokens cannot be asked at the moment", retry_after=5) from error

    def _check(self, claims: Mapping[str, Any]) -> None:
        now = self._clock()
        if self._issuer and claims.get("iss") != self._issuer:
            raise BadSignature("somebody else issued it")
        if self._audience and not audience_of(claims) & self._audience:
            raise BadSignature("it is meant for somebody else")
        ends, begins = moment(claims, "exp"), moment(claims, "nbf")
        if ends is not None and now >= ends + self._skew:
            raise BadSignature("it has expired")
        if begins is not None and begins > now + self._skew:
            raise BadSignature("it is not valid yet")

    def _principal(self, claims: dict[str, Any]) -> Principal:
        who, client = claims.get("sub"), claims.get("client_id")
        if not who and client:
            who = f"client:{client}"
        tenant = claims.get(self._tenant_claim, "") if self._tenant_claim else ""
        if not isinstance(who, str) or not who or not isinstance(tenant, str):
            raise Unauthenticated("the token names nobody")
        if self._tenant_claim and not tenant:
            raise Unauthenticated("the token does not say for which tenant it is")
        return Principal(
            id=f"{self._issuer or self._url}#{who}", tenant=tenant, scopes=scopes_of(claims), claims=claims
        )

"""Opaque tokens that their issuer checks (RFC 7662).

Answers are cached for a short time, positive and negative ones. The number of requests at the same time is limited, so
made-up tokens cannot flood the issuer. If the issuer does not answer, no caller is accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from dragoman.auth.jose import NOT_JSON, BadSignature
from dragoman.auth.jwt import Identify, check_claims, claims_registry, principal_of, token_scheme
from dragoman.auth.schemes import Fetch, InAuthorization
from dragoman.errors import A2AError, RateLimited, Unauthenticated, Unavailable
from dragoman.model.card import OAuthFlows
from dragoman.model.ops import Principal

log = logging.getLogger(__name__)

_MAX_CACHED_TOKENS = 10_000
_MAX_PARALLEL_REQUESTS = 32


class Introspection(InAuthorization):
    """`Introspection("https://login.example.com/introspect", "my-agent", client=("my-agent", SECRET))`.

    A token must be for `audience`; empty: the issuer answers `active` only to its audience. `client` or `token`
    authenticates us at the issuer. `issuer` must be the `iss` of the answer, and is part of the principal's id; without
    it, the URL is. `fresh`: for how many seconds an answer is cached.
    """

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
        self._url, self._issuer, self._fresh = url, issuer, fresh
        self._audience = frozenset((audience,) if isinstance(audience, str) else audience) - {""}
        self._login = f"Bearer {token}" if token else ""
        if client is not None:
            pair = ":".join(quote(each, safe="") for each in client)  # RFC 6749, 2.3.1
            self._login = f"Basic {b64encode(pair.encode()).decode()}"
        self._tenant_claim, self._identify = tenant_claim, identify
        self._stopwatch = stopwatch  # an answer gets old, also if somebody sets the clock
        self._registry = claims_registry(issuer, self._audience, skew, needs_expiry=False, clock=clock)
        self._answers: OrderedDict[bytes, tuple[float, dict[str, Any]]] = OrderedDict()
        self._requests: dict[bytes, asyncio.Task[dict[str, Any]]] = {}
        super().__init__(name, scopes, token_scheme(flows, description))

    async def _principal(self, credential: str, fetch: Fetch) -> Principal:
        claims = await self._claims(credential, fetch)
        if claims.get("active") is not True:
            raise Unauthenticated("the token is not accepted")
        try:
            check_claims(self._registry, claims)
        except BadSignature as why:
            raise Unauthenticated(f"the token is not accepted: {why}") from None
        if self._identify is not None:
            return self._identify(claims)
        client = claims.get("client_id")
        subject = claims.get("sub") or (f"client:{client}" if client else None)
        return principal_of(claims, subject, self._issuer or self._url, self._tenant_claim)

    async def _claims(self, token: str, fetch: Fetch) -> dict[str, Any]:
        """The issuer's answer about a token, cached or new. Concurrent calls share one request."""
        key, now = hashlib.sha256(token.encode()).digest(), self._stopwatch()
        known = self._answers.get(key)
        if known is not None and now < known[0]:
            return known[1]
        asking = self._requests.get(key)
        if asking is None:
            if len(self._requests) >= _MAX_PARALLEL_REQUESTS:
                raise RateLimited("too many tokens have to be checked at the moment", retry_after=1)
            asking = self._requests[key] = asyncio.create_task(self._ask(token, fetch))
            asking.add_done_callback(lambda _: self._requests.pop(key, None))
        claims = await asyncio.shield(asking)
        self._answers[key] = now + self._fresh, claims
        self._answers.move_to_end(key)
        if len(self._answers) > _MAX_CACHED_TOKENS:
            self._answers.popitem(last=False)
        return claims

    async def _ask(self, token: str, fetch: Fetch) -> dict[str, Any]:
        form = {"token": token, "token_type_hint": "access_token"}
        try:
            return msgspec.json.decode(await fetch(self._url, form, self._login), type=dict[str, Any])
        except (A2AError, *NOT_JSON) as error:
            log.warning("the issuer of tokens did not answer: %s", error)
            raise Unavailable("the issuer of tokens does not answer at the moment", retry_after=5) from error

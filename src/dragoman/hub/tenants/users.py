"""People of a tenant, known by the company's own login (OpenID Connect).

The operator says which issuer is trusted, which audience its tokens must be for, which claim names the tenant, and which words of
which claim stand for the scopes read, run and admin. A user shows the access token of the issuer instead of a token of the hub.
Everything a tenant has belongs to the tenant: its users see the same agents, tasks and conversations. The audit names the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman.auth.jwt import OIDC, scopes_of
from dragoman.auth.schemes import Fetch, Presented
from dragoman.errors import Forbidden, Unauthenticated
from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.hub.store.tokens import MANAGE, READ, RUN
from dragoman.model.ops import Principal

MAX_USER_CHARACTERS = 300
"""Of the issuer and the subject together."""


class UserRules(Struct, frozen=True, kw_only=True):
    """How the tokens of an issuer are read."""

    issuer: str
    audience: Sequence[str]
    tenant_claim: str
    scope_claim: str
    read: Sequence[str]
    run: Sequence[str]
    admin: Sequence[str]
    """The words of the claim that stand for each scope."""


class Users:
    """Raises `ValueError` for rules without an audience."""

    def __init__(self, tenants: Tenants, rules: UserRules, fetch: Fetch) -> None:
        self._tenants, self._rules, self._fetch = tenants, rules, fetch
        self._check = OIDC(rules.issuer, audience=tuple(rules.audience))

    async def identify(self, token: str) -> Tenant:
        """The tenant of a user's token. Raises `Unauthenticated`, `Forbidden` and `Unavailable`."""
        principal = await self._check.authenticate(
            Presented({"authorization": f"Bearer {token}"}), self._fetch
        )
        if principal is None:
            raise Unauthenticated("missing or invalid bearer token")
        if len(principal.id) > MAX_USER_CHARACTERS:
            raise Unauthenticated("the subject of the token is too long")
        named = self._tenant_name(principal.claims)
        scope = self._scope(principal.claims)
        tenant = await self._tenants.by_user(
            named,
            principal.id,
            scope,
            expires_at=int(principal.claims["exp"]),
            scopes=_foreign(principal),
        )
        if tenant is None:  # nobody learns which tenants there are
            raise Forbidden("the token names no tenant of this hub that its user may use")
        return tenant

    def _tenant_name(self, claims: Mapping[str, Any]) -> str:
        words = _words(claims, self._rules.tenant_claim, split=False)
        if len(words) != 1:
            raise Forbidden(f"the claim {self._rules.tenant_claim} of the token must name one tenant")
        return words[0]

    def _scope(self, claims: Mapping[str, Any]) -> str:
        rules, words = self._rules, set(_words(claims, self._rules.scope_claim))
        for scope, meant in ((MANAGE, rules.admin), (RUN, rules.run), (READ, rules.read)):
            if words.intersection(meant):
                return scope
        raise Forbidden(f"the claim {rules.scope_claim} of the token gives no scope of this hub")


def _words(claims: Mapping[str, Any], name: str, *, split: bool = True) -> list[str]:
    """The values of a claim: a text (with blanks between words, if `split`), a number or a list. A name with dots may lead into objects."""
    value: Any = claims.get(name)
    if value is None and "." in name:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        return value.split() if split else [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _foreign(principal: Principal) -> frozenset[str]:
    """The scopes that the issuer gave, for skills of agents. None of them may look like one of the hub."""
    return frozenset(scope for scope in scopes_of(principal.claims) if not scope.startswith("tenant:"))

"""Users of a company's login (OpenID Connect), who act for tenants.

The operator says which issuer is trusted, which audience its tokens must be for, which claim names the tenant, and which words of
which claim stand for the scopes read, run and admin. A user shows the access token of the issuer instead of a token of the hub.
Everything a tenant has belongs to the tenant: its users see the same agents, tasks and conversations. The audit names the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.auth.jwt import OIDC, scopes_of
from dragoman.auth.requirements import check_principal
from dragoman.auth.schemes import Presented
from dragoman.client.fetch import Fetcher
from dragoman.errors import Forbidden, Unauthenticated
from dragoman.hub.settings import Settings
from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.hub.store.tokens import MANAGE, READ, RUN
from dragoman.model.ops import Principal

MAX_USER_CHARACTERS = 300
"""Of the issuer and the subject together."""


class Users:
    """Those of the issuer in the settings. Raises `ValueError` if these have no audience."""

    def __init__(self, tenants: Tenants, settings: Settings, fetch: Fetcher) -> None:
        self._tenants, self._settings, self._fetch = tenants, settings, fetch
        self._oidc = OIDC(settings.oidc_issuer, audience=settings.oidc_audience)

    async def identify(self, token: str) -> Tenant:
        """The tenant of a user's token. Raises `Unauthenticated`, `Forbidden` and `Unavailable`."""
        principal = await self._oidc.authenticate(
            Presented({"authorization": f"Bearer {token}"}), self._fetch
        )
        if principal is None:
            raise Unauthenticated("missing or invalid bearer token")
        check_principal(principal)
        if len(principal.id) > MAX_USER_CHARACTERS:
            raise Unauthenticated("the subject of the token is too long")
        tenant_name = self._tenant_name(principal.claims)
        scope = self._scope(principal.claims)
        tenant = await self._tenants.by_user(
            tenant_name,
            principal.id,
            scope,
            expires_at=int(principal.claims["exp"]),
            scopes=_issuer_scopes(principal),
        )
        if tenant is None:  # the same answer in all cases, so that it does not show which tenants exist
            raise Forbidden("the token names no tenant of this hub that its user may use")
        return tenant

    def _tenant_name(self, claims: Mapping[str, Any]) -> str:
        claim = self._settings.oidc_tenant_claim
        words = _claim_values(claims, claim, split=False)
        if len(words) != 1:
            raise Forbidden(f"the claim {claim} of the token must name one tenant")
        return words[0]

    def _scope(self, claims: Mapping[str, Any]) -> str:
        settings = self._settings
        words = set(_claim_values(claims, settings.oidc_scope_claim))
        for scope, scope_words in (
            (MANAGE, settings.oidc_admin),
            (RUN, settings.oidc_run),
            (READ, settings.oidc_read),
        ):
            if words.intersection(scope_words):
                return scope
        raise Forbidden(f"the claim {settings.oidc_scope_claim} of the token gives no scope of this hub")


def _claim_values(claims: Mapping[str, Any], name: str, *, split: bool = True) -> list[str]:
    """The values of a claim: a text (with blanks between words, if `split`), a number or a list. A name with dots may lead into objects."""
    value: Any = claims.get(name)
    if value is None and "." in name:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, list):
        return [_claim_text(each) for each in value]
    text = _claim_text(value)
    return (text.split() if split else [text]) if text else []


def _claim_text(value: Any) -> str:
    """A text, or a number as text. Other values become an empty text, which no tenant and no scope has as its name."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else ""


def _issuer_scopes(principal: Principal) -> frozenset[str]:
    """The scopes that the issuer gave, for skills of agents. Those that look like scopes of the hub are removed."""
    return frozenset(scope for scope in scopes_of(principal.claims) if not scope.startswith("tenant:"))

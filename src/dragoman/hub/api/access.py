"""Who is calling.

The site authenticates HTTP requests. Over gRPC, each call brings its token.

People of a tenant may be known by the company's own login (OpenID Connect). The operator says which issuer is trusted, which audience
its tokens must be for, which claim names the tenant, and which words of which claim stand for the scopes read, run and admin. A
user shows the access token of the issuer instead of a token of the hub. Everything a tenant has belongs to the tenant: its
users see the same agents, tasks and conversations. The audit names the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.auth.jwt import OIDC, scopes_of
from dragoman.auth.schemes import Fetch, Presented
from dragoman.errors import Forbidden, Unauthenticated
from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.hub import Hub
from dragoman.hub.settings import Settings
from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.hub.store.tokens import MANAGE, READ, RUN, TENANT_PREFIX
from dragoman.model.ops import Principal
from dragoman.server.mount import Mount

AGENTS_PATH = "/v1/a2a/agents/"


class AuthenticatedTenant:
    """An `Authenticator` for a tenant that is authenticated already."""

    challenge = 'Bearer realm="dragoman"'

    def __init__(self, tenant: Tenant) -> None:
        self._principal = tenant.principal

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        return self._principal


class TokenAuthenticator:
    """An `Authenticator` that checks a tenant's token."""

    challenge = AuthenticatedTenant.challenge

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        return (await authenticate(self._hub, headers.get("authorization", ""))).principal


async def authenticate(hub: Hub, header: str, path: str = "") -> Tenant:
    """The tenant of an `Authorization` header. Raises `Unauthenticated`, and adds that to the log (with the path of the
    request) and to the audit."""
    try:
        tenant = await identify(hub, bearer(header))
    except (Unauthenticated, Forbidden) as error:
        hub.observer.record_refusal("", error, path)
        raise
    await hub.tenants.touch(tenant)
    return tenant


async def identify(hub: Hub, token: str) -> Tenant:
    """The tenant of a token, of the hub or of the issuer that knows the users. Raises `Unauthenticated`, `Forbidden`, and
    `Unavailable` if the keys of the issuer cannot be fetched."""
    if hub.identify_user is not None and not token.startswith(TENANT_PREFIX) and token.count(".") == 2:
        return await hub.identify_user(token)
    if (tenant := await hub.tenants.by_token(token)) is None:
        raise Unauthenticated("missing or invalid bearer token")
    return tenant


def bearer(header: str) -> str:
    """The token of an `Authorization` header; empty if it has none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def mounts_by_agent(hub: Hub) -> Callable[[str], Mount]:
    """Finds the mount of an agent by its id; an empty id means `index`."""
    authenticator = TokenAuthenticator(hub)

    def find(id: str) -> Mount:
        id = id or INDEX_ID
        code = hub.catalogue.code.get(id)
        return Mount(
            service=hub,
            card=hub.programs.card(code, id),
            agent=id,
            path=AGENTS_PATH + id,
            versions=code.versions if code is not None else None,
            authenticator=authenticator,
            private=True,
        )

    return find


# -- users of a company ------------------------------------------------------------------------------------

MAX_USER_CHARACTERS = 300
"""Of the issuer and the subject together."""


class Users:
    """Those of the issuer in the settings. Raises `ValueError` if these have no audience."""

    def __init__(self, tenants: Tenants, settings: Settings, fetch: Fetch) -> None:
        self._tenants, self._settings, self._fetch = tenants, settings, fetch
        self._check = OIDC(settings.oidc_issuer, audience=settings.oidc_audience)

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
        given = self._settings
        words = set(_claim_values(claims, given.oidc_scope_claim))
        for scope, meant in ((MANAGE, given.oidc_admin), (RUN, given.oidc_run), (READ, given.oidc_read)):
            if words.intersection(meant):
                return scope
        raise Forbidden(f"the claim {given.oidc_scope_claim} of the token gives no scope of this hub")


def _claim_values(claims: Mapping[str, Any], name: str, *, split: bool = True) -> list[str]:
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


def _issuer_scopes(principal: Principal) -> frozenset[str]:
    """The scopes that the issuer gave, for skills of agents. Those that look like scopes of the hub are removed."""
    return frozenset(scope for scope in scopes_of(principal.claims) if not scope.startswith("tenant:"))

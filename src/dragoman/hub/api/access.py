"""Who is calling, and which scope of a tenant's token each route of the native API needs.

The site authenticates HTTP requests. Over gRPC, each call brings its token. A route for tenants that is not in the table of scopes
stops the hub from starting, so that none is open by mistake. Over A2A, `Hub` checks the same scopes for each operation.

People of a tenant may be known by the company's own login (OpenID Connect). The operator says which issuer is trusted, which audience
its tokens must be for, which claim names the tenant, and which words of which claim stand for the scopes read, run and admin. A
user shows the access token of the issuer instead of a token of the hub. Everything a tenant has belongs to the tenant: its
users see the same agents, tasks and conversations. The audit names the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.auth.jwt import OIDC, scopes_of
from dragoman.auth.schemes import Fetch, Presented
from dragoman.errors import Forbidden, Unauthenticated
from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.api import TENANT, Route
from dragoman.hub.hub import Hub
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
        hub.observer.refused("", error, path)
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


# -- scopes -------------------------------------------------------------------------------------------------

ACCESS = "tenant:"
"""The prefix of the scope in `Route.access` of a route for tenants."""

_ROUTES: Mapping[str, str] = {
    READ: """
        GET /v1/agents
        GET /v1/agents/{id}
        GET /v1/agents/{id}/versions
        GET /v1/agents/{id}/versions/{version}
        GET /v1/artifacts
        GET /v1/artifacts/{aid}
        GET /v1/artifacts/{aid}/raw
        GET /v1/conversations
        GET /v1/conversations/{id}
        GET /v1/conversations/{id}/artifacts
        GET /v1/conversations/{id}/artifacts/{aid}
        GET /v1/conversations/{id}/artifacts/{aid}/raw
        GET /v1/conversations/{id}/messages
        GET /v1/memory
        GET /v1/memory/entries
        GET /v1/memory/entries/{id}
        GET /v1/memory/graph
        GET /v1/memory/relations
        GET /v1/memory/{agent_id}
        GET /v1/models
        GET /v1/notifications/stream
        GET /v1/policy
        GET /v1/requests
        GET /v1/requests/{id}
        GET /v1/requests/{id}/events
        GET /v1/runs
        GET /v1/runs/{id}
        GET /v1/schedules
        GET /v1/schedules/{id}
        GET /v1/schedules/{id}/runs
        GET /v1/todos
        GET /v1/todos/{id}
        GET /v1/usage
        GET /v1/whoami
        POST /v1/constitutions/validate
    """,
    RUN: """
        DELETE /v1/artifacts/{aid}
        DELETE /v1/conversations/{id}
        DELETE /v1/conversations/{id}/artifacts/{aid}
        DELETE /v1/memory/entries/{id}
        DELETE /v1/memory/relations/{id}
        DELETE /v1/schedules/{id}
        DELETE /v1/todos/{id}
        PATCH /v1/conversations/{id}
        PATCH /v1/memory/entries/{id}
        PATCH /v1/schedules/{id}
        PATCH /v1/todos/{id}
        POST /v1/advise/gate
        POST /v1/agents/{id}/chat
        POST /v1/conversations
        POST /v1/conversations/{id}/artifacts
        POST /v1/conversations/{id}/messages
        POST /v1/events
        POST /v1/memory/entries
        POST /v1/memory/entries/{id}/invalidate
        POST /v1/memory/relations
        POST /v1/orchestrate
        POST /v1/requests/{id}/answer
        POST /v1/requests/{id}/cancel
        POST /v1/schedules
        POST /v1/todos
        PUT /v1/conversations/{id}/artifacts
    """,
    MANAGE: """
        DELETE /v1/agents/{id}
        DELETE /v1/tokens/{id}
        GET /v1/export
        GET /v1/tokens
        GET /v1/tokens/{id}
        PATCH /v1/agents/{id}
        PATCH /v1/tokens/{id}
        POST /v1/agents
        POST /v1/tokens
        POST /v1/tokens/{id}/rotate
        PUT /v1/agents/{id}
    """,
}
SCOPE_OF: Mapping[str, str] = {
    line.strip(): scope for scope, lines in _ROUTES.items() for line in lines.splitlines() if line.strip()
}


def with_scopes(routes: Iterable[Route]) -> list[Route]:
    """The routes, each for tenants with the scope that it needs. Raises `LookupError` for one that has none."""
    out = []
    for route in routes:
        if route.access == TENANT:
            name = f"{route.method} {route.path}"
            if name not in SCOPE_OF:
                raise LookupError(f"{name} needs a scope in dragoman/hub/api/access.py")
            route = replace(route, access=ACCESS + SCOPE_OF[name])
        out.append(route)
    return out


def scope_of(route: Route) -> str:
    """The scope that a route needs; empty for one that is not for tenants."""
    return route.access.removeprefix(ACCESS) if route.access.startswith(ACCESS) else ""


# -- users of a company ------------------------------------------------------------------------------------

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
    """The words of the claim for each scope."""


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
            scopes=_issuer_scopes(principal),
        )
        if tenant is None:  # the same answer in all cases, so that it does not show which tenants exist
            raise Forbidden("the token names no tenant of this hub that its user may use")
        return tenant

    def _tenant_name(self, claims: Mapping[str, Any]) -> str:
        words = _claim_values(claims, self._rules.tenant_claim, split=False)
        if len(words) != 1:
            raise Forbidden(f"the claim {self._rules.tenant_claim} of the token must name one tenant")
        return words[0]

    def _scope(self, claims: Mapping[str, Any]) -> str:
        rules, words = self._rules, set(_claim_values(claims, self._rules.scope_claim))
        for scope, meant in ((MANAGE, rules.admin), (RUN, rules.run), (READ, rules.read)):
            if words.intersection(meant):
                return scope
        raise Forbidden(f"the claim {rules.scope_claim} of the token gives no scope of this hub")


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

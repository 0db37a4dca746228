"""Authentication of callers. The site authenticates HTTP requests; over gRPC, each call brings its token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.errors import Forbidden, Unauthenticated
from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.hub import Hub
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.store.tokens import TENANT
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
        hub.record.refused("", error, path)
        raise
    await hub.tenants.touch(tenant)
    return tenant


async def identify(hub: Hub, token: str) -> Tenant:
    """The tenant of a token, of the hub or of the issuer that knows the users. Raises `Unauthenticated`, `Forbidden`, and
    `Unavailable` if the keys of the issuer cannot be fetched."""
    if hub.users is not None and not token.startswith(TENANT) and token.count(".") == 2:
        return await hub.users.identify(token)
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

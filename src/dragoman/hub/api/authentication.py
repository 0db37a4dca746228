"""Authentication of callers. The site authenticates HTTP requests; over gRPC, each call brings its token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.errors import Unauthenticated
from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.hub import Hub
from dragoman.hub.store.tenants import Tenant
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
    tenant = await hub.tenants.by_token(bearer(header))
    if tenant is None:
        error = Unauthenticated("missing or invalid bearer token")
        hub.record.refused("", error, path)
        raise error
    await hub.tenants.touch(tenant)
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

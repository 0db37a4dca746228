"""How callers of an agent are known: over HTTP they have been let in already, over gRPC each call brings its token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.errors import Unauthenticated
from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.hub import Hub
from dragoman.hub.tenants.tenants import Tenant
from dragoman.model.ops import Principal
from dragoman.server.mount import Mount

AGENTS = "/v1/a2a/agents/"


class Known:
    """An `Authenticator` for somebody who has been let in already."""

    challenge = 'Bearer realm="dragoman"'

    def __init__(self, tenant: Tenant) -> None:
        self._principal = tenant.principal

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        return self._principal


class Door:
    """An `Authenticator` that asks for a tenant's token."""

    challenge = Known.challenge

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        return (await holder(self._hub, headers.get("authorization", ""))).principal


async def holder(hub: Hub, header: str) -> Tenant:
    """Whose token an `Authorization` header shows. Raises `Unauthenticated`, and has that on record."""
    tenant = hub.tenants.holder(bearer(header))
    if tenant is None:
        error = Unauthenticated("missing or invalid bearer token")
        hub.record.refused("", error)
        raise error
    await hub.tenants.touch(tenant)
    return tenant


def bearer(header: str) -> str:
    """The token of an `Authorization` header; empty if it has none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def by_name(hub: Hub) -> Callable[[str], Mount]:
    """The mount of each agent for callers who bring their token; who names none means `index`."""
    door = Door(hub)

    def find(id: str) -> Mount:
        id = id or INDEX_ID
        code = hub.catalogue.code.get(id)
        return Mount(
            service=hub,
            card=hub.residents.card(code, id),
            agent=id,
            path=AGENTS + id,
            versions=code.versions if code is not None else None,
            authenticator=door,
            private=True,
        )

    return find

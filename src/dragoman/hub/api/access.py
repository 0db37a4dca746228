"""Who is calling: a tenant, by a token of the hub, or a user of the company's login (`tenants/users.py`).

The site authenticates HTTP requests, and counts those that are open. Over gRPC, each call brings its token, and is counted here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

from dragoman.errors import Forbidden, Unauthenticated
from dragoman.hub.agents.constitution import INDEX_ID
from dragoman.hub.hub import Hub
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.store.tokens import TENANT_PREFIX
from dragoman.model.ops import Batch, Call, Principal, Request, SendMessage, Service, SubscribeToTask
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


class CountedHub:
    """A `Service`: the hub for callers over gRPC. Each call is an open request of its tenant until it ends."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def call(self, call: Call, request: Request) -> Any:
        async with self._open(call):
            return await self._hub.call(call, request)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        async with self._open(call), aclosing(cast(Any, self._hub.stream(call, request))) as batches:
            async for batch in batches:
                yield batch

    @asynccontextmanager
    async def _open(self, call: Call) -> AsyncIterator[None]:
        """Raises `RateLimited`."""
        tenant = await self._hub.tenants.current(int(call.scope.tenant))
        if tenant is None:
            raise Unauthenticated("missing or invalid bearer token")
        close = await self._hub.admission.open_request(tenant)
        try:
            yield
        finally:
            close()


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
    if hub.users is not None and not token.startswith(TENANT_PREFIX) and token.count(".") == 2:
        return await hub.users.identify(token)
    if (tenant := await hub.tenants.by_token(token)) is None:
        raise Unauthenticated("missing or invalid bearer token")
    return tenant


def bearer(header: str) -> str:
    """The token of an `Authorization` header; empty if it has none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def mounts_by_agent(hub: Hub, service: Service | None = None) -> Callable[[str], Mount]:
    """Finds the mount of an agent by its id; an empty id means `index`. `service`: answers instead of the hub itself."""
    authenticator = TokenAuthenticator(hub)

    def find(id: str) -> Mount:
        id = id or INDEX_ID
        code = hub.catalogue.code.get(id)
        return Mount(
            service=service or hub,
            card=hub.programs.card(code, id),
            agent=id,
            path=AGENTS_PATH + id,
            versions=code.versions if code is not None else None,
            authenticator=authenticator,
            private=True,
        )

    return find

"""The console of a hub: the admin token makes an operator, and a tenant's token shows what that tenant has.

The native API is part of the console's: `/v1/admin/...` is `/console/api/hub/admin/...`, for operators, and the routes of a
tenant are below `/console/api/hub/tenants/{tenant}`, for operators and for the tenant itself. Streams are not among them: a page calls
agents through `talk.py`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace as replace_field

from dragoman.console import CALLING_FEATURES, FEATURES, calling_modules, server_features, server_modules
from dragoman.console.access import OPERATOR, TENANT, Access, OneTimeToken, TokenFile, Viewer, signing_key
from dragoman.console.api import NO_SCOPE, SCOPED, Console, ConsoleRequest
from dragoman.console.keys import key_of
from dragoman.console.login import Logins
from dragoman.console.outbound import CONSOLE
from dragoman.console.webhooks import Receivers
from dragoman.errors import Forbidden, InvalidParams, Unauthenticated
from dragoman.hub.api import ADMIN, ApiRequest, scope_of
from dragoman.hub.api.access import identify, mounts_by_agent
from dragoman.hub.hub import A2A, Hub
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.store.tokens import READ
from dragoman.model.ops import Principal, Scope
from dragoman.push.guard import OutboundGuard
from dragoman.server.address import is_loopback
from dragoman.server.app import Operators
from dragoman.server.exchange import Exchange
from dragoman.server.mount import Mount
from dragoman.server.options import ServerParts
from dragoman.server.routes import ApiResponse, Conflict, NotFound, Pieces, Route, RouteList, Table

KEY_FILE = "console.key"
NAMES_SECONDS = 5.0
"""How long the names of tenants are kept. A tenant may be renamed."""


class HubConsole:
    """`dragoman hub --console`. `folder` is the hub's; the key that signs sessions is in it."""

    def __init__(self, folder: Path | None, *, host: str = "127.0.0.1", public_url: str = "") -> None:
        self._secret = TokenFile(folder / KEY_FILE).read() if folder is not None else OneTimeToken().text
        self._one_time = OneTimeToken() if is_loopback(host) else None
        self._hosts = [name for name in (host, urlsplit(public_url).hostname or "") if name]
        self._public_url = public_url.rstrip("/")
        self._receivers = Receivers()

    def url(self, base: str) -> str:
        """The line to print: on loopback, the URL has a token that works once."""
        if self._one_time is not None:
            return f"{base}/console/#token={self._one_time.text}"
        return f"{self._public_url or base}/console/ (log in with the admin token, or a tenant's)"

    def open(self, hub: Hub, parts: ServerParts, native: Table) -> Operators:
        viewers, guard = HubViewers(hub, self._secret), OutboundGuard()
        calling = calling_modules(guard, Logins(guard), act_for=viewers.act_for)
        native_api = partial(hub_routes, viewers=viewers, native=native)
        server = replace(
            parts,
            find_mounts=viewers.find_mounts,
            tenants=_TenantNames(hub),
            check_limits=viewers.check_limits,
        )
        return Console(
            Access(viewers, one_time=self._one_time, hosts=self._hosts),
            kind="hub",
            features=(*FEATURES, *CALLING_FEATURES, *server_features(parts), "hub"),
            modules=[*server_modules(self._receivers), *calling, native_api],
            server=server,
            count=viewers.count,
        )


class HubViewers:
    """The `Viewers` of a hub's console, and what they may do. Operators have the admin token, tenants one of their own."""

    def __init__(self, hub: Hub, secret: str) -> None:
        self.hub, self._secret, self._find_mount = hub, secret, mounts_by_agent(hub)

    # -- sessions ----------------------------------------------------------------------------------------------

    async def identify(self, token: str) -> Viewer | None:
        admin_ends = await self.hub.tenants.admin_token_end(token)
        if admin_ends > time.time():
            return Viewer(OPERATOR, expires=0.0 if admin_ends == math.inf else admin_ends)
        try:
            tenant = await identify(self.hub, token)
        except (Unauthenticated, Forbidden):
            return None
        await self.hub.tenants.touch(tenant)
        return _viewer(tenant)

    async def is_valid(self, viewer: Viewer) -> bool:
        """True while the token of a session is valid, and its tenant has the same name."""
        if viewer.role == OPERATOR:
            return True  # a new admin token changes the signing key, which ends the session
        tenant = await self._active(viewer)
        return tenant is not None and tenant.name == viewer.name

    async def signing_key(self) -> bytes:
        admin = await self.hub.tenants.admin_hash()
        return signing_key(self._secret + hashlib.sha256(admin.encode()).hexdigest())

    # -- tenants -----------------------------------------------------------------------------------------------

    async def _active(self, viewer: Viewer) -> Tenant | None:
        return await self.hub.tenants.find_active(int(viewer.tenant), viewer.generation, expired=False)

    async def own(self, viewer: Viewer) -> Tenant | None:
        """The tenant of a viewer, with the token of the session; None if that is not valid any more."""
        tenant = await self._active(viewer)
        if tenant is None or tenant.token is None:
            return None
        return replace_field(tenant, token=replace_field(tenant.token, scope=viewer.scope))

    async def find_tenant(self, viewer: Viewer, named: str) -> Tenant:
        """A tenant by its key or name. A tenant finds only itself. Raises `NotFound`."""
        if viewer.role == OPERATOR:
            return await self.hub.tenants.find(named)
        own = await self.own(viewer)
        if own is None or named not in (own.key, own.name):
            raise NotFound(f"there is no tenant {named[:100]!r}")
        return own

    async def act_for(self, viewer: Viewer, tenant: str) -> tuple[Principal, str]:
        """The principal of a call, and the owner of its tasks. For an operator, the principal is the console, in the named tenant."""
        if viewer.role != OPERATOR:
            own = await self.own(viewer)
            if own is None or (tenant and tenant not in (own.key, own.name)):
                raise NotFound("there is no such tenant")
            return own.principal, own.key
        enabled = [each for each in await self.hub.tenants.list() if not each.disabled]
        named = [each for each in enabled if tenant in (each.key, each.name)] if tenant else enabled
        if len(named) != 1:
            raise InvalidParams(
                "name the tenant: this hub has several" if named else "there is no such tenant",
                fields=(("tenant", "is the name of a tenant"),),
            )
        return replace_field(named[0].principal, id=CONSOLE.id), named[0].key

    async def find_mounts(self, tenant: str) -> Sequence[Mount]:
        """The agents of a tenant; for an operator, those that every tenant has."""
        hub, find = self.hub, self._find_mount
        if not tenant:
            return [find(name) for name in (hub.catalogue.index.id, *hub.catalogue.code)]
        written = [
            replace(find(entry.id), card=hub.programs.card(entry, entry.id))
            for entry in await hub.catalogue.list(int(tenant))
        ]
        return [find(name) for name in hub.catalogue.code] + written

    # -- limits ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def check_limits(self, scope: Scope, task: str, size: int) -> AsyncIterator[None]:
        """Count a copy of a task as a request of its tenant, with all bytes of the original. Raises `A2AError`."""
        hub = self.hub
        tenant = await hub.tenants.current(int(scope.tenant))
        if tenant is None or tenant.disabled:
            raise Conflict("the tenant is disabled")
        await hub.quotas.take_token(tenant)
        await hub.budgets.check(tenant.id)
        await hub.admission.check_room(tenant, size, times=1)
        await hub.quotas.reserve(tenant, scope.agent, task, via=A2A)
        try:
            yield
        except BaseException:
            hub.quotas.release(tenant.key, scope.agent, task)
            raise

    async def count(self, viewer: Viewer, exchange: Exchange) -> None:
        """Count a request of a tenant as a read and as an open request, as over the native API."""
        tenant = await self.own(viewer) if viewer.role != OPERATOR else None
        if tenant is not None:
            exchange.at_end = await self.hub.admission.open_request(tenant)
            await self.hub.admission.admit_read(tenant)


class RequestTask(Struct, frozen=True):
    """The task that a request of the native API is."""

    key: str


class _TenantNames:
    """`TenantNames` of a hub, cached for a few seconds because lists show many names."""

    def __init__(self, hub: Hub) -> None:
        self._tenants = hub.tenants
        self._names: dict[str, str] = {}
        self._read_at = -NAMES_SECONDS

    async def name_of(self, key: str) -> str:
        if time.monotonic() >= self._read_at + NAMES_SECONDS or key not in self._names:
            self._read_at = time.monotonic()
            self._names = {each.key: each.name for each in await self._tenants.list()}
            self._names.setdefault(key, key)
        return self._names[key]

    async def key_of(self, name: str) -> str | None:
        try:
            return (await self._tenants.find(name)).key
        except NotFound:
            return None


def hub_routes(console: Console, viewers: HubViewers, native: Table) -> Sequence[Route]:
    """The routes of the native API, for viewers of the console. Those that change something are audited."""
    api, hub = RouteList("hub", access=SCOPED), viewers.hub

    @api.add("GET", "/hub/tenants/{tenant}/requests/{id}/task", "The task of a request.", returns=RequestTask)
    async def task_of(request: ConsoleRequest) -> RequestTask:
        tenant = await viewers.find_tenant(request.caller, request.path["tenant"])
        tenant.require(READ)
        found = await hub.find(tenant, request.path["id"])
        await hub.snapshot(tenant, found)
        return RequestTask(key=key_of(Scope(tenant.key, found.agent_id, tenant.key), found.request_id))

    return api + [
        _operator_route(console, route) if route.access == ADMIN else _tenant_route(console, viewers, route)
        for route in native.routes
        if (route.access == ADMIN or scope_of(route)) and not route.streams
    ]


def _operator_route(console: Console, route: Route) -> Route:
    async def handle(request: ConsoleRequest) -> Any:
        with _audit(console, request, route):
            return await route.answer(ApiRequest(request.exchange, None, request.path))

    path = f"/hub{route.path.removeprefix('/v1')}"
    return replace_field(route, path=path, handler=handle, tag="hub", access=OPERATOR)


def _tenant_route(console: Console, viewers: HubViewers, route: Route) -> Route:
    async def handle(request: ConsoleRequest) -> Any:
        tenant = await viewers.find_tenant(request.caller, request.path["tenant"])
        tenant.require(scope_of(route))
        path = {name: value for name, value in request.path.items() if name != "tenant"}
        with _audit(console, request, route, Scope(tenant.key, "", tenant.key)):
            return _as_download(await route.answer(ApiRequest(request.exchange, tenant, path)))

    path = f"/hub/tenants/{{tenant}}{route.path.removeprefix('/v1')}"
    return replace_field(route, path=path, handler=handle, tag="hub", access=SCOPED)


def _viewer(tenant: Tenant) -> Viewer:
    token = tenant.token
    assert token is not None, "a tenant logs in with a token"
    return Viewer(
        TENANT,
        tenant.key,
        tenant.name,
        token.generation,
        scope=token.scope,
        who=token.name,
        expires=float(token.expires_at or 0),
    )


def _audit(
    console: Console, request: ConsoleRequest, route: Route, scope: Scope = NO_SCOPE
) -> AbstractContextManager[None]:
    if route.method == "GET":
        return nullcontext()
    return console.audit(request, f"{route.method} {route.path}", scope)


def _as_download(answer: ApiResponse | None) -> ApiResponse | None:
    """A file as a download. It has the console's origin, so a browser must not show or run it."""
    if answer is None or not isinstance(answer.body, bytes | Pieces):
        return answer
    return ApiResponse(
        answer.body,
        answer.status,
        ((b"content-type", b"application/octet-stream"), (b"content-disposition", b"attachment")),
    )

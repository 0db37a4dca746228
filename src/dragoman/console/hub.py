"""The console of a hub: the admin token makes an operator, and a tenant's token shows what that tenant has.

The native API is part of the console's: `/v1/admin/...` is `/console/api/hub/admin/...`, for operators, and the routes of a
tenant are below `/console/api/hub/tenants/{tenant}`, for operators and for the tenant itself. Streams are left out: a page talks
to agents through `talk`.
"""

from __future__ import annotations

import hashlib
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

from dragoman.console import CALLING_FEATURES, FEATURES, MODULES, Module, calling_modules, server_features
from dragoman.console.access import OPERATOR, TENANT, Access, OneTimeToken, TokenFile, Viewer, signing_key
from dragoman.console.api import NO_SCOPE, SCOPED, Conflict, Console, ConsoleRequest, NotFound
from dragoman.console.login import Logins
from dragoman.console.outbound import CONSOLE
from dragoman.console.tasks import key_of
from dragoman.console.webhooks import Receivers
from dragoman.errors import Forbidden, InvalidParams, Unauthenticated
from dragoman.hub.api import ADMIN, ApiRequest, scope_of
from dragoman.hub.api.access import identify, mounts_by_agent
from dragoman.hub.errors import NotFound as HubNotFound
from dragoman.hub.hub import A2A, Hub
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.store.tokens import READ
from dragoman.model.ops import Principal, Scope
from dragoman.push.guard import OutboundGuard
from dragoman.server.app import Operators
from dragoman.server.mount import Mount
from dragoman.server.options import ServerParts
from dragoman.server.routes import ApiResponse, Pieces, Route, RouteList, Table
from dragoman.server.runtime import is_loopback

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
        find = mounts_by_agent(hub)

        async def check(token: str) -> Viewer | None:
            if await hub.tenants.is_admin(token):
                return Viewer(OPERATOR)
            try:
                tenant = await identify(hub, token)
            except (Unauthenticated, Forbidden):
                return None
            await hub.tenants.touch(tenant)
            return _viewer(tenant)

        async def holds(viewer: Viewer) -> bool:
            if viewer.role == OPERATOR:
                return True  # another admin token is another key
            tenant = await hub.tenants.find_active(int(viewer.tenant), viewer.generation, expired=False)
            return tenant is not None and tenant.name == viewer.name

        async def key() -> bytes:
            return signing_key(
                self._secret + hashlib.sha256((await hub.tenants.admin_hash()).encode()).hexdigest()
            )

        async def mounts(tenant: str) -> Sequence[Mount]:
            """The agents of a tenant; for an operator, those that every tenant has."""
            if not tenant:
                return [find(name) for name in (hub.catalogue.index.id, *hub.catalogue.code)]
            written = [
                replace(find(entry.id), card=hub.programs.card(entry, entry.id))
                for entry in await hub.catalogue.list(int(tenant))
            ]
            return [find(name) for name in hub.catalogue.code] + written

        tenants = _TenantNames(hub)

        async def act_for(viewer: Viewer, tenant: str) -> tuple[Principal, str]:
            """A tenant calls its own agents. An operator calls those of one tenant, and the audit names the console."""
            if viewer.role != OPERATOR:
                own = await _own(hub, viewer)
                if own is None or (tenant and tenant not in (own.key, own.name)):
                    raise NotFound("there is no such tenant")
                return own.principal, own.key
            enabled = [each for each in await hub.tenants.list() if not each.disabled]
            named = [each for each in enabled if tenant in (each.key, each.name)] if tenant else enabled
            if len(named) != 1:
                raise InvalidParams(
                    "say for which tenant: this hub has several" if named else "there is no such tenant",
                    fields=(("tenant", "is the name of a tenant"),),
                )
            return replace_field(named[0].principal, id=CONSOLE.id), named[0].key

        guard = OutboundGuard()
        modules: tuple[Module, ...] = (
            *MODULES,
            *calling_modules(guard, Logins(guard), act_for=act_for),
            partial(hub_routes, hub=hub, native=native),
        )

        @asynccontextmanager
        async def check_limits(scope: Scope, task: str) -> AsyncIterator[None]:
            """A copy of a task counts as a request of its tenant."""
            tenant = await hub.tenants.current(int(scope.tenant))
            if tenant is None or tenant.disabled:
                raise Conflict("the tenant is disabled")
            await hub.quotas.take_token(tenant)
            await hub.budgets.check(tenant.id)
            await hub.admission.check_room(tenant, 0)
            await hub.quotas.reserve(tenant, scope.agent, task, via=A2A)
            try:
                yield
            except BaseException:
                hub.quotas.release(tenant.key, scope.agent, task)
                raise

        async def count(viewer: Viewer) -> None:
            """What a tenant does here counts as its reads, as over the native API."""
            tenant = await _own(hub, viewer) if viewer.role != OPERATOR else None
            if tenant is not None:
                await hub.admission.admit_read(tenant)

        access = Access(key=key, check=check, holds=holds, one_time=self._one_time, hosts=self._hosts)
        return Console(
            access,
            kind="hub",
            features=(*FEATURES, *CALLING_FEATURES, *server_features(parts), "hub"),
            modules=modules,
            server=replace(parts, find_mounts=mounts, tenants=tenants, check_limits=check_limits),
            receivers=self._receivers,
            count=count,
        )


class RequestTask(Struct, frozen=True):
    """The task that a request of the native API is."""

    key: str


class _TenantNames:
    """`TenantNames` of a hub. Lists show many names, so they are read every few seconds; one that was changed is seen then."""

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
        except HubNotFound:
            return None


def hub_routes(console: Console, hub: Hub, native: Table) -> Sequence[Route]:
    """The routes of the native API, for viewers of the console. What changes something is in the audit."""
    api = RouteList("hub", access=SCOPED)

    @api.add("GET", "/hub/tenants/{tenant}/requests/{id}/task", "The task of a request.", returns=RequestTask)
    async def task_of(request: ConsoleRequest) -> RequestTask:
        tenant = await _tenant(hub, request.caller, request.path["tenant"])
        tenant.require(READ)
        found = await hub.find(tenant, request.path["id"])
        await hub.snapshot(tenant, found)
        return RequestTask(key=key_of(Scope(tenant.key, found.agent_id, tenant.key), found.request_id))

    return api + [
        _as_operator(console, route) if route.access == ADMIN else _as_tenant(console, hub, route)
        for route in native.routes
        if (route.access == ADMIN or scope_of(route)) and not route.streams
    ]


def _as_operator(console: Console, route: Route) -> Route:
    async def handle(request: ConsoleRequest) -> Any:
        with _audited(console, request, route):
            return await route.answer(ApiRequest(request.exchange, None, request.path))

    path = f"/hub{route.path.removeprefix('/v1')}"
    return replace_field(route, path=path, handler=handle, tag="hub", access=OPERATOR)


def _as_tenant(console: Console, hub: Hub, route: Route) -> Route:
    async def handle(request: ConsoleRequest) -> Any:
        tenant = await _tenant(hub, request.caller, request.path["tenant"])
        tenant.require(scope_of(route))
        path = {name: value for name, value in request.path.items() if name != "tenant"}
        with _audited(console, request, route, Scope(tenant.key, "", tenant.key)):
            return _harmless(await route.answer(ApiRequest(request.exchange, tenant, path)))

    path = f"/hub/tenants/{{tenant}}{route.path.removeprefix('/v1')}"
    return replace_field(route, path=path, handler=handle, tag="hub", access=SCOPED)


async def _tenant(hub: Hub, viewer: Viewer, named: str) -> Tenant:
    """An operator sees every tenant, a tenant itself. Raises `NotFound`."""
    if viewer.role == OPERATOR:
        return await hub.tenants.find(named)
    own = await _own(hub, viewer)
    if own is None or named not in (own.key, own.name):
        raise HubNotFound(f"there is no tenant {named[:100]!r}")
    return own


async def _own(hub: Hub, viewer: Viewer) -> Tenant | None:
    """The tenant of a viewer, with the token of the session; None if that is not valid any more."""
    tenant = await hub.tenants.find_active(int(viewer.tenant), viewer.generation, expired=False)
    if tenant is None or tenant.token is None:
        return None
    return replace_field(tenant, token=replace_field(tenant.token, scope=viewer.scope))


def _viewer(tenant: Tenant) -> Viewer:
    token = tenant.token
    assert token is not None, "whoever logs in has shown a token"
    return Viewer(
        TENANT,
        tenant.key,
        tenant.name,
        token.generation,
        scope=token.scope,
        who=token.name,
        expires=float(token.expires_at or 0),
    )


def _audited(
    console: Console, request: ConsoleRequest, route: Route, scope: Scope = NO_SCOPE
) -> AbstractContextManager[None]:
    if route.method == "GET":
        return nullcontext()
    return console.audited(request, f"{route.method} {route.path}", scope)


def _harmless(answer: ApiResponse | None) -> ApiResponse | None:
    """Files of agents come from the console's origin: a browser saves them, and never shows or runs them."""
    if answer is None or not isinstance(answer.body, bytes | Pieces):
        return answer
    return ApiResponse(
        answer.body,
        answer.status,
        ((b"content-type", b"application/octet-stream"), (b"content-disposition", b"attachment")),
    )

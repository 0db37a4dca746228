"""Dispatches the requests of a hub, in this order:

    OPTIONS                                               no token
    /v1/health /v1/metrics /.well-known/agent-card.json   no token
    /v1/admin/...                                         the admin token
    everything else                                       a tenant's token, checked before the path is looked up
    /v1/a2a/agents/{id}...                                A2A in every version
    /v1/...                                               the native API

Every error is JSON.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from dragoman.agent.agent import Agent
from dragoman.errors import A2AError, Unauthenticated
from dragoman.hub.api import about, admin, agents, conversations, memory, requests, schedules
from dragoman.hub.api.about import ModelInfo
from dragoman.hub.api.authentication import AGENTS_PATH, AuthenticatedTenant, authenticate, bearer
from dragoman.hub.api.routes import ANYBODY, ApiRequest, ApiResponse, Route, Table, error_response, send
from dragoman.hub.errors import NotConfigured, NotFound
from dragoman.hub.hub import Hub
from dragoman.hub.models.model import Model
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.store.tenants import Tenant
from dragoman.server.cors import Cors
from dragoman.server.exchange import Disconnected, Exchange
from dragoman.server.mount import Mount

log = logging.getLogger(__name__)

_SERVER_PATHS = ("/healthz", "/readyz", "/metrics")
"""Paths that every Dragoman server answers itself."""


class Site:
    def __init__(
        self,
        hub: Hub,
        model: Model,
        scheduler: Scheduler,
        *,
        models: Sequence[ModelInfo] = (),
        origins: Sequence[str] = ("*",),
    ) -> None:
        self._hub = hub
        self._cors = Cors(origins)
        self.table: Table = Table(
            [
                *requests.routes(hub, model),
                *conversations.routes(hub),
                *agents.routes(hub),
                *memory.routes(hub),
                *schedules.todo_routes(hub),
                *schedules.routes(hub, scheduler),
                *admin.routes(hub),
                *about.routes(hub, models, lambda: self.table),
            ]
        )

    async def __call__(self, exchange: Exchange) -> Mount | None:
        if exchange.path in _SERVER_PATHS:
            return None
        exchange.always = self._cors.headers(exchange)
        try:
            return await self._answer(exchange)
        except Disconnected:
            raise
        except A2AError as error:
            answer = error_response(error)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            answer = ApiResponse({"error": "internal error"}, 500)
        if exchange.responding:
            log.error("%s %s: a response could not be finished", exchange.method, exchange.path)
        else:
            await send(exchange, answer)
        return None

    async def _answer(self, exchange: Exchange) -> Mount | None:
        path = exchange.path
        if exchange.method == "OPTIONS":
            await self._cors.preflight(exchange)
            return None
        found = self.table.find(path)
        route = _route(exchange, found[0]) if found is not None else None
        if route is not None and route.access == ANYBODY:
            await self._handle(exchange, route, None, found[1] if found else {})
            return None
        tenant = None
        if path == "/v1/admin" or path.startswith("/v1/admin/"):
            await self._administrator(exchange)
        else:
            tenant = await authenticate(self._hub, exchange.header(b"authorization"), path)
            if path.startswith(AGENTS_PATH):
                return await self._agent(exchange, tenant)
        if found is None:
            raise NotFound(f"there is nothing at {path[:200]}")
        if route is None:
            allow = ", ".join(found[0]).encode()
            answer = ApiResponse({"error": f"this path takes {allow.decode()}"}, 405, ((b"allow", allow),))
            await send(exchange, answer)
            return None
        await self._handle(exchange, route, tenant, found[1])
        return None

    async def _handle(
        self, exchange: Exchange, route: Route, tenant: Tenant | None, values: Mapping[str, str]
    ) -> None:
        answer = await route.answer(ApiRequest(exchange, tenant, values))
        if answer is not None:
            await send(exchange, answer)

    # -- authentication ----------------------------------------------------------------------------------------

    async def _administrator(self, exchange: Exchange) -> None:
        if not await self._hub.tenants.has_admin():
            raise NotConfigured("this hub has no admin token: give it one with DRAGOMAN_ADMIN_TOKEN")
        if not await self._hub.tenants.is_admin(bearer(exchange.header(b"authorization"))):
            error = Unauthenticated("missing or invalid admin token")
            self._hub.record.refused("admin", error, exchange.path)
            raise error

    # -- agents ------------------------------------------------------------------------------------------------

    async def _agent(self, exchange: Exchange, tenant: Tenant) -> Mount:
        """The mount of an agent. For an unknown agent, the hub answers with an error of the caller's dialect."""
        id = exchange.path.removeprefix(AGENTS_PATH).partition("/")[0]
        found = await self._hub.catalogue.find(tenant.id, id)
        if not id or (found is None and exchange.method in ("GET", "HEAD") and "card" in exchange.path):
            raise NotFound(f"there is no agent {id[:80]!r}")
        return Mount(
            service=self._hub,
            card=self._hub.programs.card(found, id),
            agent=id,
            path=AGENTS_PATH + id,
            home="arbiter",
            versions=found.versions if isinstance(found, Agent) else None,
            authenticator=AuthenticatedTenant(tenant),
            private=True,
        )


def _route(exchange: Exchange, methods: Mapping[str, Route]) -> Route | None:
    return methods.get("GET" if exchange.method == "HEAD" else exchange.method)

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
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.dialects.cards import write_card
from dragoman.errors import A2AError, RateLimited, Unauthenticated
from dragoman.hub.api import (
    ANYBODY,
    ApiRequest,
    about,
    admin,
    agents,
    conversations,
    error_response,
    memory,
    requests,
    schedules,
    scope_of,
)
from dragoman.hub.api.about import ModelInfo
from dragoman.hub.api.access import AGENTS_PATH, AuthenticatedTenant, authenticate, bearer
from dragoman.hub.hub import Hub
from dragoman.hub.metadata import ARBITER
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.store.tenants import Tenant
from dragoman.model.card import JSONRPC, AgentCard, Interface
from dragoman.server.asgi import Disconnected
from dragoman.server.cors import Cors
from dragoman.server.exchange import Exchange
from dragoman.server.mount import Mount
from dragoman.server.routes import ApiResponse, NotFound, Route, Table, send

log = logging.getLogger(__name__)

_SERVER_PATHS = ("/healthz", "/readyz", "/metrics")
"""Paths that every Dragoman server answers itself."""


class NotConfigured(A2AError):
    """The operator has not set this up."""

    reason, http = "NOT_CONFIGURED", 503


class Site:
    def __init__(self, hub: Hub, scheduler: Scheduler, *, models: Sequence[ModelInfo] = ()) -> None:
        self._hub, self._strict = hub, hub.settings.strict
        self._cors = Cors(hub.settings.cors_origins)
        self.table: Table = Table(
            [
                *requests.routes(hub),
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
            why = answer.body["error"]
            log.error("%s %s: a response could not be finished: %s", exchange.method, exchange.path, why)
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
            await self._check_admin(exchange)
        else:
            header = exchange.header(b"authorization")
            if self._strict and not header.startswith("Bearer "):
                header = ""
            tenant = await authenticate(self._hub, header, path)
            exchange.at_end = await self._hub.admission.open_request(tenant)
            if path.startswith(AGENTS_PATH):
                return await self._agent(exchange, tenant)
            if route is not None and route.streams and route.method != "GET":
                await self._start(exchange, route, tenant, found[1] if found else {})
                return None
            await self._hub.admission.admit_read(tenant)
        if found is None:
            where = f": an agent is at {AGENTS_PATH}ID" if AGENTS_PATH.startswith(path) else ""
            raise NotFound(f"there is nothing at {path[:200]}{where}")
        if route is None:
            await self._refuse_method(exchange, ", ".join(found[0]))
            return None
        await self._handle(exchange, route, tenant, found[1])
        return None

    async def _start(
        self, exchange: Exchange, route: Route, tenant: Tenant, values: Mapping[str, str]
    ) -> None:
        """Handle a route that starts a request, which counts as a message. If it is refused, it counts as a read instead."""
        try:
            await self._handle(exchange, route, tenant, values)
        except A2AError as error:
            if 400 <= error.http < 500 and not isinstance(error, RateLimited):
                await self._hub.admission.admit_read(tenant)
            raise

    async def _handle(
        self, exchange: Exchange, route: Route, tenant: Tenant | None, values: Mapping[str, str]
    ) -> None:
        if tenant is not None and (scope := scope_of(route)):
            tenant.require(scope)
        request = ApiRequest(exchange, tenant, values)
        if route.access != ANYBODY:
            request.refuse_unknown(route.query)
        answer = await route.answer(request)
        if answer is not None:
            await send(exchange, answer)

    # -- authentication ----------------------------------------------------------------------------------------

    async def _check_admin(self, exchange: Exchange) -> None:
        """Raises `Unauthenticated`, and `NotConfigured` if there is no admin token."""
        if not await self._hub.tenants.has_admin():
            raise NotConfigured("this hub has no admin token: give it one with DRAGOMAN_ADMIN_TOKEN")
        if not await self._hub.tenants.is_admin(bearer(exchange.header(b"authorization"))):
            error = Unauthenticated("missing or invalid admin token")
            self._hub.observer.record_refusal("admin", error, exchange.path)
            raise error

    # -- agents ------------------------------------------------------------------------------------------------

    async def _agent(self, exchange: Exchange, tenant: Tenant) -> Mount | None:
        """The mount of an agent. For an unknown agent, the hub answers with an error of the caller's dialect."""
        id, _, rest = exchange.path.removeprefix(AGENTS_PATH).partition("/")
        found = await self._hub.catalogue.find(tenant.id, id)
        asks_card = exchange.method in ("GET", "HEAD") and "card" in exchange.path
        if asks_card:
            await self._hub.admission.admit_read(tenant)  # calls of A2A count where they are answered
        if not id or (found is None and asks_card) or (self._strict and rest not in ("", _CARD)):
            raise NotFound(f"there is no agent {id[:80]!r}" if not found else "there is nothing at this path")
        card = self._hub.programs.card(found, id)
        if self._strict and (exchange.path.endswith("/") or exchange.method != ("GET" if rest else "POST")):
            await self._refuse_method(exchange, "GET" if rest else "POST")
            return None
        if self._strict and rest:
            await self._strict_card(exchange, card, id)
            return None
        return Mount(
            service=self._hub,
            card=card,
            agent=id,
            path=AGENTS_PATH + id,
            home=ARBITER,
            only=ARBITER if self._strict else "",
            versions=found.versions if isinstance(found, Agent) and not self._strict else None,
            authenticator=AuthenticatedTenant(tenant),
            private=True,
        )

    async def _refuse_method(self, exchange: Exchange, allow: str) -> None:
        answer = ApiResponse({"error": f"this path takes {allow}"}, 405, ((b"allow", allow.encode()),))
        await send(exchange, answer)

    async def _strict_card(
        self, exchange: Exchange, card: AgentCard | Callable[[], AgentCard], id: str
    ) -> None:
        """The card as an Arbiter server has it: no members of other versions."""
        url = f"{exchange.base_url()}{AGENTS_PATH}{id}"
        interface = Interface(url=url, protocol_binding=JSONRPC, protocol_version="1.0")
        placed = replace(card if isinstance(card, AgentCard) else card(), supported_interfaces=(interface,))
        await send(exchange, ApiResponse(write_card(placed, ARBITER)))


_CARD = "agent-card.json"


def _route(exchange: Exchange, methods: Mapping[str, Route]) -> Route | None:
    return methods.get("GET" if exchange.method == "HEAD" else exchange.method)

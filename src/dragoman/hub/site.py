"""Who answers what at the hub's address, and in which order it is decided.

    OPTIONS                                               anybody
    /v1/health /v1/metrics /.well-known/agent-card.json   anybody
    /v1/admin/...                                         the administrator
    everything else                                       a tenant, before it is even looked whether there is such a path
    /v1/a2a/agents/{id}...                                the agent, over A2A in every version
    /v1/...                                               the native API

Errors are JSON, everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from dragoman.agent.agent import Agent
from dragoman.errors import A2AError, Unauthenticated
from dragoman.hub.api import about as api_about
from dragoman.hub.api import admin as api_admin
from dragoman.hub.api import agents as api_agents
from dragoman.hub.api import conversations as api_conversations
from dragoman.hub.api import files as api_files
from dragoman.hub.api import gate as api_judge
from dragoman.hub.api import memory as api_memory
from dragoman.hub.api import requests as api_runs
from dragoman.hub.api import schedules as api_schedules
from dragoman.hub.api import todos as api_todos
from dragoman.hub.api.about import ModelInfo
from dragoman.hub.api.authentication import AGENTS, Known, bearer, holder
from dragoman.hub.api.routes import ANYBODY, Answer, Route, Table, Visit, refused, say
from dragoman.hub.errors import NotConfigured, NotFound
from dragoman.hub.hub import Hub
from dragoman.hub.models.model import Model
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.tenants.tenants import Tenant
from dragoman.server.cors import Cors
from dragoman.server.exchange import Disconnected, Exchange
from dragoman.server.mount import Mount

log = logging.getLogger(__name__)

_THEIRS = ("/healthz", "/readyz", "/metrics")
"""Paths that every Dragoman server has."""


class Site:
    """What the application asks about every path: see `bindings.http.Elsewhere`."""

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
                *api_runs.routes(hub),
                *api_conversations.routes(hub),
                *api_agents.routes(hub),
                *api_memory.routes(hub),
                *api_todos.routes(hub),
                *api_schedules.routes(hub, scheduler),
                *api_files.routes(hub),
                *api_judge.routes(hub, model),
                *api_admin.routes(hub),
                *api_about.routes(hub, models, lambda: self.table),
            ]
        )

    async def __call__(self, exchange: Exchange) -> Mount | None:
        if exchange.path in _THEIRS:
            return None
        exchange.always = self._cors.headers(exchange)
        try:
            return await self._answer(exchange)
        except Disconnected:
            raise
        except A2AError as error:
            answer = refused(error)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            answer = Answer({"error": "internal error"}, 500)
        if exchange.responding:
            log.error("%s %s: a response could not be finished", exchange.method, exchange.path)
        else:
            await say(exchange, answer)
        return None

    async def _answer(self, exchange: Exchange) -> Mount | None:
        path = exchange.path
        if exchange.method == "OPTIONS":
            await self._cors.preflight(exchange)
            return None
        found = self.table.find(path)
        route = _route(exchange, found[0]) if found is not None else None
        if route is not None and route.who == ANYBODY:
            await self._handle(exchange, route, None, found[1] if found else {})
            return None
        tenant = None
        if path == "/v1/admin" or path.startswith("/v1/admin/"):
            self._administrator(exchange)
        else:
            tenant = await holder(self._hub, exchange.header(b"authorization"))
            if path.startswith(AGENTS):
                return self._agent(exchange, tenant)
        if found is None:
            raise NotFound(f"there is nothing at {path[:200]}")
        if route is None:
            allow = ", ".join(found[0]).encode()
            answer = Answer({"error": f"this path takes {allow.decode()}"}, 405, ((b"allow", allow),))
            await say(exchange, answer)
            return None
        await self._handle(exchange, route, tenant, found[1])
        return None

    async def _handle(
        self, exchange: Exchange, route: Route, tenant: Tenant | None, values: Mapping[str, str]
    ) -> None:
        answer = await route.handler(Visit(exchange, tenant, values))
        if answer is not None:
            await say(exchange, answer)

    # -- who is calling ----------------------------------------------------------------------------------------

    def _administrator(self, exchange: Exchange) -> None:
        if not self._hub.tenants.has_admin:
            raise NotConfigured("this hub has no admin token: give it one with DRAGOMAN_ADMIN_TOKEN")
        if not self._hub.tenants.is_admin(bearer(exchange.header(b"authorization"))):
            error = Unauthenticated("missing or invalid admin token")
            self._hub.record.refused("admin", error)
            raise error

    # -- agents ------------------------------------------------------------------------------------------------

    def _agent(self, exchange: Exchange, tenant: Tenant) -> Mount:
        """Where an agent answers. One that is not there is told so in the caller's own tongue, by the hub."""
        id = exchange.path.removeprefix(AGENTS).partition("/")[0]
        found = self._hub.catalogue.find(tenant.id, id)
        if not id or (found is None and exchange.method in ("GET", "HEAD") and "card" in exchange.path):
            raise NotFound(f"there is no agent {id[:80]!r}")
        return Mount(
            service=self._hub,
            card=self._hub.residents.card(found, id),
            agent=id,
            path=AGENTS + id,
            home="arbiter",
            versions=found.versions if isinstance(found, Agent) else None,
            authenticator=Known(tenant),
            private=True,
        )


def _route(exchange: Exchange, methods: Mapping[str, Route]) -> Route | None:
    return methods.get("GET" if exchange.method == "HEAD" else exchange.method)

"""Which scope of a tenant's token each route of the native API needs, in one table.

A route for tenants that is not here stops the hub from starting, so that none is open by mistake. Over A2A, `Hub` checks the same
scopes for each operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from dragoman.hub.api.routes import TENANT, Route
from dragoman.hub.store.tokens import MANAGE, READ, RUN

ACCESS = "tenant:"
"""How `Route.access` of a route for tenants begins, before the scope."""

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
                raise LookupError(f"{name} needs a scope in dragoman/hub/api/scopes.py")
            route = replace(route, access=ACCESS + SCOPE_OF[name])
        out.append(route)
    return out


def scope_of(route: Route) -> str:
    """The scope that a route needs; empty for one that is not for tenants."""
    return route.access.removeprefix(ACCESS) if route.access.startswith(ACCESS) else ""

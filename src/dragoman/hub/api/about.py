"""Routes about the hub itself: health, metrics, discovery, models, and the native API as an OpenAPI 3.1 document.

The document is made of the route table (`server/api_document.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.dialects.cards import superset_card, write_card
from dragoman.hub.agents.constitution import TOKEN_REQUIRED, TOKEN_SCHEMES
from dragoman.hub.api import ADMIN, ANYBODY, TENANT, ApiRequest, Error, JsonObject, RouteList, scope_of
from dragoman.hub.hub import Hub
from dragoman.hub.metadata import ARBITER
from dragoman.hub.store.tokens import READ
from dragoman.model.card import JSONRPC, AgentCard, Capabilities, Interface, Skill
from dragoman.server.api_document import describe_routes
from dragoman.server.routes import ApiResponse, Route, Table

STUB = AgentCard(
    name="dragoman",
    description="Many agents, for many tenants. Authenticate with a tenant's bearer token, then fetch "
    "/v1/a2a/agents/<agent_id>/agent-card.json",
    version="stub",
    capabilities=Capabilities(streaming=True, push_notifications=False),
    default_input_modes=("text/plain",),
    default_output_modes=("text/plain", "application/json"),
    skills=(
        Skill(
            id="discover",
            name="discover",
            description="Show a tenant's bearer token to get the cards of its agents.",
            tags=("discovery", "auth-required"),
        ),
    ),
    security_schemes=TOKEN_SCHEMES,
    security_requirements=TOKEN_REQUIRED,
)


class ModelInfo(Struct, frozen=True, kw_only=True):
    id: str
    provider: str
    context_window: int = 0


class ModelList(Struct):
    models: list[ModelInfo]


def routes(hub: Hub, models: Sequence[ModelInfo], table: Callable[[], Table]) -> list[Route]:
    """`table` returns the table that these routes become part of: the OpenAPI document describes all of it."""
    api = RouteList("about", access=ANYBODY)
    described: dict[str, Any] = {}
    """Built at the first request: it takes milliseconds, and anybody may ask."""

    @api.add("GET", "/v1/health", "Whether the hub is alive.", str)
    async def health(request: ApiRequest) -> ApiResponse:
        return ApiResponse(b"ok\n", headers=((b"content-type", b"text/plain"),))

    @api.add("GET", "/v1/metrics", "Metrics for Prometheus.", str)
    async def metrics(request: ApiRequest) -> ApiResponse:
        return ApiResponse(hub.metrics_text(), headers=((b"content-type", b"text/plain; version=0.0.4"),))

    @api.add("GET", "/.well-known/agent-card.json", "How to find the agents. It names none.", JsonObject)
    async def stub_card(request: ApiRequest) -> ApiResponse:
        url = request.exchange.base_url() + "/v1/a2a"
        interface = Interface(url=url, protocol_binding=JSONRPC, protocol_version="1.0")
        placed = replace(STUB, supported_interfaces=(interface,))
        card = write_card(placed, ARBITER) if hub.settings.strict else superset_card(placed, home=ARBITER)
        return ApiResponse(card, headers=((b"cache-control", b"public, max-age=300"),))

    @api.add("GET", "/v1/openapi.json", "This document.", JsonObject)
    async def describe(request: ApiRequest) -> Any:
        if not described:
            described.update(document(table()))
        return {**described, "servers": [{"url": request.exchange.base_url()}]}

    @api.add("GET", "/v1/models", "The models of the hub.", ModelList, access=TENANT + READ)
    async def list_models(request: ApiRequest) -> Any:
        return {"models": models}

    return api


# -- the OpenAPI document ----------------------------------------------------------------------------------

_TAGS = {
    "requests": "Ask agents, follow their work, list requests.",
    "conversations": "Conversations with agents.",
    "agents": "The agents of the tenant.",
    "memory": "Scratchpads and structured memory.",
    "todos": "Open work.",
    "schedules": "Work that runs later, and its runs.",
    "files": "Files of conversations.",
    "judge": "An advisor's verdict on an answer of an agent that runs elsewhere.",
    "tokens": "The tokens of the tenant, and its users.",
    "admin": "Tenants and their tokens.",
    "about": "The hub itself.",
}
EVENTS = """A stream of server-sent events: `request_received` first, then `stream_start`, `text`, `tool_call`, `file`,
`sub_agent_response`, `token_usage`, `advisor`, `escalation`, `stream_end` and others as they happen, `done` last. The id of an
event continues the stream after it (`GET /v1/requests/{id}/events`, `Last-Event-ID`)."""


def document(table: Table) -> dict[str, Any]:
    """The document, without the address of the hub."""
    description = "Agents of many tenants. The same agents answer over A2A at `/v1/a2a/agents/{id}`."
    bearer = {"type": "http", "scheme": "bearer"}
    whose = "A tenant's token, `atr_…`, or that of a user; the scope that it needs is named."
    return {
        **describe_routes(
            table,
            about={"title": "Dragoman hub", "version": "1", "description": description},
            url="",
            error=Error,
            security_schemes={
                "tenant": {**bearer, "description": whose},
                "admin": {**bearer, "description": "The administrator's token, `adm_…`."},
            },
            security=_security,
            events=EVENTS,
            prefix="/v1",
        ),
        "tags": [{"name": name, "description": about} for name, about in _TAGS.items()],
    }


def _security(route: Route) -> list[dict[str, Any]]:
    """The scheme, and the scope of the token that the operation needs."""
    if route.access == ANYBODY:
        return []
    return [{"admin": []}] if route.access == ADMIN else [{"tenant": [scope_of(route)]}]

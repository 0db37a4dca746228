"""Routes about the hub itself: health, metrics, discovery, models, the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.dialects.cards import superset_card, write_card
from dragoman.hub.agents.constitution import TOKEN_REQUIRED, TOKEN_SCHEMES
from dragoman.hub.api.answers import ModelInfo
from dragoman.hub.api.openapi import document
from dragoman.hub.api.routes import ANYBODY, ApiRequest, ApiResponse, Route, RouteList, Table
from dragoman.hub.hub import Hub
from dragoman.hub.metadata import ARBITER
from dragoman.model.card import JSONRPC, AgentCard, Capabilities, Interface, Skill

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


def routes(
    hub: Hub, models: Sequence[ModelInfo], table: Callable[[], Table], *, strict: bool = False
) -> list[Route]:
    """`table` returns the table that these routes become part of: the OpenAPI document describes all of it.

    `strict`: the card has no members for clients of other versions.
    """
    api = RouteList("about", access=ANYBODY)
    described: dict[str, Any] = {}
    """Built at the first request: it takes milliseconds, and anybody may ask."""

    @api.add("GET", "/v1/health", "Whether the hub is alive.")
    async def health(request: ApiRequest) -> ApiResponse:
        return ApiResponse(b"ok\n", headers=((b"content-type", b"text/plain"),))

    @api.add("GET", "/v1/metrics", "Metrics for Prometheus.")
    async def metrics(request: ApiRequest) -> ApiResponse:
        return ApiResponse(hub.metrics_text(), headers=((b"content-type", b"text/plain; version=0.0.4"),))

    @api.add("GET", "/.well-known/agent-card.json", "How to find the agents. It names none.")
    async def stub_card(request: ApiRequest) -> ApiResponse:
        url = request.exchange.base_url() + "/v1/a2a"
        interface = Interface(url=url, protocol_binding=JSONRPC, protocol_version="1.0")
        placed = replace(STUB, supported_interfaces=(interface,))
        card = write_card(placed, ARBITER) if strict else superset_card(placed, home=ARBITER)
        return ApiResponse(card, headers=((b"cache-control", b"public, max-age=300"),))

    @api.add("GET", "/v1/openapi.json", "This document.")
    async def describe(request: ApiRequest) -> Any:
        if not described:
            described.update(document(table(), ""))
        return {**described, "servers": [{"url": request.exchange.base_url()}]}

    @api.add("GET", "/v1/models", "The models of the hub.", access="tenant")
    async def list_models(request: ApiRequest) -> Any:
        return {"models": models}

    return api

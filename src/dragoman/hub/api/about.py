"""What needs no token: is it alive, its numbers, where to go from here. And the models there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.dialects.cards import superset_card
from dragoman.hub.agents.constitution import TOKEN_REQUIRED, TOKEN_SCHEMES
from dragoman.hub.api.openapi import document
from dragoman.hub.api.routes import ANYBODY, Answer, Route, Table, Visit
from dragoman.hub.hub import Hub
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


class ModelInfo(Struct, frozen=True, kw_only=True):
    id: str
    provider: str
    context_window: int = 0


def routes(hub: Hub, models: Sequence[ModelInfo], table: Any) -> list[Route]:
    """`table` gives the table that these routes become part of, for it describes them all."""

    async def health(visit: Visit) -> Answer:
        return Answer(b"ok\n", headers=((b"content-type", b"text/plain"),))

    async def metrics(visit: Visit) -> Answer:
        text = hub.numbers()
        return Answer(text, headers=((b"content-type", b"text/plain; version=0.0.4"),))

    async def stub(visit: Visit) -> Answer:
        url = visit.exchange.base_url() + "/v1/a2a"
        place = Interface(url=url, protocol_binding=JSONRPC, protocol_version="1.0")
        card = superset_card(replace(STUB, supported_interfaces=(place,)), home="arbiter")
        return Answer(card, headers=((b"cache-control", b"public, max-age=300"),))

    async def list_models(visit: Visit) -> Answer:
        return Answer({"models": models})

    described: dict[str, Any] = {}
    """Made when it is first asked for: anybody may ask, and it takes milliseconds."""

    async def describe(visit: Visit) -> Answer:
        if not described:
            described.update(document(whole(), ""))
        return Answer({**described, "servers": [{"url": visit.exchange.base_url()}]})

    def whole() -> Table:
        found: Table = table()
        return found

    def open(path: str, handler: Any, about: str) -> Route:
        return Route("GET", path, handler, about, "about", who=ANYBODY)

    return [
        open("/v1/health", health, "Is it alive?"),
        open("/v1/metrics", metrics, "Numbers for Prometheus."),
        open("/.well-known/agent-card.json", stub, "How to find the agents. It names none."),
        open("/v1/openapi.json", describe, "This document."),
        Route("GET", "/v1/models", list_models, "The models there are.", "about"),
    ]

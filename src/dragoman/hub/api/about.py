"""Routes about the hub itself: health, metrics, discovery, models, and the native API as an OpenAPI 3.1 document.

The document is made of the route table and of the types in `answers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.dialects.cards import superset_card, write_card
from dragoman.hub.agents.constitution import TOKEN_REQUIRED, TOKEN_SCHEMES
from dragoman.hub.api import ADMIN, ANYBODY, ApiRequest, ApiResponse, Route, RouteList, Table
from dragoman.hub.api.access import scope_of
from dragoman.hub.api.answers import ALSO, ANSWERS, TAKES_BYTES, UNCHANGED, Error, ModelInfo
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


# -- the OpenAPI document ----------------------------------------------------------------------------------

_PARAMETER = re.compile(r"\{(\w+)\}")
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


def document(table: Table, url: str) -> dict[str, Any]:
    """The document for a hub that is seen at `url`."""
    types = [Error, *(each for route in table.routes for each in (route.body, answer_of(route)))]
    described = [each for each in types if each not in (None, str, bytes)]
    kinds = [each for n, each in enumerate(described) if each not in described[:n]]
    refs, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = [*zip(kinds, refs, strict=True)]
    paths: dict[str, Any] = {}
    for route in table.routes:
        place = paths.setdefault(route.path, {"parameters": _in_path(route.path)})
        place[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dragoman hub",
            "version": "1",
            "description": "Agents of many tenants. The same agents answer over A2A at `/v1/a2a/agents/{id}`.",
        },
        "servers": [{"url": url}],
        "tags": [{"name": name, "description": about} for name, about in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "tenant": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A tenant's token, `atr_…`, or that of a user; the scope that it needs is named.",
                },
                "admin": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The administrator's token, `adm_…`.",
                },
            },
        },
    }


def answer_of(route: Route) -> Any:
    """The type of what a route answers with; None: it streams, or has no body, or nobody has described it."""
    return route.returns or ANSWERS.get(f"{route.method} {route.path}")


def _operation(route: Route, schemas: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    name = f"{route.method} {route.path}"
    good: dict[str, Any] = {"description": EVENTS if route.streams else route.summary}
    if route.status != 204:
        good["content"] = _content(route, schemas)
    wrong = {
        "description": "It was refused; the status says how.",
        "content": {"application/json": {"schema": _schema(Error, schemas)}},
    }
    responses = {str(status): good for status in (route.status, *ALSO.get(name, ()))}
    if name in UNCHANGED:
        responses["304"] = {"description": "It has not changed."}
    out: dict[str, Any] = {
        "operationId": _name(route),
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {**responses, "default": wrong},
        "security": _security(route),
    }
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "description": about, "schema": {"type": "string"}}
        for name, about in route.query.items()
    ]
    if route.streams and route.method == "POST":
        about = "A request that is repeated with its key is answered with the first one's events."
        key = {"type": "string", "maxLength": 256}
        parameters.append({"name": "Idempotency-Key", "in": "header", "description": about, "schema": key})
    if parameters:
        out["parameters"] = parameters
    if route.body is not None:
        out["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _schema(route.body, schemas)}},
        }
    elif f"{route.method} {route.path}" in TAKES_BYTES:
        out["requestBody"] = {
            "required": True,
            "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
        }
    return out


def _security(route: Route) -> list[dict[str, Any]]:
    """The scheme, and the scope of the token that the operation needs."""
    if route.access == ANYBODY:
        return []
    return [{"admin": []}] if route.access == ADMIN else [{"tenant": [scope_of(route)]}]


def _content(route: Route, schemas: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    kind = answer_of(route)
    if route.streams:
        return {"text/event-stream": {"schema": {"type": "string"}}}
    if kind is str:
        return {"text/plain": {"schema": {"type": "string"}}}
    if kind is bytes:
        return {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": {} if kind is None else _schema(kind, schemas)}}


def _schema(kind: Any, schemas: Sequence[tuple[Any, Any]]) -> Any:
    return next(schema for each, schema in schemas if each == kind)


def _in_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]


def _name(route: Route) -> str:
    words = re.findall(r"\w+", route.path.replace("{", " ").replace("}", " ").removeprefix("/v1"))
    return "_".join([route.method.lower(), *words])

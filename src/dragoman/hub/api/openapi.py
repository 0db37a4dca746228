"""The native API as an OpenAPI 3.1 document, made of the route table."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dragoman.hub.api.routes import ADMIN, ANYBODY, Route, Table
from dragoman.hub.api.scopes import scope_of

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
    bodies = list(dict.fromkeys(route.body for route in table.routes if route.body is not None))
    refs, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(bodies, refs, strict=True))
    paths: dict[str, Any] = {}
    for route in table.routes:
        place = paths.setdefault(route.path, {"parameters": _in_path(route.path)})
        place[route.method.lower()] = _operation(route, schemas)
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {"type": "string", "description": "What is wrong, in a sentence."},
            "fields": {"type": "array", "items": {"type": "object"}},
            "reason": {"type": "string"},
            "retry_after_seconds": {"type": "integer"},
        },
    }
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
            "schemas": {**components, "Error": error},
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


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    kind = "text/event-stream" if route.streams else "application/json"
    shape: dict[str, Any] = {"type": "string"} if route.streams else {}
    good: dict[str, Any] = {"description": EVENTS if route.streams else route.summary}
    if route.status != 204:
        good["content"] = {kind: {"schema": shape}}
    wrong = {
        "description": "It was refused; the status says how.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    out: dict[str, Any] = {
        "operationId": _name(route),
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {str(route.status): good, "default": wrong},
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
            "content": {"application/json": {"schema": schemas[route.body]}},
        }
    return out


def _security(route: Route) -> list[dict[str, Any]]:
    """The scheme, and the scope of the token that the operation needs."""
    if route.access == ANYBODY:
        return []
    return [{"admin": []}] if route.access == ADMIN else [{"tenant": [scope_of(route)]}]


def _in_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]


def _name(route: Route) -> str:
    words = re.findall(r"\w+", route.path.replace("{", " ").replace("}", " ").removeprefix("/v1"))
    return "_".join([route.method.lower(), *words])

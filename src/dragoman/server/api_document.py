"""The OpenAPI 3.1 document of a table of routes. The hub's native API and the console use this."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.server.routes import Route, Table, needs_members

_PARAMETER = re.compile(r"\{(\w+)\}")
_BYTES = {"type": "string", "format": "binary"}


def describe_routes(
    table: Table,
    *,
    about: Mapping[str, str],
    url: str,
    error: type,
    security_schemes: Mapping[str, Any],
    security: Callable[[Route], list[dict[str, Any]]],
    events: str = "",
    prefix: str = "",
) -> dict[str, Any]:
    """`about` is the title, the version and a description. `error` is the type of every refusal. `events` says what streams have.
    `prefix` of paths is not in the names of operations."""
    types = [error, *(each for route in table.routes for each in (route.body, route.returns))]
    described = [each for each in types if each not in (None, str, bytes)]
    kinds = [each for n, each in enumerate(described) if each not in described[:n]]
    refs, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    pairs = [*zip(kinds, refs, strict=True)]

    def content(kind: Any) -> dict[str, Any]:
        if kind is bytes:
            return {"*/*": {"schema": _BYTES}}
        if kind is str:
            return {"text/plain": {"schema": {"type": "string"}}}
        schema = next((ref for each, ref in pairs if each == kind), {})
        return {"application/json": {"schema": schema}}

    def responses(route: Route) -> dict[str, Any]:
        good: dict[str, Any] = {"description": events if route.streams and events else route.summary}
        if route.streams:
            good["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
        elif route.status != 204:
            good["content"] = content(route.returns)
        unchanged = {"description": "It has not changed."}
        wrong = {"description": "It was refused; the status says how.", "content": content(error)}
        by_status = {str(each): good if each != 304 else unchanged for each in (route.status, *route.also)}
        return {**by_status, "default": wrong}

    def operation(route: Route) -> dict[str, Any]:
        words = re.findall(r"\w+", route.path.removeprefix(prefix))
        out: dict[str, Any] = {
            "operationId": "_".join([route.method.lower(), *words]),
            "summary": route.summary,
            "tags": [route.tag],
            "responses": responses(route),
            "security": security(route),
        }
        if parameters := _parameters(route):
            out["parameters"] = parameters
        if route.body is not None:
            required = needs_members(route.body) if route.needs_body is None else route.needs_body
            out["requestBody"] = {"required": required, "content": content(route.body)}
        return out

    paths: dict[str, Any] = {}
    for route in table.routes:
        names = _PARAMETER.findall(route.path)
        in_path = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
        paths.setdefault(route.path, {"parameters": in_path})[route.method.lower()] = operation(route)
    return {
        "openapi": "3.1.0",
        "info": dict(about),
        "servers": [{"url": url}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": dict(security_schemes)},
    }


def _parameters(route: Route) -> list[dict[str, Any]]:
    """The parameters in the query and in headers. `paths` has those of the path."""
    return [
        {"name": name, "in": place, "description": text, "schema": {"type": "string"}}
        for place, names in (("query", route.query), ("header", route.headers))
        for name, text in names.items()
    ]

"""Routes of the native API: requests are answered from a table (`server/routes.py`), and the OpenAPI document is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dragoman.errors import A2AError
from dragoman.hub.errors import NotFound
from dragoman.hub.store.tenants import Tenant
from dragoman.server import routes as common
from dragoman.server.exchange import Exchange
from dragoman.server.mount import OURS, Header
from dragoman.server.routes import (
    HEAD_OF_STREAM,
    MAX_STRINGS,
    ApiResponse,
    Handler,
    Natural,
    Route,
    Table,
    header_value,
    send,
)

__all__ = [
    "HEAD_OF_STREAM",
    "MAX_STRINGS",
    "ApiRequest",
    "ApiResponse",
    "Handler",
    "Natural",
    "Route",
    "RouteList",
    "Table",
    "error_response",
    "header_value",
    "must_exist",
    "page",
    "send",
]

T = TypeVar("T")
TENANT, ADMIN, ANYBODY = "tenant", "admin", "anybody"


class ApiRequest(common.ApiRequest[Tenant | None]):
    """One request to the native API."""

    def __init__(self, exchange: Exchange, tenant: Tenant | None, path: Mapping[str, str]) -> None:
        super().__init__(exchange, tenant, path)

    @property
    def tenant(self) -> Tenant:
        assert self.caller is not None, "only routes for tenants have one"
        return self.caller


class RouteList(common.RouteList):
    """Collects routes that share a tag. They are for tenants, unless they say otherwise."""

    def __init__(self, tag: str, *, access: str = TENANT) -> None:
        super().__init__(tag, access=access)


def page(name: str, found: Sequence[Any]) -> dict[str, Any]:
    return {"count": len(found), name: found}


def must_exist(found: T | None, what: str, id: object) -> T:
    """What was found. Raises `NotFound`."""
    if found is None:
        raise NotFound(f"there is no {what} {str(id)[:40]}")
    return found


def error_response(error: A2AError) -> ApiResponse:
    body: dict[str, Any] = {"error": error.message}
    if error.fields:
        body["fields"] = [{"field": field, "reason": why} for field, why in error.fields]
    if reason := error.metadata.get("reason"):
        body["reason"] = reason
    for name in ("existing", "existing_id"):
        if (value := getattr(error, name, None)) is not None:
            body[name] = value
    headers: list[Header] = []
    if error.retry_after is not None:
        wait = max(1, round(error.retry_after))
        body["retry_after_seconds"] = wait
        headers.append((b"retry-after", b"%d" % wait))
    if error.http == 401:
        headers += [(b"www-authenticate", b'Bearer realm="dragoman"'), OURS]
    return ApiResponse(body, error.http, headers)

"""Routes of the native API: requests are answered from a table (`server/routes.py`), and the OpenAPI document is made from it.

A route for tenants needs a scope of the token: `read` for GET, and `run` for everything else, unless its list or the route itself says
otherwise. Over A2A, `Hub` checks the same scopes for each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dragoman.errors import A2AError, Unauthenticated, Unavailable
from dragoman.hub.store.database import NEWEST, Place
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.store.tokens import READ, RUN
from dragoman.hub.tenants.quotas import OPEN_REQUEST_LIMIT
from dragoman.model.ops import refuse
from dragoman.server import routes as common
from dragoman.server.mount import OURS, RETRY_SECONDS, Header
from dragoman.server.routes import ApiResponse, NotFound, Route, RouteHandler

T = TypeVar("T")
TENANT, ADMIN, ANYBODY = "tenant:", "admin", "anybody"
"""Values of `Route.access`. For tenants, the scope follows: `tenant:read`."""


class ApiRequest(common.ApiRequest[Tenant | None]):
    """One request to the native API. `caller` is a tenant, or None for the operator and for routes without access."""

    @property
    def tenant(self) -> Tenant:
        assert self.caller is not None, "only routes for tenants have one"
        return self.caller


class RouteList(common.RouteList):
    """Collects routes that share a tag. They are for tenants with the scope `read` or `write`, unless `access` says otherwise."""

    def __init__(self, tag: str, *, read: str = READ, write: str = RUN, access: str = "") -> None:
        super().__init__(tag)
        self._get, self._other = access or TENANT + read, access or TENANT + write

    def add(
        self, method: str, path: str, summary: str, returns: Any = None, **options: Any
    ) -> Callable[[RouteHandler], RouteHandler]:
        access = self._get if method == "GET" else self._other
        return super().add(method, path, summary, returns, **{"access": access, **options})


def scope_of(route: Route) -> str:
    """The scope that a route needs; empty for one that is not for tenants."""
    return route.access.removeprefix(TENANT) if route.access.startswith(TENANT) else ""


class FieldError(Struct):
    """One member of a request that is wrong."""

    field: str
    reason: str


class Error(Struct, omit_defaults=True):
    """Every refusal of the native API. The status says its kind, `error` the rest, in a sentence."""

    error: str
    fields: list[FieldError] = []
    reason: str = ""
    """A word for programs, such as `rate_limit`."""
    retry_after_seconds: int = 0
    existing: Any = None
    """The thing that exists already."""
    existing_id: int = 0
    request_id: str = ""
    """Of a cancel: the request, which is not running."""
    cancelled: bool | None = None


JsonObject = dict[str, Any]


def page_type(name: str, member: str, of: Any) -> Any:
    """The type of a page of a list: how many, and which."""
    return msgspec.defstruct(name, [("count", int), (member, list[of])], module=__name__)


def page(name: str, found: Sequence[Any]) -> dict[str, Any]:
    return {"count": len(found), name: found}


PAGE_START = {
    "before_updated_at": "Only those that changed before this time.",
    "before_id": "With `before_updated_at`: also those that changed at that time and have a lower id. The next page begins after the "
    "`updated_at` and the `id` of the last row.",
}
"""The parameters of a list with the latest changed first."""


def page_start(request: ApiRequest) -> Place:
    """Where a page of such a list begins. Raises `InvalidParams`."""
    at, id = request.query_int("before_updated_at"), request.query_int("before_id")
    if id and not at:
        refuse("before_updated_at", "goes with before_id")
    return (at, id) if at else NEWEST


def must_exist(found: T | None, what: str, id: object) -> T:
    """What was found. Raises `NotFound`."""
    if found is None:
        raise NotFound(f"there is no {what} {str(id)[:40]}")
    return found


def stream_error(error: Exception, advice: str) -> dict[str, str]:
    """The last `error` event of a stream that breaks: that the token of the reader is not valid any more, or else the advice."""
    if isinstance(error, Unauthenticated):
        return {"message": error.message, "reason": "unauthorized"}
    return {"message": advice, "reason": "internal_error"}


def error_response(error: A2AError) -> ApiResponse:
    body: dict[str, Any] = {"error": error.message}
    if error.fields:
        body["fields"] = [{"field": field, "reason": why} for field, why in error.fields]
    if reason := error.metadata.get("reason"):
        body["reason"] = reason
    for name in ("existing", "existing_id", "request_id", "cancelled"):
        if (value := getattr(error, name, None)) is not None:
            body[name] = value
    headers: list[Header] = []
    after = error.retry_after
    if after is None and isinstance(error, Unavailable):
        after = RETRY_SECONDS
    if after is not None:
        wait = max(1, round(after))
        body["retry_after_seconds"] = wait
        headers.append((b"retry-after", b"%d" % wait))
    if reason == OPEN_REQUEST_LIMIT:
        headers.append((b"connection", b"close"))  # the limit saves connections
    if error.http == 401:
        headers += [(b"www-authenticate", b'Bearer realm="dragoman"'), OURS]
    return ApiResponse(body, error.http, headers)

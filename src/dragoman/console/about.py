"""Nodes, the audit, the numbers of /metrics as JSON, and the OpenAPI document of this API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from dragoman.console.access import OPERATOR
from dragoman.console.api import API, Console, ConsoleRequest, product_version
from dragoman.model.ids import timestamp
from dragoman.observe.redact import redact_text
from dragoman.server.api_document import describe_routes
from dragoman.server.routes import NotFound, Route, RouteList, Table

PAGE_ENTRIES, MAX_PAGE_ENTRIES = 100, 500


class NodeView(Struct, frozen=True):
    id: str
    heartbeat: str | None
    """When the last one was, as far as this node knows."""
    expires: str | None
    """When its leases end unless it renews them; null: its process is gone."""
    leases: int
    self: bool


class Nodes(Struct, frozen=True):
    nodes: list[NodeView]


class AuditView(Struct, frozen=True):
    id: int
    at: str
    operation: str
    outcome: str
    tenant: str
    agent: str
    principal: str
    task: str
    dialect: str
    trace: str


class AuditPage(Struct, frozen=True):
    entries: list[AuditView]
    next: int | None


class Sample(Struct, frozen=True):
    name: str
    labels: dict[str, str]
    value: float | None
    """Null: not a number, or infinite."""


class Metric(Struct, frozen=True):
    name: str
    type: str
    help: str
    samples: list[Sample]


class MetricList(Struct, frozen=True):
    metrics: list[Metric]


def read_metrics(text: str) -> MetricList:
    """The numbers in Prometheus' text."""
    return MetricList(
        [
            Metric(
                family.name,
                family.type,
                family.documentation,
                [
                    Sample(each.name, dict(each.labels), each.value if abs(each.value) < 1e300 else None)
                    for each in family.samples
                ],
            )
            for family in text_string_to_metric_families(text)
        ]
    )


def _principal(principal: str, tenant: str, names: Mapping[str, str]) -> str:
    """A principal with the name of the tenant instead of its key, for people."""
    key, slash, who = principal.partition("/")
    if tenant not in names or key != tenant:
        return redact_text(principal)
    return f"{names[tenant]}{slash}{redact_text(who)}"


def routes(console: Console) -> Sequence[Route]:
    api, server = RouteList("about"), console.server
    if server is not None:
        _add_server(api, console)

    @api.add("GET", "/openapi.json", "This API as an OpenAPI document.", returns=dict[str, Any])
    async def openapi(request: ConsoleRequest) -> Any:
        return document(console.table, request.exchange.base_url() + API)

    return api


def _add_server(api: RouteList, console: Console) -> None:
    server = console.server
    assert server is not None

    @api.add("GET", "/nodes", "The processes that run tasks.", access=OPERATOR, returns=Nodes)
    async def nodes(request: ConsoleRequest) -> Any:
        runner = server.engine.runner
        return Nodes(
            [
                NodeView(
                    node.id,
                    timestamp(node.expires - runner.ttl) if node.expires else None,
                    timestamp(node.expires) if node.expires else None,
                    node.leases,
                    node.id == runner.node,
                )
                for node in await server.store.index.nodes()
            ]
        )

    pages = {
        "after": "Entries older than the one with this id.",
        "limit": "100, at most 500.",
        "task": "Of one task: its id.",
    }

    @api.add("GET", "/audit", "Who did what, newest first.", query=pages, returns=AuditPage)
    async def audit(request: ConsoleRequest) -> Any:
        viewer = request.caller
        limit = max(1, request.query_int("limit", PAGE_ENTRIES, MAX_PAGE_ENTRIES))
        entries = await server.store.audit.entries(
            tenant=None if viewer.role == OPERATOR else viewer.tenant,
            task=request.query("task"),
            before=request.query_int("after"),
            limit=limit,
        )
        names: dict[str, str] = {}
        if server.tenants is not None:
            for key in {e.tenant for e in entries if e.tenant}:
                names[key] = await server.tenants.name_of(key)
        views = [
            replace(
                convert(e, AuditView, from_attributes=True),
                tenant=names.get(e.tenant, e.tenant),
                principal=_principal(e.principal, e.tenant, names),
            )
            for e in entries
        ]
        return AuditPage(views, views[-1].id if len(views) == limit else None)

    @api.add("GET", "/metrics", "The numbers of /metrics.", access=OPERATOR, returns=MetricList)
    async def metrics(request: ConsoleRequest) -> Any:
        if server.metrics is None:
            raise NotFound("this server has no metrics (--no-metrics)")
        return read_metrics(server.metrics().decode())


# -- OpenAPI -------------------------------------------------------------------------------------------------------


class ErrorDetail(Struct, frozen=True):
    code: str
    message: str
    fields: list[dict[str, str]] = []


class ErrorBody(Struct, frozen=True):
    error: ErrorDetail


def document(table: Table, url: str) -> dict[str, Any]:
    """The OpenAPI document of a console that is seen at `url`."""
    return describe_routes(
        table,
        about={
            "title": "Dragoman console",
            "version": product_version() or "0",
            "description": "Tasks, logs, webhooks and agents of a Dragoman server, for its operators.",
        },
        url=url,
        error=ErrorBody,
        security_schemes={
            "token": {"type": "http", "scheme": "bearer", "description": "The operator token."},
            "session": {"type": "apiKey", "in": "cookie", "name": "dragoman_console"},
        },
        security=lambda route: [] if route.access == "anybody" else [{"token": []}, {"session": []}],
    )

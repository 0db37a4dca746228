"""The catalogue in the console: search it, and register agents elsewhere. A tenant of a hub sees what it may see, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dragoman.catalogue.catalogue import CatalogueSearch
from dragoman.catalogue.entry import AgentHealth, Description, Entry
from dragoman.catalogue.publish import ServerAddress
from dragoman.catalogue.sources import CatalogueViewer
from dragoman.console.access import OPERATOR, Viewer
from dragoman.console.api import Console, ConsoleRequest
from dragoman.errors import InvalidParams
from dragoman.server.routes import Route, RouteList

PAGE_AGENTS, MAX_PAGE_AGENTS = 100, 500
_TENANT = {"tenant": "On a hub: the tenant that the agent is registered for; empty: all."}


class CatalogueAgent(Struct, frozen=True, kw_only=True):
    name: str
    title: str
    kind: str
    """`agent`, `bridge` or `registered`."""
    tenant: str
    url: str
    """Where the agent is."""
    card: str
    """The URL of its card."""
    private: bool
    health: AgentHealth
    signature: str
    """`valid`, `invalid`, `unsigned` or `unknown`."""
    description: Description
    added: str
    score: float | None = None
    """How well it matches, from 0 to 1; null without a text."""


class CataloguePage(Struct, frozen=True):
    agents: list[CatalogueAgent]
    total: int
    """How many match."""


class Register(Struct, forbid_unknown_fields=True):
    url: str
    name: str = ""
    """Empty: from its card."""
    tenant: str = ""
    """On a hub: only this tenant sees it; empty: all."""
    private: bool = False
    """Only callers that an agent of this server accepts see it."""


def routes(console: Console) -> Sequence[Route]:
    server = console.server
    if server is None or server.catalogue is None:
        return ()
    catalogue: CatalogueSearch = server.catalogue.catalogue
    api = RouteList("catalogue")
    query = {"text": "What the agents should do; empty: all of them.", "limit": "100, at most 500."}

    @api.add("GET", "/catalogue", "Search the catalogue of agents.", query=query, returns=CataloguePage)
    async def search(request: ConsoleRequest) -> Any:
        text = request.query("text")[:1000]
        limit = max(1, request.query_int("limit", PAGE_AGENTS, MAX_PAGE_AGENTS))
        found = await catalogue.search(_viewer(request.caller), text)
        place = ServerAddress(request.exchange.base_url())
        agents = [
            _describe_entry(each.entry, place, each.score if text.strip() else None) for each in found[:limit]
        ]
        return CataloguePage(agents, len(found))

    @api.add(
        "POST",
        "/catalogue",
        "Register an agent elsewhere, and look at it.",
        access=OPERATOR,
        body=Register,
        returns=CatalogueAgent,
        status=201,
    )
    async def register(request: ConsoleRequest) -> Any:
        body = await request.json(Register)
        if body.tenant and console.kind != "hub":
            raise InvalidParams("only a hub has tenants", fields=(("tenant", "is for a hub"),))
        with console.audit(request, "register agent"):
            entry = await catalogue.registered.add(
                body.url, name=body.name, tenant=body.tenant, private=body.private
            )
        return _describe_entry(entry, ServerAddress(request.exchange.base_url()))

    @api.add(
        "DELETE",
        "/catalogue/{name}",
        "Remove a registered agent.",
        access=OPERATOR,
        query=_TENANT,
        status=204,
    )
    async def remove(request: ConsoleRequest) -> Any:
        with console.audit(request, "remove agent"):
            await catalogue.registered.remove(request.path["name"], tenant=request.query("tenant"))

    @api.add(
        "POST",
        "/catalogue/{name}/check",
        "Look at a registered agent now.",
        access=OPERATOR,
        query=_TENANT,
        returns=CatalogueAgent,
    )
    async def check(request: ConsoleRequest) -> Any:
        entry = await catalogue.registered.check(request.path["name"], tenant=request.query("tenant"))
        return _describe_entry(entry, ServerAddress(request.exchange.base_url()))

    return api


def _viewer(viewer: Viewer) -> CatalogueViewer:
    if viewer.role == OPERATOR:
        return CatalogueViewer(operator=True)
    return CatalogueViewer(tenant=viewer.name, tenant_key=viewer.tenant)


def _describe_entry(entry: Entry, place: ServerAddress, score: float | None = None) -> CatalogueAgent:
    return CatalogueAgent(
        name=entry.name,
        title=entry.title,
        kind=entry.kind,
        tenant=entry.tenant,
        url=entry.url or place.base + entry.path,
        card=place.card(entry),
        private=entry.private,
        health=entry.health,
        signature=entry.signature,
        description=entry.description,
        added=entry.added,
        score=None if score is None else round(score, 3),
    )

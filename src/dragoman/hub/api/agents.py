"""The agents of a tenant: `/v1/agents`, their versions, and what the tenant may use."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dragoman.agent.agent import Agent
from dragoman.dialects.cards import superset_card
from dragoman.errors import InvalidParams
from dragoman.hub.agents.constitution import Constitution, constitution_schema
from dragoman.hub.api import (
    ANYBODY,
    TENANT,
    ApiRequest,
    FieldError,
    JsonObject,
    RouteList,
    must_exist,
    page,
    page_type,
)
from dragoman.hub.hub import Hub
from dragoman.hub.store.catalogue import CatalogueEntry
from dragoman.hub.store.spending import MAX_DAYS, DailyUsage, UsedToday
from dragoman.hub.store.tokens import MANAGE, READ
from dragoman.hub.tenants.policy import Policy
from dragoman.server.routes import ApiResponse, NotFound, Route


class AgentInfo(Constitution, kw_only=True, omit_defaults=True):  # type: ignore[misc]
    """A constitution as it is stored. An agent that is code has `id`, `name`, `goal`, `skills` and `code`."""

    created_at: int = 0
    updated_at: int = 0
    version: int = 0
    code: bool = False
    skills: list[dict[str, Any]] = []


class VersionInfo(Struct):
    version: int
    created_at: int


class Validation(Struct, omit_defaults=True):
    ok: bool
    agent: dict[str, Any] = {}
    error: str = ""
    fields: list[FieldError] = []


class HubPolicy(Struct):
    policy: Policy


class TenantPolicy(HubPolicy):
    """What a tenant may use and store, what it used today, and how much it stores."""

    today: UsedToday
    stored: dict[str, int]


AgentList = page_type("AgentList", "agents", JsonObject)
VersionList = page_type("VersionList", "versions", VersionInfo)
DailyUsageList = page_type("DailyUsageList", "usage", DailyUsage)


def routes(hub: Hub) -> list[Route]:
    api, catalogue = RouteList("agents", write=MANAGE), hub.catalogue
    all, one = "/v1/agents", "/v1/agents/{id}"

    @api.add(
        "GET",
        all,
        "List agents: `index`, then the latest changed first, then agents that are code.",
        AgentList,
    )
    async def list_agents(request: ApiRequest) -> Any:
        entries = [entry.public for entry in await catalogue.list(request.tenant.id)]
        return page("agents", entries + [_describe_code(agent) for agent in catalogue.code.values()])

    @api.add(
        "POST",
        all,
        "Create an agent from a constitution.",
        AgentInfo,
        body=Constitution,
        needs_body=True,
        status=201,
    )
    async def create(request: ApiRequest) -> ApiResponse:
        entry = await catalogue.create(request.tenant.id, await request.json(dict[str, Any]))
        return ApiResponse(entry.public, 201, ((b"location", f"/v1/agents/{entry.id}".encode()),))

    @api.add("GET", one, "Get an agent.", AgentInfo)
    async def get_agent(request: ApiRequest) -> Any:
        found = await catalogue.find(request.tenant.id, request.path["id"])
        if found is None:
            raise NotFound(f"there is no agent {request.path['id'][:80]!r}")
        return found.public if isinstance(found, CatalogueEntry) else _describe_code(found)

    @api.add(
        "PATCH",
        one,
        "Replace a constitution. Running tasks keep the old one.",
        AgentInfo,
        body=Constitution,
        needs_body=True,
    )
    async def replace(request: ApiRequest) -> Any:
        body = await request.json(dict[str, Any])
        return (await catalogue.replace(request.tenant.id, request.path["id"], body)).public

    @api.add(
        "PUT", one, "Replace or create an agent.", AgentInfo, body=Constitution, needs_body=True, also=(201,)
    )
    async def put(request: ApiRequest) -> ApiResponse:
        id, tenant = request.path["id"], request.tenant.id
        known = await catalogue.find(tenant, id) is not None
        entry = await catalogue.replace(tenant, id, await request.json(dict[str, Any]), create=True)
        return ApiResponse(entry.public, 200 if known else 201)

    @api.add("DELETE", one, "Delete an agent. Its tasks stay readable.", status=204)
    async def delete(request: ApiRequest) -> None:
        await catalogue.delete(request.tenant.id, request.path["id"])

    @api.add(
        "GET", f"{one}/versions", "List the stored versions of a constitution, newest first.", VersionList
    )
    async def list_versions(request: ApiRequest) -> Any:
        if not (found := await catalogue.versions(request.tenant.id, request.path["id"])):
            raise NotFound(f"there is no constitution {request.path['id'][:80]!r}")
        return page("versions", found)

    @api.add("GET", f"{one}/versions/{{version}}", "Get one version of a constitution.", AgentInfo)
    async def get_version(request: ApiRequest) -> Any:
        id, version = request.path["id"], request.path_id("version")
        found = await catalogue.version(request.tenant.id, id, version)
        return must_exist(found, "version", request.path["version"]).public

    check, summary = "/v1/constitutions/validate", "Check a constitution without storing it."

    @api.add("POST", check, summary, Validation, body=Constitution, needs_body=True, access=TENANT + READ)
    async def validate(request: ApiRequest) -> Any:
        try:
            read = await catalogue.read_inline(request.tenant.id, await request.json(dict[str, Any]))
        except InvalidParams as error:
            wrong = [{"field": field, "reason": why} for field, why in error.fields]
            return {"ok": False, "error": error.message, "fields": wrong}
        return {"ok": True, "agent": CatalogueEntry(constitution=read).public}

    days = {"days": "The last days, today included: 30, at most 366."}

    @api.add(
        "GET", "/v1/usage", "Tokens and money of models by day, agent and model.", DailyUsageList, query=days
    )
    async def usage(request: ApiRequest) -> Any:
        return page("usage", await hub.usages.since(read_days(request), request.tenant.id))

    @api.add("GET", "/v1/policy", "What this tenant may use and store, and what it uses.", TenantPolicy)
    async def policy(request: ApiRequest) -> Any:
        return await describe_policy(hub, request.tenant.id)

    @api.add(
        "GET",
        "/v1/constitution.schema.json",
        "The JSON Schema of a constitution.",
        JsonObject,
        access=ANYBODY,
    )
    async def describe(request: ApiRequest) -> Any:
        return constitution_schema()

    return api


async def describe_policy(hub: Hub, tenant: int) -> dict[str, Any]:
    """The policy of a tenant, what it used today, and how much it stores."""
    return {
        "policy": await hub.policies.of(tenant),
        "today": await hub.spending.today(tenant),
        "stored": {
            **await hub.policies.stored(tenant),
            "request_bytes": await hub.store.index.size(str(tenant)),
        },
    }


def read_days(request: ApiRequest) -> int:
    days = request.query_int("days", 30, MAX_DAYS)
    if not days:
        raise InvalidParams("days must be at least 1", fields=(("days", "is 0"),))
    return days


def _describe_code(agent: Agent) -> dict[str, Any]:
    """What the API shows of an agent that is code."""
    about = {"id": agent.id, "name": agent.name, "goal": agent.card.description, "code": True}
    return {**about, "skills": superset_card(agent.card)["skills"]}

"""`/v1/agents`: the tenant's catalogue."""

from __future__ import annotations

from typing import Any

from dragoman.agent.agent import Agent
from dragoman.dialects.cards import superset_card
from dragoman.hub.agents.catalogue import Entry
from dragoman.hub.agents.constitution import Constitution, schema
from dragoman.hub.api.routes import ANYBODY, Answer, Route, Visit
from dragoman.hub.errors import NotFound
from dragoman.hub.hub import Hub


def routes(hub: Hub) -> list[Route]:
    catalogue = hub.catalogue

    async def list_agents(visit: Visit) -> Answer:
        entries = await catalogue.list(visit.tenant.id)
        agents = [entry.shown for entry in entries] + [_code(agent) for agent in catalogue.code.values()]
        return Answer({"count": len(agents), "agents": agents})

    async def create(visit: Visit) -> Answer:
        entry = await catalogue.create(visit.tenant.id, await visit.json(dict[str, Any]))
        return Answer(entry.shown, 201, ((b"location", f"/v1/agents/{entry.id}".encode()),))

    async def get_agent(visit: Visit) -> Answer:
        found = catalogue.find(visit.tenant.id, visit.values["id"])
        if found is None:
            raise NotFound(f"there is no agent {visit.values['id'][:80]!r}")
        return Answer(found.shown if isinstance(found, Entry) else _code(found))

    async def replace(visit: Visit) -> Answer:
        id = visit.values["id"]
        return Answer((await catalogue.replace(visit.tenant.id, id, await visit.json(dict[str, Any]))).shown)

    async def put(visit: Visit) -> Answer:
        id, tenant = visit.values["id"], visit.tenant.id
        known = catalogue.find(tenant, id) is not None
        entry = await catalogue.replace(tenant, id, await visit.json(dict[str, Any]), make=True)
        return Answer(entry.shown, 200 if known else 201)

    async def delete(visit: Visit) -> Answer:
        await catalogue.delete(visit.tenant.id, visit.values["id"])
        return Answer(status=204)

    async def describe(visit: Visit) -> Answer:
        return Answer(schema())

    one = "/v1/agents/{id}"
    return [
        Route(
            "GET",
            "/v1/agents",
            list_agents,
            "All agents: `index`, then those that changed last, then those that are code.",
            "agents",
        ),
        Route(
            "POST",
            "/v1/agents",
            create,
            "Make an agent of a constitution, bare or as `agent_def`.",
            "agents",
            body=Constitution,
            status=201,
        ),
        Route("GET", one, get_agent, "One agent.", "agents"),
        Route(
            "PATCH",
            one,
            replace,
            "Replace the whole constitution of an agent. What runs goes on with the one it began with.",
            "agents",
            body=Constitution,
        ),
        Route("PUT", one, put, "Replace an agent, or make it.", "agents", body=Constitution),
        Route("DELETE", one, delete, "Delete an agent. Its tasks stay readable.", "agents", status=204),
        Route(
            "GET",
            "/v1/constitution.schema.json",
            describe,
            "The JSON Schema of a constitution.",
            "agents",
            who=ANYBODY,
        ),
    ]


def _code(agent: Agent) -> dict[str, Any]:
    """An agent that is code, as far as it can be shown."""
    card = superset_card(agent.card)
    about = {"id": agent.id, "name": agent.name, "goal": agent.card.description, "code": True}
    return {**about, "skills": card["skills"]}

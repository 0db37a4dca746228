"""The agents of a server, for operators: their cards, and how many tasks they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.console.api import Console, ConsoleRequest
from dragoman.console.tasks import Tasks
from dragoman.dialects import cards
from dragoman.errors import A2AError
from dragoman.model.schema import schemas_on
from dragoman.model.task import TaskState
from dragoman.server.mount import Mount
from dragoman.server.routes import Route, RouteList


class SkillView(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    name: str
    description: str
    tags: Sequence[str]
    examples: Sequence[str]
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None


class InterfaceView(Struct, frozen=True, kw_only=True, rename="camel"):
    url: str
    protocol_binding: str
    protocol_version: str


class AgentView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    path: str
    url: str
    counts: Mapping[str, int]
    """How many of its tasks are in each state."""
    description: str = ""
    card: dict[str, Any] | None = None
    """As A2A 1.0 writes it."""
    skills: list[SkillView] = []
    interfaces: list[InterfaceView] = []
    running: int = 0
    error: str | None = None
    """Why there is no card."""


class AgentList(Struct, frozen=True):
    agents: list[AgentView]


def routes(console: Console) -> Sequence[Route]:
    api, server = RouteList("tasks"), console.server
    assert server is not None
    tasks = Tasks(server)

    @api.add(
        "GET",
        "/agents",
        "The agents, their cards, and how many tasks they have.",
        query={
            "tenant": "Those of this tenant of a hub. Without it an operator gets those that every tenant has."
        },
        returns=AgentList,
    )
    async def agents(request: ConsoleRequest) -> Any:
        tenant = await tasks.tenant_key(request)
        counts = await tasks.counts(tenant)
        find = server.find_mounts
        mounts = server.mounts if find is None else await find(tenant or "")
        return AgentList([_describe_agent(request, mount, counts.get(mount.agent, {})) for mount in mounts])

    return api


def _describe_agent(request: ConsoleRequest, mount: Mount, counts: Mapping[str, int]) -> AgentView:
    exchange = request.exchange
    try:
        card = exchange.place(mount.current_card(), mount)
    except A2AError as error:
        return AgentView(
            id=mount.agent, name=mount.agent, path=mount.path, url="", counts=counts, error=error.message
        )
    schemas = schemas_on(card)
    return AgentView(
        id=mount.agent,
        name=card.name,
        description=card.description,
        path=mount.path,
        url=exchange.base_url() + mount.path,
        card=cards.write_card(card, "1.0"),
        skills=[
            SkillView(
                id=skill.id,
                name=skill.name,
                description=skill.description,
                tags=skill.tags,
                examples=skill.examples,
                input_schema=schemas[skill.id].input if skill.id in schemas else None,
                output_schema=schemas[skill.id].output if skill.id in schemas else None,
            )
            for skill in card.skills
        ],
        interfaces=msgspec.convert(card.supported_interfaces, list[InterfaceView], from_attributes=True),
        counts=counts,
        running=counts.get(TaskState.WORKING.value, 0),
    )

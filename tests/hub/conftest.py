"""A hub's agents on the real engine, thinking with a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from dragoman.buses.local import LocalBus
from dragoman.engine.engine import Engine
from dragoman.engine.records import Record
from dragoman.errors import Unreachable
from dragoman.hub.agents.constitution import INDEX, Constitution
from dragoman.hub.agents.constitution_agent import AgentParts, ConstitutionAgent
from dragoman.hub.metadata import NATIVE
from dragoman.hub.models import ChatMessage, Model
from dragoman.hub.models.prices import Prices
from dragoman.hub.store.artifacts import Artifacts
from dragoman.hub.store.blobs import FileBlobs
from dragoman.hub.store.catalogue import CatalogueEntry
from dragoman.hub.store.database import Database, open_database
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.tenants.policy import Policy
from dragoman.hub.tools import HelpTool, Session, Tool
from dragoman.hub.tools.delegate import AgentTool, ParallelTool
from dragoman.hub.tools.fetcher import Page
from dragoman.hub.tools.files import Pictures, WriteTool
from dragoman.hub.tools.mcp import McpServers
from dragoman.hub.tools.remote_agents import RemoteAgents
from dragoman.hub.tools.toolbox import Services, build_tools
from dragoman.model.content import Message, Part, Role
from dragoman.model.ids import new_id
from dragoman.model.ops import Call, Scope, SendMessage
from dragoman.model.task import Task
from dragoman.push.guard import Guard
from dragoman.stores import open_store
from tests.hub.house import Caller, store_of
from tests.hub.house import house as hub_house
from tests.hub.scripted import Scripted, ScriptedModel, by_agent

TENANT = "1"
BLOBS = FileBlobs(None)
"""Contents of large files, in a temporary folder."""


class _NoPages:
    async def fetch(self, url: str, *, limit: int = 0) -> Page:
        raise Unreachable("there is no web in this test")


def write_tool() -> WriteTool:
    """`/write` for requests without a conversation."""
    return WriteTool(Artifacts(open_database("memory:"), BLOBS))


def toolbox(database: Database, *, model: Model, **services: Any) -> Sequence[Tool]:
    """All commands. Those services that a test does not give have nothing in them."""
    services = {
        "artifacts": Artifacts(database, BLOBS),
        "fetcher": _NoPages(),
        "mcp": McpServers({}),
        "remotes": RemoteAgents({}, guard=Guard()),
        **{name: service for name, service in services.items() if service is not None},
    }
    artifacts = services.pop("artifacts")
    schedules = Schedules(database)
    return build_tools(database, Services(**services), model=model, artifacts=artifacts, schedules=schedules)


class House:
    """An engine with agents, on a store that outlives it. It stands for the catalogue and the policies of a hub."""

    def __init__(self, store: Any, **engine: Any) -> None:
        self.store, self._options = store, engine
        self.agents: dict[str, ConstitutionAgent] = {}
        self.engine: Engine
        self.model: Any = None

    async def open(
        self,
        scripts: dict[str, Iterable[Scripted]] | Any,
        *constitutions: Constitution,
        tools: Sequence[Tool] = (),
        database: Database | None = None,
        remotes: RemoteAgents | None = None,
    ) -> House:
        """`database`: where the images of commands are."""
        self.model = ScriptedModel(by_agent(scripts)) if isinstance(scripts, dict) else scripts
        names = {name for tool in tools for name in tool.names}
        every = [
            *tools,
            *(tool for tool in (AgentTool(), ParallelTool(), HelpTool()) if tool.names[0] not in names),
        ]
        parts = AgentParts(
            model=self.model,
            tools=tuple(every),
            catalogue=cast(Any, self),
            policies=cast(Any, self),
            remotes=remotes or RemoteAgents({}, guard=Guard()),
            history=cast(Any, no_history),
            pictures=Pictures(database or open_database("memory:"), self.model),
            prices=Prices(),
        )
        self.agents = {
            c.id: ConstitutionAgent(TENANT, CatalogueEntry(constitution=c), parts)
            for c in (INDEX, *constitutions)
        }
        self.engine = Engine(
            self.store, LocalBus(), lambda scope: self.agents.get(scope.agent), **self._options
        )
        await self.engine.start()
        return self

    async def close(self) -> None:
        await self.engine.stop(drain=0)

    async def constitutions(self, tenant: int) -> Sequence[Constitution]:
        return [agent.constitution for agent in self.agents.values()]

    async def of(self, tenant: str) -> Policy:
        return Policy(approve=())

    def call(self, agent: str = "index", **more: Any) -> Call:
        return Call(scope=Scope(TENANT, agent, ""), dialect=NATIVE, **more)

    async def ask(self, text: str, agent: str = "index", **metadata: Any) -> Task:
        task = await self.engine.call(self.call(agent), say(text, **metadata))
        assert isinstance(task, Task)
        return task

    async def records(self, task: str, agent: str = "index") -> Sequence[Record]:
        return await self.store.scope(Scope(TENANT, agent, "")).read(task)

    async def notes(self, task: str, agent: str = "index") -> list[tuple[str, dict[str, Any]]]:
        return [(r.body.name, r.body.data) for r in await self.records(task, agent) if r.kind == "note"]  # type: ignore[union-attr]


async def no_history(session: Session) -> list[ChatMessage]:
    return []


Begin = Callable[..., Awaitable[House]]


def say(text: str, **metadata: Any) -> SendMessage:
    message = Message(message_id=new_id(), role=Role.USER, parts=(Part(text=text),))
    return SendMessage(
        message=message, metadata={f"x-arbiter.{name}": value for name, value in metadata.items()}
    )


@pytest.fixture
async def acme() -> AsyncIterator[Caller]:
    """A tenant of a hub whose agents say always the same."""
    async with hub_house(lambda prompt: "All is well.") as hub:
        yield await hub.tenant("acme")


@pytest.fixture(params=["memory", "stored"])
async def house(request: Any, tmp_path: Any) -> AsyncIterator[Begin]:
    """`await house(scripts, constitution, ...)`: a hub's agents that run, in memory and in the database of the suite."""
    stored = request.param == "stored"
    async with _houses(lambda n: store_of(tmp_path, f"tasks-{n}.db") if stored else "memory:") as begin:
        yield begin


@pytest.fixture
async def shed() -> AsyncIterator[Begin]:
    """A `house` in memory, where the store does not matter."""
    async with _houses(lambda n: "memory:") as begin:
        yield begin


@asynccontextmanager
async def _houses(url: Callable[[int], str]) -> AsyncIterator[Begin]:
    opened: list[House] = []

    async def begin(scripts: Any, *constitutions: Constitution, peers: Any = None, **options: Any) -> House:
        store = open_store(url(len(opened)))
        home = await House(store, peers=peers).open(scripts, *constitutions, **options)
        opened.append(home)
        return home

    yield begin
    for home in opened:
        await home.close()

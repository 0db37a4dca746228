"""An engine on each store, with the agents a test gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.buses.local import LocalBus
from dragoman.engine.engine import Engine
from dragoman.model.content import Message, Part, Role
from dragoman.model.ids import new_id
from dragoman.model.ops import Call, Configuration, Scope, SendMessage, StreamResponse
from dragoman.stores import open_store
from tests import postgres

Start = Callable[..., Awaitable[Engine]]


STORES = ["memory", "sqlite", *(["postgres"] if postgres.available() else [])]


@pytest.fixture(params=STORES)
async def start(request: Any, tmp_path: Any) -> AsyncIterator[Start]:
    """`await start(agent, ...)`: an engine that runs. Several on one store are several nodes."""
    engines: list[Engine] = []
    shared: dict[str, Any] = {}

    async def begin(*agents: Agent, retain: float | None = None, **options: Any) -> Engine:
        match request.param:
            case "memory":
                store = shared.setdefault("memory", open_store("memory:"))
            case "sqlite":
                store = open_store(f"sqlite:///{tmp_path}/tasks.db")
            case _:
                store = open_store(postgres.server().fresh(tmp_path))
        by_id = {agent.id: agent for agent in agents}
        engine = Engine(store, LocalBus(), lambda scope: by_id.get(scope.agent), **options)
        await engine.start(retain=retain)
        engines.append(engine)
        return engine

    yield begin
    for engine in engines:
        await engine.stop(drain=0)


def call(agent: str = "a", **more: Any) -> Call:
    return Call(scope=Scope("", agent, ""), **more)


def say(
    text: str, *, task: str = "", context: str = "", skill: str = "", **configuration: Any
) -> SendMessage:
    message = Message(
        message_id=new_id(), role=Role.USER, parts=(Part(text=text),), task_id=task, context_id=context
    )
    metadata = {"skillId": skill} if skill else {}
    return SendMessage(message=message, metadata=metadata, configuration=Configuration(**configuration))


async def events(stream: Any) -> list[StreamResponse]:
    return [response async for batch in stream for response in batch]

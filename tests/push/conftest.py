"""An engine with a push sender on each store, and webhooks on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dragoman import Agent, Turn
from dragoman.buses.local import LocalBus
from dragoman.client.transport.network import HttpTransport
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Store
from dragoman.model.content import Message, Part, Role
from dragoman.model.ids import new_id
from dragoman.model.ops import Call, Configuration, CreatePushConfig, PushConfig, Scope, SendMessage
from dragoman.push.guard import Guard
from dragoman.push.options import PushOptions
from dragoman.push.sender import PushSender
from dragoman.stores import open_store
from tests import postgres
from tests.push.webhook import Receiver

QUICK: dict[str, Any] = {"allow_private": True, "pause": 0.01, "longest_pause": 0.05, "timeout": 5.0}


class PushSetup(NamedTuple):
    """An engine, its sender and its store."""

    engine: Engine
    sender: PushSender
    store: Store

    async def send(
        self, text: str, *, dialect: str = "1.0", task: str = "", webhook: Receiver | None = None, **more: Any
    ) -> Any:
        """Send a message, with a config for `webhook` if there is one; the task or the message that comes back."""
        wait, trace = more.pop("wait", True), more.pop("trace", TRACE)
        config = PushConfig(url=webhook.url, **more) if webhook is not None else None
        message = Message(message_id=new_id(), role=Role.USER, parts=(Part(text=text),), task_id=task)
        configuration = Configuration(task_push_notification_config=config, return_immediately=not wait)
        request = SendMessage(message=message, configuration=configuration)
        call = Call(scope=SCOPE, dialect=dialect, names_tasks=dialect in ("0.1", "draft"), trace=trace)
        return await self.engine.call(call, request)

    async def register(
        self, task: str, webhook: Receiver, *, dialect: str = "1.0", **more: Any
    ) -> PushConfig:
        config = PushConfig(url=webhook.url, task_id=task, **more)
        created: PushConfig = await self.engine.call(
            Call(scope=SCOPE, dialect=dialect), CreatePushConfig(config=config)
        )
        return created


SCOPE = Scope("", "told", "")
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

Open = Callable[..., Awaitable[PushSetup]]


def reporting_agent() -> Agent:
    agent = Agent("told")

    @agent.skill(default=True)
    async def work(turn: Turn) -> Any:
        """`say:3` says three things; `ask` asks; `reply` is elsewhere."""
        kind, _, count = turn.text.partition(":")
        if kind == "ask":
            return f"so it is {await turn.ask('what?')}"
        artifact = turn.artifact("words")
        for i in range(1, int(count or 1) + 1):
            await artifact.write(f"{i},", last=i == int(count or 1))
        if kind == "fail":
            raise RuntimeError("no")
        return None

    return agent


def brief() -> Agent:
    agent = Agent("told")

    @agent.skill(reply=True)
    async def answer(turn: Turn) -> str:
        """Answers with a bare message."""
        return "hello"

    return agent


STORES = ["memory", "sqlite", *(["postgres"] if postgres.available() else [])]


@pytest.fixture(params=STORES)
async def setup(request: Any, tmp_path: Path) -> AsyncIterator[Open]:
    """`await setup(...)`: one that runs. Several of one test share the store, as several processes would."""
    setups: list[PushSetup] = []
    if request.param == "memory":
        stores = [open_store("memory:")] * 3
    else:  # opened beforehand: what one does while it opens, another of the same process cannot wait for
        url = f"sqlite:///{tmp_path}/tasks.db"
        if request.param == "postgres":
            url = postgres.server().fresh(tmp_path)
        stores = [open_store(url) for _ in range(3)]
        for store in stores:
            await store.open()

    async def begin(
        agent: Agent | None = None, *, guard: Guard | None = None, keys: Any = None, **options: Any
    ) -> PushSetup:
        store = stores[len(setups)]
        agent = agent or reporting_agent()
        guard = guard or Guard(allow_private=True)
        sender = PushSender(
            store, HttpTransport(dial=guard.dial), guard, PushOptions(**{**QUICK, **options}), keys=keys
        )
        engine = Engine(
            store, LocalBus(), lambda scope: agent if scope.agent == "told" else None, push=sender
        )
        await engine.start()
        setups.append(PushSetup(engine, sender, store))
        return setups[-1]

    yield begin
    for each in setups:
        await each.engine.stop(drain=0)
    for store in stores:
        await store.close()


@pytest.fixture
async def webhook() -> AsyncIterator[Receiver]:
    async with Receiver() as webhook:
        yield webhook

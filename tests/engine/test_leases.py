"""What must happen once begins only while the node's lease is known to be valid, and a late heartbeat buries nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from dragoman import Agent, Turn
from dragoman.buses import LocalBus
from dragoman.engine import runner
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import HeldLease
from dragoman.hub.models import Delta, ModelTraits, Prompt, calls
from dragoman.model.ops import GetTask
from dragoman.model.task import TaskState
from dragoman.stores.memory import MemoryStore
from tests.engine.conftest import call, say

TTL = 60.0


class Clock:
    """The runner's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead, real = 0.0, runner.boot_time
        monkeypatch.setattr(runner, "boot_time", lambda: real() + self._ahead)

    def forward(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Silent(MemoryStore):
    """A store whose answers to heartbeats can be held back."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def renew(self, node: str, *, ttl: float) -> Sequence[HeldLease]:
        await self.answers.wait()
        return await super().renew(node, ttl=ttl)


class Speaker:
    """A model that notes that it was asked."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def traits(self, name: str) -> ModelTraits:
        return ModelTraits(name=name)

    async def respond(self, prompt: Prompt) -> AsyncIterator[Delta]:
        self._done.append("model")
        yield Delta("hello")


class Stage:
    def __init__(self, once: Callable[[Turn, list[str]], Awaitable[object]]) -> None:
        self.agent, self.peer = Agent("a"), Agent("b")
        self.begun, self.go, self.done = asyncio.Event(), asyncio.Event(), list[str]()
        self.store = Silent()
        agents = {"a": self.agent, "b": self.peer}
        self.engine = Engine(self.store, LocalBus(), lambda scope: agents.get(scope.agent), ttl=TTL)

        @self.agent.skill
        async def work(turn: Turn) -> str:
            self.begun.set()
            await self.go.wait()
            await once(turn, self.done)
            return "whole"

        @self.peer.skill
        async def answer() -> str:
            self.done.append("call")
            return "yes"


async def take_step(turn: Turn, done: list[str]) -> None:
    await turn.step("s", lambda: done.append("step"))


async def take_steps_together(turn: Turn, done: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(take_step(turn, done))


async def call_peer(turn: Turn, done: list[str]) -> None:
    await turn.call("b", "go")


async def ask_model(turn: Turn, done: list[str]) -> None:
    await calls.ask(turn, "model/1", Speaker(done), Prompt(model="", system="", messages=()))


WAYS = pytest.mark.parametrize("once", [take_step, take_steps_together, call_peer, ask_model])


async def rounds() -> None:
    """As often as any of this needs the loop to come round."""
    for _ in range(50):
        await asyncio.sleep(0)


@WAYS
async def test_a_step_waits_for_the_heartbeat_if_the_lease_may_have_expired(
    clock: Clock, once: Callable[[Turn, list[str]], Awaitable[object]]
) -> None:
    stage = Stage(once)
    await stage.engine.start()
    sending = asyncio.create_task(stage.engine.call(call(), say("go")))
    async with asyncio.timeout(10):
        await stage.begun.wait()
        await rounds()
        stage.store.answers.clear()
        clock.forward(TTL)
        stage.go.set()
        await rounds()
        assert stage.done == []
        stage.store.answers.set()
        await stage.engine.runner.beat()
        assert (await sending).text == "whole"
    assert len(stage.done) == 1
    await stage.engine.stop(0)


@WAYS
async def test_a_step_does_not_start_after_the_lease_is_lost(
    clock: Clock, once: Callable[[Turn, list[str]], Awaitable[object]]
) -> None:
    stage = Stage(once)
    await stage.engine.start()
    task = await stage.engine.call(call(), say("go", return_immediately=True))
    async with asyncio.timeout(10):
        await stage.begun.wait()
        await rounds()
        stage.store.answers.clear()
        clock.forward(TTL)
        stage.go.set()
        await rounds()
        await stage.store.leave(stage.engine.runner.node)
        (lease,) = await stage.store.claim("n2", limit=1)
        stage.store.answers.set()
        await stage.engine.runner.beat()
        while stage.engine.runner.running:
            await asyncio.sleep(0)
    assert stage.done == [] and lease.fence == 2
    known = await stage.engine.call(call(), GetTask(id=task.id))
    assert known.state is TaskState.WORKING
    await stage.engine.stop(0)


async def test_a_node_whose_own_heartbeat_was_late_gives_the_others_time(clock: Clock) -> None:
    stage = Stage(take_step)
    await stage.engine.start()
    node = stage.engine.runner
    await rounds()
    assert node._may_take_over()
    clock.forward(TTL * 0.6)
    assert not node._may_take_over()  # not confirmed in time
    await node.beat()
    assert not node._may_take_over()  # confirmed, and the others may not be yet
    for _ in range(3):
        clock.forward(TTL / 3)
        await node.beat()
    assert node._may_take_over()
    await stage.engine.stop(0)

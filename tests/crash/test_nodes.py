"""Several nodes on one PostgreSQL database: any of them may die, any of them may be asked, and the database may go away."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import nats, postgres, raw
from tests.crash.checks import check_log, check_order, check_readers, check_steps, story_of, whole_story
from tests.crash.reader import TERMINAL, Listener, Teller, message, state_of
from tests.raw import StreamEvent
from tests.serving import Server
from tests.waiting import elapse

pytestmark = pytest.mark.skipif(not postgres.available(), reason="there is no PostgreSQL here")

ROOT = Path(__file__).parent.parent.parent
NOW = {"returnImmediately": True}


class Node(Server):
    def __init__(
        self, folder: Path, *, ttl: float = 30, room: int = 100, pace: float = 0.0, bus: str = ""
    ) -> None:
        self.store, self.steps = postgres.server().fresh(folder), folder / "steps"
        self.steps.touch()
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        super().__init__(env={"STEPS": str(self.steps), "PACE": str(pace), "PYTHONPATH": paths})
        self.command = [
            sys.executable, "-m", "tests.crash.node", str(self.port), self.store, str(ttl), str(room), bus,
        ]  # fmt: skip

    async def start(self, **env: str) -> None:
        """It announces its address, opens the database, and then answers: a database that goes away before that ends it."""
        await super().start(**env)
        await raw.call(self.url, "GetTask", {"id": "unknown"})

    def did(self, task: str) -> list[str]:
        lines = [line.split() for line in self.steps.read_text().splitlines()]
        return [line[1] for line in lines if line[0] == task and line[1] != "began"]


@pytest.fixture(params=["NOTIFY", "NATS"])
def bus(request: pytest.FixtureRequest) -> str:
    """Where nodes tell each other of news; empty for where their tasks are."""
    if request.param == "NOTIFY":
        return ""
    if not nats.available():
        pytest.skip("there is no NATS here")
    return nats.server().url


async def begin(node: Server, steps: int) -> str:
    received = {**message(str(steps)), "configuration": NOW, "metadata": {"skillId": "patience"}}
    task: str = (await raw.result(node.url, "SendMessage", received))["task"]["id"]
    return task


async def events(node: Server, task: str, after: int = 0) -> AsyncIterator[StreamEvent]:
    async for event in raw.stream(node.url, "SubscribeToTask", {"id": task}, last_event_id=str(after)):
        yield event


async def test_another_node_continues_the_tasks_of_a_killed_node_and_readers_get_each_event_once(
    tmp_path: Path,
) -> None:
    one, two = Node(tmp_path, ttl=1.5, pace=0.05), Node(tmp_path, ttl=1.5, pace=0.05)
    async with one, two:
        task = await begin(one, 12)
        heard: list[StreamEvent] = []
        async for event in events(two, task):
            heard.append(event)
            if len(heard) == 5:
                await one.kill()
        assert state_of(heard[-1]) == "TASK_STATE_COMPLETED"
        check_order(heard)
        assert heard == [event async for event in events(two, task)]
        await check_log(two.store, task)
        did = two.did(task)
        assert list(dict.fromkeys(did)) == [f"wait/{n}" for n in range(12)]
        assert len(did) <= 12 + 1  # the one it died in


@pytest.mark.parametrize("seed", range(2))
async def test_tasks_survive_kills_of_nodes_and_the_database_at_random_moments(
    tmp_path: Path, seed: int
) -> None:
    dice, database, deaths = random.Random(seed), postgres.server(), 0
    one, two = Node(tmp_path, ttl=1.5, pace=0.03), Node(tmp_path, ttl=1.5, pace=0.03)
    async with one, two:
        tellers = [Teller((one, two)[n % 2], f"story {n}") for n in range(10)]
        listeners = [Listener((two, one)[n % 2], teller) for n, teller in enumerate(tellers)]
        async with asyncio.TaskGroup() as group:
            telling = [group.create_task(teller.tell()) for teller in tellers]
            listening = [group.create_task(listener.listen()) for listener in listeners]
            for victim in [*dice.choices(("node", "database"), k=2), "node", "database"]:
                await elapse(dice.uniform(0.1, 0.4))
                if victim == "node":
                    deaths += 1
                    node = dice.choice((one, two))
                    await node.kill()
                    await elapse(dice.uniform(0.0, 0.4))
                    await node.start()
                else:
                    await asyncio.to_thread(database.stop, "immediate")
                    await asyncio.to_thread(database.start)
        for teller, received, heard in zip(tellers, telling, listening, strict=True):
            assert story_of(received.result()) == whole_story(teller.title)
            await check_readers(two, teller, heard.result(), received.result())
            await check_log(two.store, teller.task)
            check_steps(two.steps, received.result(), deaths)
        assert b"Traceback" not in one.said + two.said, (one.said + two.said).decode()


async def test_a_cancel_reaches_the_node_that_runs_the_task(tmp_path: Path, bus: str) -> None:
    one, two = Node(tmp_path, pace=600, bus=bus), Node(tmp_path, pace=600, bus=bus)
    async with one, two, asyncio.timeout(8):  # a node that only looks now and then would take longer
        for _ in range(4):
            for here, there in ((one, two), (two, one)):
                task = await begin(here, 1)
                canceled = await raw.result(there.url, "CancelTask", {"id": task})
                assert canceled["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_node_without_room_leaves_the_work_to_another_and_has_its_answer(
    tmp_path: Path, bus: str
) -> None:
    door, worker = Node(tmp_path, room=0, bus=bus), Node(tmp_path, bus=bus)
    async with door, worker, asyncio.timeout(8):
        for _ in range(4):
            done = (await raw.result(door.url, "SendMessage", message("2")))["task"]
            assert done["status"]["state"] == "TASK_STATE_COMPLETED"
            assert done == await raw.result(worker.url, "GetTask", {"id": done["id"]})


async def test_a_node_that_is_stopped_hands_its_tasks_to_another_at_once(tmp_path: Path, bus: str) -> None:
    one, two = Node(tmp_path, pace=0.1, bus=bus), Node(tmp_path, pace=0.1, bus=bus)
    async with one, two, asyncio.timeout(8):
        task = await begin(one, 12)
        heard: list[StreamEvent] = []
        async for event in events(two, task):
            heard.append(event)
            if len(heard) == 4:
                one.signal(signal.SIGTERM)
        assert await one.ended() == 0
        assert state_of(heard[-1]) == "TASK_STATE_COMPLETED"
        check_order(heard)
        assert b"Traceback" not in one.said + two.said, (one.said + two.said).decode()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_task_that_streams_goes_on_when_the_database_is_restarted(tmp_path: Path, mode: str) -> None:
    database = postgres.server()
    node = Node(tmp_path, pace=0.05)
    async with node:
        heard: list[StreamEvent] = []
        restarting: asyncio.Task[None] | None = None
        received = {**message("30"), "metadata": {"skillId": "patience"}}

        async def restart() -> None:
            await asyncio.to_thread(database.stop, mode)
            await asyncio.to_thread(database.start)

        async for event in raw.stream(node.url, "SendStreamingMessage", received):
            heard.append(event)
            if len(heard) == 6:
                restarting = asyncio.create_task(restart())
            if state_of(event) in TERMINAL:
                break
        assert restarting is not None
        await restarting
        assert state_of(heard[-1]) == "TASK_STATE_COMPLETED"
        check_order(heard)
        task = heard[0].result["task"]["id"]
        assert node.did(task) == [f"wait/{n}" for n in range(30)]  # none of them twice
        await check_log(node.store, task)
        assert b"Traceback" not in node.said

"""The bridge, the agent behind it, or both are killed in the middle of streams: nothing is lost, nothing happens twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.bridge.durable import UNCERTAIN
from dragoman.client import connect
from dragoman.model.ops import Batch, Call, ListTasks, Request, Scope, SendMessage, Service, SubscribeToTask
from dragoman.model.task import ArtifactUpdate, StatusUpdate, TaskState
from dragoman.server.app import App
from dragoman.server.runtime import running
from dragoman.stores import open_store
from tests.bridge.bridging import Crew, as_stranger, crew_app
from tests.crash.checks import check_log, check_readers, check_steps, story_of, whole_story
from tests.crash.stage import AGENT, Stage
from tests.serving import Server
from tests.waiting import elapse

EVERY = 7
UPSTREAM, BRIDGE, BOTH = "the agent", "the bridge", "both"


class BridgeStage(Stage):
    """A story that is told through a bridge. `server` is the bridge, and `upstream` tells the story."""

    def __init__(self, folder: Path, **env: str) -> None:
        super().__init__(folder, **env)
        self.behind = folder / "upstream.db"
        self.upstream = Server(AGENT, store=self.behind, env={"STEPS": str(self.steps), **env})
        file = folder / "bridge.toml"
        file.write_text(f"[agents.story]\nurl = '{self.upstream.url}'\npath = '/'\n")
        place = self.server.command.index("serve")
        self.server.command[place : place + 2] = ["bridge", str(file)]

    async def __aenter__(self) -> BridgeStage:
        await self.upstream.start()
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.kill()
        await self.upstream.kill()

    async def strike(self, victim: str) -> None:
        """SIGKILL, and another life."""
        self.deaths += 1
        doomed = {UPSTREAM: [self.upstream], BRIDGE: [self.server], BOTH: [self.upstream, self.server]}
        for each in doomed[victim]:
            await each.kill()
        for each in reversed(doomed[victim]):  # the bridge starts while the agent is away
            await each.start()

    async def check(self) -> None:
        followed = await tasks_behind(self.store)
        for teller, listened, task in self._told:
            assert story_of(task) == whole_story(teller.title)
            await check_readers(self.server, teller, listened, task)
            await check_log(self.store, teller.task)
            check_steps(self.steps, {**task, "id": followed[teller.task]}, self.deaths)
        assert await ids_in(self.behind) == set(followed.values()), "the agent has tasks that nobody follows"


async def tasks_behind(store: Path) -> dict[str, str]:
    """The task of the agent that each task of the bridge follows."""
    opened = open_store(f"sqlite:///{store}")
    await opened.open()
    try:
        found = await opened.scope(Scope("", "story", "")).find(ListTasks(), limit=100)
        return {
            each.task_id: child.task for each in found.snapshots for child in each.delegated.values()
        }  # fmt: skip
    finally:
        await opened.close()


async def ids_in(store: Path) -> set[str]:
    opened = open_store(f"sqlite:///{store}")
    await opened.open()
    try:
        found = await opened.scope(Scope("", "story", "")).find(ListTasks(), limit=100)
        return {each.task_id for each in found.snapshots}
    finally:
        await opened.close()


async def test_a_story_through_a_bridge_is_complete(tmp_path: Path) -> None:
    async with BridgeStage(tmp_path) as stage:
        await stage.tell("quiet")
        await stage.check()


@pytest.mark.parametrize("victim", [UPSTREAM, BRIDGE, BOTH])
async def test_killed_in_the_middle_of_a_stream(victim: str, tmp_path: Path) -> None:
    async with BridgeStage(tmp_path, PACE="0.005") as stage:
        async with asyncio.TaskGroup() as group:
            kills: list[asyncio.Task[None]] = []

            def kill(events: int) -> None:
                if events % EVERY == 3 and all(done.done() for done in kills):
                    kills.append(group.create_task(stage.strike(victim)))

            await stage.tell("killed", kill)
        await stage.check()
    assert stage.deaths >= 2


@pytest.mark.parametrize("seed", range(2))
async def test_many_tasks_survive_kills_of_either_side_at_random_moments(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    async with BridgeStage(tmp_path, PACE="0.02") as stage:
        async with asyncio.TaskGroup() as group:
            for n in range(4):
                group.create_task(stage.tell(f"story {n}"))
            for _ in range(4):
                await elapse(dice.uniform(0.0, 0.2))
                await stage.strike(dice.choice([UPSTREAM, BRIDGE, BOTH]))
        await stage.check()


def bridge_to(url: str, folder: Path) -> Server:
    """`dragoman bridge URL`, as a process."""
    bridge = Server(store=folder / "bridge.db")
    place = bridge.command.index("serve")
    bridge.command[place : place + 1] = ["bridge", url]
    return bridge


class SlowToAnswer:
    """A service that takes messages, and whose answers to them do not come until `released` is set."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.released = asyncio.Event()

    async def call(self, call: Call, request: Request) -> Any:
        return await self._service.call(call, request)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        async for batch in self._service.stream(call, request):
            if isinstance(request, SendMessage):
                await self.released.wait()
            yield batch


def slow_to_answer(app: App) -> SlowToAnswer:
    (mount,) = app._mounts.values()
    slow = SlowToAnswer(mount.service)
    object.__setattr__(mount, "service", slow)
    return slow


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.1"])
async def test_the_rest_of_a_task_is_added_if_the_agent_cannot_repeat_events(
    version: str, tmp_path: Path
) -> None:
    crew = Crew(versions=(version,))
    async with running(as_stranger(crew_app(crew))) as upstream, bridge_to(upstream, tmp_path) as bridge:
        async with connect(bridge.url) as client:
            events = []
            async with client.stream("go", skill="slow") as stream:
                async for piece in stream:
                    events.append(piece.event)
                    if isinstance(piece.event, ArtifactUpdate) and not crew.gate.is_set():
                        await bridge.kill()
                        crew.gate.set()  # it says the rest while nobody listens
                        await crew.finished.wait()
                        await bridge.start()
            assert stream.reply.text == "before after"
            chunks = [each.artifact.text for each in events if isinstance(each, ArtifactUpdate)]
            assert chunks == ["before ", "after"]
            said = [e.status.message.text for e in events if isinstance(e, StatusUpdate) and e.status.message]
            assert said == ["waiting", "went on"]
    assert len(crew.seen) == 1


@pytest.mark.parametrize("version", ["1.0", "0.1"])
async def test_a_message_whose_answer_was_lost_is_found_by_its_id_or_that_of_its_task(
    version: str, tmp_path: Path
) -> None:
    crew = Crew(versions=(version,))
    app = as_stranger(crew_app(crew))
    slow = slow_to_answer(app)
    async with running(app) as upstream, bridge_to(upstream, tmp_path) as bridge:
        async with connect(bridge.url) as client:
            sending = asyncio.create_task(client.send("go", skill="slow", wait=False))
            await crew.begun.wait()
            await bridge.kill()
            slow.released.set()
            await bridge.start()
            crew.gate.set()
            reply = await client.wait((await sending).id)
            assert reply.text == "before after"
    assert len(crew.seen) == 1


async def test_a_message_whose_answer_was_lost_is_not_sent_again_if_nobody_can_know(tmp_path: Path) -> None:
    crew = Crew(versions=("0.3",))
    app = as_stranger(crew_app(crew))
    slow = slow_to_answer(app)
    async with running(app) as upstream, bridge_to(upstream, tmp_path) as bridge:
        async with connect(bridge.url) as client:
            sending = asyncio.create_task(client.send("go", skill="slow", wait=False))
            await crew.begun.wait()
            await bridge.kill()
            slow.released.set()
            await bridge.start()
            crew.gate.set()
            reply = await client.wait((await sending).id)
            assert reply.state is TaskState.FAILED
            assert reply.text == UNCERTAIN
    assert len(crew.seen) == 1


class Cable:
    """Forwards connections to a server, and cuts them."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_message_is_not_sent_twice_if_the_connection_breaks_before_the_answer(
    version: str, tmp_path: Path
) -> None:
    crew = Crew(versions=(version,))
    app = as_stranger(crew_app(crew))
    slow = slow_to_answer(app)
    async with running(app) as upstream, Cable(upstream) as cable, bridge_to(cable.url, tmp_path) as bridge:
        async with connect(bridge.url) as client:
            sending = asyncio.create_task(client.send("go", skill="slow", wait=False))
            await crew.begun.wait()
            cable.cut()
            slow.released.set()
            crew.gate.set()
            reply = await client.wait((await sending).id)
            if version == "1.0":
                assert reply.text == "before after"
            else:
                assert reply.text == UNCERTAIN
    assert len(crew.seen) == 1


async def test_a_message_that_was_not_sent_yet_is_sent_after_a_restart(tmp_path: Path) -> None:
    """The agent is away, and the bridge is killed meanwhile."""
    crew = Crew(versions=("0.3",))
    async with running(as_stranger(crew_app(crew))) as upstream:
        port = int(upstream.rpartition(":")[2])
        bridge = bridge_to(upstream, tmp_path)
        await bridge.start()
        client = await connect(bridge.url).open()
    try:
        reply = await client.send("hi", skill="echo", wait=False)
        await bridge.kill()
        async with running(as_stranger(crew_app(crew)), port=port):
            await bridge.start()
            assert (await client.wait(reply.id)).text == "HI"
        assert len(crew.seen) == 1
    finally:
        await client.close()
        await bridge.kill()


COUNTS = """
import asyncio
from dragoman import Agent, Turn

agent = Agent("counts", description="Counts")


@agent.skill(default=True)
async def count(turn: Turn) -> None:
    \"\"\"Counts slowly.\"\"\"
    out = turn.artifact("out", id="out")
    for n in range(30):
        await out.write(await turn.step(f"number {n}", "{} ".format, n))
        await asyncio.sleep(0.03)
"""


@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_a_stream_goes_on_at_another_server_of_the_agent_if_its_own_is_killed(
    mode: str, tmp_path: Path
) -> None:
    agent, file = tmp_path / "counts.py", tmp_path / "bridge.toml"
    agent.write_text(COUNTS)
    one, other = (Server(agent, store=tmp_path / "shared.db", options=["--ttl", "2"]) for _ in range(2))
    file.write_text(f'[agents.counts]\nurls = ["{one.url}", "{other.url}"]\npath = "/"\nmode = "{mode}"\n')
    async with one, other, bridge_to(str(file), tmp_path) as bridge, connect(bridge.url) as caller:
        text, pieces = "", caller.stream("go")
        async for piece in pieces:
            text += piece.text
            if text.endswith(" 5 "):
                await one.kill()
        assert text.split() == [str(n) for n in range(30)]
        assert pieces.reply.state is TaskState.COMPLETED

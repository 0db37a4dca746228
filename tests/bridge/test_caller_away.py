"""Durable tasks that are done with the caller's own credential, through a restart of the bridge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.auth import Bearer, hashed
from dragoman.client import Client, connect
from dragoman.engine.protocols import TaskQuery
from dragoman.errors import A2AError
from dragoman.model.ops import Call, Principal
from dragoman.model.task import TaskState
from dragoman.server.runtime import running
from dragoman.stores import open_store
from tests.bridge.bridging import Crew, as_stranger, bridged, crew_app
from tests.serving import Server
from tests.waiting import until

ADA, BOB = "ada-ada-ada-ada-ada", "bob-bob-bob-bob-bob"
AUTH = {"tokens": {"ada": ADA, "bob": BOB}}


@asynccontextmanager
async def bridge_to(url: str, store: str) -> AsyncIterator[str]:
    async with bridged(url, store=store, auth=AUTH, credentials={"type": "caller"}, server={"drain": 0}) as (
        there,
        _,
    ):
        yield there


@asynccontextmanager
async def caller(url: str, token: str) -> AsyncIterator[Client]:
    async with connect(url, credentials=token, agents={}) as client:
        yield client


def guarded() -> Crew:
    return Crew(auth=[Bearer({"ada": hashed(ADA), "bob": hashed(BOB)})])


async def begin_slow_task(client: Client, crew: Crew) -> str:
    """Returns the id of a task that has an artifact and does not end."""
    begun = await client.send("go", skill="slow", wait=False)
    assert begun.task is not None
    task = begun.task.id
    await crew.begun.wait()
    await until(lambda: client.get(task), lambda now: now.artifacts)
    return task


async def state(client: Client, task: str) -> TaskState:
    return (await client.get(task)).status.state


async def status_in_store(store: str, task: str) -> Any:
    """The state of a task, read without being its caller."""
    opened = open_store(store)
    await opened.open()
    try:
        page = await opened.index.find(TaskQuery(), limit=10)
        return {info.id: info.state for info in page.tasks}[task]
    finally:
        await opened.close()


@pytest.mark.parametrize("stranger", [False, True])
async def test_after_a_restart_a_task_waits_for_its_caller_and_then_goes_on(
    tmp_path: Path, stranger: bool
) -> None:
    crew, store = guarded(), f"sqlite:///{tmp_path / 'bridge.db'}"
    app = crew_app(crew)
    if stranger:
        app = as_stranger(app)
    async with asyncio.timeout(60), running(app) as upstream:
        async with bridge_to(upstream, store) as url, caller(url, ADA) as ada:
            task = await begin_slow_task(ada, crew)
        async with bridge_to(upstream, store) as url:
            await until(lambda: status_in_store(store, task), lambda found: found is TaskState.AUTH_REQUIRED)
            async with caller(url, BOB) as bob:  # somebody else is not who is waited for
                with pytest.raises(A2AError):
                    await bob.get(task)
            assert await status_in_store(store, task) is TaskState.AUTH_REQUIRED
            async with caller(url, ADA) as ada:
                await until(lambda: state(ada, task), lambda now: now is TaskState.WORKING)
                crew.gate.set()
                done = await ada.wait(task)
                assert done.task is not None and done.task.status.state is TaskState.COMPLETED
                (artifact,) = [each for each in done.task.artifacts if each.name == "out"]
                assert "".join(part.text or "" for part in artifact.parts) == "before after"
    assert len(crew.seen) == 1  # the message was sent once


async def test_a_task_that_waits_for_its_caller_can_be_canceled_by_it(tmp_path: Path) -> None:
    crew, store = guarded(), f"sqlite:///{tmp_path / 'bridge.db'}"
    async with asyncio.timeout(60), running(crew_app(crew)) as upstream:
        async with bridge_to(upstream, store) as url, caller(url, ADA) as ada:
            task = await begin_slow_task(ada, crew)
        async with bridge_to(upstream, store) as url:
            await until(lambda: status_in_store(store, task), lambda found: found is TaskState.AUTH_REQUIRED)
            async with caller(url, ADA) as ada:
                assert (await ada.cancel(task)).status.state is TaskState.CANCELED
                await crew.canceled.wait()


async def test_no_credential_of_a_caller_is_stored_or_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    crew, store = guarded(), f"sqlite:///{tmp_path / 'bridge.db'}"
    async with running(crew_app(crew)) as upstream, bridge_to(upstream, store) as url:
        async with caller(url, ADA) as ada:
            assert (await ada("hello")).text == "HELLO"
    assert ADA not in caplog.text
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert b"hello" in stored and ADA.encode() not in stored


@pytest.mark.parametrize("stranger", [False, True])
async def test_a_message_whose_credential_was_refused_is_sent_once_when_its_caller_is_back(
    tmp_path: Path, stranger: bool
) -> None:
    """A message that was not sent, because the credential is of no more use, is not taken for one that may have been."""
    crew, store = Crew(auth=[Bearer({"ada": hashed(ADA + "-new")})]), f"sqlite:///{tmp_path / 'bridge.db'}"
    app = as_stranger(crew_app(crew)) if stranger else crew_app(crew)
    auth = {"tokens": {"ada": {"secret": ADA}, "ada-new": {"secret": ADA + "-new"}}}
    settings: dict[str, Any] = {"auth": auth, "credentials": {"type": "caller"}}
    async with asyncio.timeout(60), bridged(app, store=store, **settings) as (url, bridge):
        upstream = bridge.routes[0].upstream
        async with caller(url, ADA) as ada:
            begun = await ada.send("hello", wait=False)
            assert begun.task is not None
            task = begun.task.id
            await until(lambda: status_in_store(store, task), lambda now: now is TaskState.AUTH_REQUIRED)
            assert not crew.seen
            # The same caller comes back with another token, which the agent takes.
            upstream.remember_caller(
                Call(principal=Principal(id="ada"), credentials={"authorization": f"Bearer {ADA}-new"})
            )
            await until(lambda: len(crew.seen))
            await until(lambda: status_in_store(store, task), lambda now: now is TaskState.COMPLETED)
    assert len(crew.seen) == 1


@pytest.mark.parametrize("stranger", [False, True])
async def test_messages_that_find_the_agent_full_wait_and_are_sent_once(
    tmp_path: Path, stranger: bool
) -> None:
    crew, store = Crew(), f"sqlite:///{tmp_path / 'bridge.db'}"
    app = as_stranger(crew_app(crew)) if stranger else crew_app(crew)
    async with asyncio.timeout(60), bridged(app, store=store, concurrency=1) as (url, bridge):
        upstream = bridge.routes[0].upstream
        async with connect(url, agents={}) as client:
            slow = await client.send("one", skill="slow", wait=False)
            await crew.begun.wait()
            others = [await client.send(f"{n}", wait=False) for n in range(4)]
            await until(lambda: upstream.health().waiting)
            crew.gate.set()
            for each in (slow, *others):
                assert each.task is not None
                done = await client.wait(each.task.id)
                assert done.task is not None and done.task.status.state is TaskState.COMPLETED
    assert len(crew.seen) == 5


async def test_any_worker_may_see_the_caller_that_a_task_waits_for(tmp_path: Path) -> None:
    """A bridge with two workers is killed. The worker that takes up the task need not be the one that the caller finds."""
    crew, store = guarded(), f"sqlite:///{tmp_path / 'bridge.db'}"
    file = tmp_path / "bridge.toml"
    async with asyncio.timeout(90), running(crew_app(crew)) as upstream:
        file.write_text(
            f"""
            [auth]
            tokens = {{ ada = "{ADA}", bob = "{BOB}" }}
            [agents.crew]
            url = "{upstream}"
            path = "/"
            credentials = {{ type = "caller" }}
            """
        )
        server = Server(store=store, options=("--workers", "2", "--drain", "0"))
        place = server.command.index("serve")
        server.command[place : place + 1] = ["bridge", str(file)]
        async with server:
            async with caller(server.url, ADA) as ada:
                begun = await ada.send("go", skill="slow", wait=False)
                assert begun.task is not None
                task = begun.task.id
                await crew.begun.wait()
                await until(lambda: ada.get(task), lambda now: now.artifacts)
            await server.kill()
            await server.start()
            await until(lambda: status_in_store(store, task), lambda now: now is TaskState.AUTH_REQUIRED)
            for _ in range(2):  # one connection each: one worker or the other
                async with caller(server.url, ADA) as ada:
                    await until(lambda: state(ada, task), lambda now: now is TaskState.WORKING)
            crew.gate.set()
            async with caller(server.url, ADA) as ada:
                done = await ada.wait(task)
                assert done.task is not None and done.task.status.state is TaskState.COMPLETED
        assert ADA.encode() not in server.said
    assert len(crew.seen) == 1


async def test_a_caller_whose_credential_the_agent_refuses_is_told_and_does_not_wait() -> None:
    crew = Crew(auth=[Bearer({"bob": hashed(BOB)})])
    async with running(crew_app(crew)) as direct, bridge_to(direct, "memory:") as url:
        async with caller(url, ADA) as ada:
            reply = await ada.send("hi", skill="echo")
            assert reply.state is TaskState.AUTH_REQUIRED
            await ada.cancel(reply.id)
    assert crew.seen == []

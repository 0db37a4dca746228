"""A send that waits for its end begins at once, and nobody hears of it before it is on disk."""

from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dragoman.agent.agent import Agent
from dragoman.buses.local import LocalBus
from dragoman.engine.engine import Engine
from dragoman.engine.turn import Turn
from dragoman.errors import Unavailable
from dragoman.model.ops import Call, ListTasks, SendMessage
from dragoman.model.task import StatusUpdate, TaskState
from dragoman.stores.sqlite.store import SqliteStore
from tests.engine.conftest import call, events, say
from tests.stores.test_sqlite import _grow, _shrink


class Diary:
    """An agent that says what it does, and when; the tests see it do it."""

    def __init__(self) -> None:
        self.agent, self.other, self.done = Agent("a"), Agent("b"), list[str]()
        self.more, self.leave = asyncio.Event(), asyncio.Event()

        @self.agent.skill
        async def plain(text: str) -> str:
            self.did(f"plain {text}")
            return "done"

        @self.agent.skill
        async def stepping(turn: Turn) -> str:
            self.did("began")
            await turn.step("k", self.did, "step")
            return "stepped"

        @self.agent.skill
        async def calling(turn: Turn) -> str:
            self.did("began")
            return (await turn.call("b", "x")).text

        @self.agent.skill
        async def long(turn: Turn) -> str:
            self.did("began")
            await self.leave.wait()
            return "done"

        @self.other.skill
        async def called(text: str) -> str:
            self.did("called")
            return "answered"

    def did(self, what: str) -> None:
        self.done.append(what)
        self.more.set()

    async def until(self, what: str) -> None:
        async with asyncio.timeout(20):
            while what not in self.done:
                self.more.clear()
                await self.more.wait()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
async def engine(path: Path, diary: Diary) -> AsyncIterator[Engine]:
    agents = {"a": diary.agent, "b": diary.other}
    engine = Engine(SqliteStore(path), LocalBus(), lambda scope: agents.get(scope.agent))
    await engine.start()
    await engine.call(call(), say("first", skill="plain"))  # the runner has looked for work, and found none
    diary.done.clear()
    yield engine
    diary.leave.set()
    await engine.stop(drain=0)


@contextmanager
def lock_database(path: Path) -> Iterator[None]:
    """Nothing can be written meanwhile."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    yield
    other.execute("rollback")
    other.close()


async def test_a_blocking_send_starts_before_its_commit_and_is_answered_after_it(
    engine: Engine, diary: Diary, path: Path
) -> None:
    with lock_database(path):
        sending = asyncio.create_task(engine.call(call(), say("x", skill="plain")))
        await diary.until("plain x")
        assert (await engine.call(call(), ListTasks())).total_size == 1
        assert not sending.done()
    task = await sending
    assert task.state is TaskState.COMPLETED and task.text == "done"
    assert (await engine.call(call(), ListTasks())).total_size == 2


@pytest.mark.parametrize("skill", ["stepping", "calling"])
async def test_a_step_waits_until_its_message_is_on_disk(
    engine: Engine, diary: Diary, path: Path, skill: str
) -> None:
    with lock_database(path):
        sending = asyncio.create_task(engine.call(call(), say("x", skill=skill)))
        await diary.until("began")
        assert not (await asyncio.wait([sending], timeout=0.05))[0]
        assert diary.done == ["began"]
    assert (await sending).state is TaskState.COMPLETED
    assert diary.done == ["began", "step" if skill == "stepping" else "called"]


def with_a_key() -> tuple[Call, SendMessage]:
    return call(idempotency_key="k"), say("x", skill="plain")


def without_waiting() -> tuple[Call, SendMessage]:
    return call(), say("x", skill="plain", return_immediately=True)


@pytest.mark.parametrize("ask", [with_a_key, without_waiting])
async def test_a_send_with_a_key_or_without_waiting_is_on_disk_before_it_starts(
    engine: Engine, diary: Diary, path: Path, ask: Callable[[], tuple[Call, SendMessage]]
) -> None:
    with lock_database(path):
        sending = asyncio.create_task(engine.call(*ask()))
        await engine.call(call(), ListTasks())
        assert diary.done == [] and not sending.done()
    await sending
    await diary.until("plain x")


async def test_a_stream_has_it_on_disk_before_it_begins(engine: Engine, diary: Diary, path: Path) -> None:
    with lock_database(path):
        streaming = asyncio.create_task(events(engine.stream(call(), say("x", skill="plain"))))
        await engine.call(call(), ListTasks())
        assert diary.done == [] and not streaming.done()
    last = (await streaming)[-1].event
    assert isinstance(last, StatusUpdate) and last.status.state is TaskState.COMPLETED


async def test_a_sender_who_leaves_before_it_is_on_disk_does_not_stop_it(
    engine: Engine, diary: Diary, path: Path
) -> None:
    with lock_database(path):
        sending = asyncio.create_task(engine.call(call(), say("x", skill="plain")))
        await diary.until("plain x")
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
    await engine.call(call(), say("y", skill="plain"))
    page = await engine.call(call(), ListTasks())
    assert [task.state for task in page.tasks] == [TaskState.COMPLETED] * 3


@pytest.mark.parametrize("skill", ["plain", "stepping", "calling", "long"])
async def test_a_message_that_the_disk_refuses_is_refused_and_leaves_nothing(
    engine: Engine, diary: Diary, path: Path, skill: str
) -> None:
    store = engine._store
    assert isinstance(store, SqliteStore)
    await store.file.commits.submit(_shrink)
    long = say("x" * 1_000_000, skill=skill)
    async with asyncio.timeout(20):
        with pytest.raises(Unavailable):
            await engine.call(call(), long)
        began = list(diary.done)
        assert len(began) == 1
        for _ in range(3):  # it is known by now: nothing more begins
            with pytest.raises(Unavailable):
                await engine.call(call(), long)
        assert diary.done == began
        while engine.runner.running:
            await asyncio.sleep(0)
        await store.file.commits.submit(_grow)
        assert (await engine.call(call(), ListTasks())).total_size == 1
        await engine.call(call(), say("y", skill="plain"))
        diary.leave.set()
        assert (await engine.call(call(), long)).state is TaskState.COMPLETED


@pytest.mark.parametrize("skill", ["plain", "stepping", "calling", "long"])
async def test_a_send_fails_if_the_database_file_stays_locked(
    engine: Engine, diary: Diary, path: Path, skill: str
) -> None:
    store = engine._store
    assert isinstance(store, SqliteStore)
    store.file.commits._busy_timeout = 0.01
    with lock_database(path):
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable):
                await engine.call(call(), say("x", skill=skill))
            while engine.runner.running:
                await asyncio.sleep(0)
    assert "step" not in diary.done and "called" not in diary.done
    assert (await engine.call(call(), ListTasks())).total_size == 1


@pytest.mark.parametrize("skill", ["plain", "long"])
async def test_a_failed_commit_leaves_no_unhandled_error_if_its_sender_left(
    engine: Engine, skill: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "dragoman.stores")  # records that are kept would keep it alive
    noise: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
    store = engine._store
    assert isinstance(store, SqliteStore)
    await store.file.commits.submit(_shrink)
    sending = asyncio.create_task(engine.call(call(), say("x" * 1_000_000, skill=skill)))
    while not engine.runner.running:
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    while engine.runner.running:
        await asyncio.sleep(0)
    del sending
    await store.file.commits.submit(_grow)
    await engine.call(call(), say("y", skill="plain"))  # now whatever had to do with it is forgotten
    gc.collect()
    assert not noise

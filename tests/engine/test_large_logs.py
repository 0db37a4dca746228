"""Large logs are read and written in pieces: a reader that does not read holds one, whatever the size of its task."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.engine.records import PIECE_BYTES, size_of
from dragoman.engine.snapshot import SnapshotCache
from dragoman.engine.turn import Turn
from dragoman.errors import UnsupportedOperation
from dragoman.model.ops import GetTask, SubscribeToTask
from dragoman.model.task import ArtifactUpdate
from tests.engine.conftest import Start, call, say

CHUNK = 20_000


def writer(chunks: int) -> Agent:
    agent = Agent("a")

    @agent.skill
    async def write(turn: Turn) -> None:
        artifact = turn.artifact("a")
        for _ in range(chunks):
            await artifact.write("x" * CHUNK)

    return agent


async def test_a_resumed_stream_comes_in_pieces_and_does_not_read_the_whole_task(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start(writer(100))
    task = await engine.call(call(), say("x"))
    log = engine._store.scope(call().scope)

    async def load(*args: object, **options: object) -> None:
        raise AssertionError("nobody needs the whole task")

    monkeypatch.setattr(type(log), "load", load)
    batches = []
    stream = engine.stream(replace(call(), after=1), SubscribeToTask(id=task.id))
    async with aclosing(stream) as events:  # type: ignore[type-var]
        async for batch in events:
            batches.append(batch)
    sizes = [sum(len(event.raw) for event in batch) for batch in batches]
    assert max(sizes) <= PIECE_BYTES * 2
    chunks = [event for batch in batches for event in batch if isinstance(event.event, ArtifactUpdate)]
    assert sum(len(event.event.artifact.text) for event in chunks) == 100 * CHUNK  # type: ignore[union-attr,misc]


async def test_a_large_output_is_stored_in_several_records(start: Start) -> None:
    engine = await start(writer(100))
    task = await engine.call(call(), say("x"))
    log = engine._store.scope(call().scope)
    after, sizes = 0, []
    while records := await log.read(task.id, after=after, max_bytes=1):
        sizes.append(size_of(records))
        after = records[-1].seq
    assert max(sizes) <= 2 * PIECE_BYTES and len(sizes) >= 100 * CHUNK // PIECE_BYTES // 2
    assert (await engine.call(call(), GetTask(id=task.id))).text == "x" * CHUNK * 100


async def test_a_long_output_is_not_read_again_while_it_is_written_though_the_store_keeps_no_tasks_in_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start(writer(150))
    log = engine._store.scope(call().scope)
    load, loads = type(log).load, []

    async def count(self: object, task: str, **options: Any) -> Any:
        loads.append(task)
        return await load(self, task, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(log), "load", count)
    monkeypatch.setattr(SnapshotCache, "keep", lambda self, key, snapshot: self.drop(key))
    task = await engine.call(call(), say("x"))
    assert task.text == "x" * CHUNK * 150 and loads == []
    assert await engine.call(call(), GetTask(id=task.id)) == task


async def test_a_message_to_a_finished_task_is_refused_without_reading_its_log(start: Start) -> None:
    engine = await start(writer(1))
    task = await engine.call(call(), say("x"))
    with pytest.raises(UnsupportedOperation):
        await anext(engine.stream(call(), SubscribeToTask(id=task.id)))


async def test_events_of_an_agent_that_yields_control_after_each_are_sent_together(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def write(turn: Turn) -> None:
        artifact = turn.artifact("a")
        for _ in range(100):
            await artifact.write("x")
            await asyncio.sleep(0)

    engine = await start(agent)
    batches = [len(batch) async for batch in engine.stream(call(), say("x"))]
    assert sum(batches) >= 100 and len(batches) <= 50

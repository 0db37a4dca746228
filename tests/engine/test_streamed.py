"""A streaming step sends its pieces as they come, is recorded when it ends, and is never half an answer and a whole one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from dragoman import Artifact, Part, Result, StartOver, Status
from dragoman.agent.agent import Agent
from dragoman.engine.protocols import Lease
from dragoman.engine.records import Record
from dragoman.engine.turn import Turn
from dragoman.model.fold import Fold
from dragoman.model.ops import GetTask, SubscribeToTask
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState
from dragoman.stores.memory import MemoryLog
from tests.engine.conftest import Start, call, events, say


async def saying(*pieces: Any) -> AsyncIterator[Any]:
    for piece in pieces:
        yield piece


class Interrupted:
    """An agent whose skill runs until `interrupted` is set, and then again in another life."""

    def __init__(self) -> None:
        self.agent = Agent("a")
        self.interrupted = asyncio.Event()
        self.runs = 0

    async def hang(self) -> None:
        self.interrupted.set()
        await asyncio.Event().wait()

    async def play(self, start: Start) -> tuple[Task, list[Any]]:
        engine = await start(self.agent)
        task = await engine.call(call(), say("go", return_immediately=True))
        await self.interrupted.wait()
        for run in tuple(
            engine.runner._runs
        ):  # the output is on disk, so that the next run is compared with it
            if run.recorded is not None:
                await run.recorded.journal.commit()
        await engine.stop(drain=0)
        engine = await start(self.agent)
        async with asyncio.timeout(10):
            await events(engine.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
        received = [r.event for r in await events(engine.stream(call(after=0), SubscribeToTask(id=task.id)))]
        done = await engine.call(call(), GetTask(id=task.id))
        fold = Fold()
        for event in received:
            fold.apply(event)
        assert fold.task is not None and fold.task.artifacts == done.artifacts
        return done, received


def chunks(received: list[Any], artifact: str = "result") -> list[tuple[bool, str]]:
    return [
        (event.append, event.artifact.text)
        for event in received
        if isinstance(event, ArtifactUpdate) and event.artifact.artifact_id == artifact
    ]


async def test_pieces_go_out_as_they_come_and_the_text_is_returned(start: Start) -> None:
    agent, go_on = Agent("a"), asyncio.Event()

    async def model(prompt: str) -> AsyncIterator[str]:
        yield "Hel"
        await go_on.wait()
        yield f"lo, {prompt}"

    @agent.skill
    async def answer(text: str, turn: Turn) -> None:
        assert await turn.stream_step("answer", model, text) == "Hello, Ada"

    engine = await start(agent)
    seen = []
    async with asyncio.timeout(10):
        async for batch in engine.stream(call(), say("Ada")):
            for response in batch:
                if isinstance(response.event, ArtifactUpdate):
                    seen.append(response.event.artifact.text)
                    go_on.set()  # the first is here before the second is made
    assert seen == ["Hel", "lo, Ada"]


async def test_a_recorded_stream_is_replayed_and_the_model_is_not_called_again(start: Start) -> None:
    it, calls, got = Interrupted(), [0], list[Any]()

    async def model() -> AsyncIterator[Any]:
        calls[0] += 1
        for piece in ("a", "b", Status("searching", {"tool": "web"}), Part(data={"n": 1}), "c"):
            yield piece
        yield Artifact(artifact_id="file", name="f.txt", parts=(Part(raw=b"x", filename="f.txt"),))
        yield Result({"tokens": 7})

    @it.agent.skill
    async def answer(turn: Turn) -> str:
        it.runs += 1
        stream = turn.stream_step("answer", model)
        got.append([piece async for piece in stream])
        assert stream.value == {"tokens": 7} and stream.text == "abc"
        if it.runs == 1:
            await it.hang()
        return "."

    done, received = await it.play(start)
    assert it.runs == 2 and calls == [1]
    first, second = got
    assert second == ["ab", *first[2:]]
    assert [
        update.metadata for update in received if isinstance(update, StatusUpdate) and update.metadata
    ] == [{"tool": "web"}]
    assert [artifact.artifact_id for artifact in done.artifacts] == ["result", "file"]
    assert done.artifacts[0].text == "abc."


async def test_a_stream_that_is_interrupted_is_replaced_by_what_it_says_the_second_time(start: Start) -> None:
    it = Interrupted()

    async def model() -> AsyncIterator[str]:
        if it.runs == 1:
            yield "It is "
            yield "sunny"
            await it.hang()
        yield "It is raining"

    @it.agent.skill
    async def answer(turn: Turn) -> AsyncIterator[str]:
        it.runs += 1
        yield "Weather: "
        async for piece in turn.stream_step("answer", model):
            yield piece  # it is out already, and is not sent twice

    done, received = await it.play(start)
    assert done.state is TaskState.COMPLETED and done.artifacts[0].text == "Weather: It is raining"
    assert (False, "Weather: It is raining") in chunks(received)  # which a client sees as `piece.replaces`


async def test_a_failed_attempt_is_replaced_and_what_came_before_the_step_stays(start: Start) -> None:
    agent, attempts, got = Agent("a"), [0], list[Any]()

    async def model() -> AsyncIterator[Any]:
        attempts[0] += 1
        yield Artifact(artifact_id="log", parts=(Part(text=f"attempt {attempts[0]}"),))
        if attempts[0] < 3:
            yield f"half {attempts[0]} "
            raise OSError("the model went away")
        yield "whole"

    @agent.skill
    async def answer(turn: Turn) -> str:
        await turn.artifact("result").write("Intro. ")
        async for piece in turn.stream_step("answer", model, retries=2, backoff=0.0):
            got.append(piece)
        await turn.ask("More?")  # it runs again, from the record
        return "!"

    engine = await start(agent)
    received = [r.event for r in await events(engine.stream(call(), say("go")))]
    asked = received[-1].task_id  # type: ignore[union-attr]
    assert got.count(StartOver()) == 2
    assert chunks(received) == [
        (False, "Intro. "), (True, "half 1 "), (False, "Intro. half 2 "), (False, "Intro. whole"),
    ]  # fmt: skip
    done = await engine.call(call(), say("no", task=asked))
    assert [artifact.text for artifact in done.artifacts] == ["Intro. whole!", "attempt 3"]
    assert attempts == [3]


async def test_an_attempt_that_takes_too_long_is_repeated_and_the_last_error_is_raised(start: Start) -> None:
    agent, attempts, closed = Agent("a"), [0], [0]

    async def model() -> AsyncIterator[str]:
        attempts[0] += 1
        try:
            yield "tick"
            await asyncio.Event().wait()
        finally:
            closed[0] += 1

    @agent.skill
    async def answer(turn: Turn) -> str:
        with pytest.raises(TimeoutError):
            await turn.stream_step("answer", model, retries=1, backoff=0.0, timeout=0.01)
        return "gave up"

    engine = await start(agent)
    async with asyncio.timeout(10):
        done = await engine.call(call(), say("go"))
    assert attempts == closed == [2]
    assert done.artifacts[0].text.endswith("gave up")


async def test_a_function_that_returns_a_stream_and_one_that_does_not(start: Start) -> None:
    agent = Agent("a")

    async def create() -> AsyncIterator[str]:
        return saying("x", None, "", "y")

    @agent.skill
    async def answer(turn: Turn) -> str:
        assert await turn.stream_step("made", create, artifact=None) == "xy"
        with pytest.raises(TypeError, match="returns an async iterator, not list"):
            await turn.stream_step("list", lambda: ["x"], artifact=None)  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError, match="takes a function"):
            turn.stream_step("called", saying("x"))  # type: ignore[call-overload]
        return "only this"

    engine = await start(agent)
    done = await engine.call(call(), say("go"))
    assert done.state is TaskState.COMPLETED and [a.text for a in done.artifacts] == ["only this"]


async def test_canceling_the_task_closes_the_stream_of_the_model(start: Start) -> None:
    from dragoman.model.ops import CancelTask

    agent, began, closed = Agent("a"), asyncio.Event(), asyncio.Event()

    async def model() -> AsyncIterator[str]:
        try:
            yield "tick"
            began.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    @agent.skill
    async def answer(turn: Turn) -> None:
        await turn.stream_step("answer", model)

    engine = await start(agent)
    task = await engine.call(call(), say("go", return_immediately=True))
    async with asyncio.timeout(10):
        await began.wait()
        done = await engine.call(call(), CancelTask(id=task.id))
        await closed.wait()
    assert done.state is TaskState.CANCELED


async def test_a_step_that_fails_is_repeated_until_it_succeeds(start: Start) -> None:
    agent, attempts = Agent("a"), [0]

    async def fetch() -> str:
        attempts[0] += 1
        if attempts[0] == 1:
            raise OSError("reset")
        if attempts[0] == 2:
            await asyncio.Event().wait()
        return f"at {attempts[0]}"

    @agent.skill
    async def answer(turn: Turn) -> str:
        found = await turn.step("fetch", fetch, retries=3, backoff=0.0, timeout=0.01)
        await turn.ask("Go on?")
        return found

    engine = await start(agent)
    async with asyncio.timeout(10):
        asked = await engine.call(call(), say("go"))
        done = await engine.call(call(), say("yes", task=asked.id))
    assert attempts == [3] and done.artifacts[0].text == "at 3"


async def test_a_step_without_retries_left_raises_its_last_error(start: Start) -> None:
    agent, attempts = Agent("a"), [0]

    def fetch() -> str:
        attempts[0] += 1
        raise OSError(f"reset {attempts[0]}")

    @agent.skill
    async def answer(turn: Turn) -> str:
        with pytest.raises(OSError, match="reset 3"):
            await turn.step("fetch", fetch, retries=2, backoff=0.0)
        return "gave up"

    engine = await start(agent)
    assert (await engine.call(call(), say("go"))).artifacts[0].text == "gave up"


async def test_a_store_in_memory_writes_quick_output_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write wakes the readers and is sent by itself."""
    agent, writes = Agent("a"), list[int]()
    append = MemoryLog.append

    async def count(log: MemoryLog, lease: Lease, records: Sequence[Record]) -> int:
        writes.append(len(records))
        return await append(log, lease, records)

    monkeypatch.setattr(MemoryLog, "append", count)

    @agent.skill
    async def words() -> AsyncIterator[str]:
        for _ in range(400):
            yield "word "
            await asyncio.sleep(0)

    async with agent.test(store="memory:") as client:
        assert len((await client("go")).text) == 2000
    assert sum(writes) <= 402 and len(writes) < 200

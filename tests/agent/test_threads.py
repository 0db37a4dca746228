"""Plain functions may block: nobody else waits for them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from dragoman import Agent, Turn
from dragoman.agent import skill
from dragoman.agent.skill import in_thread
from tests.waiting import until


async def test_a_blocking_skill_does_not_delay_other_tasks() -> None:
    agent, go = Agent("a"), threading.Event()

    @agent.skill
    def block(text: str) -> str:
        go.wait(5)
        return f"{text} at last"

    @agent.skill
    async def quick(text: str) -> str:
        return text

    async with agent.test() as client:
        slow = asyncio.create_task(client("slow", skill="block"))
        assert await client("quick", skill="quick") == "quick"
        assert not slow.done()
        go.set()
        assert await slow == "slow at last"


async def test_a_generator_that_blocks_streams_its_pieces_as_they_come() -> None:
    agent, go, closed = Agent("a"), threading.Event(), threading.Event()

    @agent.skill
    def pieces(text: str) -> Iterator[str]:
        try:
            yield "one "
            go.wait(5)
            yield "two"
        finally:
            closed.set()

    async with agent.test() as client, client.stream("go") as stream:
        heard = []
        async for piece in stream:
            if piece.text:
                heard.append(piece.text)
                go.set()  # only now: the first piece came without the second
        assert heard == ["one ", "two"]
        assert closed.is_set()


async def test_a_stuck_function_does_not_keep_its_task_from_being_canceled() -> None:
    agent, stuck, never = Agent("a"), threading.Event(), threading.Event()

    @agent.skill
    def block(text: str) -> str:
        stuck.set()
        never.wait(30)
        return "too late"

    async with agent.test() as client:
        begun = await client.send("x", wait=False)
        await until(lambda: stuck.is_set())
        canceled = await client.cancel(begun.id)
        assert canceled.state.word == "canceled"
        never.set()


async def test_a_function_that_holds_the_turn_stays_on_the_event_loop() -> None:
    agent, here = Agent("a"), threading.get_ident()

    @agent.skill
    def with_turn(turn: Turn) -> str:
        turn.say("looking")
        return str(threading.get_ident() == here)

    @agent.skill
    def without(text: str) -> str:
        return str(threading.get_ident() == here)

    async with agent.test() as client:
        assert await client("x", skill="with_turn") == "True"
        assert await client("x", skill="without") == "False"


async def test_a_thread_passes_errors_back_and_gets_the_context_variables() -> None:
    known = contextvars.ContextVar("known", default="")
    known.set("here")
    assert await in_thread(lambda: known.get()) == "here"
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(lambda: next(iter(())))


async def test_only_so_many_threads_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skill, "MAX_THREADS", 2)
    running, most, lock, go = 0, 0, threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(5)
        with lock:
            running -= 1

    jobs = [asyncio.create_task(in_thread(work)) for _ in range(6)]
    await until(lambda: running >= 2)
    go.set()
    await asyncio.gather(*jobs)
    assert most == 2


async def test_a_function_that_blocks_the_event_loop_is_named_in_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("a")

    def log_messages() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name.startswith("dragoman")]

    @agent.skill
    def busy(turn: Turn) -> str:
        return turn.text

    @agent.skill
    async def quick(turn: Turn) -> str:
        return turn.text

    async with agent.test() as client:
        await client("hi", skill="busy")
        monkeypatch.setattr(skill, "LONG_CALL_SECONDS", 0.0)
        await client("hi", skill="quick")
        assert not log_messages()
        await client("hi", skill="busy")
    assert ["'busy' held up everybody" in line for line in log_messages()] == [True]


def test_event_loops_that_are_closed_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skill, "MAX_THREADS", 1)  # so that a call waits, and what it waits for knows its loop
    loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    async def call_twice() -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.gather(in_thread(lambda: None), in_thread(lambda: None))

    for _ in range(5):
        asyncio.run(call_twice())
    gc.collect()
    assert len(loops) <= 1

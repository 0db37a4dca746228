"""Killed in the middle of everything, started again: nothing is lost, nothing happens twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.crash.stage import Stage, rise
from tests.waiting import elapse

EVERY = 5


async def test_a_task_without_a_crash_is_complete(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.server:
        await stage.tell("quiet")
        await stage.check()


@pytest.mark.parametrize("first", range(1, EVERY + 1))
async def test_killed_after_the_nth_event(first: int, tmp_path: Path) -> None:
    stage = Stage(tmp_path, PACE="0.005")
    async with stage.server:
        async with asyncio.TaskGroup() as group:
            kills: list[asyncio.Task[None]] = []

            def kill(events: int) -> None:
                if events % EVERY == first % EVERY and all(done.done() for done in kills):
                    kills.append(group.create_task(stage.restart()))

            await stage.tell("killed", kill)
        await stage.check()
    assert stage.deaths >= 3


@pytest.mark.parametrize("seed", range(4))
async def test_many_tasks_survive_kills_at_random_moments(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    stage = Stage(tmp_path, PACE="0.02")
    async with stage.server:
        async with asyncio.TaskGroup() as group:
            for n in range(6):
                group.create_task(stage.tell(f"story {n}"))
            for _ in range(4):
                await elapse(dice.uniform(0.0, 0.15))
                await stage.restart()
        await stage.check()


async def test_killed_before_and_after_each_transaction(tmp_path: Path) -> None:
    """The agent kills itself, twice. One that lives to its last transaction shows that we have seen them all."""
    together = asyncio.Semaphore(3)
    survived = asyncio.Event()

    async def one(number: int) -> None:
        async with together:
            if survived.is_set():
                return
            stage = Stage(tmp_path / str(number))
            await stage.start(f"before:{number}")
            rising = asyncio.create_task(rise(stage, f"after:{2 + number % 9}"))
            try:
                await stage.tell("doomed")
                if not stage.deaths:
                    survived.set()
                if stage.deaths < 2:  # look at it in a life that nothing ends
                    rising.cancel()
                    await stage.server.kill()
                    await stage.server.start()
                await stage.check()
            finally:
                rising.cancel()
                await stage.server.kill()

    async with asyncio.TaskGroup() as group:
        for number in range(1, 60):
            group.create_task(one(number))
    assert survived.is_set()

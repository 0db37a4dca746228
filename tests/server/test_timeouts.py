"""Waiting, but not for ever."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.server.limits import TaskTimeout


async def test_task_timeout_raises_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        with TaskTimeout(0.01):
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_task_timeout_does_not_fire_for_short_waits() -> None:
    patience = TaskTimeout(0.01)
    for _ in range(5):
        with patience:
            await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        with patience:
            await asyncio.Event().wait()
    await asyncio.sleep(0)  # a cancellation that came too late would strike here


async def test_a_cancellation_from_elsewhere_is_no_timeout() -> None:
    async def wait() -> None:
        with TaskTimeout(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_task_timeout_counts_for_each_task() -> None:
    patience = TaskTimeout(0.02)
    gone: list[int] = []

    async def wait(n: int, quick: bool) -> None:
        try:
            with patience:
                await (asyncio.sleep(0) if quick else asyncio.Event().wait())
        except TimeoutError:
            gone.append(n)

    await asyncio.gather(*[wait(n, quick=n % 2 == 0) for n in range(10)])
    assert sorted(gone) == [1, 3, 5, 7, 9]

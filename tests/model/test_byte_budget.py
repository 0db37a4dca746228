"""A budget of bytes: who is large waits for room, in order, and nobody keeps it for ever."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.model.byte_budget import LARGE_BYTES, ByteBudget

BIG = LARGE_BYTES


async def begin(budget: ByteBudget, size: int, end: asyncio.Event) -> asyncio.Task[None]:
    """A task that holds `size` until `end`; it has begun to wait, or holds it already."""

    async def work() -> None:
        await budget.hold(size)
        await end.wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    return task


async def until(budget: ByteBudget, used: int) -> None:
    async with asyncio.timeout(20):
        while budget.used != used:
            await asyncio.sleep(0)


async def test_a_large_body_waits_for_others_and_small_ones_never_wait() -> None:
    budget, end = ByteBudget(3 * BIG), asyncio.Event()
    first = await begin(budget, 2 * BIG, end)
    second_end = asyncio.Event()
    second = await begin(budget, 2 * BIG, second_end)
    third = await begin(budget, BIG, second_end)  # would fit, and comes after the second all the same
    assert budget.used == 2 * BIG
    await budget.hold(BIG - 1)
    end.set()
    await first
    await until(budget, 3 * BIG)
    second_end.set()
    await asyncio.gather(second, third)
    await until(budget, 0)


async def test_a_body_larger_than_the_budget_is_admitted_alone() -> None:
    budget, end = ByteBudget(BIG), asyncio.Event()
    huge = await begin(budget, 10 * BIG, end)
    assert budget.used == 10 * BIG
    end.set()
    await huge
    await until(budget, 0)


async def test_a_long_request_is_counted_for_a_few_seconds_only() -> None:
    budget, end = ByteBudget(BIG, hold=0.001), asyncio.Event()
    lasting = await begin(budget, BIG, end)
    other = await begin(budget, BIG, end)
    await until(budget, 0)
    assert not lasting.done() and not other.done()
    end.set()
    await asyncio.gather(lasting, other)
    assert budget.used == 0  # released once


async def test_a_caller_that_leaves_while_waiting_gives_its_bytes_back() -> None:
    budget, end = ByteBudget(BIG), asyncio.Event()
    first = await begin(budget, BIG, end)
    second = await begin(budget, BIG, end)
    third = await begin(budget, BIG, end)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    end.set()
    await asyncio.gather(first, third)
    await until(budget, 0)


async def test_a_waiter_cancelled_when_it_is_admitted_returns_its_share() -> None:
    budget, end = ByteBudget(BIG), asyncio.Event()
    first = await begin(budget, BIG, end)
    second = await begin(budget, BIG, end)
    end.set()
    await first
    second.cancel()
    await asyncio.wait([second])
    await until(budget, 0)

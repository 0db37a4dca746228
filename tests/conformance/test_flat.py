"""Lists and counts cost the same however many tasks are stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from dragoman.engine.protocols import Log, Store
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from dragoman.stores.postgres.store import PostgresStore
from tests import postgres
from tests.conformance.records import mail, status, turn

SIZE = 1000


async def fill(log: Log, size: int) -> None:
    async def add(n: int) -> None:
        at = f"2026-01-01T00:{n // 60 % 60:02}:{n % 60:02}.{n % 1000:03}Z"
        lease = (await log.create(f"t{n}", f"c{n // 10}", mail(at=at), node="n1")).lease
        assert lease is not None
        state = TaskState.FAILED if n % 500 == 0 else TaskState.COMPLETED
        await log.settle(lease, [turn(), status(state, at=at)], mail=1)

    for first in range(0, size, 200):
        await asyncio.gather(*(add(n) for n in range(first, first + 200)))


async def assert_same_cost(few: Callable[[], Awaitable[Any]], many: Callable[[], Awaitable[Any]]) -> None:
    """The least wall-clock times of both, which take turns: a database works in a thread or a process of its own, and other
    processes may slow it down for a while."""
    least = [float("inf"), float("inf")]
    for tries in range(300):
        for n, work in enumerate((few, many)):
            began = time.perf_counter()
            await work()
            least[n] = min(least[n], time.perf_counter() - began)
        if tries >= 30 and least[1] < 4 * least[0]:
            return
    raise AssertionError(f"{few} takes {least[0]:.6f} s, {many} takes {least[1]:.6f} s")


async def test_a_page_and_a_count_cost_the_same_with_eight_times_the_tasks(store: Store) -> None:
    few, many = (store.scope(Scope("acme", "echo", owner)) for owner in ("alice", "bob"))
    await fill(few, SIZE)
    await fill(many, 8 * SIZE)
    if isinstance(store, PostgresStore):
        await asyncio.to_thread(postgres.server().execute, "analyze")  # as its own daemon does in time
    for query in (
        ListTasks(),
        ListTasks(status=TaskState.COMPLETED),
        ListTasks(status=TaskState.FAILED),
        ListTasks(context_id="c7"),
        ListTasks(context_id="c7", status=TaskState.COMPLETED),
    ):
        await assert_same_cost(partial(few.find, query, limit=2), partial(many.find, query, limit=2))
    await assert_same_cost(few.count_unfinished, many.count_unfinished)

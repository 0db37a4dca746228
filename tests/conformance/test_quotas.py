"""Quotas that nodes share, over every store: what all nodes accept together never exceeds the quota."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.protocols import Store
from dragoman.errors import Unavailable
from dragoman.observe import shared_quota
from dragoman.observe.shared_quota import (
    HOLD_SECONDS,
    SLOT_SECONDS,
    QuotaLease,
    SharedQuota,
    lease_slots,
    lease_tokens,
)
from tests.conformance.conftest import Clock
from tests.waiting import until

SLOW = 1e-6
"""Operations per second that never come back in a test."""


def count(body: bytes, now: float) -> tuple[bytes, float, int]:
    """One more than in the row."""
    n = int(body or b"0") + 1
    return str(n).encode(), now + 100, n


# -- rows --------------------------------------------------------------------------------------------------------------


async def test_changes_of_a_row_at_the_same_time_are_made_one_after_the_other(store: Store) -> None:
    counted = await asyncio.gather(*(store.quotas.change("k", count) for _ in range(20)))
    assert sorted(counted) == list(range(1, 21))
    assert await store.quotas.change("other", count) == 1


async def test_changes_of_two_processes_are_made_one_after_the_other(pair: tuple[Store, Store]) -> None:
    counted = await asyncio.gather(*(pair[n % 2].quotas.change("k", count) for n in range(20)))
    assert sorted(counted) == list(range(1, 21))


async def test_a_change_that_fails_changes_nothing(store: Store) -> None:
    def fail(body: bytes, now: float) -> Any:
        raise Unavailable("no")

    await store.quotas.change("k", count)
    with pytest.raises(Unavailable):
        await store.quotas.change("k", fail)
    assert await store.quotas.change("k", count) == 2


async def test_a_row_is_forgotten_after_its_time(store: Store, clock: Clock) -> None:
    await store.quotas.change("k", count)
    await store.tidy()
    assert await store.quotas.change("k", count) == 2
    clock.forward(101)
    await store.tidy()
    assert await store.quotas.change("k", count) == 1


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No share lapses while a machine is busy: what is not used goes back before."""
    monkeypatch.setattr(shared_quota, "HOLD_SECONDS", 60.0)


# -- rates -------------------------------------------------------------------------------------------------------------


async def flood(nodes: list[SharedQuota], rate: float, burst: int, n: int) -> int:
    """How many of `n` operations, over all nodes in turn and at the same time, are accepted."""
    keys = [node.key("rate", "ada") for node in nodes]
    waits = await asyncio.gather(
        *(nodes[i % len(nodes)].take(keys[i % len(nodes)], rate, burst) for i in range(n))
    )
    return sum(1 for wait in waits if wait == 0)


async def drained(nodes: list[SharedQuota], burst: int, *, expect: int) -> int:
    """How many operations are accepted in all, when callers come again and again."""
    taken = 0

    async def more() -> int:
        nonlocal taken
        taken += await flood(nodes, SLOW, burst, 10)
        return taken

    await until(more, lambda taken: taken >= expect, seconds=10)
    for _ in range(3):
        await more()
    return taken


@pytest.mark.usefixtures("patient")
async def test_all_nodes_together_accept_the_burst_and_not_one_more(pair: tuple[Store, Store]) -> None:
    nodes = [SharedQuota(store.quotas) for store in (*pair, *pair)]
    assert await drained(nodes, 50, expect=50) == 50  # what one holds and does not use, it gives back
    for node in nodes:
        await node.close()


async def test_one_node_accepts_its_burst_at_once(store: Store) -> None:
    node = SharedQuota(store.quotas)
    assert await flood([node], SLOW, 20, 40) == 20
    wait = await node.take(node.key("rate", "ada"), SLOW, 20)
    assert wait > 0
    await node.close()


async def test_who_asks_again_too_early_is_told_the_same_time_to_wait(store: Store) -> None:
    quota = SharedQuota(store.quotas)
    try:
        assert await quota.take("ada", 0.01, 1) == 0
        waits = [await quota.take("ada", 0.01, 1) for _ in range(3)]
        assert all(90 < wait <= 100 for wait in waits), waits
    finally:
        await quota.close()


async def test_callers_do_not_share_a_quota(store: Store) -> None:
    node = SharedQuota(store.quotas)
    for name in ("ada", "bob"):
        assert await node.take(node.key("rate", name), SLOW, 1) == 0
        assert await node.take(node.key("rate", name), SLOW, 1) > 0
    await node.close()


async def test_a_busy_caller_costs_the_store_little(store: Store) -> None:
    counted = Counting(store)
    node = SharedQuota(counted)
    for _ in range(400):
        assert await node.take(node.key("rate", "ada"), 1.0, 10_000) == 0
    assert counted.changes <= 20  # 1, 2, 4, 8 ... at a time
    await node.close()


@pytest.mark.usefixtures("patient")
async def test_what_a_node_does_not_use_goes_back(pair: tuple[Store, Store]) -> None:
    one, other = (SharedQuota(store.quotas) for store in pair)
    for _ in range(6):  # it holds some by now
        assert await one.take(one.key("rate", "ada"), SLOW, 20) == 0
    assert await drained([other], 20, expect=14) == 14
    assert await one.take(one.key("rate", "ada"), SLOW, 20) > 0
    await one.close()
    await other.close()


@pytest.mark.usefixtures("patient")
async def test_a_node_that_stops_gives_everything_back(pair: tuple[Store, Store]) -> None:
    one, other = (SharedQuota(store.quotas) for store in pair)
    for _ in range(6):
        await one.take(one.key("rate", "ada"), SLOW, 20)
    await one.close()
    assert await flood([other], SLOW, 20, 30) == 14
    await other.close()


async def test_what_a_dead_node_held_is_lost_and_the_rest_is_not(
    pair: tuple[Store, Store], clock: Clock
) -> None:
    async def take(node: str, *, spare: int) -> QuotaLease:
        change = partial(lease_tokens, node=node, rate=1.0, burst=20, need=1, spare=spare, unused=0)
        return await pair[0].quotas.change("k", change)

    assert (await take("dead", spare=9)).granted == 10  # and then it is gone
    assert sum([(await take("other", spare=0)).granted for _ in range(11)]) == 10
    clock.forward(HOLD_SECONDS + 5)
    assert sum([(await take("other", spare=0)).granted for _ in range(11)]) == 6


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_in_any_interval_nodes_accept_at_most_the_burst_and_what_came_back(data: st.DataObject) -> None:
    """Nodes that take, hold, use late, give back, and die, by any schedule. The store's decisions alone are tested."""
    rate, burst = data.draw(st.sampled_from([0.5, 3.0, 40.0])), data.draw(st.integers(1, 12))
    steps = data.draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 6), st.sampled_from([0.0, 0.05, 0.4, 1.1, 3.0]))
        ),
        label="node, spare, pause",
    )
    body, now = b"", 1000.0
    held: dict[str, tuple[int, float]] = {}
    accepted: list[float] = []
    chance = random.Random(len(steps))
    for number, spare, pause in steps:
        now += pause
        node = f"n{number}"
        left, until_ = held.pop(node, (0, 0.0))
        if left and now < until_ and chance.random() < 0.7:
            accepted.append(now)
            held[node] = left - 1, until_
            continue
        unused = left if chance.random() < 0.8 else 0  # or it died, and was started again
        body, _, lease = lease_tokens(
            body, now, node=node, rate=rate, burst=burst, need=1, spare=spare, unused=unused
        )
        if lease.granted:
            accepted.append(now)
            held[node] = lease.granted - 1, now + HOLD_SECONDS
    for first, begin in enumerate(accepted):
        for last in range(first, len(accepted)):
            assert last - first + 1 <= burst + rate * (accepted[last] - begin) + 1e-6


# -- concurrency -------------------------------------------------------------------------------------------------------


async def test_all_nodes_together_run_as_many_operations_as_allowed(pair: tuple[Store, Store]) -> None:
    nodes = [SharedQuota(store.quotas) for store in (*pair, *pair)]
    key = nodes[0].key("slots", "ada")
    entered = await asyncio.gather(*(nodes[n % 4].enter(key, 10) for n in range(40)))
    assert sum(entered) == 10
    for n, inside in enumerate(entered):
        if inside:
            nodes[n % 4].leave(key)
    for node in nodes:
        await node.close()


async def test_a_caller_that_goes_to_another_node_after_its_answer_is_let_in(
    pair: tuple[Store, Store],
) -> None:
    nodes = [SharedQuota(store.quotas) for store in pair]
    key = nodes[0].key("slots", "ada")
    for n in range(6):
        assert await nodes[n % 2].enter(key, 1)
        nodes[n % 2].leave(key)
    for node in nodes:
        await node.close()


async def test_slots_that_a_node_holds_are_not_used_after_the_limit_was_lowered(store: Store) -> None:
    node = SharedQuota(store.quotas)
    key = node.key("slots", "ada")
    assert [await node.enter(key, 32) for _ in range(2)] == [True, True]
    assert not await node.enter(key, 2)
    await node.close()


async def test_slots_of_a_dead_node_are_free_after_a_while(store: Store, clock: Clock) -> None:
    async def want(node: str, n: int, active: int = 0) -> int:
        change = partial(lease_slots, node=node, limit=3, active=active, want=n)
        return (await store.quotas.change("k", change)).granted

    assert await want("dead", 3) == 3
    clock.forward(SLOT_SECONDS / 2)
    assert await want("other", 1) == 0
    clock.forward(SLOT_SECONDS)
    assert await want("other", 3) == 3
    assert await want("dead", 3, active=2) == 2  # it was only cut off: what it runs counts again
    assert await want("other", 3, active=1) == 1


async def test_slots_of_a_dead_node_move_to_the_one_that_continues_its_work(
    store: Store, clock: Clock
) -> None:
    async def lease(node: str, active: int, continued: int = 0, want: int = 0) -> tuple[int, int]:
        change = partial(
            lease_slots, node=node, limit=2, active=active, want=max(active, want), continued=continued
        )
        lease = await store.quotas.change("k", change)
        return lease.granted, lease.moved

    assert await lease("dead", 2) == (2, 0)
    clock.forward(SLOT_SECONDS / 6)
    assert await lease("heir", 1, 1) == (1, 0)  # perhaps the first one only is a little late
    assert await lease("other", 0, want=1) == (0, 0)
    clock.forward(SLOT_SECONDS / 4)
    assert await lease("heir", 1, 1) == (1, 1)
    assert await lease("other", 0, want=1) == (0, 0)  # the second task of the dead node has still its slot
    assert await lease("heir", 2, 1) == (2, 1)
    assert await lease("other", 0, want=1) == (0, 0)
    assert await lease("heir", 1) == (1, 0)
    assert await lease("other", 0, want=1) == (1, 0)


async def test_slots_wait_for_whoever_continues_the_work_of_a_dead_node(
    pair: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_quota, "_SWEEP_SECONDS", 0.05)
    dead, heir = (SharedQuota(each.quotas, slot_seconds=1.2) for each in pair)
    key = dead.key("slots", "ada")
    assert await dead.enter(key, 1)
    sweeper = dead._sweeper
    assert sweeper is not None
    sweeper.cancel()  # it renews nothing more
    heir.enter_anyway(key, 1)
    await until(lambda: heir._slots[key].slots == 1 and not heir._slots[key].continued)
    heir.leave(key)
    assert await heir.enter(key, 1), "and the next one need not wait for the end of the dead node's slot"
    heir.leave(key)
    await heir.close()


class FailingOnce:
    """Counts quotas, but for the first time, which fails when `go` is set."""

    spans_machines = True

    def __init__(self, store: Store) -> None:
        self._store, self.go, self._asked = store, asyncio.Event(), False

    async def change(self, key: str, change: Callable[[bytes, float], tuple[bytes, float, Any]]) -> Any:
        if not self._asked:
            self._asked = True
            await self.go.wait()
            raise Unavailable("not now")
        return await self._store.quotas.change(key, change)


async def test_a_slot_is_counted_for_a_caller_that_waits_while_the_share_is_swept(store: Store) -> None:
    quotas = FailingOnce(store)
    node = SharedQuota(quotas)
    first, second = (asyncio.create_task(node.enter("k", 2)) for _ in range(2))
    await until(lambda: "k" in node._slots and node._slots["k"].lock.locked())
    quotas.go.set()
    swept = asyncio.create_task(
        node._sweep_once()
    )  # after the first has failed, and before the second goes on
    with pytest.raises(Unavailable):
        await first
    assert await second
    await swept
    assert node._slots["k"].active == 1
    node.leave("k")
    await node.close()


async def test_slots_of_long_operations_are_renewed(
    pair: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_quota, "SLOT_SECONDS", 1.0)
    monkeypatch.setattr(shared_quota, "_SWEEP_SECONDS", 0.05)
    counted = Counting(pair[0])
    one, other = SharedQuota(counted), SharedQuota(pair[1].quotas)
    key = one.key("slots", "ada")
    began = time.monotonic()
    assert await one.enter(key, 1)
    await until(lambda: counted.changes, lambda n: n >= 5 and time.monotonic() > began + 1.0)
    assert not await other.enter(key, 1)
    one.leave(key)
    await until(lambda: other.enter(key, 1), lambda inside: inside)
    for node in (one, other):
        await node.close()


# -- a store that is away ------------------------------------------------------------------------------------------------


class Counting:
    """The quotas of a store that can be taken away."""

    spans_machines = True

    def __init__(self, store: Store) -> None:
        self._quotas = store.quotas
        self.changes = 0
        self.away = False

    async def change(self, key: str, change: Callable[[bytes, float], Any]) -> Any:
        if self.away:
            raise Unavailable("the store is away")
        self.changes += 1
        return await self._quotas.change(key, change)


async def test_without_its_store_a_node_uses_its_share_and_then_refuses(store: Store) -> None:
    quotas = Counting(store)
    node = SharedQuota(quotas)
    key = node.key("rate", "ada")
    for _ in range(4):  # 1, then 2 with one to hold, then ...
        assert await node.take(key, SLOW, 100) == 0
    quotas.away = True
    accepted = 0
    with pytest.raises(Unavailable, match="the store is away") as raised:
        for _ in range(100):
            assert await node.take(key, SLOW, 100) == 0
            accepted += 1
    assert accepted <= 4 and raised.value.retry_after == 1
    with pytest.raises(Unavailable):
        await node.enter(node.key("slots", "ada"), 3)
    quotas.away = False
    assert await node.take(key, SLOW, 100) == 0
    await node.close()


async def test_a_store_that_does_not_answer_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_quota, "_STORE_SECONDS", 0.05)

    class Hangs:
        spans_machines = True

        async def change(self, key: str, change: Any) -> Any:
            await asyncio.Event().wait()

    node = SharedQuota(Hangs())
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable):
            await node.take("k", 1.0, 1)
        await node.close()
    assert "the store does not count quotas now: it does not answer" in caplog.text


class Late:
    """The quotas of a store that may take long: a change that its caller does not wait for any more is made later."""

    spans_machines = True

    def __init__(self, store: Store) -> None:
        self._quotas = store.quotas
        self.prompt, self.go_on = asyncio.Event(), asyncio.Event()
        self.late: list[asyncio.Task[Any]] = []
        self.prompt.set()

    async def change(self, key: str, change: Callable[[bytes, float], Any]) -> Any:
        if self.prompt.is_set():
            return await self._quotas.change(key, change)

        async def change_later() -> Any:
            await self.go_on.wait()
            return await self._quotas.change(key, change)

        self.late.append(asyncio.create_task(change_later()))
        return await asyncio.shield(self.late[-1])


async def test_what_a_node_gave_up_to_give_back_is_not_given_back_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas = Late(store)
    node, other = SharedQuota(quotas), SharedQuota(store.quotas)
    key = node.key("slots", "ada")
    assert await node.enter(key, 2) and await node.enter(key, 2)
    with monkeypatch.context() as impatient:
        impatient.setattr(shared_quota, "_STORE_SECONDS", 0.05)
        quotas.prompt.clear()
        node.leave(key)  # it is given back, which takes too long
        await until(lambda: node._failing)
    quotas.prompt.set()
    assert await node.enter(key, 2)
    quotas.go_on.set()
    await asyncio.gather(*quotas.late, return_exceptions=True)
    assert not await other.enter(key, 2), "two are taken"
    await node.close()
    await other.close()

"""What only a store in memory has to show."""

from __future__ import annotations

import asyncio

from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores.memory import MemoryStore
from tests.conformance.records import mail, status, turn
from tests.conformance.test_push_queue import webhook
from tests.growth import assert_constant

SCOPE = Scope("acme", "echo", "ada")


async def finish_tasks(n: int) -> MemoryStore:
    """A store with `n` finished tasks, whose webhooks have heard of that."""
    store = MemoryStore()
    await store.join("node", ttl=60)
    log = store.scope(SCOPE)
    for number in range(n):
        name = f"task{number}"
        begun = await log.create(name, "c", mail(), node="node", webhook=webhook(task=name))
        assert begun.lease is not None
        await log.settle(begun.lease, [turn(), status(TaskState.COMPLETED)], mail=1)
    for delivery in await store.push_queue.claim_due("push", limit=n):
        await store.push_queue.release(delivery, delivery.last)
    return store


def test_what_a_node_does_again_and_again_costs_the_same_with_many_finished_tasks() -> None:
    async def beat(store: MemoryStore) -> None:
        for _ in range(100):
            assert await store.claim("node", limit=10) == []
            assert await store.renew("node", ttl=60) == []
            assert store.count_unclaimed() == 0
            assert await store.push_queue.next_due() is None
            assert await store.push_queue.claim_due("push", limit=10) == []

    assert_constant(
        lambda store: asyncio.run(beat(store)), lambda n: asyncio.run(finish_tasks(n)), 500, 16_000
    )


async def test_a_node_holds_what_it_claimed_until_it_settles_or_leaves() -> None:
    store = MemoryStore()
    log = store.scope(SCOPE)
    for node in ("one", "two"):
        await store.join(node, ttl=60)
    mine = (await log.create("mine", "c", mail(), node="one")).lease
    assert mine is not None
    await log.create("waits", "c", mail())
    await log.create("waits too", "c", mail())
    assert store.count_unclaimed() == 2
    assert [lease.task for lease in await store.claim("two", limit=1)] == ["waits"]
    assert [held.key for held in await store.renew("one", ttl=60)] == [mine.key]
    await log.settle(mine, [turn(), status(TaskState.COMPLETED)], mail=1)
    assert await store.renew("one", ttl=60) == []
    await store.leave("two")
    assert store.count_unclaimed() == 2
    assert sorted(lease.task for lease in await store.claim("one", limit=9)) == ["waits", "waits too"]
    assert len(await store.renew("one", ttl=60)) == 2

"""What a store promises about push configs: nothing that was committed is forgotten, and one node at a time tells it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.engine import push_configs
from dragoman.engine.protocols import Lease, LeaseLost, Log, Store
from dragoman.engine.push_configs import MAX_PUSH_CONFIGS, Delivery, StoredPushConfig
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model.ops import AuthenticationInfo, PushConfig, Scope
from dragoman.model.task import TaskState
from tests.conformance.conftest import SCOPE, Clock
from tests.conformance.records import chunk, mail, reply, status, turn

WORKING, DONE, ASKS = TaskState.WORKING, TaskState.COMPLETED, TaskState.INPUT_REQUIRED


def webhook(
    id: str = "h", *, url: str = "https://example.com/webhook", task: str = "t", **more: Any
) -> StoredPushConfig:
    return StoredPushConfig(config=PushConfig(id=id, task_id=task, url=url, **more), uid=f"uid-{id}")


async def begin(log: Log, task: str = "t", **more: Any) -> Lease:
    """A task that node `n1` runs."""
    lease = (await log.create(task, "c", mail(), node="n1", **more)).lease
    assert lease is not None
    return lease


async def due(store: Store, node: str = "n1", limit: int = 10) -> list[Delivery]:
    return list(await store.push_queue.claim_due(node, limit=limit))


# Configs


async def test_a_push_config_is_stored_unchanged(store: Store, log: Log) -> None:
    await begin(log)
    given = webhook(token="tök", authentication=AuthenticationInfo(scheme="Bearer", credentials="secret"))
    assert await store.push_configs.put(SCOPE, "t", given) == given
    assert list(await store.push_configs.list(SCOPE, "t")) == [given]


async def test_hooks_are_listed_oldest_first(store: Store, log: Log) -> None:
    await begin(log, webhook=webhook("z"))
    await store.push_configs.put(SCOPE, "t", webhook("a"))
    await log.deliver("t", mail(), webhook=webhook("m"))
    assert [each.config.id for each in await store.push_configs.list(SCOPE, "t")] == ["z", "a", "m"]


async def test_putting_a_hook_again_replaces_it_in_its_place(store: Store, log: Log) -> None:
    await begin(log, webhook=webhook("one"))
    await store.push_configs.put(SCOPE, "t", webhook("two"))
    new = StoredPushConfig(
        config=PushConfig(id="one", task_id="t", url="https://other.example"), dialect="0.3", uid="new"
    )
    kept = await store.push_configs.put(SCOPE, "t", new)
    assert (kept.config, kept.dialect, kept.uid) == (new.config, "0.3", "uid-one")
    assert [each.config.url for each in await store.push_configs.list(SCOPE, "t")] == [
        "https://other.example",
        "https://example.com/webhook",
    ]


async def test_a_task_has_a_limited_number_of_hooks(store: Store, log: Log) -> None:
    await begin(log)
    for i in range(MAX_PUSH_CONFIGS):
        await store.push_configs.put(SCOPE, "t", webhook(f"h{i}"))
    with pytest.raises(InvalidParams):
        await store.push_configs.put(SCOPE, "t", webhook("more"))
    with pytest.raises(InvalidParams):
        await log.deliver("t", mail(), webhook=webhook("more"))
    assert (
        await log.load("t")
    ).seq == 1  # the message came with a webhook that cannot be had, so it did not come
    await store.push_configs.put(SCOPE, "t", webhook("h0"))
    await store.push_configs.delete(SCOPE, "t", "h0")
    await store.push_configs.put(SCOPE, "t", webhook("more"))


async def test_deleting_a_hook_twice_is_deleting_it_once(store: Store, log: Log) -> None:
    await begin(log, webhook=webhook("one"))
    await store.push_configs.put(SCOPE, "t", webhook("two"))
    for _ in range(2):
        await store.push_configs.delete(SCOPE, "t", "one")
    assert [each.config.id for each in await store.push_configs.list(SCOPE, "t")] == ["two"]


@pytest.mark.parametrize(
    "other", [Scope("acme", "echo", "bob"), Scope("acme", "other", "alice"), Scope("rival", "echo", "alice")]
)
async def test_hooks_of_another_scope_cannot_be_named(store: Store, log: Log, other: Scope) -> None:
    await begin(log, webhook=webhook())
    await store.scope(other).create("theirs", "c", mail())
    for operation in (
        store.push_configs.put(other, "t", webhook("x")),
        store.push_configs.list(other, "t"),
        store.push_configs.delete(other, "t", "h"),
        store.push_configs.list(SCOPE, "missing"),
    ):
        with pytest.raises(TaskNotFound):
            await operation
    assert len(await store.push_configs.list(SCOPE, "t")) == 1


async def test_a_repeated_message_brings_its_hook_once(store: Store, log: Log) -> None:
    await begin(log, webhook=webhook("one"), dedupe="k")
    again = await log.create("t2", "c", mail(), dedupe="k", webhook=webhook("two"))
    assert again.duplicate
    assert [each.config.id for each in await store.push_configs.list(SCOPE, "t")] == ["one"]


# What is due


async def test_a_webhook_is_due_when_its_task_has_a_new_event(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    assert await due(store) == [] and await store.push_queue.next_due() is None
    await log.append(lease, [turn()])
    assert await due(store) == []
    await log.append(lease, [status(WORKING), chunk()])
    assert await store.push_queue.next_due() is not None
    (delivery,) = await due(store)
    assert (delivery.scope, delivery.task, delivery.webhook) == (SCOPE, "t", webhook())
    assert (delivery.cursor, delivery.last, delivery.attempt, delivery.dead) == (1, 4, 0, False)


@pytest.mark.parametrize("end", [status(DONE), status(ASKS, kind="ask"), reply()])
async def test_a_hook_is_due_when_its_task_settles(store: Store, log: Log, end: Any) -> None:
    lease = await begin(log, webhook=webhook())
    await log.settle(lease, [turn(), end], mail=1)
    (delivery,) = await due(store)
    assert (delivery.cursor, delivery.last) == (1, 3)


async def test_mail_makes_no_webhook_due(store: Store, log: Log) -> None:
    await begin(log, webhook=webhook())
    await log.deliver("t", mail())
    assert await due(store) == []


async def test_a_task_without_hooks_makes_nothing_due(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await store.push_configs.delete(SCOPE, "t", "h")
    await log.settle(lease, [status(DONE)], mail=1)
    assert await due(store) == []


async def test_a_new_webhook_gets_later_events_and_not_earlier_ones(store: Store, log: Log) -> None:
    lease = await begin(log)
    await log.append(lease, [turn(), status(WORKING)])
    await store.push_configs.put(SCOPE, "t", webhook())
    assert await due(store) == []
    await log.append(lease, [chunk()])
    (delivery,) = await due(store)
    assert (delivery.cursor, delivery.last) == (3, 4)


@pytest.mark.parametrize("state", [DONE, ASKS])
async def test_a_webhook_registered_after_the_end_gets_the_final_status(
    store: Store, log: Log, state: TaskState
) -> None:
    lease = await begin(log)
    await log.settle(lease, [turn(), status(state)], mail=1)
    await store.push_configs.put(SCOPE, "t", webhook())
    (delivery,) = await due(store)
    assert (delivery.cursor, delivery.last) == (2, 3)


async def test_a_replaced_hook_goes_on_from_where_it_is(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [status(WORKING)])
    (delivery,) = await due(store)
    await store.push_queue.release(delivery, 1, error="no", dead=True)
    await store.push_configs.put(SCOPE, "t", webhook(url="https://new.example"))
    (again,) = await due(store)
    assert (again.cursor, again.attempt, again.webhook.config.url) == (1, 0, "https://new.example")
    with pytest.raises(LeaseLost):
        await store.push_queue.advance(delivery, 2)


async def test_a_listener_is_woken_when_a_webhook_becomes_due(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    heard: list[str] = []
    with store.push_queue.listen(lambda: heard.append("news")):
        await log.append(lease, [turn()])
        assert heard == []
        await log.append(lease, [chunk()])
        assert heard == ["news"]
        (delivery,) = await due(store)
        await store.push_queue.release(delivery, 3)
        await log.settle(lease, [status(DONE)], mail=1)
        assert heard == ["news", "news"]
    await store.push_queue.redeliver(delivery.key)
    assert heard == ["news", "news"]


# Telling


async def test_one_live_node_at_a_time_holds_a_hook(store: Store, log: Log) -> None:
    for i in range(20):
        lease = await begin(log, f"t{i}", webhook=webhook(task=f"t{i}"))
        await log.append(lease, [chunk()])
    claims = await asyncio.gather(*(due(store, f"n{1 + i % 2}", limit=3) for i in range(10)))
    tasks = [delivery.task for claimed in claims for delivery in claimed]
    assert len(tasks) == 20 and len(set(tasks)) == 20


async def test_advancing_moves_the_cursor_and_keeps_the_hook(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk("a"), chunk("b")])
    (delivery,) = await due(store)
    await store.push_queue.advance(delivery, 2)
    assert await due(store, "n2") == []
    await store.push_queue.release(delivery, 2)
    (delivery,) = await due(store, "n2")
    assert (delivery.cursor, delivery.fence) == (2, 2)
    await store.push_queue.release(delivery, 3)
    assert await due(store) == []


async def test_events_during_a_delivery_are_due_after_it(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk("a")])
    (delivery,) = await due(store)
    await log.append(lease, [chunk("b")])
    await store.push_queue.release(delivery, 2)
    (delivery,) = await due(store)
    assert (delivery.cursor, delivery.last) == (2, 3)


async def test_a_failed_attempt_waits_and_is_counted(store: Store, log: Log, clock: Clock) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk("a"), chunk("b")])
    (first,) = await due(store)
    began = clock()
    await store.push_queue.release(first, 1, retry_in=10, error="HTTP 500")
    at = await store.push_queue.next_due()
    assert at is not None and began + 10 <= at <= clock() + 10
    clock.forward(9)
    assert await due(store) == []
    clock.forward(2)
    (second,) = await due(store)
    assert (second.attempt, second.error, second.cursor) == (1, "HTTP 500", 1)
    assert began <= second.since <= began + 1
    await store.push_queue.release(second, 1, retry_in=1, error="HTTP 503")
    clock.forward(2)
    (third,) = await due(store)
    assert (third.attempt, third.since, third.error) == (2, second.since, "HTTP 503")
    await store.push_queue.release(
        third, 2, retry_in=1, error="HTTP 502"
    )  # one got through, the next did not
    clock.forward(2)
    (fourth,) = await due(store)
    assert (fourth.cursor, fourth.attempt) == (2, 1) and fourth.since > second.since
    await store.push_queue.advance(fourth, 3)
    await log.append(lease, [chunk("c")])
    await store.push_queue.release(fourth, 3)
    (fifth,) = await due(store)
    assert (fifth.attempt, fifth.since, fifth.error) == (0, 0.0, "")


@pytest.mark.parametrize("hours", [-5, 5], ids=["back", "forward"])
async def test_a_retry_delay_does_not_change_when_a_clock_is_set(
    store: Store, log: Log, wall: Clock, hours: int
) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk()])
    (delivery,) = await due(store)
    await store.push_queue.release(delivery, 1, retry_in=60, error="HTTP 500")
    before = push_configs.steady_time()
    wall.forward(hours * 3600)
    assert await due(store) == []
    at = await store.push_queue.next_due()
    assert at is not None and 0 < at - before <= 60 and push_configs.steady_time() - before < 60


async def test_a_time_that_only_a_wrong_clock_can_have_written_means_now(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk()])
    (delivery,) = await due(store)
    await store.push_queue.release(delivery, 1, retry_in=7200, error="HTTP 500")
    assert not await store.push_queue.claim_due("n1", limit=1, longest=7300)
    (delivery,) = await store.push_queue.claim_due("n1", limit=1, longest=3600)
    assert (delivery.attempt, delivery.error) == (1, "HTTP 500")


async def test_a_delivery_postponed_without_an_error_counts_no_attempt(
    store: Store, log: Log, clock: Clock
) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk()])
    (first,) = await due(store)
    await store.push_queue.release(first, 1, retry_in=1, error="no")
    clock.forward(2)
    (second,) = await due(store)
    await store.push_queue.release(second, 1, retry_in=5)
    assert await due(store) == []
    clock.forward(6)
    (third,) = await due(store)
    assert (third.attempt, third.since) == (1, second.since)


async def test_a_deleted_webhook_gets_no_more_events(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk()])
    (delivery,) = await due(store)
    await store.push_configs.delete(SCOPE, "t", "h")
    with pytest.raises(LeaseLost):
        await store.push_queue.advance(delivery, 2)
    await store.push_queue.release(delivery, 2)
    assert await due(store) == []


async def test_a_sender_keeps_its_webhook_when_a_clock_is_set(store: Store, log: Log, wall: Clock) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk()])
    (delivery,) = await due(store, "n1")
    wall.forward(3600)
    assert await due(store, "n2") == await due(store, "n1") == []
    await store.push_queue.advance(delivery, delivery.last)


async def test_webhooks_of_a_dead_node_are_taken_over_and_its_results_are_refused(
    store: Store, log: Log, clock: Clock
) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk()])
    (zombie,) = await due(store, "n1")
    clock.forward(50)
    await store.renew("n2", ttl=60)
    assert await due(store, "n2") == []
    clock.forward(15)
    (delivery,) = await due(store, "n2")
    assert delivery.fence == zombie.fence + 1
    with pytest.raises(LeaseLost):
        await store.push_queue.advance(zombie, 2)
    await store.push_queue.release(zombie, 2, error="late", dead=True)
    await store.push_queue.advance(delivery, 2)


async def test_a_lapsed_node_does_not_take_its_own_deliveries_again(
    store: Store, log: Log, clock: Clock
) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk()])
    (delivery,) = await due(store, "n1")
    clock.forward(61)
    assert await due(store, "n1") == []
    await store.push_queue.advance(delivery, 2)


async def test_webhooks_of_a_node_that_leaves_are_due_at_once(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk()])
    (held,) = await due(store, "n1")
    await store.leave("n1")
    with pytest.raises(LeaseLost):
        await store.push_queue.advance(held, 2)
    assert len(await due(store, "n2")) == 1


# Given up


async def test_a_webhook_that_was_given_up_is_listed_and_can_be_redelivered(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    other = await begin(log, "t2", webhook=webhook(task="t2"))
    await log.append(lease, [chunk("a")])
    await log.append(other, [chunk("a")])
    first, second = await due(store)
    await store.push_queue.release(first, 1, error="HTTP 410", dead=True)
    await log.append(lease, [chunk("b")])
    assert await due(store) == [] and await store.push_queue.next_due() is None
    (dead,) = await store.push_queue.find(dead=True, limit=10)
    assert (dead.key, dead.task, dead.error, dead.dead) == (first.key, "t", "HTTP 410", True)
    assert (dead.cursor, dead.last, dead.attempt) == (1, 3, 1)
    assert [d.key for d in await store.push_queue.find(limit=10)] == [first.key, second.key]
    assert [d.key for d in await store.push_queue.find(limit=1)] == [first.key]
    assert await store.push_queue.redeliver(first.key)
    assert list(await store.push_queue.find(dead=True, limit=10)) == []
    (again,) = await due(store)
    assert (again.key, again.cursor, again.last, again.attempt, again.error) == (first.key, 1, 3, 0, "")


async def test_telling_again_may_begin_earlier(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await log.append(lease, [chunk("a"), chunk("b")])
    (delivery,) = await due(store)
    await store.push_queue.release(delivery, 3)
    assert await store.push_queue.redeliver(delivery.key, cursor=1)
    (again,) = await due(store)
    assert (again.cursor, again.last) == (1, 3)
    await store.push_queue.release(again, 3)
    assert await store.push_queue.redeliver(delivery.key, cursor=99)
    assert await due(store) == []
    assert not await store.push_queue.redeliver(12345)


# Purging


async def test_a_task_is_not_purged_while_a_notification_is_pending(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await log.settle(lease, [status(DONE)], mail=1)
    assert await store.purge("2999", limit=10) == 0
    (delivery,) = await due(store)
    assert await store.purge("2999", limit=10) == 0
    await store.push_queue.release(delivery, 2)
    assert await store.purge("2999", limit=10) == 1
    assert not await store.push_queue.redeliver(delivery.key)


async def test_a_webhook_that_was_given_up_does_not_prevent_a_purge(store: Store, log: Log) -> None:
    lease = await begin(log, webhook=webhook())
    await log.settle(lease, [status(DONE)], mail=1)
    (delivery,) = await due(store)
    await store.push_queue.release(delivery, 1, error="no", dead=True)
    assert await store.purge("2999", limit=10) == 1
    assert list(await store.push_queue.find(limit=10)) == []


# Two processes


async def test_a_webhook_created_by_one_process_gets_events_written_by_another(
    pair: tuple[Store, Store],
) -> None:
    here, there = pair
    lease = await begin(here.scope(SCOPE))
    await there.push_configs.put(SCOPE, "t", webhook())
    heard: list[str] = []
    with here.push_queue.listen(lambda: heard.append("news")):
        await here.scope(SCOPE).append(lease, [chunk()])
    assert heard == ["news"]
    (delivery,) = await due(there, "n2")
    assert await due(here, "n1") == []
    await there.push_queue.release(delivery, 2)
    assert await due(here, "n1") == []


async def test_two_processes_never_hold_the_same_hook(pair: tuple[Store, Store]) -> None:
    log = pair[0].scope(SCOPE)
    for i in range(30):
        lease = await begin(log, f"t{i}", webhook=webhook(task=f"t{i}"))
        await log.append(lease, [chunk()])
    claims = await asyncio.gather(*(due(pair[i % 2], f"n{1 + i % 2}", limit=4) for i in range(16)))
    tasks = [delivery.task for claimed in claims for delivery in claimed]
    assert len(tasks) == 30 and len(set(tasks)) == 30

"""What a store promises about leases: one holder at a time, and nothing lost when a holder dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dragoman.engine.protocols import HeldLease, LeaseLost, Log, NewMail, Store
from dragoman.engine.records import Record
from dragoman.errors import TaskClosed, TaskNotFound
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from tests.conformance.conftest import SCOPE, Clock
from tests.conformance.records import child, chunk, mail, status, step, turn

DONE = TaskState.COMPLETED


async def test_tasks_without_a_lease_are_claimed_oldest_first(store: Store, log: Log) -> None:
    for task in ("t1", "t2", "t3"):
        await log.create(task, "c", mail())
    other = Scope("rival", "echo", "eve")
    await store.scope(other).create("t4", "c", mail())
    first = await store.claim("n1", limit=2)
    assert [(lease.task, lease.fence, lease.attempt) for lease in first] == [("t1", 1, 1), ("t2", 1, 1)]
    second = await store.claim("n2", limit=10)
    assert [(lease.scope, lease.task) for lease in second] == [(SCOPE, "t3"), (other, "t4")]
    assert list(await store.claim("n1", limit=10)) == []


async def test_a_claim_gives_each_task_to_one_node(store: Store, log: Log) -> None:
    for i in range(40):
        await log.create(f"t{i}", "c", mail())
    claims = await asyncio.gather(*(store.claim(f"n{1 + i % 2}", limit=3) for i in range(20)))
    tasks = [lease.task for leases in claims for lease in leases]
    assert len(tasks) == 40 and len(set(tasks)) == 40


async def test_a_task_of_a_live_node_is_neither_claimed_nor_given_away_by_a_delivery(
    store: Store, log: Log
) -> None:
    delivered = await log.create("t", "c", mail(), node="n1")
    assert list(await store.claim("n2", limit=10)) == []
    assert (await log.deliver("t", mail(), node="n2")).lease is None
    assert (await log.deliver("t", mail(), node="n1")).lease is None  # it runs already
    assert delivered.lease is not None
    assert await log.append(delivered.lease, [chunk()]) == 4


async def test_a_delivery_with_a_node_claims_a_task_without_a_lease(store: Store, log: Log) -> None:
    await log.create("t", "c", mail())
    delivered = await log.deliver("t", mail(), node="n1")
    assert delivered.lease is not None and delivered.lease.fence == 1
    assert list(await store.claim("n2", limit=10)) == []


async def test_mail_without_a_node_makes_a_settled_task_claimable(store: Store, log: Log) -> None:
    delivered = await log.create("t", "c", mail(), node="n1")
    assert delivered.lease is not None
    await log.settle(delivered.lease, [turn(), status(TaskState.INPUT_REQUIRED)], mail=1)
    assert list(await store.claim("n2", limit=10)) == []
    await log.deliver("t", mail())
    (lease,) = await store.claim("n2", limit=10)
    assert (lease.key, lease.fence, lease.attempt) == (delivered.lease.key, 2, 1)


async def test_a_node_that_lapsed_loses_its_tasks_and_cannot_write_any_more(
    store: Store, log: Log, clock: Clock
) -> None:
    zombie = (await log.create("t", "c", mail(), node="n1")).lease
    assert zombie is not None
    await log.append(zombie, [turn()])
    clock.forward(50)
    await store.renew("n2", ttl=60)
    assert list(await store.claim("n2", limit=10)) == []
    clock.forward(15)
    (lease,) = await store.claim("n2", limit=10)
    assert (lease.task, lease.fence, lease.attempt) == ("t", 2, 2)
    for write in (log.append(zombie, [chunk("stale")]), log.settle(zombie, [status(DONE)], mail=1)):
        with pytest.raises(LeaseLost):
            await write
    await store.release(zombie)
    assert list(await store.renew("n2", ttl=60)) == [HeldLease(lease.key, 2, 1)]
    assert await log.append(lease, [chunk("fresh")]) == 3
    assert (await log.load("t")).task.artifacts[0].text == "fresh"


async def test_a_late_node_continues_if_no_other_node_took_its_tasks(
    store: Store, log: Log, clock: Clock
) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    clock.forward(61)
    assert await log.append(lease, [chunk()]) == 2
    assert list(await store.renew("n1", ttl=60)) == [HeldLease(lease.key, 1, 1)]


@pytest.mark.parametrize("hours", [1, -1])
async def test_no_lease_expires_because_a_clock_is_set_or_the_machine_slept(
    store: Store, log: Log, wall: Clock, hours: int
) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    wall.forward(hours * 3600)
    assert list(await store.claim("n2", limit=10)) == list(await store.claim("n1", limit=10)) == []
    assert (await log.deliver("t", mail(), node="n2")).lease is None
    await store.renew("n1", ttl=60)
    assert await log.append(lease, [chunk()]) == 3


async def test_delivering_leaves_a_lapsed_node_its_task_and_claiming_takes_it(
    store: Store, log: Log, clock: Clock
) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    clock.forward(61)
    await store.renew("n2", ttl=60)
    assert (await log.deliver("t", mail(), node="n2")).lease is None
    assert (await log.deliver("t", mail(), node="n1")).lease is None
    assert await log.append(lease, [chunk()]) == 4
    (taken,) = await store.claim("n2", limit=10)
    assert (taken.fence, taken.attempt) == (2, 2)


async def test_a_lapsed_node_keeps_what_it_holds_and_its_claim_renews_its_lease(
    store: Store, log: Log, clock: Clock
) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    clock.forward(61)
    await store.renew("n2", ttl=60)
    for _ in range(3):
        assert list(await store.claim("n1", limit=10)) == []
    assert list(await store.claim("n2", limit=10)) == []
    assert list(await store.renew("n1", ttl=60)) == [HeldLease(lease.key, 1, 1)]


async def test_a_claim_renews_the_node_so_that_its_tasks_are_not_taken(
    store: Store, log: Log, clock: Clock
) -> None:
    await log.create("t", "c", mail())
    clock.forward(50)
    await store.renew("n2", ttl=60)
    (lease,) = await store.claim("n1", limit=10)
    clock.forward(50)
    assert list(await store.claim("n2", limit=10)) == []
    assert list(await store.renew("n1", ttl=60)) == [HeldLease(lease.key, 1, 1)]


async def test_nodes_that_lapsed_together_do_not_take_each_others_tasks(
    store: Store, log: Log, clock: Clock
) -> None:
    leases = {node: (await log.create(node, "c", mail(), node=node)).lease for node in ("n1", "n2")}
    clock.forward(61)
    for node in ("n1", "n2", "n1", "n2"):
        assert list(await store.claim(node, limit=10)) == []
    for node, lease in leases.items():
        assert lease is not None
        assert list(await store.renew(node, ttl=60)) == [HeldLease(lease.key, 1, 1)]


async def test_a_claim_without_takeover_takes_only_tasks_without_a_lease(
    store: Store, log: Log, clock: Clock
) -> None:
    await log.create("t1", "c", mail(), node="n1")
    await log.create("t2", "c", mail())
    clock.forward(61)
    await store.renew("n2", ttl=60)
    assert [lease.task for lease in await store.claim("n2", limit=10, may_take_over=lambda: False)] == ["t2"]
    assert [lease.task for lease in await store.claim("n2", limit=10, may_take_over=lambda: True)] == ["t1"]


async def test_tasks_of_an_earlier_process_with_the_same_node_name_can_be_claimed(
    store: Store, log: Log
) -> None:
    await log.create("t", "c", mail(), node="n1")
    await store.join("n1", ttl=60)
    (lease,) = await store.claim("n1", limit=10)
    assert (lease.fence, lease.attempt) == (2, 2)


async def test_a_node_that_never_joined_is_not_alive(store: Store, log: Log) -> None:
    await log.create("t", "c", mail(), node="ghost")
    (lease,) = await store.claim("n1", limit=10)
    assert lease.fence == 2


async def test_renew_returns_the_leases_of_the_node_and_their_last_mail(store: Store, log: Log) -> None:
    assert list(await store.renew("n1", ttl=60)) == []
    one = (await log.create("t1", "c", mail(), node="n1")).lease
    two = (await log.create("t2", "c", mail(), node="n1")).lease
    await log.create("t3", "c", mail(), node="n2")
    assert one is not None and two is not None
    await log.append(one, [turn()])
    await log.deliver("t1", mail())
    held = await store.renew("n1", ttl=60)
    assert sorted(held, key=lambda h: h.key) == [HeldLease(one.key, 1, 3), HeldLease(two.key, 1, 1)]


async def test_tasks_of_a_node_that_leaves_can_be_claimed_at_once(store: Store, log: Log) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    await store.leave("n1")
    with pytest.raises(LeaseLost):
        await log.append(lease, [chunk()])
    (taken,) = await store.claim("n2", limit=10)
    assert (taken.fence, taken.attempt) == (2, 2)


async def test_tasks_of_other_scopes_are_left_alone_however_many_they_are(store: Store, log: Log) -> None:
    other = Scope("rival", "echo", "eve")
    for n in range(20):
        await store.scope(other).create(f"o{n}", "c", mail())
    await log.create("mine", "c", mail())
    (lease,) = await store.claim("n1", limit=5, serves=lambda scope: scope == SCOPE)
    assert (lease.scope, lease.task) == (SCOPE, "mine")
    assert list(await store.claim("n1", limit=5, serves=lambda scope: scope == SCOPE)) == []
    await store.leave("n1")
    (lease,) = await store.claim("n2", limit=5, serves=lambda scope: scope == SCOPE)  # orphaned, and ours
    assert lease.task == "mine"
    assert len(await store.claim("n2", limit=50, serves=lambda scope: scope == other)) == 20


async def test_a_released_task_can_be_claimed_at_once_and_counts_only_failed_attempts(
    store: Store, log: Log
) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    for fence, failed, attempt in ((2, True, 2), (3, False, 2), (4, True, 3), (5, False, 3)):
        await store.release(lease, failed=failed)
        await store.release(lease, failed=failed)  # again, and it changes nothing
        with pytest.raises(LeaseLost):
            await log.append(lease, [chunk()])
        (lease,) = await store.claim("n1", limit=10)
        assert (lease.fence, lease.attempt) == (fence, attempt)


@pytest.mark.parametrize("progress", [step, child])
async def test_progress_resets_the_attempts_of_a_task(
    store: Store, log: Log, progress: Callable[[], Record]
) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    for records, attempt in (([chunk()], 2), ([], 3), ([chunk(), progress()], 2), ([progress()], 2), ([], 3)):
        if records:
            await log.append(lease, records)
        await store.leave("n1")
        await store.join("n1", ttl=60)
        (lease,) = await store.claim("n1", limit=10)
        assert lease.attempt == attempt
    await log.append(lease, [progress()])
    await store.release(lease)
    (lease,) = await store.claim("n1", limit=10)
    assert lease.attempt == 1


async def test_releasing_twice_takes_nothing_from_the_next_holder(store: Store, log: Log) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    await store.release(lease)
    (taken,) = await store.claim("n2", limit=1)
    await store.release(lease)
    assert await log.append(taken, [chunk()]) == 2


async def test_a_finished_task_is_never_claimed(store: Store, log: Log) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    await log.settle(lease, [turn(), status(DONE)], mail=1)
    await store.release(lease)
    await store.leave("n1")
    assert list(await store.claim("n2", limit=10)) == []


# Purging


async def test_only_finished_and_old_tasks_are_purged_a_bounded_number_at_a_time(
    store: Store, log: Log
) -> None:
    async def task(name: str, state: TaskState, at: str) -> None:
        lease = (await log.create(name, "c", mail(at=at), node="n1")).lease
        assert lease is not None
        await log.settle(lease, [turn(), status(state, at=at)], mail=1)

    for i in range(3):
        await task(f"old{i}", DONE, f"2020-01-0{i + 1}T00:00:00.000Z")
    await task("parked", TaskState.INPUT_REQUIRED, "2020-01-01T00:00:00.000Z")
    await task("new", DONE, "2025-01-01T00:00:00.000Z")
    before = "2025-01-01T00:00:00.000Z"
    assert await store.purge(before, limit=2) == 2
    assert await store.purge(before, limit=2) == 1
    assert await store.purge(before, limit=2) == 0
    assert sorted(s.task_id for s in (await log.find(ListTasks(), limit=10)).snapshots) == ["new", "parked"]
    for i in range(3):
        with pytest.raises(TaskNotFound):
            await log.load(f"old{i}")
        with pytest.raises(TaskNotFound):
            await log.read(f"old{i}")
        with pytest.raises(TaskNotFound):
            await log.deliver(f"old{i}", mail())


async def test_a_purged_task_leaves_no_key_and_no_lease_behind(store: Store, log: Log) -> None:
    lease = (await log.create("t", "c", mail(), node="n1", dedupe="k")).lease
    assert lease is not None
    await log.settle(lease, [turn(), status(DONE)], mail=1)
    assert await store.purge("2999", limit=10) == 1
    assert await log.find_delivered("k") is None
    fresh = await log.create("t", "c", mail("again"), dedupe="k", node="n1")
    assert not fresh.duplicate and fresh.lease is not None and fresh.lease.key != lease.key
    with pytest.raises(LeaseLost):
        await log.append(lease, [chunk("stale")])
    assert [m.text for m in (await log.load("t")).history] == ["again"]


# Two processes


async def test_two_processes_write_one_log(pair: tuple[Store, Store]) -> None:
    here, there = (store.scope(SCOPE) for store in pair)
    lease = (await here.create("t", "c", mail("one"), node="n1")).lease
    assert lease is not None
    assert (await there.load("t")).seq == 1
    await here.append(lease, [turn(), chunk("a")])
    delivered = await there.deliver("t", mail("two"), node="n2")
    assert (delivered.seq, delivered.lease, delivered.snapshot.seq) == (4, None, 4)
    with pytest.raises(NewMail):
        await here.settle(lease, [status(DONE)], mail=1)
    await here.append(lease, [chunk("b")])
    await here.settle(lease, [status(DONE)], mail=4)
    for log in (here, there):
        snapshot = await log.load("t")
        assert snapshot.seq == 6 and snapshot.terminal
        assert snapshot.task.artifacts[0].text == "ab"
        assert [m.text for m in snapshot.history] == ["one", "two"]
    assert list(await there.read("t")) == list(await here.read("t"))


async def test_two_processes_writing_at_once_keep_the_numbers_whole(pair: tuple[Store, Store]) -> None:
    here, there = (store.scope(SCOPE) for store in pair)
    lease = (await here.create("t", "c", mail(), node="n1")).lease
    assert lease is not None

    async def write() -> None:
        for i in range(40):
            await here.append(lease, [chunk(f"{i},")])

    async def send() -> None:
        for i in range(40):
            delivered = await there.deliver("t", mail(str(i)))
            assert delivered.snapshot.seq >= delivered.seq

    await asyncio.gather(write(), send(), write(), send())
    for log in (here, there):
        assert [r.seq for r in await log.read("t")] == list(range(1, 162))
        assert (await log.load("t")).seq == 161


async def test_two_processes_agree_on_a_key_and_on_an_id(pair: tuple[Store, Store]) -> None:
    logs = [store.scope(SCOPE) for store in pair]
    keyed = await asyncio.gather(*(logs[i % 2].create(f"k{i}", "c", mail(), dedupe="key") for i in range(20)))
    assert sum(not d.duplicate for d in keyed) == 1
    named = await asyncio.gather(
        *(logs[i % 2].create("t", "c", mail()) for i in range(20)), return_exceptions=True
    )
    assert sum(not isinstance(r, Exception) for r in named) == 1


async def test_a_task_passes_from_one_process_to_another(pair: tuple[Store, Store], clock: Clock) -> None:
    one, two = pair
    zombie = (await one.scope(SCOPE).create("t", "c", mail(), node="n1")).lease
    assert zombie is not None
    clock.forward(61)
    await two.renew("n2", ttl=60)
    (lease,) = await two.claim("n2", limit=10)
    await two.scope(SCOPE).append(lease, [turn(), chunk("two")])
    with pytest.raises(LeaseLost):
        await one.scope(SCOPE).append(zombie, [chunk("one")])
    assert list(await one.renew("n1", ttl=60)) == []
    assert (await one.scope(SCOPE).load("t")).task.artifacts[0].text == "two"


async def test_an_answer_to_a_question_that_has_another_answer_is_refused(store: Store, log: Log) -> None:
    lease = (await log.create("t", "c", mail(), node="n1")).lease
    assert lease is not None
    await log.settle(lease, [turn(), status(TaskState.INPUT_REQUIRED)], mail=1)
    seen = (await log.load("t")).seq
    answer = replace(mail(), answers=seen)
    first = (await log.deliver("t", answer, node="n1")).lease
    assert first is not None
    with pytest.raises(TaskClosed):
        await log.deliver("t", answer)
    await log.settle(first, [status(TaskState.INPUT_REQUIRED)], mail=seen + 1)
    with pytest.raises(TaskClosed):
        await log.deliver("t", answer)
    await log.deliver("t", mail())


async def test_named_tasks_are_purged_with_their_bytes_but_those_that_a_node_runs(store: Store) -> None:
    one, two, other = Scope("7", "a", "7"), Scope("7", "b", "7"), Scope("70", "a", "70")
    for scope in (one, two, other):
        lease = (await store.scope(scope).create("done", "c", mail(), node="n1", dedupe="k")).lease
        assert lease is not None
        await store.scope(scope).settle(lease, [turn(), status(DONE)], mail=1)
    await store.scope(one).create("running", "c", mail(), node="n1")
    size = await store.index.size("7")
    chosen = [
        (one, "done"),
        (two, "done"),
        (one, "running"),
        (one, "unknown"),
        (Scope("7", "z", "7"), "done"),
    ]
    assert await store.purge_tasks(chosen) == 2
    assert 0 < await store.index.size("7") < size
    assert await store.purge_tasks(chosen) == 0 and await store.purge_tasks([]) == 0
    for scope in (one, two):
        with pytest.raises(TaskNotFound):
            await store.scope(scope).load("done")
        assert await store.scope(scope).find_delivered("k") is None
    assert (await store.scope(one).load("running")).task_id == "running"
    assert (await store.scope(other).load("done")).terminal


async def test_all_tasks_of_a_tenant_are_purged_but_those_that_a_node_runs(store: Store) -> None:
    mine, other = store.scope(Scope("7", "a", "7")), store.scope(Scope("70", "a", "70"))
    for log in (mine, other):
        lease = (await log.create("done", "c", mail(), node="n1", dedupe="k")).lease
        assert lease is not None
        await log.settle(lease, [turn(), status(DONE)], mail=1)
        await log.create("waiting", "c", mail())
        lease = (await log.create("parked", "c", mail(), node="n1")).lease
        assert lease is not None
        await log.settle(lease, [turn(), status(TaskState.INPUT_REQUIRED)], mail=1)
    running = (await mine.create("running", "c", mail(), node="n1")).lease
    assert running is not None
    assert await store.purge_tenant("7", limit=2) == (2, True)
    assert await store.purge_tenant("7", limit=2) == (1, True)
    assert await store.purge_tenant("7", limit=2) == (0, True), "a node runs the last one"
    await mine.settle(running, [turn(), status(DONE)], mail=1)
    assert await store.purge_tenant("7", limit=2) == (1, False)
    assert await mine.find_delivered("k") is None and await other.find_delivered("k") is not None
    assert await mine.count_unfinished() == 0 and await other.count_unfinished() == 2
    with pytest.raises(TaskNotFound):
        await mine.load("parked")
    assert (await other.load("parked")).task_id == "parked"

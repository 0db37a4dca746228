"""What a store promises about a task: mail, output, numbers, keys that were seen, and who may name it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.engine.protocols import Lease, LeaseLost, Log, NewMail, Store, TaskExists
from dragoman.engine.records import Cancel, Record
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import TaskClosed, TaskNotFound
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from tests.conformance.conftest import SCOPE, Clock
from tests.conformance.records import chunk, everything_in, folded, mail, reply, seq_of, status, step, turn

ASK, DONE = TaskState.INPUT_REQUIRED, TaskState.COMPLETED


async def begun(log: Log, task: str = "t", node: str = "n1", **more: Any) -> Lease:
    delivered = await log.create(task, "c", mail(), node=node, **more)
    assert delivered.lease is not None
    return delivered.lease


# Snapshots


async def test_a_snapshot_does_not_change_while_its_task_goes_on(log: Log) -> None:
    delivered = await log.create("t", "c", mail("hello"), node="n1")
    assert delivered.lease is not None
    lease, held = delivered.lease, [delivered.snapshot]
    await log.append(lease, [turn(), status(TaskState.WORKING), chunk("a")])
    held.append(await log.load("t"))
    await log.append(lease, [chunk("b"), step("one")])
    held.append((await log.find(ListTasks(), limit=5)).snapshots[0])
    held.append((await log.deliver("t", mail("more"))).snapshot)
    held.append(await log.load("t"))
    settled = await log.settle(lease, [chunk("c"), status(ASK)], mail=7)
    held.append(settled or await log.load("t"))
    before = [(snapshot.seq, everything_in(snapshot)) for snapshot in held]
    assert [seq for seq, _ in before] == [1, 4, 6, 7, 7, 9]
    taken = (await log.deliver("t", mail("again"), node="n1")).lease
    assert taken is not None
    await log.append(taken, [turn(2), step("two"), chunk("d"), chunk("e", artifact="other")])
    await log.settle(taken, [status(DONE)], mail=10)
    assert [(snapshot.seq, everything_in(snapshot)) for snapshot in held] == before
    texts = ["", "a", "ab", "ab", "ab", "abc"]
    assert ["".join(a.text for a in snapshot.task.artifacts) for snapshot in held] == texts
    records = await log.read("t")
    for snapshot in held:
        alone = Snapshot(SCOPE, "t", "c").after(records[: snapshot.seq])
        assert everything_in(alone) == everything_in(snapshot)


def test_a_new_record_does_not_change_a_snapshot_that_was_returned() -> None:
    first = Snapshot(SCOPE, "t", "c").after([numbered(Record("message", mail("hello")), 1)]).share()
    second = first.after([numbered(chunk("a"), 2)])
    assert (first.seq, second.seq) == (1, 2)
    assert first.artifacts == {} and list(second.artifacts) == ["a"]
    assert second.after([numbered(chunk("b"), 3)]) is second  # nobody else has it
    third = second.share().after([numbered(chunk("c"), 4)])
    assert (second.task.artifacts[0].text, third.task.artifacts[0].text) == ("ab", "abc")


def numbered(record: Record, seq: int) -> Record:
    record.seq = seq
    return record


# Mail


async def test_a_created_task_can_be_loaded_with_its_first_message(log: Log) -> None:
    sent = mail("hello")
    delivered = await log.create("t", "c", sent)
    assert (delivered.seq, delivered.lease, delivered.duplicate) == (1, None, False)
    snapshot = await log.load("t")
    assert snapshot.task.id == "t" and snapshot.task.context_id == "c"
    assert snapshot.task.status.state is TaskState.SUBMITTED
    assert snapshot.task.status.timestamp == sent.at
    assert [m.text for m in snapshot.task.history] == ["hello"]
    assert snapshot.mails == ((1, sent),)


async def test_creating_with_a_node_gives_it_the_first_lease(log: Log) -> None:
    lease = await begun(log)
    assert (lease.scope, lease.task, lease.fence, lease.attempt) == (SCOPE, "t", 1, 1)


async def test_an_id_can_be_taken_only_once_in_a_scope(store: Store, log: Log) -> None:
    await log.create("t", "c", mail("first"))
    with pytest.raises(TaskExists):
        await log.create("t", "c2", mail("second"))
    assert [m.text for m in (await log.load("t")).history] == ["first"]
    await store.scope(Scope("acme", "echo", "bob")).create("t", "c", mail())


async def test_of_many_creators_of_one_id_exactly_one_succeeds(log: Log) -> None:
    results = await asyncio.gather(
        *(log.create("t", "c", mail(str(i))) for i in range(20)), return_exceptions=True
    )
    assert sum(isinstance(r, TaskExists) for r in results) == 19
    assert (await log.load("t")).seq == 1


async def test_mail_is_added_in_order_and_snapshots_follow(log: Log) -> None:
    await log.create("t", "c", mail("one"))
    second = await log.deliver("t", mail("two"))
    third = await log.deliver("t", Cancel(principal="alice"))
    assert (second.seq, third.seq) == (2, 3)
    assert third.snapshot.mail == 3
    snapshot = await log.load("t")
    assert [m.text for m in snapshot.history] == ["one", "two"]
    assert snapshot.canceling == Cancel(principal="alice")


async def test_mail_for_an_unknown_task_is_refused(log: Log) -> None:
    with pytest.raises(TaskNotFound):
        await log.deliver("t", mail())
    await log.create("other", "c", mail())
    with pytest.raises(TaskNotFound):
        await log.deliver("t", mail())


@pytest.mark.parametrize("end", [status(DONE), status(TaskState.CANCELED), reply()])
async def test_a_finished_task_takes_no_more_mail(log: Log, end: object) -> None:
    lease = await begun(log)
    await log.settle(lease, [turn(), end], mail=1)  # type: ignore[list-item]
    before = folded(await log.load("t"))
    with pytest.raises(TaskClosed):
        await log.deliver("t", mail(), node="n1")
    with pytest.raises(TaskClosed):
        await log.deliver("t", Cancel())
    assert folded(await log.load("t")) == before


async def test_a_message_to_an_interrupted_task_submits_it_again(log: Log) -> None:
    lease = await begun(log)
    await log.settle(lease, [turn(), status(ASK, kind="ask")], mail=1)
    answer = mail("Paris", at="2999-01-01T00:00:00.000Z")
    delivered = await log.deliver("t", answer)
    assert delivered.snapshot.status.state is TaskState.SUBMITTED
    found = await log.find(ListTasks(status=TaskState.SUBMITTED), limit=10)
    assert [s.status.timestamp for s in found.snapshots] == [answer.at]
    assert (await log.find(ListTasks(status=ASK), limit=10)).total == 0


async def test_a_cancel_changes_no_status(log: Log) -> None:
    lease = await begun(log)
    await log.settle(lease, [turn(), status(ASK)], mail=1)
    await log.deliver("t", Cancel())
    assert (await log.load("t")).state is ASK
    assert (await log.find(ListTasks(status=ASK), limit=10)).total == 1


# Output


async def test_output_is_numbered_after_the_mail(log: Log) -> None:
    lease = await begun(log)
    records = [turn(), status(TaskState.WORKING), chunk("a")]
    assert await log.append(lease, records) == 4
    assert [r.seq for r in records] == [2, 3, 4]
    assert await log.append(lease, [chunk("b")]) == 5
    read = await log.read("t")
    assert [(r.seq, r.kind) for r in read] == [
        (1, "message"),
        (2, "turn"),
        (3, "status"),
        (4, "artifact"),
        (5, "artifact"),
    ]
    assert list(read[1:4]) == records


async def test_numbers_have_no_gaps_under_many_concurrent_writers(log: Log) -> None:
    lease = await begun(log)
    writes = [log.append(lease, [chunk(f"{i}.0"), chunk(f"{i}.1")]) for i in range(200)]
    mails = [log.deliver("t", mail(str(i))) for i in range(50)]
    lasts = await asyncio.gather(*writes)
    delivered = await asyncio.gather(*mails)
    records = await log.read("t")
    assert [r.seq for r in records] == list(range(1, 452))
    written = [r.raw.rpartition(b".")[0] for r in records if r.kind == "artifact"]
    assert written[::2] == written[1::2]  # the two of an append are side by side
    assert len({*lasts, *(d.seq for d in delivered)}) == 250
    assert (await log.load("t")).seq == 451


async def test_appending_nothing_changes_nothing(log: Log) -> None:
    lease = await begun(log)
    assert await log.append(lease, []) == 1
    assert len(await log.read("t")) == 1


async def test_reading_after_any_place_returns_the_rest(log: Log) -> None:
    lease = await begun(log)
    await log.append(lease, [turn(), chunk("a"), chunk("b")])
    await log.append(lease, [chunk("c")])
    whole = await log.read("t")
    for after in range(6):
        assert list(await log.read("t", after=after)) == list(whole[after:])
        for limit in range(1, 6):
            assert list(await log.read("t", after=after, limit=limit)) == list(whole[after : after + limit])
    assert list(await log.read("t", after=99)) == []


async def test_a_long_log_is_read_and_folded_in_pieces(log: Log) -> None:
    lease = await begun(log)
    for _ in range(30):
        await log.append(lease, [chunk("x") for _ in range(111)])
    pieces: list[Record] = []
    while piece := await log.read("t", after=len(pieces), limit=1000):
        assert len(piece) <= 1000
        pieces += piece
    assert [record.seq for record in pieces] == list(range(1, 30 * 111 + 2))
    assert len((await log.load("t")).artifacts["a"].parts) == 30 * 111


async def test_a_snapshot_is_the_fold_of_the_log(log: Log) -> None:
    lease = await begun(log)
    await log.append(lease, [turn(), status(TaskState.WORKING), chunk("a")])
    await log.deliver("t", mail("more"))
    await log.append(lease, [chunk("b"), chunk("c", artifact="b")])
    await log.settle(lease, [status(ASK)], mail=5)
    again = Snapshot(SCOPE, "t", "c").after(await log.read("t"))
    assert folded(again) == folded(await log.load("t"))
    assert again.task.artifacts[0].text == "ab"


async def test_long_output_comes_back_whole(log: Log) -> None:
    lease = await begun(log)
    for i in range(0, 3000, 500):
        await log.append(lease, [chunk(f"{n},") for n in range(i, i + 500)])
    await log.append(lease, [chunk("line\nbreak é \x00 \U0001f600")])
    assert [r.seq for r in await log.read("t", after=700)] == list(range(701, 3003))
    text = (await log.load("t")).task.artifacts[0].text
    assert text == "".join(f"{n}," for n in range(3000)) + "line\nbreak é \x00 \U0001f600"


# Settling


async def test_settling_gives_the_lease_back(store: Store, log: Log) -> None:
    lease = await begun(log)
    assert seq_of(await log.settle(lease, [turn(), status(ASK)], mail=1)) == 3
    assert list(await store.renew("n1", ttl=60)) == []
    assert list(await store.claim("n1", limit=10)) == []
    with pytest.raises(LeaseLost):
        await log.append(lease, [chunk()])
    with pytest.raises(LeaseLost):
        await log.settle(lease, [], mail=1)
    assert (await log.load("t")).seq == 3


async def test_settling_with_unread_mail_writes_nothing(log: Log) -> None:
    lease = await begun(log)
    await log.append(lease, [turn()])
    await log.deliver("t", mail("wait"))
    with pytest.raises(NewMail):
        await log.settle(lease, [status(DONE)], mail=1)
    assert (await log.load("t")).seq == 3
    assert await log.append(lease, [chunk()]) == 4  # the lease is still ours
    assert seq_of(await log.settle(lease, [status(DONE)], mail=3)) == 5


async def test_mail_that_races_with_settling_is_refused_or_makes_it_fail(log: Log) -> None:
    for i in range(20):
        task = f"t{i}"
        lease = await begun(log, task)
        jobs = [log.settle(lease, [turn(), status(DONE)], mail=1), log.deliver(task, mail("late"))]
        results = await asyncio.gather(*(jobs if i % 2 else reversed(jobs)), return_exceptions=True)
        settled, delivered = results if i % 2 else reversed(results)
        assert isinstance(settled, NewMail) != isinstance(delivered, TaskClosed)
        snapshot = await log.load(task)
        assert snapshot.terminal == isinstance(delivered, TaskClosed)
        assert len(snapshot.mails) == (1 if snapshot.terminal else 2)


async def test_a_settled_task_that_gets_mail_is_claimed_for_the_first_time_again(
    store: Store, log: Log
) -> None:
    lease = await begun(log)
    await log.settle(lease, [turn(), status(ASK)], mail=1)
    delivered = await log.deliver("t", mail(), node="n2")
    assert delivered.lease is not None
    assert (delivered.lease.key, delivered.lease.fence, delivered.lease.attempt) == (lease.key, 2, 1)
    with pytest.raises(LeaseLost):
        await log.append(lease, [chunk()])
    await log.append(delivered.lease, [chunk()])


async def test_a_reply_ends_a_hidden_task(log: Log) -> None:
    delivered = await log.create("t", "c", mail(reply=True), node="n1")
    assert delivered.lease is not None and delivered.snapshot.hidden
    assert (await log.find(ListTasks(), limit=10)).total == 0
    await log.settle(delivered.lease, [turn(), reply("hi")], mail=1)
    snapshot = await log.load("t")
    assert snapshot.reply is not None and snapshot.reply.text == "hi" and snapshot.terminal
    assert (await log.find(ListTasks(), limit=10)).total == 0


async def test_a_task_that_might_have_been_a_reply_is_listed_once_it_has_a_state(log: Log) -> None:
    delivered = await log.create("t", "c", mail(reply=True), node="n1")
    assert delivered.lease is not None
    await log.append(delivered.lease, [turn(), status(TaskState.WORKING)])
    assert [s.task_id for s in (await log.find(ListTasks(), limit=10)).snapshots] == ["t"]


# Keys that were seen


async def test_a_repeated_key_returns_what_became_of_the_first(log: Log) -> None:
    first = await log.create("t1", "c", mail("one"), dedupe="k", node="n1")
    again = await log.create("t2", "c", mail("two"), dedupe="k", node="n1")
    assert (again.duplicate, again.seq, again.lease) == (True, 1, None)
    assert again.snapshot.task_id == "t1"
    assert first.lease is not None and not first.duplicate
    with pytest.raises(TaskNotFound):
        await log.load("t2")
    seen = await log.find_delivered("k")
    assert seen is not None and (seen.duplicate, seen.seq, seen.snapshot.task_id) == (True, 1, "t1")


async def test_a_repeated_delivery_adds_no_mail(log: Log) -> None:
    await log.create("t", "c", mail("one"))
    await log.deliver("t", mail("two"), dedupe="k")
    await log.deliver("t", mail("three"))
    again = await log.deliver("t", mail("two"), dedupe="k", node="n1")
    assert (again.duplicate, again.seq, again.lease) == (True, 2, None)
    assert [m.text for m in again.snapshot.history] == ["one", "two", "three"]


async def test_a_repeated_delivery_to_a_finished_task_is_a_duplicate_not_an_error(log: Log) -> None:
    lease = await begun(log, dedupe="k")
    await log.settle(lease, [turn(), status(DONE)], mail=1)
    again = await log.deliver("t", mail(), dedupe="k")
    assert again.duplicate and again.snapshot.terminal


async def test_of_many_deliveries_with_one_key_exactly_one_counts(log: Log) -> None:
    results = await asyncio.gather(
        *(log.create(f"t{i}", "c", mail(), dedupe="k", node="n1") for i in range(30))
    )
    (winner,) = [d for d in results if not d.duplicate]
    assert {d.snapshot.task_id for d in results} == {winner.snapshot.task_id}
    assert (await log.find(ListTasks(), limit=100)).total == 1


async def test_a_key_is_forgotten_after_a_day(log: Log, clock: Clock) -> None:
    await log.create("t1", "c", mail(), dedupe="k")
    clock.forward(24 * 60 * 60 - 60)
    assert (await log.create("t2", "c", mail(), dedupe="k")).duplicate
    clock.forward(120)
    assert await log.find_delivered("k") is None
    assert not (await log.create("t3", "c", mail(), dedupe="k")).duplicate
    seen = await log.find_delivered("k")
    assert seen is not None and seen.snapshot.task_id == "t3"


async def test_a_refused_delivery_does_not_use_up_its_key(log: Log) -> None:
    await log.create("t", "c", mail())
    with pytest.raises(TaskExists):
        await log.create("t", "c", mail(), dedupe="k")
    with pytest.raises(TaskNotFound):
        await log.deliver("unknown", mail(), dedupe="k")
    assert await log.find_delivered("k") is None
    assert not (await log.deliver("t", mail(), dedupe="k")).duplicate


async def test_an_unused_idempotency_key_is_unknown(log: Log) -> None:
    assert await log.find_delivered("k") is None
    await log.create("t", "c", mail())
    assert await log.find_delivered("k") is None


# Scopes


@pytest.mark.parametrize(
    "other",
    [Scope("rival", "echo", "alice"), Scope("acme", "other", "alice"), Scope("acme", "echo", "bob"), Scope()],
)
async def test_a_task_cannot_be_named_from_another_scope(store: Store, log: Log, other: Scope) -> None:
    lease = await begun(log, dedupe="k")
    elsewhere = store.scope(other)
    await elsewhere.create("mine", "c", mail())
    with pytest.raises(TaskNotFound):
        await elsewhere.load("t")
    with pytest.raises(TaskNotFound):
        await elsewhere.read("t")
    with pytest.raises(TaskNotFound):
        await elsewhere.deliver("t", mail())
    with pytest.raises(TaskNotFound):
        await elsewhere.append(lease, [chunk()])
    with pytest.raises(TaskNotFound):
        await elsewhere.settle(lease, [status(DONE)], mail=1)
    assert await elsewhere.find_delivered("k") is None
    assert [s.task_id for s in (await elsewhere.find(ListTasks(), limit=10)).snapshots] == ["mine"]
    assert not (await elsewhere.create("t", "c", mail("theirs"), dedupe="k")).duplicate
    assert (await log.load("t")).seq == 1
    assert [m.text for m in (await elsewhere.load("t")).history] == ["theirs"]


async def test_words_of_a_scope_do_not_run_into_each_other(store: Store) -> None:
    await store.scope(Scope("a", "b", "c")).create("t", "c", mail())
    for other in (Scope("ab", "", "c"), Scope("a", "bc", ""), Scope("a/b", "", "c"), Scope("a", "b/c", "")):
        with pytest.raises(TaskNotFound):
            await store.scope(other).load("t")


async def test_a_cancelled_caller_leaves_all_or_nothing(log: Log) -> None:
    lease = await begun(log)
    write = asyncio.ensure_future(log.append(lease, [chunk("a"), chunk("b")]))
    await asyncio.sleep(0)
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
    last = await log.append(lease, [chunk("c")])
    assert last in (2, 4)
    assert [r.seq for r in await log.read("t")] == list(range(1, last + 1))
    assert (await log.load("t")).seq == last

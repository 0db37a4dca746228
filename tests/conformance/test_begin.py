"""What a store promises about a task that begins before it is on disk."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.engine.protocols import Delivered, HeldLease, Lease, LeaseLost, Log, NewMail, Store, TaskExists
from dragoman.engine.records import Record
from dragoman.errors import TaskNotFound
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import StatusUpdate, TaskState
from tests.conformance.conftest import SCOPE
from tests.conformance.records import chunk, mail, reply, seq_of, status, turn
from tests.conformance.test_push_queue import due, webhook

DONE, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED


async def begin(log: Log, task: str = "t", text: str = "hi", **more: Any) -> tuple[Delivered, Lease]:
    """A task that has begun, the way this store would have it."""
    begun = log.begin(task, "c", mail(text), node="n1", **more)
    if begun is None:
        begun = await log.create(task, "c", mail(text), node="n1", **more)
    assert begun.lease is not None and begun.seq == 1 and not begun.duplicate
    assert begun.snapshot.mails[0][1].message.text == text
    return begun, begun.lease


async def stored(begun: Delivered) -> None:
    if begun.stored is not None:
        await begun.stored


async def test_a_task_of_begin_is_readable_when_it_is_stored(store: Store, log: Log) -> None:
    begun, lease = await begin(log)
    await stored(begun)
    assert [record.kind for record in await log.read("t")] == ["message"]
    assert (await log.find(ListTasks(), limit=10)).total == 1
    assert list(await store.renew("n1", ttl=60)) == [HeldLease(lease.key, 1, 1)]
    assert list(await store.claim("n2", limit=10)) == []
    with pytest.raises(TaskNotFound):
        await store.scope(Scope("rival", "echo", "eve")).load("t")


async def test_output_written_before_the_commit_of_begin_comes_after_the_message(log: Log) -> None:
    _, lease = await begin(log)
    appending = asyncio.ensure_future(log.append(lease, [turn(), chunk("a")]))
    settling = asyncio.ensure_future(log.settle(lease, [chunk("b"), status(DONE)], mail=1))
    written = await appending, seq_of(await settling)
    assert written == (3, 5)
    records = await log.read("t")
    assert [(r.seq, r.kind) for r in records] == [
        (1, "message"), (2, "turn"), (3, "artifact"), (4, "artifact"), (5, "status")
    ]  # fmt: skip
    assert (await log.load("t")).state is DONE


@pytest.mark.parametrize("last", [status(DONE), status(ASKS), reply()], ids=["done", "asks", "replies"])
async def test_a_task_of_begin_may_settle_before_it_is_stored(store: Store, log: Log, last: Record) -> None:
    _, lease = await begin(log)
    assert seq_of(await log.settle(lease, [turn(), chunk("a"), last], mail=1)) == 4
    assert [(r.seq, r.kind) for r in await log.read("t")] == [
        (1, "message"), (2, "turn"), (3, "artifact"), (4, last.kind)
    ]  # fmt: skip
    snapshot = await log.load("t")
    assert snapshot.settled
    if last.kind == "reply":
        assert snapshot.reply == last.body
    else:
        assert isinstance(last.body, StatusUpdate) and snapshot.status == last.body.status
    found = await log.find(ListTasks(status=snapshot.state), limit=10)
    assert [(s.task_id, s.status.timestamp) for s in found.snapshots] == [("t", snapshot.status.timestamp)]
    for write in (log.append(lease, [chunk()]), log.settle(lease, [status(DONE)], mail=1)):
        with pytest.raises(LeaseLost):
            await write
    assert list(await store.claim("n2", limit=10)) == [] and list(await store.renew("n1", ttl=60)) == []
    if snapshot.state is ASKS:
        again = (await log.deliver("t", mail("more"), node="n2")).lease
        assert again is not None and (again.key, again.fence, again.attempt) == (lease.key, 2, 1)


async def test_many_begin_and_end_together_and_none_is_mistaken_for_another(log: Log) -> None:
    leases = [(await begin(log, f"t{i}", f"say {i}"))[1] for i in range(50)]
    await asyncio.gather(
        *(
            log.settle(lease, [turn(), chunk(f"said {i}"), status(DONE)], mail=1)
            for i, lease in enumerate(leases)
        )
    )
    assert len({lease.key for lease in leases}) == 50
    for i in range(50):
        task = (await log.load(f"t{i}")).task
        assert (task.history[0].text, task.artifacts[0].text) == (f"say {i}", f"said {i}")


async def test_mail_that_comes_once_it_is_stored_keeps_it_from_settling(log: Log) -> None:
    begun, lease = await begin(log)
    await stored(begun)
    await log.deliver("t", mail("wait"))
    with pytest.raises(NewMail):
        await log.settle(lease, [turn(), status(DONE)], mail=1)
    assert seq_of(await log.settle(lease, [turn(), status(DONE)], mail=2)) == 4


async def test_a_task_of_begin_can_be_released_before_it_is_stored(store: Store, log: Log) -> None:
    _, lease = await begin(log)
    await store.release(lease)
    (taken,) = await store.claim("n2", limit=10)
    assert (taken.scope, taken.task, taken.fence, taken.attempt) == (SCOPE, "t", 2, 1)
    with pytest.raises(LeaseLost):
        await log.append(lease, [chunk()])


async def test_a_push_config_of_begin_gets_every_event(store: Store, log: Log) -> None:
    _, lease = await begin(log, webhook=webhook())
    await log.settle(lease, [turn(), status(DONE)], mail=1)
    (delivery,) = await due(store)
    assert (delivery.task, delivery.cursor, delivery.last) == ("t", 1, 3)


async def test_an_id_that_is_taken_is_refused(log: Log) -> None:
    await log.create("t", "c", mail("first"))
    with pytest.raises(TaskExists):
        await stored((await begin(log))[0])
    assert [m.text for m in (await log.load("t")).history] == ["first"]

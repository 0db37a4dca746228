"""What a store reads, keeps and deletes is bounded in bytes, and what it counts costs the same however much is stored."""

from __future__ import annotations

import random

import pytest

from dragoman.engine.protocols import PAGE_BYTES, Log, Store
from dragoman.engine.records import Record, size_of
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import TaskNotFound
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from tests.conformance.records import chunk, mail, status, turn

STATES = [TaskState.COMPLETED, TaskState.FAILED, TaskState.WORKING, TaskState.INPUT_REQUIRED]


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000Z"


async def add(
    log: Log, task: str, *sizes: int, state: TaskState = TaskState.COMPLETED, when: int = 1
) -> None:
    lease = (await log.create(task, "c", mail(at=at(0)), node="n1")).lease
    assert lease is not None
    for size in sizes:
        await log.append(lease, [chunk("x" * size)])
    await log.settle(lease, [turn(), status(state, at=at(when))], mail=1)


async def all_pages(log: Log, limit: int) -> list[list[Snapshot]]:
    pages, token = [], ""
    while True:
        found = await log.find(ListTasks(page_token=token), limit=limit)
        pages.append(list(found.snapshots))
        token = found.next
        if not token:
            return pages


async def test_a_page_ends_before_it_is_too_large_and_the_next_goes_on(log: Log) -> None:
    half = PAGE_BYTES // 2 + 1000
    for i in range(3):
        await add(log, f"large{i}", half, when=10 + i)
    await add(log, "larger than a page", PAGE_BYTES + 1000, when=5)
    for i in range(3):
        await add(log, f"small{i}", 10, when=i)
    pages = await all_pages(log, 50)
    names = [[snapshot.task_id for snapshot in page] for page in pages]
    assert names == [
        ["large2"],
        ["large1"],
        ["large0"],
        ["larger than a page"],
        ["small2", "small1", "small0"],
    ]
    assert (await log.find(ListTasks(), limit=50)).total == 7


async def test_a_log_is_read_in_pieces_of_bytes(log: Log) -> None:
    await add(log, "t", *[1000] * 50)
    whole = await log.read("t")
    pieces: list[Record] = []
    reads = 0
    while piece := await log.read("t", after=len(pieces), max_bytes=5000):
        assert size_of(piece) <= 5000 + size_of(whole[2:3])
        pieces += piece
        reads += 1
    assert pieces == whole and reads > 10
    assert len(await log.read("t", max_bytes=1)) == 1
    assert await log.read("t", after=3, limit=2, max_bytes=10**9) == whole[3:5]


async def test_the_head_of_a_task_says_what_its_log_folds_to(log: Log) -> None:
    with pytest.raises(TaskNotFound):
        await log.head("t")
    await add(log, "t", 10, state=TaskState.INPUT_REQUIRED)
    await log.deliver("t", mail(at=at(9)))
    for task in ("t",):
        head, snapshot = await log.head(task), await log.load(task)
        for name in ("scope", "task_id", "context_id", "seq", "state", "terminal", "hidden", "mail"):
            assert getattr(head, name) == getattr(snapshot, name)


async def test_a_task_that_may_become_a_message_is_neither_listed_nor_counted(log: Log) -> None:
    lease = (await log.create("t", "c", mail(at=at(0), reply=True), node="n1")).lease
    assert lease is not None
    assert (await log.head("t")).hidden and await log.count_unfinished() == 0
    assert (await log.find(ListTasks(), limit=5)).total == 0
    await log.append(lease, [turn(), status(TaskState.WORKING, at=at(1))])
    assert await log.count_unfinished() == 1 and (await log.find(ListTasks(), limit=5)).total == 1
    await log.settle(lease, [status(TaskState.INPUT_REQUIRED, at=at(2))], mail=1)
    await log.deliver("t", mail(at=at(3)))  # its caller knows it, so it stays a task
    assert await log.count_unfinished() == 1 and (await log.find(ListTasks(), limit=5)).total == 1


async def test_the_number_of_open_tasks_equals_the_tasks_listed_after_any_operations(
    store: Store, log: Log
) -> None:
    chance, tasks = random.Random(7), dict[str, TaskState]()
    for n in range(60):
        parked = [task for task, state in tasks.items() if state is TaskState.INPUT_REQUIRED]
        if parked and chance.random() < 0.4:
            task = chance.choice(parked)
            lease = (await log.deliver(task, mail(at=at(n)), node="n1")).lease
            last = (await log.head(task)).mail
        else:
            task, last = f"t{n}", 1
            lease = (await log.create(task, f"c{n % 3}", mail(at=at(n)), node="n1")).lease
        tasks[task] = TaskState.SUBMITTED
        assert lease is not None
        if chance.random() < 0.5:
            await log.append(lease, [turn(), status(TaskState.WORKING, at=at(n))])
            tasks[task] = TaskState.WORKING
        if chance.random() < 0.8:
            tasks[task] = chance.choice(STATES[:2] + STATES[3:])
            await log.settle(lease, [status(tasks[task], at=at(n))], mail=last)
        if chance.random() < 0.2:
            await store.purge(at(max(0, n - 20)), limit=2)
            for gone in list(tasks):
                try:
                    await log.head(gone)
                except TaskNotFound:
                    del tasks[gone]
    for state in set(TaskState) - {TaskState.UNSPECIFIED}:
        found = await log.find(ListTasks(status=state), limit=100)
        expected = sorted(task for task, now in tasks.items() if now is state)
        assert (found.total, sorted(s.task_id for s in found.snapshots)) == (len(expected), expected)
    assert await log.count_unfinished() == sum(not state.terminal for state in tasks.values())
    for context in ("c0", "c1", "c2"):
        found = await log.find(ListTasks(context_id=context), limit=100)
        assert found.total == len(found.snapshots)


async def test_purge_deletes_an_unfinished_task_on_request_unless_a_node_runs_it(
    store: Store, log: Log
) -> None:
    await add(log, "done", 10, when=1)
    await add(log, "parked", 10, state=TaskState.INPUT_REQUIRED, when=1)
    await add(log, "parked later", 10, state=TaskState.INPUT_REQUIRED, when=9)
    await log.create("running", "c", mail(at=at(1)), node="n1")
    assert await store.purge(at(5), limit=10, unfinished=True) == 1
    left = {snapshot.task_id for snapshot in (await log.find(ListTasks(), limit=10)).snapshots}
    assert left == {"done", "parked later", "running"}
    assert await store.purge(at(5), limit=10) == 1
    assert await log.count_unfinished() == 2


async def test_a_long_log_is_deleted_in_pieces_and_its_task_at_once(store: Store, log: Log) -> None:
    await add(log, "long", *[200_000] * 60, when=1)
    await add(log, "other", 10, when=9)
    assert await store.purge(at(5), limit=10) == 1
    with pytest.raises(TaskNotFound):
        await log.load("long")
    pieces = 0
    while await store.tidy():
        pieces += 1
        assert pieces < 1000
    await add(log, "long", 10, when=9)  # the name is free again
    assert (await log.load("long")).seq == 4 and (await log.load("other")).seq == 4


async def test_scopes_are_counted_apart(store: Store, log: Log) -> None:
    other = store.scope(Scope("acme", "echo", "bob"))
    await add(log, "t", state=TaskState.WORKING)
    assert (await log.count_unfinished(), await other.count_unfinished()) == (1, 0)

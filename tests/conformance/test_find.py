"""What a store promises about listing tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest

from dragoman.engine.protocols import Log, Store
from dragoman.errors import InvalidParams
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from tests.conformance.records import chunk, mail, status, turn

WORKING, DONE = TaskState.WORKING, TaskState.COMPLETED


def at(minute: int) -> str:
    return f"2026-01-01T00:{minute:02}:00.000Z"


async def add(log: Log, task: str, minute: int, *, context: str = "c", state: TaskState = DONE) -> None:
    lease = (await log.create(task, context, mail(at=at(0)), node="n1")).lease
    assert lease is not None
    await log.settle(lease, [turn(), chunk(), status(state, at=at(minute))], mail=1)


async def pages(log: Log, limit: int, **filters: str | TaskState) -> AsyncIterator[list[str]]:
    token = ""
    for _ in count():
        found = await log.find(ListTasks(page_token=token, **filters), limit=limit)  # type: ignore[arg-type]
        yield [s.task_id for s in found.snapshots]
        token = found.next
        if not token:
            return


async def ids(log: Log, **filters: str | TaskState) -> list[str]:
    return [task async for page in pages(log, 100, **filters) for task in page]


async def test_the_newest_status_comes_first_and_ties_are_in_order_of_id(log: Log) -> None:
    for task, minute in (("b", 2), ("d", 1), ("c", 2), ("a", 3)):
        await add(log, task, minute)
    assert await ids(log) == ["a", "b", "c", "d"]


async def test_found_tasks_are_whole(log: Log) -> None:
    await add(log, "t", 1, context="ctx")
    (snapshot,) = (await log.find(ListTasks(), limit=1)).snapshots
    assert snapshot.task == (await log.load("t")).task
    assert snapshot.task.artifacts and snapshot.task.context_id == "ctx"


async def test_filters_choose_and_the_total_counts_what_they_chose(log: Log) -> None:
    await add(log, "a", 1, context="x", state=DONE)
    await add(log, "b", 2, context="x", state=WORKING)
    await add(log, "c", 3, context="y", state=DONE)
    assert await ids(log, context_id="x") == ["b", "a"]
    assert await ids(log, status=DONE) == ["c", "a"]
    assert await ids(log, context_id="x", status=DONE) == ["a"]
    assert await ids(log, context_id="nowhere") == []
    found = await log.find(ListTasks(status=DONE), limit=1)
    assert (len(found.snapshots), found.total, bool(found.next)) == (1, 2, True)


async def test_the_moment_itself_counts_as_after(log: Log) -> None:
    for minute in (1, 2, 3):
        await add(log, f"t{minute}", minute)
    assert await ids(log, status_timestamp_after=at(2)) == ["t3", "t2"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
async def test_pages_together_are_the_list_and_the_last_has_no_token(log: Log, limit: int) -> None:
    for i in range(7):
        await add(log, f"t{i}", i // 3)  # several share a moment
    whole = await ids(log)
    paged = [page async for page in pages(log, limit)]
    assert [task for page in paged for task in page] == whole
    assert [len(page) for page in paged[:-1]] == [limit] * (len(paged) - 1)
    assert all(paged)


async def test_paging_repeats_and_skips_nothing_while_tasks_come_and_move(log: Log) -> None:
    for i in range(6):
        await add(log, f"t{i}", 10 + i, state=TaskState.INPUT_REQUIRED)
    first = await log.find(ListTasks(), limit=2)
    assert [s.task_id for s in first.snapshots] == ["t5", "t4"]
    await add(log, "new", 30)
    await log.deliver("t1", mail(at=at(31)))  # moves to the front
    await log.deliver("t5", mail(at=at(32)))
    second = await log.find(ListTasks(page_token=first.next), limit=2)
    third = await log.find(ListTasks(page_token=second.next), limit=2)
    assert [s.task_id for s in second.snapshots] == ["t3", "t2"]
    assert [s.task_id for s in third.snapshots] == ["t0"]
    assert third.next == ""


async def test_a_token_belongs_to_its_filters_and_its_scope(store: Store, log: Log) -> None:
    for i in range(3):
        await add(log, f"t{i}", i)
    token = (await log.find(ListTasks(), limit=1)).next
    other = store.scope(Scope("acme", "echo", "bob"))
    await other.create("t", "c", mail())
    for there, query in (
        (log, ListTasks(page_token=token, context_id="c")),
        (log, ListTasks(page_token=token, status=DONE)),
        (log, ListTasks(page_token=token, status_timestamp_after=at(0))),
        (other, ListTasks(page_token=token)),
    ):
        with pytest.raises(InvalidParams):
            await there.find(query, limit=1)
    assert [s.task_id for s in (await log.find(ListTasks(page_token=token), limit=5)).snapshots] == [
        "t1",
        "t0",
    ]


@pytest.mark.parametrize(
    "token", ["x", "garbage!", "e30", "W10", "AAAA", "é", "WyJhIiwiYiIsImMiXQ", "a" * 5000]
)
async def test_a_token_we_did_not_make_is_refused(log: Log, token: str) -> None:
    await add(log, "t", 1)
    with pytest.raises(InvalidParams):
        await log.find(ListTasks(page_token=token), limit=1)


async def test_an_empty_scope_has_an_empty_page(log: Log) -> None:
    found = await log.find(ListTasks(), limit=10)
    assert (list(found.snapshots), found.next, found.total) == ([], "", 0)

"""Compares the notifications that a webhook received with the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dragoman.engine.protocols import Store
from dragoman.engine.records import PUBLIC
from dragoman.model.ops import Scope
from tests.push.webhook import Notification


async def expected(store: Store, scope: Scope, task: str) -> list[int]:
    """The numbers of what a webhook of 1.0 is to hear that was there from the start."""
    return [record.seq for record in await store.scope(scope).read(task) if record.kind in PUBLIC]


def by_task(received: Iterable[Notification]) -> dict[str, list[Notification]]:
    out: dict[str, list[Notification]] = {}
    for each in received:
        (event,) = each.document.values()
        out.setdefault(event["taskId"], []).append(each)
    return out


def first_times(received: Sequence[Notification]) -> list[int]:
    """The numbers in the order in which each was first heard. What comes again is the same, under the same id."""
    seen: dict[str, Notification] = {}
    for each in received:
        before = seen.setdefault(each.delivery, each)
        assert before.body == each.body
    return [each.seq for each in seen.values()]


async def check_all_sent(
    store: Store, scope: Scope, tasks: Sequence[str], received: Sequence[Notification]
) -> int:
    """Each notification at least once, in order, none lost. How many there were."""
    heard = by_task(received)
    assert sorted(heard) == sorted(tasks)
    count = 0
    for task in tasks:
        due = await expected(store, scope, task)
        assert first_times(heard[task]) == due, task
        count += len(due)
    return count

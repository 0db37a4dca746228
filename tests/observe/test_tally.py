"""Counting what callers use, with several workers and more callers than there is room for."""

from __future__ import annotations

import time

import pytest

from dragoman.observe import tally as counting
from dragoman.observe.tally import Tally


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_burst_is_had_at_once_and_then_the_rate(now: list[float]) -> None:
    tally = Tally()
    slot = tally.slot("ada")
    assert [tally.take(slot, 2.0, 3) for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    now[0] += 0.5
    assert [tally.take(slot, 2.0, 3) for _ in range(2)] == [0, 0.5]
    now[0] += 100
    assert [tally.take(slot, 2.0, 3) for _ in range(4)] == [0, 0, 0, 0.5]


def test_workers_count_together(now: list[float]) -> None:
    shared = Tally(2)
    one, two = shared.of(0), shared.of(1)
    slot = one.slot("ada")
    assert two.slot("ada") == slot
    assert [each.take(slot, 1.0, 3) for each in (one, two, one, two)] == [0, 0, 0, 1]
    one.enter(slot)
    two.enter(slot)
    assert one.busy(slot) == two.busy(slot) == 2


def test_what_a_worker_had_under_way_is_forgotten_when_another_takes_its_place() -> None:
    shared = Tally(2)
    one, two = shared.of(0), shared.of(1)
    slot = one.slot("ada")
    one.enter(slot)
    one.enter(slot)
    two.enter(slot)
    assert shared.of(0).busy(slot) == 1


def test_callers_are_told_apart_and_the_longest_silent_is_forgotten_first(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_SLOTS", 8)
    tally = Tally()
    slots = {}
    for caller in range(1, 9):
        now[0] += 1
        slots[caller] = tally.slot(caller)
        tally.take(slots[caller], 1.0, 1)
    assert len(set(slots.values())) == 8
    tally.enter(slots[1])
    assert tally.slot(9) == slots[2]  # 1 is older, and busy
    assert all(tally.slot(caller) == slots[caller] for caller in (1, 3, 4, 5, 6, 7, 8))


def test_more_callers_at_work_than_there_is_room_for_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_SLOTS", 8)
    tally = Tally()
    for caller in range(1, 9):
        tally.enter(tally.slot(caller))
    slot = tally.slot(9)
    tally.enter(slot)
    assert tally.busy(slot) == 2
    tally.leave(slot)
    assert tally.busy(slot) == 1

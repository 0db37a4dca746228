"""What a bus promises: it says when to look, to all who listen and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from dragoman.engine.protocols import MAIL_TOPIC, Bus
from dragoman.engine.records import Record, topic
from dragoman.model.ops import Scope
from tests.conformance.records import chunk


async def test_every_listener_of_a_topic_is_woken_and_no_other(bus: Bus) -> None:
    heard: list[str] = []
    with (
        bus.listen("a", lambda records: heard.append("a1")),
        bus.listen("a", lambda records: heard.append("a2")),
        bus.listen("b", lambda records: heard.append("b")),
    ):
        bus.wake("a")
        assert sorted(heard) == ["a1", "a2"]
        bus.wake("c")
        assert sorted(heard) == ["a1", "a2"]


async def test_a_listener_is_not_woken_after_its_context_ended(bus: Bus) -> None:
    heard: list[int] = []
    with bus.listen("a", lambda records: heard.append(1)):
        bus.wake("a")
    bus.wake("a")
    assert heard == [1]


async def test_the_same_function_may_listen_twice(bus: Bus) -> None:
    heard: list[int] = []

    def woken(records: Sequence[Record]) -> None:
        heard.append(1)

    with bus.listen("a", woken):
        with bus.listen("a", woken):
            bus.wake("a")
        bus.wake("a")
    bus.wake("a")
    assert heard == [1, 1, 1]


async def test_a_listener_that_fails_hurts_no_other_and_not_the_caller(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    def fails(records: Sequence[Record]) -> None:
        raise RuntimeError("a bug in a listener")

    with bus.listen("a", fails), bus.listen("a", lambda records: heard.append(1)), bus.listen("a", fails):
        bus.wake("a")
    assert heard == [1]
    assert "a bug in a listener" in caplog.text


async def test_listeners_may_come_and_go_while_they_are_woken(bus: Bus) -> None:
    heard: list[str] = []
    stack, late = ExitStack(), ExitStack()

    def leaves(records: Sequence[Record]) -> None:
        heard.append("leaves")
        stack.close()
        late.enter_context(bus.listen("a", lambda records: heard.append("late")))

    stack.enter_context(bus.listen("a", leaves))
    with bus.listen("a", lambda records: heard.append("stays")), late:
        bus.wake("a")
        assert heard == ["leaves", "stays"]
        bus.wake("a")
    assert heard == ["leaves", "stays", "stays", "late"]


async def test_topics_of_different_scopes_differ(bus: Bus) -> None:
    heard: list[int] = []
    with bus.listen(topic(Scope("t", "a", "o"), "1"), lambda records: heard.append(1)):
        bus.wake(topic(Scope("t", "a", "x"), "1"))
        bus.wake(MAIL_TOPIC)
    assert heard == []


async def test_records_ride_along_within_a_process(bus: Bus) -> None:
    heard: list[Sequence[Record]] = []
    records = (chunk(),)
    with bus.listen("a", heard.append):
        bus.wake("a", records)
    assert heard == [records]


async def test_a_closed_bus_wakes_no_listener(bus: Bus) -> None:
    heard: list[int] = []
    with bus.listen("a", lambda records: heard.append(1)):
        await bus.close()
        bus.wake("a")
    assert heard == []


async def test_one_call_wakes_all_listeners(bus: Bus) -> None:
    heard: list[tuple[str, Sequence[Record]]] = []
    with (
        bus.listen("a", lambda records: heard.append(("a", records))),
        bus.listen("b", lambda records: heard.append(("b", records))),
    ):
        bus.wake_all()
    assert sorted(heard) == [("a", ()), ("b", ())]


# Two processes


class Listener:
    """Hears one topic, and lets a test wait for that."""

    def __init__(self) -> None:
        self.heard: list[Sequence[Record]] = []
        self._news = asyncio.Event()

    def __call__(self, records: Sequence[Record]) -> None:
        self.heard.append(records)
        self._news.set()

    async def once(self) -> None:
        async with asyncio.timeout(10):
            await self._news.wait()
        self._news.clear()


LONG = topic(Scope("t", "a", "o" * 10_000), "1")


@pytest.mark.parametrize(
    "name", [MAIL_TOPIC, "t/a/o/1", LONG, "t/ä/\0/1"], ids=["mail", "task", "long", "odd"]
)
async def test_another_process_gets_the_topic_and_no_records(buses: tuple[Bus, Bus], name: str) -> None:
    here, there = buses
    listener, other = Listener(), Listener()
    with there.listen(name, listener), there.listen(name + "2", other):
        here.wake(name, (chunk(),))
        await listener.once()
        here.wake("last")
    assert listener.heard == [()] and other.heard == []


async def test_the_waker_itself_is_woken_once(buses: tuple[Bus, Bus]) -> None:
    here, there = buses
    own, listener, records = Listener(), Listener(), (chunk(),)
    with here.listen("a", own), there.listen("a", listener), here.listen("b", own):
        here.wake("a", records)
        await listener.once()
        there.wake("b")  # comes after all that came before
        while len(own.heard) < 2:
            await own.once()
    assert own.heard == [records, ()]


async def test_many_wake_ups_cause_at_least_one_after_the_last(buses: tuple[Bus, Bus]) -> None:
    here, there = buses
    listeners = [Listener() for _ in range(50)]
    with ExitStack() as stack:
        for n, listener in enumerate(listeners):
            stack.enter_context(there.listen(f"t{n}", listener))
        for _ in range(20):
            for n in range(50):
                here.wake(f"t{n}")
        for listener in listeners:
            await listener.once()
    assert all(1 <= len(listener.heard) <= 20 for listener in listeners)


async def test_the_last_wake_up_is_not_lost(buses: tuple[Bus, Bus]) -> None:
    here, there = buses
    listener = Listener()
    with there.listen("a", listener):
        here.wake("a")
        await here.close()
        await listener.once()

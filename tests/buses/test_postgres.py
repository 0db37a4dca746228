"""What is true of the PostgreSQL bus beyond the seam: its connection breaks, and comes back."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.buses import open_bus
from dragoman.errors import Unavailable
from tests import postgres
from tests.conformance.test_buses import Listener

if not postgres.available():
    pytest.skip("there is no PostgreSQL here", allow_module_level=True)

from dragoman.buses.postgres import PostgresBus

CUT = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'dragoman'"


async def test_all_listeners_wake_when_the_connection_is_back() -> None:
    bus, listener = open_bus(postgres.server().url), Listener()
    await bus.open()
    with bus.listen("a", listener):
        await asyncio.to_thread(postgres.server().execute, CUT)
        await listener.once()
    assert listener.heard == [()]
    await bus.close()


async def test_topics_sent_while_the_database_is_away_arrive_when_it_is_back() -> None:
    here, there = open_bus(postgres.server().url), open_bus(postgres.server().url)
    await here.open()
    await there.open()
    listener, other = Listener(), Listener()
    with there.listen("a", listener), there.listen("b", other):
        await asyncio.to_thread(postgres.server().stop)
        here.wake("a")
        await asyncio.to_thread(postgres.server().start)
        await listener.once()
        await other.once()  # everybody was told to look
        here.wake("b")
        await other.once()
    await here.close()
    await there.close()


async def test_a_bus_without_its_database_does_not_open() -> None:
    with pytest.raises(Unavailable, match="cannot connect"):
        await PostgresBus("postgresql://me:secret@127.0.0.1:1/x", connect_timeout=0).open()


async def test_a_bus_waits_for_a_database_that_is_being_started() -> None:
    bus = open_bus(postgres.server().url)
    await asyncio.to_thread(postgres.server().stop)
    opening = asyncio.create_task(bus.open())
    await asyncio.to_thread(postgres.server().start)
    await opening
    await bus.close()


def test_the_url_of_a_store_gives_its_bus() -> None:
    assert type(open_bus("memory:")) is type(open_bus("sqlite:///x.db"))
    with pytest.raises(ValueError, match="a bus is nats"):
        open_bus("mysql://localhost")

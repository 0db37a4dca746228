"""What is true of the NATS bus beyond the seam: its server goes, and comes back; and others speak there, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from dragoman.buses import open_bus
from dragoman.errors import Unavailable
from tests import nats
from tests.conformance.test_buses import Ear

if not nats.available():
    pytest.skip("there is no NATS here", allow_module_level=True)

from nats.aio.client import Client

from dragoman.buses.nats import NatsBus


@pytest.fixture
def server() -> Iterator[nats.Nats]:
    """One that may die."""
    made = nats.Nats()
    yield made
    made.kill()


async def test_all_who_listen_are_told_to_look_when_the_server_is_back(
    server: nats.Nats, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = open_bus(server.url), open_bus(server.url)
    await here.open()
    await there.open()
    own, ear = Ear(), Ear()
    with here.listen("a", own), there.listen("b", ear):
        await asyncio.to_thread(server.kill)
        here.wake("b")
        await asyncio.to_thread(server.start)
        await own.once()
        await ear.once()
        here.wake("b")
        await ear.once()
    await here.close()
    await there.close()
    assert [r.levelno for r in caplog.records if r.name == "dragoman.buses"].count(logging.WARNING) == 2


async def test_what_is_said_last_is_still_heard() -> None:
    here, there = open_bus(nats.server().url), open_bus(nats.server().url)
    await here.open()
    await there.open()
    ear = Ear()
    with there.listen("a", ear):
        here.wake("a")
        await here.close()
        await ear.once()
    await there.close()


async def test_a_bus_whose_server_is_not_there_does_not_open_and_tells_no_secret() -> None:
    with pytest.raises(Unavailable, match="told") as refused:
        await NatsBus("nats://me:secret@127.0.0.1:1/x", patience=0.2).open()
    assert "secret" not in str(refused.value)


async def test_a_bus_that_is_not_let_in_does_not_open() -> None:
    server = nats.Nats("--user", "me", "--pass", "secret")
    try:
        with pytest.raises(Unavailable, match="Authorization"):
            await NatsBus(server.url, patience=0.5).open()
        bus = NatsBus(f"nats://me:secret@127.0.0.1:{server.port}")
        await bus.open()
        await bus.close()
    finally:
        server.kill()


async def test_a_bus_waits_for_a_server_that_is_being_started(server: nats.Nats) -> None:
    server.kill()
    bus = open_bus(server.url)
    opening = asyncio.create_task(bus.open())
    await asyncio.to_thread(server.start)
    await opening
    await bus.close()


async def test_one_of_several_servers_is_enough() -> None:
    bus = open_bus(f"nats://127.0.0.1:1,127.0.0.1:{nats.server().port}")
    await bus.open()
    await bus.close()


async def test_two_installations_on_different_subjects_do_not_hear_each_other() -> None:
    here, there, ours = (open_bus(f"{nats.server().url}/{name}") for name in ("shop", "bank", "shop"))
    for bus in (here, there, ours):
        await bus.open()
    theirs, ear = Ear(), Ear()
    with there.listen("a", theirs), ours.listen("a", ear):
        here.wake("a")
        await ear.once()
    assert theirs.heard == []
    for bus in (here, there, ours):
        await bus.close()


async def test_what_somebody_else_says_there_is_passed_over() -> None:
    bus, stranger, ear = open_bus(nats.server().url), Client(), Ear()
    await bus.open()
    await stranger.connect(nats.server().url)
    with bus.listen("a", ear):
        for said in (b"", b"hello", b"{}", b"[1]", b'"a"', b"\xff", b'["a"]'):
            await stranger.publish("dragoman", said)
        await ear.once()
    assert ear.heard == [()]
    await stranger.close()
    await bus.close()


@pytest.mark.parametrize(
    "url",
    ["nats://", "nats:///x", "nats://h/a b", "nats://h/a.*", "nats://h/a..b", "nats://h?x=1", "nuts://h"],
)
def test_a_url_that_names_no_bus_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"nats://host"):
        open_bus(url)

"""The bus between processes of one machine: dead and busy processes, long paths."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from dragoman.buses import open_bus, unix_socket
from dragoman.engine.protocols import Bus
from tests.conformance.test_buses import Listener

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no such sockets here")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One with a short name."""
    with TemporaryDirectory() as made:
        yield Path(made)


def bus_of(folder: Path) -> Bus:
    return open_bus(f"sqlite:///{folder}/tasks.db", shared=True)


class Deaf:
    """A process that does not read what it is sent."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tasks.db-bus" / "deaf.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))

    async def read(self, until: str) -> set[str]:
        """What was sent, until that was."""
        received: set[str] = set()
        async with asyncio.timeout(10):
            while until not in received:
                datagram = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 17)
                received |= set(msgspec.json.decode(datagram, type=list[str]))
        return received

    def die(self) -> None:
        self._socket.close()


async def test_a_process_that_did_not_read_for_a_while_gets_all_topics_later(folder: Path) -> None:
    bus = bus_of(folder)
    await bus.open()
    deaf = Deaf(folder)
    names = [
        f"{n}/" + "x" * 1500 for n in range(3000)
    ]  # more than fits into its queue, in bytes and datagrams
    for n, name in enumerate(names):
        bus.wake(name)
        if n % 50 == 0:
            await asyncio.sleep(0)
    bus.wake("last")
    assert await deaf.read("last") == {*names, "last"}
    deaf.die()
    await bus.close()


async def test_a_process_that_missed_too_many_topics_wakes_all_its_listeners(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_socket, "_MAX_OWED_TOPICS", 100)
    bus = bus_of(folder)
    await bus.open()
    deaf = Deaf(folder)
    for n in range(500):
        bus.wake(f"{n}/" + "x" * 1900)
        if n % 20 == 0:
            await asyncio.sleep(0)
    await deaf.read("*")
    deaf.die()
    here, listener = bus_of(folder), Listener()
    await here.open()
    with here.listen("a", listener), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        (path,) = [each for each in deaf.path.parent.iterdir() if each.name == here._name]  # type: ignore[attr-defined]
        other.sendto(b'["*"]', str(path))
        await listener.once()
    await here.close()
    await bus.close()


async def test_the_socket_of_a_dead_process_is_removed_and_the_last_process_removes_the_folder(
    folder: Path,
) -> None:
    here, there, listener = bus_of(folder), bus_of(folder), Listener()
    await here.open()
    deaf = Deaf(folder)
    deaf.die()
    await there.open()
    assert deaf.path.exists()
    with there.listen("a", listener):
        here.wake("a")
        await listener.once()
    assert not deaf.path.exists()
    await here.close()
    await there.close()
    assert not deaf.path.parent.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="paths are short elsewhere")
async def test_the_folder_may_have_a_longer_path_than_a_socket_may(folder: Path) -> None:
    long = folder / ("x" * 120)
    long.mkdir()
    here, there, listener = bus_of(long), bus_of(long), Listener()
    await here.open()
    await there.open()
    with there.listen("a", listener):
        here.wake("a")
        await listener.once()
    await here.close()
    await there.close()


async def test_a_bus_whose_folder_cannot_be_created_still_works_in_its_process(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus, listener = bus_of(folder / "missing"), Listener()
    await bus.open()
    with bus.listen("a", listener):
        bus.wake("a")
    assert listener.heard == [()] and "only poll" in caplog.text
    await bus.close()

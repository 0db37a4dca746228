"""A bridge is killed while it follows a task on the library of another project."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.bridge.durable import STALLED
from dragoman.client import connect
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import Task, TaskState
from dragoman.stores import open_store
from tests.interop.running import serving
from tests.serving import Server
from tests.waiting import until

ENDLESS = "ticks:100000"
"""Work that is not done before the test ends."""


def bridge_to(url: str, folder: Path) -> Server:
    file = folder / "bridge.toml"
    file.write_text(f'[agents.peer]\nurl = "{url}"\npath = "/"\nbinding = "JSONRPC"\nstalled = 2\n')
    bridge = Server(store=folder / "bridge.db")
    place = bridge.command.index("serve")
    bridge.command[place : place + 1] = ["bridge", str(file)]
    return bridge


def ticks(task: Task) -> bool:
    return "tick" in task.text


async def task_behind(store: Path) -> str:
    opened = open_store(f"sqlite:///{store}")
    await opened.open()
    try:
        found = await opened.scope(Scope("", "peer", "")).find(ListTasks(), limit=2)
        ((_, child),) = [each for snapshot in found.snapshots for each in snapshot.delegated.items()]
        return child.task
    finally:
        await opened.close()


@pytest.mark.interop
async def test_a_task_that_a2a_sdk_0_2_stopped_with_the_bridge_fails(tmp_path: Path) -> None:
    with serving("a2a-sdk-0.2.16") as peer:
        async with bridge_to(peer, tmp_path) as bridge:
            async with connect(bridge.url) as caller:
                ours = (await caller.send(ENDLESS, wait=False)).task
                assert ours is not None
                await until(lambda: caller.get(ours.id), ticks)
            await bridge.kill()
            await bridge.start()
            async with connect(bridge.url) as caller, connect(peer) as direct:
                ended = await until(lambda: caller.get(ours.id), lambda found: found.state.terminal)
                assert ended.state is TaskState.FAILED and ended.text == STALLED
                behind = await direct.get(await task_behind(tmp_path / "bridge.db"))
                assert behind.state is TaskState.CANCELED


@pytest.mark.interop
@pytest.mark.parametrize("library", ["a2a-sdk-0.3.26", "a2a-sdk-1.3.0"])
async def test_a_task_that_goes_on_without_the_bridge_is_followed_to_its_end(
    tmp_path: Path, library: str
) -> None:
    with serving(library) as peer:
        async with bridge_to(peer, tmp_path) as bridge:
            async with connect(bridge.url) as caller:
                ours = (await caller.send("ticks:100", wait=False)).task
                assert ours is not None
                await until(lambda: caller.get(ours.id), ticks)
            await bridge.kill()
            await bridge.start()
            async with connect(bridge.url) as caller:
                ended = await caller.wait(ours.id)
                assert ended.state is TaskState.COMPLETED

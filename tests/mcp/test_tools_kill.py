"""`kill -9` in the middle of a call: what is on record is not called again, and what may not be repeated is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from dragoman import Task, TaskState, connect
from dragoman.client import Client
from tests.serving import Server
from tests.waiting import until

AGENT = Path(__file__).with_name("tool_agent.py")


class Served:
    def __init__(self, server: Server, client: Client, folder: Path) -> None:
        self.server, self.client, self.folder = server, client, folder

    def calls(self, tool: str) -> int:
        file = self.folder / tool
        return len(file.read_text().splitlines()) if file.exists() else 0

    async def begin(self, content: Any, **options: Any) -> Task:
        reply = await self.client.send(content, **options)
        assert reply.task is not None
        return reply.task

    async def crash(self) -> None:
        await self.server.kill()
        await self.server.start()

    async def end_of(self, task: Task) -> Task:
        ended = await until(lambda: self.client.get(task.id), lambda found: found.state.settled)
        assert isinstance(ended, Task)
        return ended


@asynccontextmanager
async def served(folder: Path, legacy: bool = False, key: str = "") -> AsyncIterator[Served]:
    env = {"TOOLS": str(folder), "LEGACY": "1" if legacy else "", "STATE_KEY": key}
    async with Server(AGENT, store=folder / "tasks.db", env=env) as server:
        async with connect(server.url) as client:
            yield Served(server, client, folder)


async def test_a_tool_that_may_not_be_repeated_is_not_called_again(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        task = await here.begin({"tool": "slow_pay"}, wait=False)
        await until(lambda: here.calls("slow_pay"))
        await here.crash()
        ended = await here.end_of(task)
        assert ended.state is TaskState.FAILED and ended.status.message is not None
        assert ended.status.message.text == (
            "the tool 'slow_pay' of 'tools' was called when the server of this agent stopped. It may have run, and is not called"
            " again"
        )
        assert here.calls("slow_pay") == 1


async def test_a_tool_that_may_be_repeated_is_called_again(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        task = await here.begin({"tool": "slow_look"}, wait=False)
        await until(lambda: here.calls("slow_look"))
        await here.crash()
        await until(lambda: here.calls("slow_look") == 2)
        (tmp_path / "go").touch()
        ended = await here.end_of(task)
        assert ended.state is TaskState.COMPLETED and ended.text == "looked"


async def test_a_result_on_record_is_not_asked_for_again(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        task = await here.begin("go", skill="twice", wait=False)
        await until((tmp_path / "between").exists)
        await here.crash()
        (tmp_path / "continue").touch()
        ended = await here.end_of(task)
        assert ended.state is TaskState.COMPLETED and ended.text == "paid 1, paid 1"
        assert here.calls("pay") == 2


async def test_a_tool_that_needs_an_answer_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path, key="k" * 32) as here:
        task = await here.begin({"tool": "book"})
        assert task.state is TaskState.INPUT_REQUIRED
        await here.crash()
        task = await here.begin("Rome", task=task.id)
        assert task.state is TaskState.COMPLETED and task.text == "booked Rome"
        assert here.calls("book") == 1


async def test_a_tool_whose_server_forgot_what_it_asked_begins_again_if_it_may(tmp_path: Path) -> None:
    async with served(tmp_path) as here:  # its process seals what it asks with a key of its own
        task = await here.begin({"tool": "find"})
        assert task.state is TaskState.INPUT_REQUIRED
        await here.crash()
        task = await here.begin("Rome", task=task.id)
        assert task.state is TaskState.COMPLETED and task.text == "found Rome"


async def test_a_tool_that_asked_in_the_middle_of_its_work_is_not_called_again_unless_it_may_be(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, legacy=True) as here:
        once = await here.begin({"tool": "book_now"})
        again = await here.begin({"tool": "look_up"})
        assert once.state is again.state is TaskState.INPUT_REQUIRED
        await here.crash()
        once = await here.begin("Rome", task=once.id)
        assert once.state is TaskState.FAILED and once.status.message is not None
        assert "may have run, and is not called again" in once.status.message.text
        again = await here.begin("Oslo", task=again.id)
        assert again.state is TaskState.COMPLETED and again.text == "found Oslo"
        assert (here.calls("book_now"), here.calls("look_up")) == (1, 2)

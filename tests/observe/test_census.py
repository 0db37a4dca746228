"""How full a server is, with several workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dragoman import Agent, Turn
from dragoman.observe.census import Census
from dragoman.observe.crew import Crew
from dragoman.observe.limit import Quota
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests import raw
from tests.serving import Server

HELLO = {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}


def test_workers_are_counted_together() -> None:
    shared = Census(3)
    one, two = shared.of(0), shared.of(1)
    one.say(4)
    two.say(3)
    one.say(2)
    assert one.total() == two.total() == 5


def test_who_takes_the_place_of_another_begins_anew() -> None:
    shared = Census(2)
    one, two = shared.of(0), shared.of(1)
    one.say(4)
    two.say(3)
    assert shared.of(0).total() == two.total() == 3


async def test_a_queue_is_full_whichever_worker_is_asked() -> None:
    crew, go = Crew.hired(2), asyncio.Event()
    agent = Agent("Waits")

    @agent.skill
    async def wait(turn: Turn) -> str:
        await go.wait()
        return "done"

    busy, idle = [
        application(agent, store="memory:", quota=Quota(queue=1), crew=crew.of(each)) for each in (0, 1)
    ]
    async with running(busy) as url, running(idle) as other, asyncio.timeout(15):
        sent = {**HELLO, "configuration": {"returnImmediately": True}}
        await raw.result(url, "SendMessage", sent)
        while not crew.load.total:
            await asyncio.sleep(0.01)
        with pytest.raises(raw.Refused) as refused:
            await raw.result(other, "SendMessage", sent)
        assert refused.value.status == 503
        go.set()
        while crew.load.total:
            await asyncio.sleep(0.01)
        await raw.result(other, "SendMessage", HELLO)


async def test_so_many_may_be_connected_whichever_worker_they_came_to(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "from dragoman import Agent\nagent = Agent('A')\n@agent.skill\ndef a(x: str) -> str: return x\n"
    )
    options = ("--workers", "2", "--max-connections", "3")
    async with Server(file, store=tmp_path / "tasks.db", options=options) as server, asyncio.timeout(15):
        parts, said, wires = urlsplit(server.url), [], []
        for _ in range(5):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
            said.append((await reader.readuntil(b"\r\n\r\n"))[9:12])
            wires.append((reader, writer))
            if said[-1] == b"503":
                await reader.read(-1)  # it is gone, and counted no more
        for _, writer in wires:
            writer.close()
    assert said == [b"200", b"200", b"200", b"503", b"503"]

"""The server is killed (SIGKILL) while a client reads, and started again: the stream continues, each event once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman import connect
from dragoman.client import Piece, Policy
from dragoman.model.task import TaskState
from tests.client.counting import rebuild, text
from tests.ports import free_port
from tests.waiting import elapse

ROOT = Path(__file__).parent.parent.parent
N = 60


class Server:
    def __init__(self, store: Path) -> None:
        self._port = free_port()
        self._store = f"sqlite:///{store}"
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.client.paced",
            str(self._port),
            self._store,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"READY\n"

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Server]:
    server = Server(path / "tasks.db")
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


def check(pieces: list[Piece]) -> None:
    assert rebuild(pieces) == (text(N), [f"at {i}" for i in range(N)])
    assert pieces[-1].state is TaskState.COMPLETED


async def test_a_stream_goes_on_through_kills(tmp_path: Path) -> None:
    async with asyncio.timeout(60), serving(tmp_path) as server:
        async with connect(server.url, policy=Policy(shortest=0.05, longest=0.2)) as agent:
            pieces: list[Piece] = []
            async for piece in agent.stream(str(N)):
                pieces.append(piece)
                if len(pieces) in (10, 50):
                    await server.kill()
                    await server.start()
    check(pieces)


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.2])
async def test_a_call_is_answered_once_through_a_kill(tmp_path: Path, moment: float) -> None:
    async with asyncio.timeout(60), serving(tmp_path) as server:
        async with connect(server.url, policy=Policy(shortest=0.05, longest=0.2)) as agent:
            call = asyncio.create_task(agent.send(str(N)))
            await elapse(moment)
            await server.kill()
            await server.start()
            assert await call == text(N)
            assert len([task async for task in agent.list()]) == 1

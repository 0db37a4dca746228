"""Servers for tests: `dragoman serve` in a process that can be killed and started again, and what a thread keeps open."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

from tests.ports import free_port

T = TypeVar("T")

WAIT = 20.0
"""No process here needs so long for anything; one that does hangs."""


def is_alive(pid: int) -> bool:
    """False for a process that has ended, also if its parent has not read how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it may end between opening and reading
        return False


@contextmanager
def in_thread(opened: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Keep `opened` open in a thread with a loop of its own, for tests that block or run a loop: commands, schemathesis."""
    entered: Future[T] = Future()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def keep_open() -> None:
        try:
            async with opened as value:
                entered.set_result(value)
                await stop.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    thread = threading.Thread(target=loop.run_until_complete, args=(keep_open(),))
    thread.start()
    try:
        yield entered.result(30)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


class Server:
    """`async with Server(file, store=...) as server:` serves the agents of `file` at `server.url`.

    Its port and its store (a file, or a url) outlive it, so that it can be started again: `await server.start()`.
    """

    def __init__(
        self,
        *files: Path,
        store: Path | str | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        start_seconds: float = WAIT,
    ) -> None:
        """`start_seconds`: how long it may take to listen."""
        self._start_seconds = start_seconds
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {**os.environ, **(env or {})}
        named = store if isinstance(store, str) else f"sqlite:///{store}" if store is not None else "memory:"
        self.command = [
            python, "-m", "dragoman.cli", "serve", *map(str, files),
            "--port", str(self.port), "--store", named, *options,
        ]  # fmt: skip
        self.process: asyncio.subprocess.Process | None = None
        self.said = b""
        """What it wrote to its standard error, all its lives together."""
        self._errors: asyncio.Task[None] | None = None
        self.lives = 0
        """How often it was started."""
        self._born = asyncio.Condition()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self, **env: str) -> None:
        """Start it, and wait until it listens."""
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**self.env, **env},
        )
        assert self.process.stdout is not None
        self._errors = asyncio.create_task(self._listen(self.process))
        async with asyncio.timeout(self._start_seconds):
            announced = await self.process.stdout.readline()
        assert self.url.encode() in announced, (announced, self.said)
        async with self._born:
            self.lives += 1
            self._born.notify_all()

    async def life_after(self, lives: int) -> None:
        """Wait until it was started more than `lives` times."""
        async with self._born:
            await self._born.wait_for(lambda: self.lives > lives)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.said += line

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def kill(self) -> None:
        """SIGKILL, unless it is dead already."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(
                    self.process.pid, signal.SIGKILL
                )  # `process.kill` may take the exit code from who waits
        await self.ended()

    def signal(self, signum: signal.Signals) -> None:
        os.kill(self.pid, signum)

    async def ended(self) -> int:
        """Wait for its end: the exit code."""
        assert self.process is not None
        async with asyncio.timeout(WAIT):
            code = await self.process.wait()
            if self._errors is not None:
                await self._errors
        return code

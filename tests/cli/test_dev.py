"""`dragoman dev` as a process: reload, errors, crashes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from dragoman import connect
from dragoman.client import Policy
from tests.console.calls import Page
from tests.ports import free_port
from tests.serving import is_alive
from tests.waiting import until

HELLO = """\
from dragoman import Agent

agent = Agent("Hello", description="Says hello")


@agent.skill
async def hello(name: str) -> str:
    return f"{greeting}, {name}!"


greeting = "Hello"
"""

LONG = """\
import asyncio
import os
from pathlib import Path

from dragoman import Agent, Turn

agent = Agent("Long", description="Counts")
here = Path(__file__).parent
(here / "pid").write_text(str(os.getpid()))


async def count(n: int) -> int:
    with (here / "steps.txt").open("a") as log:
        log.write(f"{n} {code}\\n")
    return n


@agent.skill
async def long(turn: Turn):
    for n in range(2):
        yield f"{await turn.step(str(n), count, n)} "
        while not n and not (here / "go").exists():
            await asyncio.sleep(0.01)
    yield code


code = "old"
"""


class Dev:
    """A running `dragoman dev`, and what it printed."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process, self.url = process, url
        self.said = ""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said += line.decode()

    async def says(self, text: str, times: int = 1) -> None:
        try:
            await until(lambda: self.said.count(text) >= times)
        except TimeoutError:
            raise AssertionError(f"no {text!r} in:\n{self.said}") from None

    async def ask(self, text: str = "world") -> str:
        async with connect(self.url, timeout=20) as agent:
            return (await agent(text)).text

    async def answers(self, text: str) -> None:
        """Wait for an answer of the new code. The old process may still take requests when it is about to end."""
        await until(self.ask, lambda answer: answer == text)


@asynccontextmanager
async def dev(folder: Path, *options: str) -> AsyncIterator[Dev]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman.cli", "dev", "agent.py", "--port", str(port),
        "--store", "sqlite:///tasks.db", "--drain", "0", *options,
        cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    running = Dev(process, f"http://127.0.0.1:{port}")
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(20):
                await process.wait()
        except TimeoutError:
            process.kill()


def agent_pid(folder: Path) -> int:
    return int((folder / "pid").read_text())


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    file = tmp_path / "agent.py"
    file.write_text(HELLO)
    return file


async def test_a_saved_file_is_served_and_no_caller_is_refused_meanwhile(agent: Path) -> None:
    async with dev(agent.parent) as running:
        await running.says("Ctrl-C stops")
        assert await running.ask() == "Hello, world!"
        agent.write_text(HELLO.replace('"Hello"\n', '"Hi"\n'))
        port = int(running.url.rpartition(":")[2])
        answers: list[str] = []
        while not answers or "Hi" not in answers[-1]:
            _, writer = await asyncio.open_connection("127.0.0.1", port)  # raises if it is refused
            writer.close()
            answers.append(await running.ask())
        assert set(answers) <= {"Hello, world!", "Hi, world!"}
        await running.says("agent.py changed: restarting")


async def test_a_running_task_goes_on_with_the_new_code(agent: Path) -> None:
    agent.write_text(LONG)
    async with dev(agent.parent) as running:
        await running.says("Ctrl-C stops")
        async with connect(running.url, timeout=20, policy=Policy(shortest=0.05)) as client:
            async with client.stream("go") as stream:
                assert await anext(text async for piece in stream if (text := piece.text)) == "0 "
                old = agent_pid(agent.parent)
                agent.write_text(LONG.replace('code = "old"', 'code = "new"'))
                await running.says("agent.py changed: restarting")
                await until(lambda: not is_alive(old))
                (agent.parent / "go").touch()
                async for _ in stream:
                    pass
            assert stream.reply.text == "0 1 new"
    assert (agent.parent / "steps.txt").read_text() == "0 old\n1 new\n", "each step ran once"


async def test_the_old_code_goes_on_serving_while_the_new_one_has_an_error(agent: Path) -> None:
    async with dev(agent.parent) as running:
        await running.says("Ctrl-C stops")
        agent.write_text(HELLO + "x = (\n")
        await running.says("agent.py, line 12: '(' was never closed")
        await running.says("the old code goes on serving")
        assert await running.ask() == "Hello, world!"
        agent.write_text("import no_such_module\n" + HELLO)
        await running.says("No module named 'no_such_module'")
        assert await running.ask() == "Hello, world!"
        agent.write_text(HELLO.replace('"Hello"\n', '"Hi"\n'))
        await running.says("restarting")
        await running.answers("Hi, world!")


async def test_a_file_with_an_error_at_the_start_is_served_once_it_is_right(agent: Path) -> None:
    agent.write_text("x = (\n")
    async with dev(agent.parent) as running:
        await running.says("waiting for a file to change")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
        agent.write_text(HELLO)
        await running.says("Ctrl-C stops")
        assert await running.ask() == "Hello, world!"


async def test_the_console_is_on_and_its_session_and_its_unused_token_survive_a_reload(agent: Path) -> None:
    async with dev(agent.parent) as running:
        await running.says("Ctrl-C stops")
        url = next(line for line in running.said.splitlines() if line.startswith("console: "))
        page = Page(url.removeprefix("console: "))
        agent.write_text(HELLO.replace('"Hello"\n', '"Hi"\n'))
        await running.says("restarting")
        await running.answers("Hi, world!")
        assert (await page("POST", "session", {"token": page.token}))[0] == 204
        assert "dev" in json.loads((await page("GET", "me"))[1])["features"]
        agent.write_text(HELLO)
        await running.says("restarting", 2)
        await running.answers("Hello, world!")
        assert (await page("GET", "me"))[0] == 200
        assert (await page("POST", "session", {"token": page.token}))[0] == 401, (
            "it works once, also after a reload"
        )
        assert running.said.count("console: ") == 1


async def test_the_page_gets_errors_and_restarts(agent: Path) -> None:
    async with dev(agent.parent) as running:
        await running.says("Ctrl-C stops")
        url = next(line for line in running.said.splitlines() if line.startswith("console: "))
        page = Page(url.removeprefix("console: "))
        await page("POST", "session", {"token": page.token})
        events = page.follow("dev/events")
        assert (await anext(events))[1]["state"] == "serving"
        agent.write_text(HELLO + "x = (\n")
        name, error = await anext(events)
        assert (name, error["state"]) == ("reload", "error") and "never closed" in error["message"]
        agent.write_text(HELLO)
        assert [event["state"] async for _, event in events] == ["restarting"], "then the old process ends"
        again = page.follow("dev/events")
        assert (await anext(again))[1]["state"] == "serving"


async def test_a_module_that_the_agent_imports_is_watched(agent: Path) -> None:
    (agent.parent / "words.py").write_text('greeting = "Hello"\n')
    agent.write_text("from words import greeting\n" + HELLO.removesuffix('greeting = "Hello"\n'))
    async with dev(agent.parent) as running:
        await running.says("Ctrl-C stops")
        (agent.parent / "words.py").write_text('greeting = "Salut"\n')
        await running.says("words.py changed: restarting")
        await running.answers("Salut, world!")


async def test_a_killed_agent_process_is_started_again_and_dies_with_dev(agent: Path) -> None:
    agent.write_text(
        HELLO + "import os\nfrom pathlib import Path\nPath('pid').write_text(str(os.getpid()))\n"
    )
    async with dev(agent.parent) as running:
        await running.says("Ctrl-C stops")
        first = agent_pid(agent.parent)
        os.kill(first, signal.SIGKILL)
        await running.says("ended (signal 9)")
        assert await running.ask() == "Hello, world!"
        second = agent_pid(agent.parent)
        assert second != first
        running.process.kill()
        await until(lambda: not is_alive(second))

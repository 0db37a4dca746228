"""What a server says while it works: a line per request and per finished task, in the form that was asked for."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragoman import connect
from tests.cli.screen import Terminal

AGENT = """
import asyncio, sys, warnings
from dragoman import Agent, Turn
from dragoman.auth import Bearer, hashed

agent = Agent("Worker", auth=[Bearer({"ada": hashed("k" * 32)})])

@agent.skill(default=True)
async def work(turn: Turn) -> str:
    match turn.text:
        case "warn":
            warnings.warn("odd")
        case "fail":
            raise RuntimeError("no")
        case "wait":
            await turn.status("waiting")
            await asyncio.Event().wait()
    return turn.text
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(AGENT)
    return path


@contextmanager
def served(file: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The agent in a process of its own: its URL, and the process."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dragoman.cli",
            "serve",
            str(file),
            "--port",
            "0",
            "--store",
            "memory:",
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    announced = process.stdout.readline()
    found = re.search(r"http://[\d.:]+", announced)
    assert "json" not in options or json.loads(announced)["message"].startswith("Worker: http")
    assert found is not None
    try:
        yield found[0], process
    finally:
        process.terminate()
        process.communicate(timeout=30)


async def talk(url: str) -> list[str]:
    """A request that works, one that fails, one that is refused. Returns the tasks of the first two."""
    async with connect(url, credentials="k" * 32) as agent:
        good, bad = await agent.send("warn"), await agent.send("fail")
        async for _ in agent.stream("hi"):
            pass
    async with connect(url, credentials="wrong") as agent:
        with pytest.raises(Exception, match="not"):
            await agent.send("hello")
    return [good.id, bad.id]


def test_a_server_logs_a_line_per_request_and_per_finished_task(file: Path) -> None:
    with served(file) as (url, process):
        good, bad = asyncio.run(talk(url))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    for operation in ("task", "SendMessage"):
        about = r"agent=worker( tenant=\S+)? principal=ada task="
        assert re.search(rf"INFO dragoman.requests {operation} completed \d+ ms {about}{good}\n", said)
        assert re.search(rf"INFO dragoman.requests {operation} failed \d+ ms {about}{bad}\n", said)
    assert re.search(r"dragoman.requests SendStreamingMessage completed \d+ ms agent=worker", said)
    assert "INFO dragoman.requests authenticate UNAUTHENTICATED agent=worker" in said
    assert "dragoman.server stopping" in said


def test_a_quiet_server_logs_only_warnings_and_errors(file: Path) -> None:
    with served(file, "--quiet") as (url, process):
        asyncio.run(talk(url))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert "dragoman.requests" not in said and "INFO" not in said
    assert "the agent raised" in said


def test_every_line_of_a_json_log_is_json(file: Path) -> None:
    with served(file, "--log", "json") as (url, process):
        good, bad = asyncio.run(talk(url))
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
    lines = [json.loads(line) for line in said.splitlines()]
    assert out == ""
    assert {"SendMessage", "task"} <= {line.get("operation") for line in lines if line.get("task") == good}
    [done] = [line for line in lines if line.get("operation") == "task" and line["task"] == bad]
    assert (done["outcome"], done["agent"], done["principal"]) == ("failed", "worker", "ada")
    assert any("odd" in line["message"] for line in lines)
    assert all({"at", "level", "logger", "message"} <= set(line) for line in lines)


def test_a_server_that_cannot_start_logs_the_reason_as_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dragoman.cli", "serve", "none.py", "--log", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stderr)["message"] == "none.py: no such file"


@pytest.mark.parametrize(
    ("store", "then"),
    [("sqlite:///{}/t.db", "goes on at the next start"), ("memory:", "is lost: its store is in")],
)
def test_ctrl_c_logs_what_it_waits_for_and_a_second_one_does_not_wait(
    store: str, then: str, file: Path, tmp_path: Path
) -> None:
    server = Terminal(["serve", str(file), "--port", "0", "--store", store.format(tmp_path)], columns=200)
    server.until("Worker: http")
    [url] = re.findall(r"Worker: (http\S+)", server.text)
    begun = subprocess.run(
        [sys.executable, "-m", "dragoman.cli", "send", url, "wait", "--auth", "k" * 32, "--no-wait"],
        capture_output=True,
        check=True,
    )
    assert begun.stdout
    os.kill(server.process.pid, signal.SIGINT)
    server.until("stopping: 1 task runs and has 10 s to finish")
    server.until(then)
    server.until("Ctrl-C again does not wait")
    os.kill(server.process.pid, signal.SIGINT)
    assert server.end() == 130

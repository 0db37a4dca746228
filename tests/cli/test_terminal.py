"""What a person sees on a terminal: the whole answer, once, with the progress between."""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest

from dragoman import Agent, Turn
from dragoman.cli import show
from dragoman.client.reply import Piece
from dragoman.model.content import Artifact, Part
from dragoman.model.fold import LazyFold
from dragoman.model.task import ArtifactUpdate, TaskState
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.cli.screen import Terminal

CURRENCY = Path(__file__).parents[2] / "examples" / "currency.py"
agent = Agent("Writer", description="Writes")


@agent.skill(default=True)
async def write(turn: Turn) -> AsyncIterator[str]:
    """Says what it does while it writes."""
    match turn.text:
        case "between":
            yield "a "
            await turn.status("x")
            yield "b"
        case "many":
            for n in range(1, 30):
                await turn.status(f"step {n} " + "long " * 50)
            yield "done"
            await turn.status("tidying up")
        case "wide":
            await turn.status("進捗" * 100)
            yield "終わり\n"
            await turn.status("next")
            yield "last"
        case "ask":
            yield "Listen. "
            name = await turn.ask("Who are you?")
            yield f"Hello, {name}."
        case text:
            await turn.status("thinking")
            yield f"You said {text}."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The agent, served in a thread."""
    ready, leave = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with running(application(agent, store="memory:")) as here:
            found.extend((here, asyncio.get_running_loop()))
            ready.set()
            await leave.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        found[1].call_soon_threadsafe(leave.set)
        thread.join()


@pytest.mark.parametrize(
    ("text", "screen"),
    [
        ("between", ["a", "x", "b"]),
        ("wide", ["進捗" * 19 + "進", "終わり", "next", "last"]),
    ],
)
def test_send_shows_the_whole_answer_once_with_the_progress_between(
    url: str, text: str, screen: list[str]
) -> None:
    terminal = Terminal(["send", url, text])
    assert terminal.end() == 0
    assert terminal.lines == screen


def test_a_progress_line_replaces_only_the_progress_line_before(url: str) -> None:
    terminal = Terminal(["send", url, "many"], columns=40)
    assert terminal.end() == 0
    steps, answer, last = terminal.lines
    assert steps.startswith("step 29 long") and (answer, last) == ("done", "tidying up")


def test_a_chat_shows_every_answer_once(url: str) -> None:
    terminal = Terminal(["chat", url])
    terminal.until("\n>")
    terminal.type("between\n")
    terminal.until("b\n>")
    terminal.type("ask\n")
    terminal.until("Who are you?\n>")
    terminal.type("Ada\n")
    terminal.until("Hello, Ada.\n>")
    terminal.type("\x04")
    assert terminal.end() == 0
    _, *lines = terminal.lines
    assert lines[:8] == ["> between", "a", "x", "b", "> ask", "Listen.", "Who are you?", "> Ada"]
    assert lines[-2:] == ["Hello, Ada.", ">"]


def test_a_pipe_gets_the_whole_answer_and_nothing_else(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman.cli", "send", url, "between"], capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"a b\n", b"")


def piece(text: str, *, replaces: bool = False, artifact: str = "1") -> Piece:
    event = ArtifactUpdate(
        task_id="t", context_id="c", artifact=Artifact(artifact_id=artifact, parts=(Part(text=text),))
    )
    return Piece(event, text, TaskState.WORKING, LazyFold(), replaces=replaces)


PIECES = [piece("half an "), piece("a whole ", replaces=True), piece("answer"), piece("more", artifact="2")]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "printed"),
    [
        (io.StringIO(), "a whole answer\nmore\n"),
        (Screen(), "half an \n(the answer starts again)\na whole answer\nmore\n"),
    ],
)
def test_an_answer_that_starts_again_is_announced_and_a_pipe_gets_the_last(
    out: io.StringIO, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", out)
    answer = show.Answer()
    for each in PIECES:
        answer.piece(each)
    answer.end()
    assert out.getvalue() == printed


def test_a_chat_with_agents_of_a_hub_shows_their_answers(tmp_path: Path) -> None:
    hub = Terminal(
        ["hub", "--demo", "--data", str(tmp_path / "hub"), "--port", "0", "--agents", str(CURRENCY)],
        columns=200,
    )
    try:
        hub.until("Ctrl-D ends")
        [url] = re.findall(r"export DRAGOMAN_URL=(\S+)", hub.text)
        [token] = re.findall(r"export DRAGOMAN_TOKEN=(\S+)", hub.text)
        environment = {"DRAGOMAN_URL": url, "DRAGOMAN_TOKEN": token}
        terminal = Terminal(["send", f"{url}/v1/a2a/agents/index", "10 USD in INR"], environment=environment)
        assert terminal.end() == 0
        answer = ["currency: 10 USD is 832.50 INR", "The currency agent says: 10 USD is 832.50 INR"]
        assert terminal.lines == answer
        terminal = Terminal(["chat", f"{url}/v1/a2a/agents/index"], environment=environment)
        terminal.until("\n>")
        terminal.type("10 USD in INR\n")
        terminal.until("832.50 INR\n>")
        assert terminal.lines[1:] == ["> 10 USD in INR", *answer, ">"]
        terminal.type("\x04")
        assert terminal.end() == 0
    finally:
        hub.process.terminate()
        hub.end()


def test_a_chat_has_commands_and_line_editing_with_history(url: str, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("x")
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    terminal = Terminal(["chat", url], environment=environment)
    terminal.until("\n>")
    terminal.type("/help\n")
    terminal.until("end the chat\nTo send a line that starts with /, type //.\n>")
    terminal.type("/skill nothing\n")
    terminal.until("no skill 'nothing'; the agent has write\n>")
    terminal.type("helo\x1b[Dl\n")  # left, and the missing letter
    terminal.until("You said hello.\n>")
    terminal.type("/quit\n")
    assert terminal.end() == 0
    terminal = Terminal(["chat", url], environment=environment)
    terminal.until("\n>")
    terminal.type("\x1b[A\x1b[A\n")  # up, past /quit
    terminal.until("You said hello.\n>")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_note_of_a_hub_stays_when_the_next_line_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Tty()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = show.Progress()
    progress.say("thinking")
    progress.say("a2a:list", stays=True)
    progress.say("a2a:call", stays=True)
    progress.say("thinking")
    progress.say("writing")
    progress.leave()
    screen = pyte.Screen(40, 10)
    pyte.Stream(screen).feed(terminal.getvalue().replace("\n", "\r\n"))
    assert [line.rstrip() for line in screen.display if line.strip()] == ["a2a:list", "a2a:call", "writing"]

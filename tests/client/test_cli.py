"""The verbs that talk to agents, as a user runs them."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import Agent, Turn
from dragoman.application import application
from dragoman.cli import main
from dragoman.server import running

agent = Agent("Clerk", description="Takes notes", input_modes=["*/*"], output_modes=["*/*"])


NAMES = [
    "../../b.txt",
    "/c.txt",
    "..\\..\\d.txt",
    "..",
    ".",
    "/",
    ".bashrc",
    "-rf",
    "e\x00.txt",
    "f\x1b[2J.txt",
    "x" * 5000,
]


@agent.skill(default=True)
async def do(turn: Turn) -> str | None:
    """Does what the text says."""
    await turn.status("thinking")
    match turn.text.split(" "):
        case ["ask"]:
            return f"noted: {await turn.ask('What?')}"
        case ["fail"]:
            raise RuntimeError("no")
        case ["file"]:
            await turn.file(b"abc", name="../a.txt")
            return None
        case ["files"]:
            for name in NAMES:
                await turn.file(b"abc", name=name)
            return None
        case ["data"]:
            await turn.data({"n": 1})
            return None
        case ["wait"]:
            await asyncio.Event().wait()
        case ["size"]:
            return str(len(turn.files[0].raw or b""))
    return turn.text.upper()


@agent.skill
async def other(turn: Turn) -> str:
    """Another one."""
    return "other"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The agent, served from a thread: a command runs an event loop of its own."""
    ready, found, stop = threading.Event(), [], asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with running(application(agent, store="memory:")) as url:
            found.append(url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait(10)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


Out = pytest.CaptureFixture[str]


def test_send_prints_the_answer(url: str, capsys: Out) -> None:
    assert main(["send", url, "good", "morning"]) == 0
    assert capsys.readouterr().out == "GOOD MORNING\n"
    assert main(["send", url, "--no-stream", "good", "morning"]) == 0
    assert capsys.readouterr().out == "GOOD MORNING\n"
    assert main(["send", url, "--skill", "other", "x"]) == 0
    assert capsys.readouterr().out == "other\n"


def test_send_reads_standard_input_and_files(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert main(["send", url, "-"]) == 0
    assert capsys.readouterr().out == "FROM A PIPE\n"
    (tmp_path / "x.bin").write_bytes(b"12345")
    assert main(["send", url, "size", "-f", str(tmp_path / "x.bin")]) == 0
    assert capsys.readouterr().out == "5\n"
    assert main(["send", url, "size", "-f", str(tmp_path / "none")]) == 1


def test_exit_codes_tell_how_it_went(url: str, capsys: Out) -> None:
    assert main(["send", url, "fail"]) == 1
    assert main(["send", url, "ask"]) == 2
    captured = capsys.readouterr()
    assert captured.out.endswith("What?\n")
    task = captured.err.split("--task ")[1].split()[0]
    assert main(["task", "get", url, task]) == 2
    assert main(["send", url, "--task", task, "this"]) == 0
    assert capsys.readouterr().out.endswith("noted: this\n")
    assert main(["task", "get", url, task]) == 0
    assert main(["task", "watch", url, task]) == 0


def test_json_is_the_protocols_own(url: str, capsys: Out) -> None:
    assert main(["send", url, "--json", "hi"]) == 0
    task = json.loads(capsys.readouterr().out)["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert main(["send", url, "--events", "hi"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [next(iter(event)) for event in events] == [
        "task",
        "statusUpdate",
        "statusUpdate",
        "artifactUpdate",
        "statusUpdate",
    ]
    assert main(["task", "get", url, task["id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == task
    assert main(["tasks", url, "--json", "-n", "2"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["card", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "Clerk"


def test_files_are_saved_where_they_were_asked_for_and_nowhere_else(url: str, tmp_path: Path) -> None:
    assert main(["send", url, "file", "-o", str(tmp_path / "in")]) == 0
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.txt")] == [Path("in/a.txt")]


def test_a_file_name_leads_nowhere_and_hides_nothing(url: str, tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "in"
    assert main(["send", url, "files", "-o", str(directory)]) == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != directory]
    names = {path.name for path in directory.iterdir()}
    assert names == {"b.txt", "c.txt", "d.txt", *(f"file-{n}" for n in range(4, len(NAMES) + 1))}


def test_data_is_printed_as_json(url: str, capsys: Out) -> None:
    assert main(["send", url, "data"]) == 0
    assert capsys.readouterr().out == '{"n":1}\n'


def test_a_card_for_people(url: str, capsys: Out) -> None:
    assert main(["card", url]) == 0
    out = capsys.readouterr().out
    assert "Clerk" in out and "A2A 1.0" in out and "Another one." in out


def test_tasks_are_listed_and_filtered(url: str, capsys: Out) -> None:
    main(["send", url, "fail"])
    capsys.readouterr()
    assert main(["tasks", url, "--state", "failed"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows and all(row[1] == "failed" for row in rows)


def test_a_task_can_be_left_and_canceled(url: str, capsys: Out) -> None:
    assert main(["send", url, "ask", "--no-wait"]) == 0
    task = capsys.readouterr().out.strip()
    assert main(["task", "cancel", url, task]) == 0
    assert "canceled" in capsys.readouterr().out


def test_chat_answers_questions_with_the_next_line(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nask\nthis\n"))
    assert main(["chat", url]) == 0
    assert capsys.readouterr().out == "HELLO\nWhat?\nnoted: this\n"


def test_ctrl_c_in_a_chat_cancels_the_task_and_not_the_chat(url: str, capsys: Out) -> None:
    chat = subprocess.Popen(
        [sys.executable, "-m", "dragoman.cli", "chat", url, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert chat.stdin is not None and chat.stdout is not None
    chat.stdin.write("wait\n")
    chat.stdin.flush()
    while "thinking" not in (line := chat.stdout.readline()):
        assert line
    chat.send_signal(signal.SIGINT)
    out, err = chat.communicate("hello\n", timeout=20)
    assert "canceled" in err
    assert "HELLO" in out
    assert chat.returncode == 0
    task = json.loads(line)["statusUpdate"]["taskId"]
    assert main(["task", "get", url, task]) == 1
    assert "canceled" in capsys.readouterr().out


def test_what_goes_wrong_is_one_sentence(url: str, capsys: Out) -> None:
    assert main(["send", "http://127.0.0.1:9", "hi"]) == 1
    assert capsys.readouterr().err.startswith("dragoman: cannot reach http://127.0.0.1:9")
    assert main(["tasks", url, "--version", "0.3"]) == 1
    assert "speaks A2A 0.3, which has no ListTasks" in capsys.readouterr().err
    assert main(["task", "get", url, "nothing"]) == 1
    assert main(["card", "nobody"]) == 1

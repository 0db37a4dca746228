"""The commands that talk to agents, as a user runs them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dragoman import Agent, Turn
from dragoman.cli import main
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.client.certificates import Authority
from tests.serving import in_thread

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
        case ["history?"]:
            return str(turn.message.metadata.get("contextHistory", False))
        case ["orders"]:
            await turn.status(ORDERS)
            return ORDERS
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


def served(tls: ssl.SSLContext | None = None) -> AbstractContextManager[str]:
    return in_thread(running(application(agent, store="memory:", drain=0), tls=tls))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as url:
        yield url


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
    assert main(["send", url, "size", "-f", str(tmp_path / "none")]) == 2


def test_the_exit_status_is_0_when_the_agent_answered(url: str, capsys: Out) -> None:
    assert main(["send", url, "fail"]) == 0
    assert re.search(r"^task \S{36} failed$", capsys.readouterr().err, re.MULTILINE)
    assert main(["send", url, "fail", "--fail"]) == 1
    assert main(["send", url, "ask", "--fail"]) == 1
    assert main(["send", url, "ask"]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("What?\n")
    task = captured.err.split("--task-id ")[-1].split()[0]
    assert main(["task", "get", url, task]) == 0
    assert main(["task", "get", url, task, "--fail"]) == 1
    assert main(["send", url, "--task-id", task, "this"]) == 0
    assert capsys.readouterr().out.endswith("noted: this\n")
    assert main(["task", "get", url, task, "--wait", "--fail"]) == 0
    assert main(["task", "subscribe", url, task]) == 0


def test_json_output_is_a2a_1_0(url: str, capsys: Out) -> None:
    assert main(["send", url, "--json", "hi"]) == 0
    task = json.loads(capsys.readouterr().out)["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert main(["send", url, "-o", "json", "--stream", "hi"]) == 0
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
    assert len(json.loads(capsys.readouterr().out)["tasks"]) == 2
    assert main(["task", "list", url, "--json", "-n", "2"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tasks"]) == 2
    assert main(["card", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "Clerk"
    assert main(["card", "get", "-a", url, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "Clerk"


def test_files_are_saved_only_in_the_given_folder(url: str, tmp_path: Path) -> None:
    assert main(["send", url, "file", "--save", str(tmp_path / "in")]) == 0
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.txt")] == [Path("in/a.txt")]


def test_a_file_name_cannot_leave_the_folder_or_be_hidden(url: str, tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "in"
    assert main(["send", url, "files", "--save", str(directory)]) == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != directory]
    names = {path.name for path in directory.iterdir()}
    assert names == {"b.txt", "c.txt", "d.txt", *(f"file-{n}" for n in range(4, len(NAMES) + 1))}


def test_an_existing_file_is_not_replaced(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"mine")
    for _ in range(2):
        assert main(["send", url, "file", "--save", str(tmp_path)]) == 0
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "a.txt": b"mine",
        "a-2.txt": b"abc",
        "a-3.txt": b"abc",
    }


ORDERS = "a\x1b[31mred\x1b[0m\x1b]0;title\x07 b\x08\x9b2J c\rd\te\x7f \x1b]52;c;cm0=\x1b\\\u00e9"


@pytest.mark.parametrize("how", [[], ["--no-stream"], ["-o", "json", "--stream"], ["--json"]])
def test_the_answer_of_an_agent_is_sanitized_for_a_terminal(
    url: str, how: list[str], capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["send", url, "orders", *how]) == 0
    piped = capsys.readouterr().out
    assert (ORDERS in piped) == (how in ([], ["--no-stream"])), "a program gets it as it is"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["send", url, "orders", *how]) == 0
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable() or "\t" in shown
    assert not set(shown) & set("\x1b\x9b\x08\x07\r\x7f")
    if not how:
        assert shown == "ared b cd\te \u00e9\n"


def test_errors_tables_and_fields_are_sanitized_for_a_terminal(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["send", url, "orders", "--no-wait"]) == 0
    id = capsys.readouterr().out.strip()
    main(["task", "watch", url, id])
    capsys.readouterr()
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    for command in (
        ["tasks", url],
        ["task", "get", url, id],
        ["task", "watch", url, id],
        ["task", "get", url, ORDERS],
    ):
        main(command)
        shown = "".join(capsys.readouterr())
        for ours in ("\r\x1b[K\x1b[2m", "\r\x1b[K", "\x1b[0m", "\x1b[1m"):
            shown = shown.replace(ours, "")
        assert not set(shown) & set("\x1b\x9b\x08\x07\r\x7f"), command


def test_a_task_can_be_copied_from_a_narrow_terminal(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["send", url, "orders", "--no-wait"]) == 0
    id = capsys.readouterr().out.strip()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["tasks", url]) == 0
    assert id in capsys.readouterr().out


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


def test_a_chat_asks_for_the_history_of_its_conversation_and_send_does_not(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub gives it to the models of its agents."""
    monkeypatch.setattr("sys.stdin", io.StringIO("history?\nhistory?\n"))
    assert main(["chat", url]) == 0
    assert main(["send", url, "history?"]) == 0
    assert capsys.readouterr().out == "True\nTrue\nFalse\n"


HEEDS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "dragoman.cli", *sys.argv[1:]])
"""
"""As in a terminal, also if these tests run in the background, where a shell has Ctrl-C ignored."""


def test_ctrl_c_in_a_chat_cancels_the_task_and_not_the_chat(url: str, capsys: Out) -> None:
    chat = subprocess.Popen(
        [sys.executable, "-c", HEEDS, "chat", url, "--json"],
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
    assert main(["task", "get", url, task]) == 0
    assert "canceled" in capsys.readouterr().out


def test_an_error_is_one_sentence(url: str, capsys: Out) -> None:
    assert main(["send", "http://127.0.0.1:9", "hi"]) == 3
    assert capsys.readouterr().err.startswith("dragoman: cannot reach http://127.0.0.1:9")
    assert main(["tasks", url, "--a2a-version", "0.3"]) == 1
    assert "speaks A2A 0.3, which has no ListTasks" in capsys.readouterr().err
    assert main(["task", "get", url, "nothing"]) == 1
    assert main(["card", "nobody"]) == 3


def test_ctrl_c_leaves_the_task_running_and_prints_how_to_follow_it(url: str) -> None:
    sent = subprocess.Popen(
        [sys.executable, "-c", HEEDS, "send", url, "wait", "-o", "json", "--stream"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert sent.stdout is not None
    while "thinking" not in (line := sent.stdout.readline()):
        assert line
    sent.send_signal(signal.SIGINT)
    _, err = sent.communicate(timeout=20)
    task = json.loads(line)["statusUpdate"]["taskId"]
    assert err == f"the task continues: dragoman task subscribe {url} {task}\n"
    assert sent.returncode == 130


def test_a_closed_pipe_is_not_an_error(url: str) -> None:
    sent = subprocess.Popen(
        [sys.executable, "-c", HEEDS, "send", url, "wait", "-o", "json", "--stream"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert sent.stdout is not None and sent.stderr is not None
    task = json.loads(sent.stdout.readline())["task"]["id"]
    while "thinking" not in sent.stdout.readline():
        pass
    sent.stdout.close()
    assert main(["task", "cancel", url, task]) == 0
    assert sent.stderr.read() == ""
    assert sent.wait(timeout=20) == 141
    sent.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_is_one_sentence(url: str) -> None:
    for command in (["send", url, "hi"], ["version"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "dragoman.cli", *command],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert done.returncode == 1
        assert done.stderr.startswith("dragoman: [Errno 28]") and done.stderr.count("\n") == 1


def test_characters_that_the_output_encoding_lacks_are_replaced(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman.cli", "send", url, "caf\u00e9"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (0, b"CAF?\n")


@pytest.mark.parametrize("given", ["", " \n", "\udcff\udcfe"])
def test_a_message_that_cannot_be_sent_is_one_sentence(
    url: str, given: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    assert main(["send", url, "-"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        ("dragoman: there is nothing to send", "dragoman: standard input is not UTF-8 text")
    )


def test_timeout_covers_the_whole_command(url: str, capsys: Out) -> None:
    assert main(["send", url, "wait", "--timeout", "500ms"]) == 5
    assert "did not finish in time" in capsys.readouterr().err


def test_ca_and_cert_options_are_used(tmp_path: Path, capsys: Out) -> None:
    authority = Authority()
    (tmp_path / "ca.pem").write_text(authority.pem)
    ca, cert = ["--ca", str(tmp_path / "ca.pem")], ["--cert", authority.files("a client", tmp_path)]
    with served(authority.server("localhost", ask=True)) as url:
        url = url.replace("127.0.0.1", "localhost")
        assert main(["send", url, "hi", *ca, *cert]) == 0
        assert capsys.readouterr().out == "HI\n"
        assert main(["send", url, "hi", *cert]) == 3
        assert "its certificate is not trusted" in capsys.readouterr().err
        assert main(["send", url, "hi", *ca]) == 3, "it lets nobody in without a certificate"
    assert main(["card", "http://127.0.0.1:9", "--ca", str(tmp_path / "none.pem")]) == 2
    assert "none.pem: No such file" in capsys.readouterr().err
    (tmp_path / "empty.pem").write_text("")
    assert main(["card", "http://127.0.0.1:9", "--ca", str(tmp_path / "empty.pem")]) == 2
    assert "empty.pem: not a PEM file" in capsys.readouterr().err
    assert main(["card", "http://127.0.0.1:9", "--cert", str(tmp_path / "none.pem")]) == 2
    assert "none.pem: No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as refused:
        main(["card", "http://127.0.0.1:9", "--auth", "x", *cert])
    assert refused.value.code == 2 and "use only one of --auth" in capsys.readouterr().err


def test_text_output_is_one_field_per_line_and_blocks(url: str, capsys: Out) -> None:
    assert main(["send", url, "-o", "text", "hi", "you"]) == 0
    task, context, state, *block = capsys.readouterr().out.splitlines()
    assert task.startswith("Task: ") and context.startswith("Context: ") and state == "State: completed"
    assert block[0].startswith("Artifact ") and block[0].endswith(":") and block[1:] == ["HI YOU", ""]
    assert main(["task", "get", url, task.removeprefix("Task: "), "-o", "text"]) == 0
    assert capsys.readouterr().out.splitlines() == [task, context, state, *block]
    assert main(["send", url, "-o", "text", "--stream", "hi"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "State: working" in lines and lines[-1] == "State: completed" and lines[-3].startswith("Task: ")
    assert main(["send", url, "hi", "--verbose"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "HI\n" and "\nState: completed\n" in captured.err


@pytest.mark.parametrize(
    ("command", "code", "status"),
    [
        ("send http://127.0.0.1:9 hi", "A2ACLI_ERR_UNREACHABLE", 3),
        ("card get URL/nowhere.json", "A2ACLI_ERR_CARD_NOT_FOUND", 3),
        ("task get URL nothing", "TaskNotFoundError", 1),
        ("send URL wait --timeout 200ms", "A2ACLI_ERR_TIMEOUT", 5),
        ("send URL -f /nowhere", "A2ACLI_ERR_USAGE", 2),
        ("send URL --data {", "A2ACLI_ERR_USAGE", 2),
    ],
)
def test_programs_get_errors_as_json(url: str, command: str, code: str, status: int, capsys: Out) -> None:
    assert main([*command.replace("URL", url).split(), "-o", "json"]) == status
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == code and error["message"]
    assert error["a2aCode"] == (-32001 if status == 1 else error["a2aCode"])


def test_parts_are_sent_in_order_with_the_types_they_were_given(
    url: str, tmp_path: Path, capsys: Out
) -> None:
    (tmp_path / "a.bin").write_bytes(b"123")
    (tmp_path / "b.json").write_text('{"b": 1}')
    files = [
        "--file",
        str(tmp_path / "a.bin"),
        "--media-type",
        "image/png",
        "--data",
        str(tmp_path / "b.json"),
    ]
    assert (
        main(["send", url, "--text", "x", *files, "--data", "[1]", "--metadata", '{"k": 1}', "-o", "json"])
        == 0
    )
    [message, *_] = json.loads(capsys.readouterr().out)["task"]["history"]
    assert [next(iter(part)) for part in message["parts"]] == ["text", "raw", "data", "data"]
    assert message["parts"][1]["mediaType"] == "image/png" and message["parts"][2]["data"] == {"b": 1}
    assert message["metadata"] == {"k": 1}
    with pytest.raises(SystemExit) as refused:
        main(["send", url, "x", "--media-type", "image/png"])
    assert refused.value.code == 2


def test_the_first_transport_that_the_agent_offers_is_taken(url: str, capsys: Out) -> None:
    transports = ["--transport", "grpc", "--transport", "HTTP+JSON"]
    done = subprocess.run(
        [sys.executable, "-m", "dragoman.cli", "send", url, "hi", *transports, "--debug"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "HI\n" and "A2A 1.0 at" in done.stderr
    assert main(["send", url, "hi", "--transport", "grpc"]) == 0
    assert "offers none of GRPC" in capsys.readouterr().err


def test_version_and_help_have_their_usual_names(capsys: Out) -> None:
    for words in ([], ["help"], ["help", "send"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0 and "usage: dragoman" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("dragoman 0.")

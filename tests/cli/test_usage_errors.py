"""A slip on the command line is answered with a sentence, and leaves nothing behind."""

from __future__ import annotations

import io
import sqlite3
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dragoman.cli import main


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("audit --store sqlite:///none.db", "there is no store at sqlite:///none.db"),
        ("audit --store none", "a store is memory:, sqlite:///path or postgresql://"),
        ("audit prune", "prune needs --before, such as --before 2026-01-01"),
        ("audit --since yesterday", "argument --since: use 2026-11-15"),
        ("tasks http://127.0.0.1:9 --since yesterday", "argument --since: use 2026-11-15"),
        ("push list --store sqlite:///none.db", "there is no store at sqlite:///none.db"),
        ("serve hello.py --bus mysql://localhost", "argument --bus: a bus is nats://host"),
        (
            "serve hello.py --store none",
            "argument --store: a store is memory:, sqlite:///path or postgresql://",
        ),
        ("serve none.py", "none.py: no such file"),
        ("serve a.py --rate 0", "argument --rate: 0 should be more than 0"),
        ("serve a.py --push-trust banana", "argument --push-trust: 'banana' does not appear to be"),
        ("serve a.py --burst 0", "argument --burst: 0 should be 1 or more"),
        ("serve a.py --open-tasks -1", "argument --open-tasks: -1 should be 0 or more"),
        ("serve a.py --workers 0", "argument --workers: 0 should be 1 or more"),
        ("serve a.py --max-body 0", "argument --max-body: 0 should be 1 or more"),
        ("serve a.py --head-timeout inf", "argument --head-timeout: inf should be 0 or more"),
        ("serve a.py --retain-days 0", "argument --retain-days: 0 should be more than 0"),
        ("serve a.py --drain -1", "argument --drain: -1 should be 0 or more"),
        ("serve a.py --drain nan", "argument --drain: nan should be 0 or more"),
        ("tasks http://127.0.0.1:9 -n 0", "argument -n/--limit: '0' is not a number above 0"),
        ("tasks http://127.0.0.1:9 more", "'more' is one word too many"),
        ("card get http://127.0.0.1:9 more", "'more' is one word too many"),
        ("inspect http://127.0.0.1:9 more", "'more' is one word too many"),
        ("listen --token env:NOWHERE", "argument --token: the variable 'NOWHERE' is not set"),
        ("listen --port 99999", "cannot listen on 127.0.0.1:99999"),
        ("hub --data none --log loud", "dragoman: --log cannot be 'loud': use plain, json"),
        (
            "hub --data none --model scripted:nofile",
            "dragoman: the script 'nofile' of the model cannot be read: there is",
        ),
        ("hub --data none --log-level loud", "--log-level cannot be 'loud': use debug, info, warning, error"),
        ("serve a.py --rate fast", "argument --rate: 'fast' is not a number"),
        ("serve a.py --burst many", "argument --burst: 'many' is not a whole number"),
        ("serve a.py --retain-days x", "argument --retain-days: 'x' is not a number"),
        ("serve .", ". is a folder: name a file in it, or a module"),
        ("dev none.py", "none.py: no such file"),
        ("dev .", ". is a folder: name a file in it, or a module"),
        ("dev nomodule.agents", "nomodule.agents: no such file, and no module nomodule"),
        ("bridge crew:9000", "dragoman: 'crew:9000' is neither a URL nor a file: "),
        ("bridge none.toml", "dragoman: none.toml cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_command_is_answered_with_one_sentence(
    command: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as refused:
        main(command.split())
    assert sentence in f"{refused.value.code}{capsys.readouterr().err}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("srve a.py", "dragoman: error: there is no command 'srve': did you mean 'serve'?"),
        ("tenant ad acme", "dragoman tenant: error: there is no verb 'ad': did you mean 'add'?"),
        ("serve a.py --prot 9000", "dragoman serve: error: there is no option --prot: did you mean --port?"),
        ("serve a.py --prot=9000", "dragoman serve: error: there is no option --prot: did you mean --port?"),
        (
            "send http://127.0.0.1:9 hi --tiemout 3",
            "dragoman send: error: there is no option --tiemout: did you mean --timeout?",
        ),
        ("task get http://127.0.0.1:9 x --zzz", "dragoman task get: error: there is no option --zzz"),
        ("hub more", "dragoman hub: error: 'more' is one word too many"),
    ],
)
def test_an_option_or_a_command_that_does_not_exist_is_answered_with_the_nearest_one(
    command: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(command.split())
    first, second, *more = capsys.readouterr().err.splitlines()
    assert refused.value.code == 2 and first == sentence and not more
    assert second == f"`{sentence.partition(':')[0]} --help` shows what it takes"


def test_a_message_that_is_missing_is_asked_for_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = io.StringIO("")
    monkeypatch.setattr(sys, "stdin", nothing)
    assert main(["send", "http://127.0.0.1:9"]) == 2
    assert "Ctrl-D" not in capsys.readouterr().err
    monkeypatch.setattr(nothing, "isatty", lambda: True)
    assert main(["send", "http://127.0.0.1:9"]) == 2
    asked, refused = capsys.readouterr().err.splitlines()
    assert "Ctrl-D" in asked and "there is nothing to send" in refused


def test_a_wrong_value_is_reported_without_the_list_of_all_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "a.py", "--port", "http"])
    assert capsys.readouterr().err.startswith("dragoman serve: error: argument --port: ")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("send http://127.0.0.1:9 -f none.txt", "dragoman: none.txt: No such file or directory\n"),
        ("send http://127.0.0.1:9 x --metadata []", "dragoman: --metadata is not a JSON object: "),
        ("send http://127.0.0.1:9 x --metadata {", "dragoman: --metadata is not a JSON object: "),
        ("send http://127.0.0.1:9 --data {x", "dragoman: --data is neither JSON nor a file: "),
        ("send http://127.0.0.1:9 --data none.json", "dragoman: --data is neither JSON nor a file: "),
        ("send http://127.0.0.1:9 --data deep.json", "dragoman: deep.json is not JSON: "),
        ("send http://127.0.0.1:9 --data notes.txt", "dragoman: notes.txt is not JSON: "),
        ("send http://127.0.0.1:9 --data photo.png", "dragoman: photo.png is not JSON: "),
        ("agent apply none.json --token x", "dragoman: none.json: No such file or directory\n"),
        ("sign none.json", "dragoman: none.json: No such file or directory\n"),
        ("sign notes.txt", "dragoman: notes.txt is not a card: "),
        ("new notes.txt/a", "dragoman: notes.txt/a: Not a directory\n"),
    ],
)
def test_a_file_or_a_value_that_is_wrong_is_named(
    command: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("milk", encoding="utf-8")
    Path("deep.json").write_text("[" * 100_000, encoding="utf-8")
    Path("photo.png").write_bytes(b"\x89PNG\xff")
    assert main(command.split()) > 0
    error = capsys.readouterr().err
    assert error.startswith(sentence) and error.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("serve a.py b.py", "two agents have the id 'a': give one of them another"),
        ("serve a.py --store memory: --workers 2", "memory: is for one process"),
        (
            "serve a.py --trusted-proxy banana",
            "dragoman: 'banana' does not appear to be an IPv4 or IPv6 network",
        ),
        ("serve a.py --public-url banana", "dragoman: 'banana' is no public URL"),
        ("serve a.py --public-url https://a/?b", "is no public URL"),
        ("serve a.py --keys none", "dragoman: there is no key to sign cards with"),
    ],
)
def test_contradictory_options_are_reported_before_the_address_is_announced(
    command: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        Path(name).write_text("from dragoman import Agent\nagent = Agent('A')\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=sentence):
        main([*command.split(), "--port", "0"])
    assert not list(tmp_path.glob("*.db*"))


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--grpc-port 0", r"gRPC needs an extra: .*dragoman\[grpc\]"),
        ("--mcp", r"MCP needs an extra: .*dragoman\[mcp\]"),
    ],
)
def test_a_missing_extra_is_reported_before_the_address_is_announced(
    option: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("from dragoman import Agent\nagent = Agent('A')\n", encoding="utf-8")
    monkeypatch.setattr("dragoman.server.application.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=sentence):
        main(["serve", "a.py", "--port", "0", *option.split()])
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.glob("*.db*"))


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (200, b"<html>", "does not answer like a hub"),
        (200, b"[]", "does not answer like a hub"),
        (200, b"", "does not answer like a hub"),
        (200, b'{"agents": [1]}', "does not answer like a hub"),
        (404, b"<html>", "the hub answered HTTP 404"),
        (400, b'{"error": "no", "fields": [1]}', "the hub answered HTTP 400"),
        (
            400,
            b'{"error": "no", "fields": [{"field": "goal", "reason": "is missing"}]}',
            "no\n  goal: is missing",
        ),
    ],
)
def test_a_folder_without_a_hub_is_reported(
    status: int, body: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert main(["agent", "list", "--token", "x", "--url", f"http://127.0.0.1:{server.server_port}"]) == 1
        thread.join()
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("command", ["audit", "audit verify", "push list"])
def test_a_store_of_a_newer_version_is_reported_in_one_sentence(tmp_path: Path, command: str) -> None:
    file = tmp_path / "t.db"
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("create table migrations (number integer primary key, name text not null)")
        db.execute("insert into migrations (number, name) values (999, 'later')")
    with pytest.raises(SystemExit, match="dragoman: the database has schema 999"):
        main([*command.split(), "--store", f"sqlite:///{file}"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[hub]\nport = 80\nprot = 8080\n",
            "dragoman.toml, line 3: there is no setting 'prot' in [hub]: is it 'port'?",
        ),
        (
            "[agents]\na = 'b'\n[hub]\nport = 'x'\n",
            "dragoman.toml, line 4: port must be a whole number, not a text",
        ),
        ("[hub]\nwrite_timeout = -1\n", "dragoman.toml, line 2: write_timeout must be more than 0"),
        ("[hub]\nallow_exec = 'x'\n", "dragoman.toml, line 2: allow_exec must be true or false, not a text"),
        ("[hub]\nagents = [1]\n", "dragoman.toml, line 2: a value in agents must be a text"),
        ("[hub]\nport = \n", "dragoman.toml cannot be read: Invalid value (at line 2"),
        ("hub = 1\n", "dragoman.toml, line 1: hub is not a table"),
        ("[agents]\n\n[hbu]\nport = 1\n", "dragoman.toml, line 3: there is no table [hbu]: is it [hub]?"),
    ],
)
def test_an_error_in_the_configuration_is_reported_with_its_line(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dragoman.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as refused:
        main(["doctor"])
    assert sentence in str(refused.value.code)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[agents]\na = \n", "dragoman.toml cannot be read: Invalid value (at line 2"),
        ("agents = 1\n", "dragoman.toml, line 1: [agents] is not a table of agents"),
        ("[agents]\n# a\na = 7\n", "dragoman.toml, line 3: a is neither a URL nor a table"),
        (
            "[agents.a]\nurl = 'http://x'\n[agents.b]\nurl = 'http://y'\ncredentails = 's'\n",
            "dragoman.toml, line 5: there is no setting 'credentails' in [agents.b]: is it 'credentials'?",
        ),
        ("[agents]\n[agents.a]\ncredentials = 's'\n", "dragoman.toml, line 2: [agents.a] has no url"),
        (
            "[agents]\na.url = 'http://x'\na.headers = 3\n",
            "dragoman.toml, line 3: headers of a must be a table, not a whole number",
        ),
        (
            "[agents]\na.url = 'http://x'\na.headers = {b = 3}\n",
            "dragoman.toml, line 3: a value in headers of a must be a text, not a whole number",
        ),
        ("[agnets]\na = 'http://x'\n", "dragoman.toml, line 1: there is no table [agnets]: is it [agents]?"),
    ],
)
def test_an_error_in_the_agents_file_is_reported_with_its_line(
    text: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dragoman.toml").write_text(text, encoding="utf-8")
    for command in (["send", "a", "hi"], ["chat", "a"], ["card", "get", "a"]):
        assert main(command) == 2
        assert capsys.readouterr().err.startswith(f"dragoman: {sentence}")

"""`dragoman mcp install`: an entry in the files of MCP clients, which lose nothing."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from dragoman.mcp.install import CLIENTS, InstallError, config_file, make_entry, plan_change, write

URL = "http://127.0.0.1:1"
"""Nobody answers there."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def install(*words: str) -> int:
    return main(["mcp", "install", *words])


@pytest.mark.parametrize("name", CLIENTS)
def test_a_new_file_has_the_command_of_the_agent(name: str, place: Path) -> None:
    client = CLIENTS[name]
    assert install(name, URL, "--name", "desk") == 3  # the entry is there, the agent is not
    path = config_file(client, "", folder=Path.cwd(), env=os.environ)
    text = path.read_text()
    config: Any = tomllib.loads(text) if client.toml else json.loads(text)
    made = config[client.key]["desk"]
    assert made["args"][-2:] == ["mcp", URL]
    assert Path(made["command"]).is_absolute()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["cursor", "claude-code", "vscode"])
def test_an_existing_file_keeps_everything_and_a_copy(name: str, place: Path) -> None:
    client = CLIENTS[name]
    path = config_file(client, "", folder=Path.cwd(), env=os.environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.dumps(
        {"z": 1, client.key: {"other": {"command": "é"}}, "a": [1]}, indent=4, ensure_ascii=False
    )
    path.write_text(before)
    path.chmod(0o640)
    install(name, URL, "--name", "desk")
    after = json.loads(path.read_text())
    assert after[client.key].pop("desk")["command"]
    assert after == json.loads(before) and list(after) == ["z", client.key, "a"]
    assert path.with_name(path.name + ".bak").read_text() == before
    assert '    "z"' in path.read_text() and "é" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    install(name, URL, "--name", "desk2")
    assert path.with_name(path.name + ".bak").read_text() == before, "the first copy stays"
    assert path.with_name(path.name + ".bak1").exists()


def test_a_toml_file_keeps_its_comments(place: Path) -> None:
    path = place / "home" / ".codex" / "config.toml"
    path.parent.mkdir(parents=True)
    before = '# mine\nmodel = "x"\n\n[mcp_servers.other]\ncommand = "y" # that'
    path.write_text(before)
    install("codex", URL, "--name", "desk")
    assert path.read_text().startswith(before)
    assert set(tomllib.loads(path.read_text())["mcp_servers"]) == {"other", "desk"}


@pytest.mark.parametrize(
    "content",
    [
        '{\n  // a comment\n  "mcpServers": {}\n}',
        "{",
        "[]",
        '{"mcpServers": []}',
        '{"a": 1, "a": 2}',
        "\x00",
        "\xff",
    ],
)
def test_a_file_that_is_not_understood_is_not_touched(content: str, place: Path, capsys: Any) -> None:
    path = place / "home" / ".cursor" / "mcp.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("latin-1"))
    assert install("cursor", URL, "--name", "desk") == 1
    assert path.read_bytes() == content.encode("latin-1")
    assert os.listdir(path.parent) == ["mcp.json"]
    said = capsys.readouterr().err
    assert "not changed" in said and '"desk"' in said, "the user can add it by hand"


@pytest.mark.parametrize("content", ["mcp_servers = 5", "mcp_servers = { other = {} }", "= x"])
def test_a_toml_file_that_cannot_take_it_is_not_touched(content: str, place: Path) -> None:
    path = place / "home" / ".codex" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert install("codex", URL, "--name", "desk") == 1
    assert path.read_text() == content


def test_a_name_of_no_agent_is_not_added(place: Path, capsys: Any) -> None:
    assert install("vscode", "curency") == 1
    assert capsys.readouterr().err == (
        "dragoman: 'curency' is neither a URL nor a file, and [agents] in dragoman.toml has no such name\n"
    )
    assert list(Path.cwd().iterdir()) == []


def test_print_changes_nothing(place: Path, capsys: Any) -> None:
    assert install("cursor", URL, "--name", "desk", "--print") == 0
    assert not (place / "home").exists()
    assert json.loads(capsys.readouterr().out)["mcpServers"]["desk"]["args"][-1] == URL


def test_an_entry_of_the_same_name_is_replaced_only_by_force(place: Path, capsys: Any) -> None:
    assert install("cursor", URL, "--name", "desk") == 3
    assert install("cursor", URL, "--name", "desk") == 0
    assert "already" in capsys.readouterr().out
    assert install("cursor", "http://127.0.0.1:2", "--name", "desk") == 1
    assert "--force" in capsys.readouterr().err
    assert install("cursor", "http://127.0.0.1:2", "--name", "desk", "--force") == 3


@pytest.mark.parametrize("option", [["--bearer", "s3cret"], ["--auth", "s3cret"], ["--api-key", "s3cret"], ["--header", "Authorization: s3cret"]])  # fmt: skip
def test_a_secret_is_not_written_to_a_file(option: list[str], place: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        install("cursor", URL, *option)
    assert "env:NAME" in capsys.readouterr().err
    assert not (place / "home").exists()


def test_the_name_of_a_variable_is_and_other_options_too(place: Path, capsys: Any) -> None:
    install("cursor", URL, "--name", "desk", "--bearer", "env:TOKEN", "--wait", "2m", "--files", ".")
    made = json.loads((place / "home" / ".cursor" / "mcp.json").read_text())["mcpServers"]["desk"]
    assert made["args"][-6:] == ["--bearer", "env:TOKEN", "--wait", "120", "--files", str(Path.cwd())]
    assert "TOKEN" in capsys.readouterr().out


def test_a_link_stays_a_link(place: Path) -> None:
    real, link = place / "dotfiles.json", place / "home" / ".cursor" / "mcp.json"
    real.write_text("{}")
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    install("cursor", URL, "--name", "desk")
    assert link.is_symlink() and "desk" in real.read_text()


def test_a_file_that_changes_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    change = plan_change(CLIENTS["cursor"], path, "desk", make_entry(CLIENTS["cursor"], ["x"]))
    path.write_text('{"new": 1}')
    with pytest.raises(InstallError, match="changed by somebody else"):
        write(change)
    assert path.read_text() == '{"new": 1}'


@pytest.mark.parametrize(
    "words",
    [
        ["emacs", URL],
        ["cursor"],
        [],
        ["cursor", URL, "--name", "a b"],
        ["cursor", URL, "--http"],
        ["cursor", URL, "x"],
    ],
)
def test_wrong_words_are_refused(words: list[str], place: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        install(*words)
    assert stop.value.code == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--http", "--host", "0.0.0.0"],
        ["--forward-auth"],
        ["--http", "--forward-auth", "--bearer", "x"],
        ["--http", "--forward-auth", "--token", "x"],
        ["--name", "desk"],
        ["--http", "--tls-key", "x"],
    ],
)
def test_options_that_contradict_each_other_are_refused(options: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["mcp", URL, *options])
    assert stop.value.code == 2


def test_a_user_file_is_refused_where_a_client_has_only_that(place: Path, capsys: Any) -> None:
    assert install("windsurf", URL, "--name", "desk", "--scope", "project") == 1
    assert "--scope user" in capsys.readouterr().err

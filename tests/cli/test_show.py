"""What a terminal is shown."""

from __future__ import annotations

import sys

import pytest

from dragoman.cli import main, show


def test_a_table_is_sanitized_for_a_terminal_also_without_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    show.table(["task"], [["evil\x1b[2J\nnext", "x"]])
    assert capsys.readouterr().out == "evil next\tx\n"


def test_a_final_error_is_sanitized_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(SystemExit, match="no such file") as stopped:
        main(["serve", "evil\x1b[2J\u202e.py"])
    assert str(stopped.value) == "evil.py: no such file"


def test_json_is_sanitized_for_a_terminal_and_not_for_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show.json({"name": "\u202egnp.exe"})
    assert "\u202e" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show.json({"name": "\u202egnp.exe"})
    assert capsys.readouterr().out == '{\n  "name": "gnp.exe"\n}\n'

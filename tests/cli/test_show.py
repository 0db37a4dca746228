"""What a terminal is shown."""

from __future__ import annotations

import sys

import pytest

from dragoman.cli import main, show


def test_a_table_gives_a_terminal_no_orders_also_without_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    show.table(["task"], [["evil\x1b[2J\nnext", "x"]])
    assert capsys.readouterr().out == "evil next\tx\n"


def test_a_sentence_that_ends_a_command_gives_a_terminal_no_orders(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(SystemExit, match="no such file") as stopped:
        main(["serve", "evil\x1b[2J\u202e.py"])
    assert str(stopped.value) == "evil.py: no such file"


def test_programs_get_json_as_it_is_and_a_terminal_gets_no_overrides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show.json({"name": "\u202egnp.exe"})
    assert "\u202e" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show.json({"name": "\u202egnp.exe"})
    assert capsys.readouterr().out == '{\n  "name": "gnp.exe"\n}\n'

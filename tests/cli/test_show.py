"""What a terminal is shown."""

from __future__ import annotations

import sys

import pytest

from dragoman.cli import show


def test_a_table_gives_a_terminal_no_orders_also_without_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    show.table(["task"], [["evil\x1b[2J\nnext", "x"]])
    assert capsys.readouterr().out == "evil next\tx\n"

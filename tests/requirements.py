"""Which rows of the requirements a test proves: `@requirement(143, 145)` for A2A 1.0, `@older("X6")` for earlier versions.

The rows are in `tests/spec/requirements.md`. `tests/spec/test_rows.py` reads the decorators of all tests and fails for a row that
no test names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

ROWS: dict[str, str] = {
    cells[0]: cells[-1 if cells[0][0] != "X" else 3]
    for line in (Path(__file__).parent / "spec/requirements.md").read_text(encoding="utf-8").splitlines()
    if (cells := [cell.strip() for cell in line.strip("| ").split(" | ")])[0].strip("aX").isdecimal()
}
"""Each row, and what it demands."""


def requirement(*rows: int | str) -> Callable[[F], F]:
    """Name the rows of A2A 1.0 that a test proves."""
    return _named(*map(str, rows))


def older(*rows: str) -> Callable[[F], F]:
    """Name the rows of older versions that a test proves."""
    return _named(*rows)


def _named(*rows: str) -> Callable[[F], F]:
    unknown = [row for row in rows if row not in ROWS]
    assert rows and not unknown, f"there is no row {unknown}"
    return lambda test: test

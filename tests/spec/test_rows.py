"""Every row of the requirements has a test that names it, or a reason why it has none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import ROWS

TESTS = Path(__file__).parent.parent

_BINDING = "for authors of bindings of their own"
UNTESTED = {
    "44": "documentation: docs/security.md says which caller sees what",
    "61": "for authors of the specification; names that we had are in the table of tests/test_imports.py",
    "88": _BINDING,
    "89": _BINDING,
    "90": _BINDING,
    "91": _BINDING,
    "92": _BINDING,
    "93": _BINDING,
    "94": _BINDING,
    "95": _BINDING,
    "200": "for authors of extensions",
    "201": "for authors of extensions",
    "206": "for authors of extensions",
    "218": "documentation: docs/security.md",
}
"""Rows that no test can prove, and why."""


def _claims() -> Iterator[tuple[str, str]]:
    """Rows, and the test that names each."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "@requirement(" not in text and "@older(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for call in node.decorator_list:
                    name = getattr(call.func, "id", "") if isinstance(call, ast.Call) else ""
                    if isinstance(call, ast.Call) and name in ("requirement", "older"):
                        for row in call.args:
                            assert isinstance(row, ast.Constant), (
                                f"{path.name}: write the rows of {node.name} out"
                            )
                            yield str(row.value), f"{path.relative_to(TESTS)}::{node.name}"


CLAIMS = dict(_claims())


def test_the_list_of_rows_is_whole() -> None:
    assert [row for row in ROWS if row.isdecimal()] == [str(n) for n in range(1, 241)]
    assert [row for row in ROWS if row.startswith("X")] == [f"X{n}" for n in range(1, 35)]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_a_test_or_a_reason(row: str) -> None:
    tested, untested = row in CLAIMS, row in UNTESTED
    assert tested or untested, f"no test proves row {row}: {ROWS[row]}"
    assert not (tested and untested), f"row {row} has a test: {CLAIMS[row]}"

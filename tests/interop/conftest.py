"""Collects the matrix while the tests run, and prints it after them."""

from __future__ import annotations

import pytest

from tests.interop.matrix import Matrix

_matrix = pytest.StashKey[Matrix]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_matrix] = Matrix()


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> Matrix:
    return request.config.stash.setdefault(_matrix, Matrix())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_matrix, None)
    if found and config.getoption("markexpr") == "interop":
        terminalreporter.write_line("")
        terminalreporter.write_line(found.table())

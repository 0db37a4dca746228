"""Collects the matrices while the tests run; prints them after them, and writes them where `--write-matrix` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.bridges import CrossingMatrix
from tests.interop.matrix import Matrix

_matrix, _crossings = pytest.StashKey[Matrix](), pytest.StashKey[CrossingMatrix]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-matrix", type=Path, help="a document to write the matrix into, if all of it was run"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_matrix] = Matrix()


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> Matrix:
    return request.config.stash.setdefault(_matrix, Matrix())


@pytest.fixture(scope="session")
def crossing_matrix(request: pytest.FixtureRequest) -> CrossingMatrix:
    return request.config.stash.setdefault(_crossings, CrossingMatrix())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("markexpr") != "interop":
        return
    matrices = config.stash.get(_matrix, None), config.stash.get(_crossings, None)
    for found in matrices:
        if not found:
            continue
        terminalreporter.write_line(f"\n{found.text()}")
        if path := config.getoption("write_matrix", None):
            if found.whole:
                found.write(path)
            words = (
                "written into"
                if found.whole
                else "only a part of the matrix was run, so it is not written into"
            )
            terminalreporter.write_line(f"\n{words} {path}")

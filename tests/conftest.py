"""What every test may rely on."""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

from dragoman.client import discover
from dragoman.observe.logs import LineHandler
from tests.quarantine import QUARANTINE, reason_for

# The machine decides how long an example takes; what it finds must be the same everywhere.
settings.register_profile("dragoman", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("dragoman")

LONG = (
    "test_escape.py",
    "test_kill_tools.py",
    "test_kill.py",
    "test_hub_kill.py",
    "test_openapi.py",
    "test_bridge.py",
    "test_concurrency.py",
    "test_recorded.py",
    "test_chaos.py",
    "test_workers.py",
    "test_injection.py",
    "test_nodes.py",
    "test_pause.py",
    "test_tools_kill.py",
    "test_tools.py",
    "test_server.py",
    "test_round_trip.py",
    "test_linear_time.py",
    "test_costs.py",
)
"""Files that take more than a quarter of a minute, the longest first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="run files, and the tests of each, in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if reason := reason_for(item.nodeid):
            item.add_marker(pytest.mark.xfail(strict=False, reason=f"quarantine: {reason}"))
    if seed := config.getoption("--shuffle"):
        dice = random.Random(seed)
        files = {item.path: dice.random() for item in items}
        items.sort(key=lambda item: (files[item.path], dice.random()))
    else:
        # Files go to the workers in this order: with the long ones last, one worker would end minutes after the other.
        places = {name: place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: places.get(item.path.name, len(LONG)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not QUARANTINE:
        return
    terminalreporter.section("quarantine")
    failed = [report.nodeid for report in terminalreporter.stats.get("xfailed", ())]
    for key, reason in QUARANTINE.items():
        failures = sum(test.startswith(key) for test in failed)
        terminalreporter.line(
            f"{key}: {reason}" + (f" (failed {failures} times in this run)" if failures else "")
        )


@pytest.fixture(autouse=True)
def _no_cards_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports come back: the card of an agent that was there in another test is not to be remembered."""
    monkeypatch.setattr(discover, "SHARED_CACHE", discover.AgentCache())


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A test that runs a command configures logging for the process: the next test has it as before."""
    level, hooks = logging.root.level, (sys.excepthook, threading.excepthook)
    yield
    for handler in [each for each in logging.root.handlers if isinstance(each, LineHandler)]:
        logging.root.removeHandler(handler)
    logging.root.setLevel(level)
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = hooks


@pytest.fixture(autouse=True)
def _modules_as_before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that loads an agent from a file leaves no module behind: another `agents` may be a library of that name."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    temporary = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(temporary):
            del sys.modules[name]

"""Every store and every bus, for suites that are written once. A new one is one more line here."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dragoman.buses import open_bus
from dragoman.buses.local import LocalBus
from dragoman.engine import push_configs
from dragoman.engine.protocols import Bus, Log, Store
from dragoman.model.ops import Scope
from dragoman.stores import lease_clock, open_store
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite.store import SqliteStore
from tests import nats, postgres

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "tasks.db"),
}
SHARED = ["sqlite"]
"""Stores that several processes can have open at the same time."""

_FOLDER = TemporaryDirectory()
BUSES: dict[str, Callable[[], Bus]] = {
    "local": LocalBus,
    "machine": lambda: open_bus(f"sqlite:///{_FOLDER.name}/tasks.db", shared=True),
}
REACHING: list[str] = ["machine"]
"""Buses that other processes hear."""

if postgres.available():
    STORES["postgres"] = lambda folder: open_store(postgres.server().fresh(folder))
    SHARED.append("postgres")
    BUSES["postgres"] = lambda: open_bus(postgres.server().url)
    REACHING.append("postgres")
if nats.available():
    BUSES["nats"] = lambda: open_bus(nats.server().url)
    REACHING.append("nats")

SCOPE = Scope("acme", "echo", "alice")


class Clock:
    """A clock that a test can put forward."""

    def __init__(self, time: Callable[[], float] = time.time) -> None:
        self._ahead = 0.0
        self._time = time
        self.others: list[Callable[[float], None]] = []
        """Clocks that go with it."""

    def __call__(self) -> float:
        return self._time() + self._ahead

    def forward(self, seconds: float) -> None:
        self._ahead += seconds
        for each in self.others:
            each(seconds)


@pytest.fixture
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """All clocks: time goes by."""
    clock, began = Clock(), time.time() - lease_clock.now()
    if "postgres" in request.node.name:
        clock.others.append(postgres.server().forward)
    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setattr(lease_clock, "now", lambda: clock() - began)
    monkeypatch.setattr(push_configs, "steady_time", clock)
    return clock


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock on the wall alone: somebody sets it, or the machine has slept."""
    wall = Clock()
    monkeypatch.setattr(time, "time", wall)
    return wall


@pytest.fixture(params=sorted(STORES))
async def store(request: Any, tmp_path: Path) -> AsyncIterator[Store]:
    """An open store, with the live nodes `n1` and `n2`."""
    store = STORES[request.param](tmp_path)
    await store.open()
    await store.join("n1", ttl=60)
    await store.join("n2", ttl=60)
    yield store
    await store.close()


@pytest.fixture
def log(store: Store) -> Log:
    return store.scope(SCOPE)


@pytest.fixture(params=SHARED)
async def pair(request: Any, tmp_path: Path) -> AsyncIterator[tuple[Store, Store]]:
    """The same store, opened twice: nodes `n1` and `n2` as two processes have them."""
    stores = (STORES[request.param](tmp_path), STORES[request.param](tmp_path))
    for node, store in zip(("n1", "n2"), stores, strict=True):
        await store.open()
        await store.join(node, ttl=60)
    yield stores
    for store in stores:
        await store.close()


@pytest.fixture(params=sorted(BUSES))
async def bus(request: Any) -> AsyncIterator[Bus]:
    bus = BUSES[request.param]()
    await bus.open()
    yield bus
    await bus.close()


@pytest.fixture(params=REACHING)
async def buses(request: Any) -> AsyncIterator[tuple[Bus, Bus]]:
    """The same bus, as two processes have it."""
    pair = (BUSES[request.param](), BUSES[request.param]())
    for bus in pair:
        await bus.open()
    yield pair
    for bus in pair:
        await bus.close()

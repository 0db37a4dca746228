"""Where tasks are kept. One seam (`engine/seams.py`), one conformance suite, several databases."""

from __future__ import annotations

from dragoman.engine.seams import Store
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.sqlite_migrate import NewerDatabase

__all__ = ["MemoryStore", "NewerDatabase", "SqliteStore", "open_store"]


def open_store(url: str) -> Store:
    """The store a url names: `memory:`, or `sqlite:///relative/path`, or `sqlite:////absolute/path`.

    It still has to be opened, by the event loop that will use it.
    """
    if url == "memory:":
        return MemoryStore()
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return SqliteStore(url.removeprefix("sqlite:///"))
    raise ValueError("a store is memory: or sqlite:///path")

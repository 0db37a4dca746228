"""Stores of tasks: memory, SQLite, PostgreSQL. `engine/protocols.py` is the contract, and one conformance suite tests all of them."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from dragoman.engine.protocols import Store
from dragoman.stores.memory import MemoryStore
from dragoman.stores.migrations import UnsupportedSchema
from dragoman.stores.sqlite.store import SqliteStore

__all__ = ["MemoryStore", "UnsupportedSchema", "SqliteStore", "open_store"]


def default_store() -> str:
    """The URL of the store if none is given: `$DRAGOMAN_STORE`, else a file in the current directory."""
    return os.environ.get("DRAGOMAN_STORE") or "sqlite:///dragoman.db"


def default_store_of_app() -> str:
    """The URL of the store for an application that another server or a test calls. In a process that runs tests it is `memory:`,
    so that a test leaves no file and finds no tasks of an earlier run."""
    return os.environ.get("DRAGOMAN_STORE") or ("memory:" if _runs_tests() else default_store())


def _runs_tests() -> bool:
    """True in a process of pytest or of `python -m unittest`, but not in a process that a test starts."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "_pytest.main" in sys.modules or getattr(main, "name", "") == "unittest.__main__"


def open_store(url: str, *, folder: Path | None = None) -> Store:
    """Make the store for a URL: `memory:`, `sqlite:///relative/path`, `sqlite:////absolute/path` or `postgresql://host/database`.

    The event loop that uses the store has to open it. In `folder`, nodes of a PostgreSQL database hold their locks: tasks of a
    killed node of this machine continue when the next one with the same folder starts.
    """
    if url == "memory:":
        return MemoryStore()
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return SqliteStore(url.removeprefix("sqlite:///"))
    if url.startswith(("postgresql://", "postgres://")):
        if find_spec("asyncpg") is None:
            raise ValueError("PostgreSQL needs an extra: pip install 'dragoman[postgres]'")
        from dragoman.stores.postgres.store import PostgresStore

        return PostgresStore(url, folder=folder)
    raise ValueError("a store is memory:, sqlite:///path or postgresql://host/database")

"""How followers of a log hear that there is more of it. One seam (`engine/protocols.py`), one conformance suite."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path

from dragoman.buses.local import LocalBus
from dragoman.engine.protocols import Bus

__all__ = ["LocalBus", "open_bus"]


def open_bus(url: str, *, shared: bool = False) -> Bus:
    """The bus that a url names, which may be that of a store: then it is the database's, or that of this process; with
    `shared`, that of the processes which share a SQLite file.

    It still has to be opened, by the event loop that will use it.
    """
    if url.startswith(("postgresql://", "postgres://")):
        if find_spec("asyncpg") is None:
            raise ValueError("PostgreSQL needs an extra: pip install 'dragoman[postgres]'")
        from dragoman.buses.postgres import PostgresBus

        return PostgresBus(url)
    if url.startswith(("nats://", "tls://")):
        if find_spec("nats") is None:
            raise ValueError("NATS needs an extra: pip install 'dragoman[nats]'")
        from dragoman.buses.nats import NatsBus

        return NatsBus(url)
    if shared and url.startswith("sqlite:///") and hasattr(socket, "AF_UNIX"):
        from dragoman.buses.machine import MachineBus

        return MachineBus(Path(url.removeprefix("sqlite:///") + "-bus"))
    if url.startswith(("memory:", "sqlite:")):
        return LocalBus()
    raise ValueError("a bus is nats://host, postgresql://host/database, or that of the store")

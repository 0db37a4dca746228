"""Buses wake the readers of a log. `engine.protocols.Bus` is the contract, and one conformance suite tests all of them."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path

from dragoman.buses.local import LocalBus
from dragoman.engine.protocols import Bus

__all__ = ["LocalBus", "open_bus"]


def open_bus(url: str, *, shared: bool = False) -> Bus:
    """Make the bus for a url, which may be that of a store. For a SQLite file it is the bus of this process, or with `shared`
    the bus of all processes on this machine that use the file.

    The event loop that uses the bus has to open it.
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
        from dragoman.buses.unix_socket import UnixSocketBus

        return UnixSocketBus(Path(url.removeprefix("sqlite:///") + "-bus"))
    if url.startswith(("memory:", "sqlite:")):
        return LocalBus()
    raise ValueError("a bus is nats://host or postgresql://host/database")

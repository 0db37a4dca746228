"""Talk to an agent in process: the whole way through dialect, binding, engine and store, and no network.

async with agent.test() as client:
    assert await client("world") == "Hello, world!"
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.agent.agent import Agent
    from dragoman.client import Client


@asynccontextmanager
async def in_process(
    agent: Agent,
    *,
    store: str = "memory:",
    version: str = "",
    timeout: float | None = 10.0,
    credentials: Any = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """A client of `agent`. `version` and `credentials` are what it speaks and shows; other options go to the server."""
    from dragoman.client import connect

    if "keys" in options:
        options.setdefault("public_url", "http://localhost")
    app = agent.app(store=store, **options)
    async with connect(app, timeout=timeout, version=version, credentials=credentials) as client:
        yield client

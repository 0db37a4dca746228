"""Talk to an agent in process: the whole way through dialect, binding, engine and store, and no network.

async with agent.test() as client:
    assert await client("world") == "Hello, world!"
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Unpack

from dragoman.agent.agent import Agent
from dragoman.client import Client, Reply, TaskFailed
from dragoman.client.connection import Options
from dragoman.client.content import SendOptions
from dragoman.engine.turn import Turn
from dragoman.server.options import AppOptions


@asynccontextmanager
async def in_process(
    agent: Agent,
    *,
    version: str = "",
    timeout: float | None = 10.0,
    credentials: Any = None,
    **options: Unpack[AppOptions],
) -> AsyncIterator[Client]:
    """A client of `agent`. `version` and `credentials` are what it speaks and shows; other options go to the server."""
    raised: dict[str, BaseException] = {}

    class TestedClient(Client):
        """A client that knows what the agent raised: a failed task has it as its cause."""

        async def __call__(
            self, *content: Any, timeout: float | None = None, **options: Unpack[SendOptions]
        ) -> Reply:
            try:
                return await super().__call__(*content, timeout=timeout, **options)
            except TaskFailed as failed:
                raise failed from raised.get(failed.task.id)

    if "keys" in options:
        options.setdefault("public_url", "http://localhost")
    options.setdefault("store", "memory:")
    app = agent.app(**options)
    with _errors_of(agent, raised):
        client = TestedClient(app, Options(version=version, credentials=credentials), timeout=timeout)
        async with client:
            yield client


@contextmanager
def _errors_of(agent: Agent, raised: dict[str, BaseException]) -> Iterator[None]:
    """Store the error of the agent's function by task. Callers do not get it, and a test needs it."""
    work = agent.work

    async def watched(turn: Turn) -> None:
        try:
            await work(turn)
        except Exception as error:
            raised[turn.task_id] = error
            raise

    agent.work = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        agent.work = work  # type: ignore[method-assign]

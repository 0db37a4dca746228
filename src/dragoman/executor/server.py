"""The SDK's way to serve an executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.executor.execution import AgentExecutor, ExecutorAgent
from dragoman.model.card import AgentCard as Card


class InMemoryTaskStore:
    """Here so that the quickstart ports; it says `memory:` where a store is named."""

    url = "memory:"


class DefaultRequestHandler:
    def __init__(
        self, agent_executor: AgentExecutor, task_store: InMemoryTaskStore | None = None, **more: Any
    ) -> None:
        self.agent_executor = agent_executor
        self.store = task_store.url if task_store is not None else ""


class A2AStarletteApplication:
    """`build()` gives the ASGI app. `auth` is as for `Agent`."""

    def __init__(
        self, agent_card: Card, http_handler: DefaultRequestHandler, *, auth: Sequence[Any] = (), **more: Any
    ) -> None:
        self._agent = ExecutorAgent(http_handler.agent_executor, agent_card, auth=auth)
        self._options = {"store": http_handler.store} if http_handler.store else {}

    def build(self, rpc_url: str = "/", **more: Any) -> Any:
        if rpc_url != "/":
            raise TypeError(f"the app answers at /: mount it at {rpc_url}, and its card will say so")
        return self._agent.app(**self._options)

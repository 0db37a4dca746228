"""The SDK's way to serve an executor."""

from __future__ import annotations

from typing import Any

from dragoman.executor.cards import EXTENDED
from dragoman.executor.execution import AgentExecutor, ExecutorAgent

_OURS = ("queue_manager", "push_config_store", "push_notifier", "push_sender", "agent_card")
"""What the engine does by itself, or has from elsewhere."""
_CONTEXT = "what an executor is told comes from the engine (`RequestContext`): leave out "


class InMemoryTaskStore:
    """Here so that the quickstart ports; it says `memory:` where a store is named."""

    url = "memory:"


class InMemoryPushNotificationConfigStore:
    """Here so that samples port: the engine keeps these, and sends the notifications."""


class BasePushNotificationSender:
    """Here so that samples port."""

    def __init__(self, httpx_client: Any = None, config_store: Any = None) -> None:
        pass


class DefaultRequestHandler:
    def __init__(self, agent_executor: AgentExecutor, task_store: Any = None, **more: Any) -> None:
        if task_store is not None and not isinstance(task_store, InMemoryTaskStore):
            raise TypeError(
                "tasks are kept in SQLite: leave out task_store, or say where, `build(store='sqlite:///tasks.db')`"
            )
        for name in more:
            if name == "extended_agent_card":
                raise TypeError(EXTENDED)
            if name not in _OURS:
                raise TypeError(f"{_CONTEXT}{name}" if "context" in name else f"there is no {name} here")
        self.agent_executor = agent_executor
        self.store = task_store.url if task_store is not None else ""


class A2AStarletteApplication:
    """`build()` gives the ASGI app. Options (`auth`, `extended_card`, ...) are as for `Agent`."""

    def __init__(self, agent_card: Any, http_handler: DefaultRequestHandler, **options: Any) -> None:
        for name in options:
            if name == "extended_agent_card":
                raise TypeError(EXTENDED)
            if name == "context_builder":
                raise TypeError(f"{_CONTEXT}{name}, and say who may call with `auth=`")
        self._agent = ExecutorAgent(http_handler.agent_executor, agent_card, **options)
        self._options = {"store": http_handler.store} if http_handler.store else {}

    def build(self, rpc_url: str = "/", **options: Any) -> Any:
        """Options are as for `dragoman.application.application`."""
        if rpc_url != "/":
            raise TypeError(f"the app answers at /: mount it at {rpc_url}, and its card will say so")
        for name in options:
            if name in ("middleware", "routes", "lifespan", "exception_handlers"):
                raise TypeError(
                    f"this is no Starlette application: put {name} into one, and mount this in it"
                )
            if name.endswith("card_url"):
                raise TypeError(f"cards are where the protocol has them: leave out {name}")
        return self._agent.app(**(self._options | options))

    def add_routes_to_app(self, app: Any, *args: Any, **more: Any) -> None:
        raise TypeError("mount it instead: `app.mount('/', application.build())`")


A2AFastAPIApplication = A2ARESTFastAPIApplication = A2AStarletteApplication
"""Every binding is at the same address."""

"""The SDK's ways to serve an executor: its applications (0.2, 0.3), and its lists of routes (1.x).

All of them serve the same app. The handler creates it when it is first needed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dragoman.executor.execution import AgentExecutor, ExecutorAgent, ServerCallContext, User
from dragoman.executor.missing import find_in_package
from dragoman.executor.sdk_aliases import SdkCard, to_model, to_sdk
from dragoman.executor.types import (
    AGENT_CARD_WELL_KNOWN_PATH,
    DEFAULT_RPC_URL,
    EXTENDED_AGENT_CARD_PATH,
    PREV_AGENT_CARD_WELL_KNOWN_PATH,
)
from dragoman.model.ops import Principal

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

logger = logging.getLogger("dragoman.executor")

_ENGINE_ARGUMENTS = (
    "queue_manager",
    "push_config_store",
    "push_notifier",
    "push_sender",
    "validate_input_modes",
)
"""Arguments for what the engine does itself: they are ignored."""
_AGENT_OPTIONS = ("auth", "authorize", "id", "versions", "private_card")
"""Options of Dragoman, for the handlers and applications of the SDK."""
_CONTEXT = "what an executor is told comes from the engine (`RequestContext`): leave out "
_MODIFIED = (
    "the card is the same for everybody: change it before you give it here, and leave out card_modifier"
)
_CARDS = (AGENT_CARD_WELL_KNOWN_PATH, PREV_AGENT_CARD_WELL_KNOWN_PATH, EXTENDED_AGENT_CARD_PATH)


class InMemoryTaskStore:
    """Stands for the store `memory:`."""

    url = "memory:"


class InMemoryPushNotificationConfigStore:
    """Has no effect: the engine stores push configs, and sends the notifications."""


class BasePushNotificationSender:
    """Has no effect: the engine sends the notifications."""

    def __init__(self, httpx_client: Any = None, config_store: Any = None, **more: Any) -> None:
        pass


class InMemoryPushNotifier(BasePushNotificationSender):
    """Has no effect. In 0.2, it stores push configs, and sends the notifications."""


class DefaultRequestHandler:
    """An executor, and the options to run it. Options (`auth`, `authorize`, ...) are as for `Agent`."""

    def __init__(
        self,
        agent_executor: AgentExecutor,
        task_store: Any = None,
        agent_card: Any = None,
        *,
        extended_agent_card: Any = None,
        extended_card_modifier: Any = None,
        **more: Any,
    ) -> None:
        if task_store is not None and not isinstance(task_store, InMemoryTaskStore):
            raise TypeError(
                "tasks are kept in SQLite: leave out task_store, or say where, `build(store='sqlite:///tasks.db')`"
            )
        for name in more:
            if "context" in name:
                raise TypeError(f"{_CONTEXT}{name}")
            if name not in (*_ENGINE_ARGUMENTS, *_AGENT_OPTIONS):
                raise TypeError(f"there is no {name} here")
        self.agent_executor, self.agent_card = agent_executor, agent_card
        self.extended_agent_card, self.extended_card_modifier = extended_agent_card, extended_card_modifier
        self.options = {name: value for name, value in more.items() if name in _AGENT_OPTIONS}
        self.store = task_store.url if task_store is not None else ""
        self.path = ""
        """The path of the app: that of the first list of routes."""
        if isinstance(agent_card, SdkCard):
            vars(agent_card)["handler"] = self  # `create_agent_card_routes` gets only the card

    def agent(self, card: Any, **options: Any) -> ExecutorAgent:
        """The agent. An extended card is for authenticated callers: without `auth` it is never sent."""
        options = self.options | options
        extended = self.extended_agent_card or (card if self.extended_card_modifier else None)
        if extended is not None and options.get("auth"):
            options["extended_card"] = self._extended(extended)
        elif extended is not None:
            logger.warning(
                "the extended card of %s is for callers who say who they are: give auth=, until then nobody gets it",
                card.name,
            )
        return ExecutorAgent(self.agent_executor, card, **options)

    def _extended(self, card: Any) -> Any:
        async def extended_card(principal: Principal) -> Any:
            sdk_card = to_sdk(card)
            if self.extended_card_modifier is not None:
                sdk_card = self.extended_card_modifier(sdk_card, ServerCallContext(User(principal.id)))
                if inspect.isawaitable(sdk_card):
                    sdk_card = await sdk_card
            return to_model(sdk_card)

        return extended_card

    @cached_property
    def app(self) -> Any:
        if self.agent_card is None:
            raise TypeError(
                "give the card to the handler: DefaultRequestHandler(executor, store, agent_card=card)"
            )
        return self.build(self.agent_card)

    def build(self, card: Any, *, path: str = "", options: Any = None, **more: Any) -> Any:
        """The ASGI app for `card`. `options` are those of the agent, all others those of `AppSettings`."""
        store = {"store": self.store} if self.store else {}
        return self.agent(card, **(options or {})).app(path=path or self.path or "/", **(store | more))


DefaultRequestHandlerV2 = LegacyRequestHandler = DefaultRequestHandler


class A2AStarletteApplication:
    """`build()` gives the ASGI app. Options (`auth`, `authorize`, ...) are as for `Agent`."""

    def __init__(
        self,
        agent_card: Any,
        http_handler: DefaultRequestHandler,
        extended_agent_card: Any = None,
        *,
        card_modifier: Any = None,
        extended_card_modifier: Any = None,
        max_content_length: int | None = None,
        enable_v0_3_compat: bool = True,
        **options: Any,
    ) -> None:
        if card_modifier is not None:
            raise TypeError(_MODIFIED)
        if options.pop("context_builder", None) is not None:
            raise TypeError(f"{_CONTEXT}context_builder, and say who may call with `auth=`")
        self.agent_card, self.handler = agent_card, http_handler
        http_handler.extended_agent_card = extended_agent_card or http_handler.extended_agent_card
        http_handler.extended_card_modifier = extended_card_modifier or http_handler.extended_card_modifier
        http_handler.options |= options
        if http_handler.agent_card is None:
            http_handler.agent_card = agent_card

    def build(self, rpc_url: str = DEFAULT_RPC_URL, **options: Any) -> Any:
        """The app, with JSON-RPC and all other bindings at `rpc_url`.

        If Starlette (or FastAPI) is installed, it is an application of theirs, to which middleware and routes can be added.
        Options are theirs, and those of `dragoman.server.application.application`.
        """
        options = {name: value for name, value in options.items() if not _is_card_url(name, value)}
        if find_spec(self.framework) is None:
            return self.handler.build(self.agent_card, path=rpc_url, **options)
        from dragoman.executor.routes import framework_of, inside

        framework = framework_of(self.framework)
        theirs = {
            name: options.pop(name) for name in inspect.signature(framework).parameters if name in options
        }
        return inside(framework, self.handler.build(self.agent_card, path=rpc_url, **options), theirs)

    framework = "starlette"

    def routes(self, rpc_url: str = DEFAULT_RPC_URL, **urls: str) -> list[BaseRoute]:
        """The app as routes for Starlette or FastAPI."""
        for name, value in urls.items():
            if not _is_card_url(name, value):
                raise TypeError(f"there is no {name} here")
        return create_jsonrpc_routes(self.handler, rpc_url)

    def add_routes_to_app(self, app: Any, rpc_url: str = DEFAULT_RPC_URL, **urls: str) -> None:
        app.router.routes.extend(self.routes(rpc_url, **urls))


class A2AFastAPIApplication(A2AStarletteApplication):
    framework = "fastapi"


class A2ARESTFastAPIApplication(A2AFastAPIApplication):
    """The same application: every binding has the same address."""


def _is_card_url(name: str, value: Any) -> bool:
    if not name.endswith("card_url"):
        return False
    if value not in _CARDS:
        raise TypeError(f"cards are where the protocol has them: leave out {name}")
    return True


def create_agent_card_routes(
    agent_card: Any, card_modifier: Any = None, card_url: str = AGENT_CARD_WELL_KNOWN_PATH, **caching: Any
) -> list[BaseRoute]:
    """The route of the card of a handler: `DefaultRequestHandler(..., agent_card=card)`."""
    from dragoman.executor.routes import AppRoute

    if card_modifier is not None:
        raise TypeError(_MODIFIED)

    def handler() -> DefaultRequestHandler:
        found = getattr(agent_card, "handler", None)
        if not isinstance(found, DefaultRequestHandler):
            raise TypeError("nobody serves this card: give it to DefaultRequestHandler(..., agent_card=card)")
        return found

    return [AppRoute(lambda: handler().app, card_url, lambda: AGENT_CARD_WELL_KNOWN_PATH)]


def create_jsonrpc_routes(
    request_handler: DefaultRequestHandler,
    rpc_url: str = DEFAULT_RPC_URL,
    context_builder: Any = None,
    **served: Any,
) -> list[BaseRoute]:
    """The routes of the app, at `rpc_url`. All versions are served; `enable_v0_3_compat` has no effect."""
    from dragoman.executor.routes import AppRoute

    if context_builder is not None:
        raise TypeError(f"{_CONTEXT}context_builder, and say who may call with `auth=`")
    url = "/" + rpc_url.strip("/")
    request_handler.path = request_handler.path or url
    return [AppRoute(lambda: request_handler.app, url, lambda: request_handler.path)]


def create_rest_routes(
    request_handler: DefaultRequestHandler, context_builder: Any = None, path_prefix: str = "", **served: Any
) -> list[BaseRoute]:
    return create_jsonrpc_routes(request_handler, path_prefix or "/", context_builder)


def add_a2a_routes_to_fastapi(
    app: Any,
    agent_card_routes: Sequence[Any] | None = None,
    jsonrpc_routes: Sequence[Any] | None = None,
    rest_routes: Sequence[Any] | None = None,
) -> None:
    for routes in (agent_card_routes, jsonrpc_routes, rest_routes):
        app.router.routes.extend(routes or ())


__getattr__ = find_in_package

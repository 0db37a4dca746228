"""Calls that the console makes for an operator: to agents of this server, and to agents elsewhere.

Agents of this server are called in process, past their own authentication, because the operator has logged in at the
console. The calls have the principal `dragoman:console`, and the audit names it. Agents elsewhere are called like any client does, with
credentials that the operator gave for that origin, and only at public addresses: private ones have to be allowed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace as replace_field
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from dragoman.client import AgentCache, Client, Policy, connect
from dragoman.client.authorize import origin_of
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.client.transport.transport import NotSent
from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.model.card import GRPC
from dragoman.model.ops import Batch, Call, Principal, Request, Scope, SendMessage, Service, SubscribeToTask
from dragoman.push.guard import OutboundGuard
from dragoman.server.app import App
from dragoman.server.mount import Mount
from dragoman.server.routes import NotFound

CONSOLE = Principal(id="dragoman:console")
"""The principal of an operator's calls to agents of this server."""
LOCAL = "http://localhost"
CALLS = Policy(attempts=3, patience=60.0)
"""An operator is waiting, so a quick error is better than many retries."""


class ActingService:
    """A service that calls as `principal`, about tasks of `scope`. `answers`: the record of the question that a message answers."""

    def __init__(
        self, service: Service, principal: Principal, scope: Scope, answers: int | None = None
    ) -> None:
        self._service, self._principal, self._scope, self._answers = service, principal, scope, answers

    def _acting(self, call: Call) -> Call:
        return replace(call, scope=self._scope, principal=self._principal, answers=self._answers)

    def call(self, call: Call, request: Request) -> Coroutine[Any, Any, Any]:
        return self._service.call(self._acting(call), request)

    def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        return self._service.stream(self._acting(call), request)


def connect_here(
    mounts: Sequence[Mount],
    scope: Scope,
    *,
    principal: Principal = CONSOLE,
    answers: int | None = None,
    **options: Any,
) -> Client:
    """A client of an agent of this server. `scope` has the agent, and whose tasks it is about. Raises `NotFound`."""
    mount = next((each for each in mounts if each.agent == scope.agent), None)
    if mount is None:
        raise NotFound("there is no such agent here")
    if options.get("binding", "").upper() == GRPC:
        raise UnsupportedOperation(
            "agents of this server are called inside this process, without gRPC: enter their URL instead"
        )
    opened = replace_field(
        mount,
        service=ActingService(mount.service, principal, scope, answers),
        authenticator=None,
        private=False,
        signer=None,
    )
    return _connect(LOCAL + mount.path, transport=AsgiTransport(App([opened])), **options)


def connect_elsewhere(url: str, guard: OutboundGuard, **options: Any) -> Client:
    """A client of an agent at a URL. Raises `InvalidParams`."""
    check_url(url)
    return _connect(url, guard=guard, **options)


def _connect(url: str, **options: Any) -> Client:
    return connect(url, policy=CALLS, cache=AgentCache(), agents={}, **options)


def check_url(url: str) -> str:
    """The origin of the URL of an agent. Raises `InvalidParams`."""
    try:
        origin, parts = origin_of(url), urlsplit(url)
    except (NotSent, ValueError):
        raise InvalidParams("this is not a URL", fields=(("url", "is not a URL"),)) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or len(url) > 2048:
        raise InvalidParams(
            "the URL of an agent begins with http:// or https://", fields=(("url", "is not http or https"),)
        )
    if parts.username or parts.password:
        raise InvalidParams(
            "log in instead of writing a password into the URL", fields=(("url", "has a password"),)
        )
    return origin

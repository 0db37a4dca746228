"""Choose an interface of an agent and a dialect, and try others if they do not work.

A card may be wrong about the version: then the agent does not know the method, has done nothing, and the next dialect is
tried. It may also name an address where nobody listens: then the next interface is tried. What worked is cached for as
long as the card promises the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from msgspec.structs import replace

from dragoman.client.answers import StreamCheck, check_answer
from dragoman.client.authorize import is_within_origin, origin_of
from dragoman.client.discover import DialectCache, FoundCard, absolute_url, get_extended_card, grpc_url
from dragoman.client.transport.jsonrpc import JsonRpc
from dragoman.client.transport.rest import Rest
from dragoman.client.transport.transport import NotSent, NotThere, Transport
from dragoman.dialects.cards import era_of, version_of
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.select import DIALECTS, for_card, speaks
from dragoman.errors import (
    A2AError,
    ExtendedCardNotConfigured,
    InvalidRequest,
    MethodNotFound,
    TaskNotFound,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model.card import GRPC, HTTP_JSON, JSONRPC, Interface
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
    Configuration,
    GetExtendedCard,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    PushConfig,
    PushConfigPage,
    Request,
    SendMessage,
    Service,
    SubscribeToTask,
    trim_history,
)
from dragoman.model.task import Task

log = logging.getLogger(__name__)

_R = TypeVar("_R", bound=Request)


class BoundService(Service, Protocol):
    """A service over one binding."""

    is_dragoman: bool
    """A Dragoman server answered."""


def _grpc(*where: Any, **how: Any) -> BoundService:
    from dragoman.client.transport.grpc import Grpc

    return Grpc(*where, **how)


BINDINGS: dict[str, Callable[..., BoundService]] = {JSONRPC: JsonRpc, HTTP_JSON: Rest}
if find_spec("grpc") is not None:  # the extra `grpc`
    BINDINGS[GRPC] = _grpc
_FALLBACKS = {JSONRPC: ("1.0", "0.3", "0.1"), HTTP_JSON: ("1.0", "0.3-proto"), GRPC: ("1.0", "0.3-proto")}
"""What to try on an endpoint that does not know the methods its card promises."""
_TRY_ANOTHER = (MethodNotFound, InvalidRequest, VersionNotSupported, NotSent, NotThere)
"""Errors after which the peer has done nothing, and would do nothing for the same request. Servers that follow the samples
of 0.1 and 0.2 answer InvalidRequest if they do not know the method."""
_ROUTES_SECONDS = 15.0
"""After so long no other interface is tried for a call: a card may name many hosts that do not answer."""
_MAX_INTERFACES = 32
"""Only the first interfaces of a card are tried, so that a card cannot make a client connect to a thousand hosts."""
_IN_EVERY_VERSION = (SendMessage, GetTask, CancelTask, SubscribeToTask)
"""Operations that every version has."""


class AgentRoute(NamedTuple):
    url: str
    binding: str
    dialect: Dialect
    tenant: str = ""
    promised: str = ""
    """The dialect that the card promises for the first route."""
    is_dragoman: bool = False
    """A Dragoman server is there, as far as the card shows."""


def find_routes(
    found: FoundCard,
    *,
    version: str = "",
    binding: str = "",
    prefer: str = "",
    dialects: DialectCache | None = None,
    channels: bool = True,
) -> list[AgentRoute]:
    """The routes to an agent that can be used, the best first. `prefer` is the endpoint that the user named, if any.

    A dialect from `dialects`, where the endpoint answered before, comes first. `channels`: gRPC, which opens its own
    connections, may be used.
    """
    bindings = [name for name in BINDINGS if channels or name != GRPC]
    offered = [
        (_resolve_interface(each, found.url), dialect)
        for each, dialect in for_card(found.document, found_at=found.url)
    ]
    usable = [
        AgentRoute(
            each.url,
            each.protocol_binding.upper(),
            dialect,
            each.tenant,
            is_dragoman=_is_dragoman_at(found, each.url),
        )
        for each, dialect in offered
        if each.protocol_binding.upper() in bindings
        and binding.upper() in ("", each.protocol_binding.upper())
    ]
    usable = _limit_interfaces(usable, prefer)
    if not usable:
        raise _no_usable_interface(found, bindings, binding.upper(), channels=channels)
    if version:
        return _routes_in_version(usable, version)
    usable.sort(key=lambda route: route.url.rstrip("/") != prefer.rstrip("/"))
    first = usable[0]
    promised = first.dialect.name
    known = dialects.get(first.url, first.binding, promised) if dialects is not None else None
    if known is not None:
        usable.insert(0, first._replace(dialect=DIALECTS[known]))
    newest = era_of(found.document, found_at=found.url)
    for name in _FALLBACKS.get(first.binding, ()):
        if name != "1.0" or newest == "1.0":  # a card of another form is never one of 1.0
            usable.append(first._replace(dialect=DIALECTS[name]))
    distinct = {(each.url, each.binding, each.dialect.name): each for each in usable}
    return [route._replace(promised=promised) for route in distinct.values()]


def _no_usable_interface(
    found: FoundCard, bindings: Sequence[str], asked: str, *, channels: bool
) -> UnsupportedOperation:
    """Says what the agent offers, what we speak, and what would help."""
    interfaces = found.card.supported_interfaces
    names = ", ".join(
        dict.fromkeys(f"{each.protocol_binding} {each.protocol_version}" for each in interfaces)
    )
    supported = f"we speak {', '.join(bindings)}"
    if asked:
        supported = f"{asked} was asked for" + ("" if asked in bindings else f", and {supported}")
    hint = ""
    if GRPC in names and asked in ("", GRPC):
        if not channels:
            hint = " (gRPC does not go through a transport, nor to an agent in this process)"
        elif GRPC not in BINDINGS:
            hint = " (for gRPC: pip install 'dragoman[grpc]')"
    return UnsupportedOperation(f"{found.card.name!r} offers {names or 'no interface'}; {supported}{hint}")


def _limit_interfaces(usable: list[AgentRoute], prefer: str) -> list[AgentRoute]:
    named = [route for route in usable if route.url.rstrip("/") == prefer.rstrip("/")][:_MAX_INTERFACES]
    return usable[:_MAX_INTERFACES] + [route for route in named if route not in usable[:_MAX_INTERFACES]]


def _is_dragoman_at(found: FoundCard, url: str) -> bool:
    """True if a Dragoman server sent the card, and `url` is on the same server."""
    try:
        return found.is_dragoman and is_within_origin(url, origin_of(found.url))
    except NotSent:  # not a URL: using it raises an error
        return False


def _resolve_interface(interface: Interface, found_at: str) -> Interface:
    resolved = grpc_url if interface.protocol_binding.upper() == GRPC else absolute_url
    return replace(interface, url=resolved(interface.url, found_at))


def _routes_in_version(usable: list[AgentRoute], version: str) -> list[AgentRoute]:
    """Routes in this version only. An endpoint may speak it though the card does not say so: cards cannot name the oldest."""
    label = version if version in DIALECTS else version_of(version)
    if exact := [route for route in usable if speaks(route.dialect, (label,))]:
        return exact
    if label not in DIALECTS:
        raise UnsupportedOperation(f"there is no A2A {version}; known are {', '.join(DIALECTS)}")
    for route in usable:
        if route.binding == JSONRPC:
            return [route._replace(dialect=DIALECTS[label])]
        for name in _FALLBACKS.get(route.binding, ()):
            if speaks(DIALECTS[name], (label,)):
                return [route._replace(dialect=DIALECTS[name])]
    raise UnsupportedOperation(f"A2A {version} is not spoken over {usable[0].binding}")


class RoutedPeer:
    """A `Peer` on the first of several routes that works."""

    def __init__(
        self,
        routes: Sequence[AgentRoute],
        transport: Transport,
        *,
        silence: float,
        dialects: DialectCache | None = None,
    ) -> None:
        self._routes = tuple(routes)
        self._dialects = dialects
        self._transport = transport
        self._silence = silence
        self._settled = len(self._routes) == 1
        self._tenants = {route.tenant for route in self._routes}
        self._take(0)

    def _take(self, n: int) -> None:
        self._n, self.route = n, self._routes[n]
        make = BINDINGS[self.route.binding]
        self._peer = make(self._transport, self.route.url, self.route.dialect, silence=self._silence)
        self._peer.is_dragoman = self.route.is_dragoman

    @property
    def dialect(self) -> Dialect:
        return self.route.dialect

    @property
    def is_dragoman(self) -> bool:
        return self._peer.is_dragoman

    async def call(self, call: Call, request: Request) -> Any:
        tried, latest = dict[int, A2AError](), time.monotonic() + _ROUTES_SECONDS
        while True:
            n = self._n
            try:
                result = await self._call(call, self._for_tenant(request))
            except _TRY_ANOTHER as error:
                self._next(n, tried, request, error, latest)
            else:
                self._settle(n, request)
                return result

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        tried, latest = dict[int, A2AError](), time.monotonic() + _ROUTES_SECONDS
        received = False
        while True:
            n, check = self._n, StreamCheck(request)
            batches = cast(Any, self._peer.stream(call, self._for_tenant(request)))
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        received = True
                        self._settle(n, request)
                        batch, wrong = check.read(batch)
                        if batch:
                            yield batch
                        if wrong is not None:
                            raise wrong
                        if check.is_over:
                            return
                return
            except _TRY_ANOTHER as error:
                if received:
                    raise
                self._next(n, tried, request, error, latest)

    async def _call(self, call: Call, request: Request) -> Any:
        """A call over the present route. Adds what its version has in another place, or not at all."""
        path = self.dialect.extended_card_path
        if path and isinstance(request, GetExtendedCard):
            try:
                return (await get_extended_card(self._transport, self.route.url, path)).card
            except NotThere as error:
                raise ExtendedCardNotConfigured(f"this agent has no extended card: {error}") from error
        if isinstance(request, GetPushConfig) and not request.id and self.dialect.gets_configs_by_id:
            return await self._any_push_config(call, request)
        result = await self._peer.call(call, request)
        check_answer(request, result)
        return _trim_as_asked(result, request) if isinstance(result, Task) else result

    async def _any_push_config(self, call: Call, request: GetPushConfig) -> PushConfig:
        """One of the push configs of a task, for a caller of a version in which they need no ids. Raises `TaskNotFound`."""
        listed = ListPushConfigs(task_id=request.task_id, tenant=request.tenant)
        page: PushConfigPage = await self._peer.call(call, listed)
        for config in sorted(page.configs, key=lambda config: config.id != "default"):
            return config
        raise TaskNotFound(request.task_id, message=f"task {request.task_id[:80]!r} has no push config")

    def _for_tenant(self, request: _R) -> _R:
        """The request with the tenant of the present route, unless its sender named another.

        Raises `UnsupportedOperation` if the version cannot name one: without it, the request would be another tenant's.
        """
        here = self.route.tenant
        if request.tenant == here:
            return request
        if request.tenant and request.tenant not in self._tenants:
            if not self.dialect.is_current:
                version = self.dialect.family
                raise UnsupportedOperation(f"this agent speaks A2A {version}, which has no tenants")
            return request
        return replace(request, tenant=here)

    def _next(
        self, n: int, tried: dict[int, A2AError], request: Request, error: A2AError, latest: float
    ) -> None:
        """Route `n` did not work: take one that this call has not `tried`.

        If there is none, or no time for one, take the first route again, and raise its error.
        """
        was = self._routes[n]
        if isinstance(error, InvalidRequest) and not self._may_mean_version(n):
            raise error
        for i, route in enumerate(self._routes):
            if i == n or _fails_too(route, was, error):
                tried.setdefault(i, error)
        if self._n not in tried:
            return  # another call has changed the route meanwhile
        unreachable = isinstance(error, NotSent | NotThere)
        if self._settled and not unreachable and isinstance(request, SendMessage):
            self._settled = len(self._routes) == 1  # the agent speaks another version now
        if self._settled or not (unreachable or _shows_version(request, was)):
            raise error
        left = [i for i in range(len(self._routes)) if i not in tried and time.monotonic() < latest]
        self._take(left[0] if left else 0)
        if not left:
            raise next(iter(tried.values()))
        log.info(
            "%s does not speak A2A %s (%s); trying %s", was.url, was.dialect.name, error, self.dialect.name
        )

    def _may_mean_version(self, n: int) -> bool:
        """True if InvalidRequest can mean that route `n` speaks another version."""
        route, known = self._routes[n], self._settled and n == self._n
        return not (
            known
            or self._peer.is_dragoman
            or route.binding != JSONRPC
            or route.dialect.cancel_error_is_invalid_request
        )

    def _settle(self, n: int, request: Request) -> None:
        if not self._settled and isinstance(request, SendMessage):
            self._settled = True
            if n != self._n:  # another call has left the route that works
                self._take(n)
            if self._dialects is not None:
                route = self.route
                is_new = self._dialects.get(route.url, route.binding, route.promised) != route.dialect.name
                if is_new and not route.dialect.is_current:
                    log.info("%s speaks A2A %s, an older version", route.url, route.dialect.name)
                self._dialects.put(route.url, route.binding, route.promised, route.dialect.name)


def _trim_as_asked(task: Task, request: Request) -> Task:
    """The task with no more history than was asked for. Some versions cannot ask for none, and some peers do not count."""
    settings = request.configuration if isinstance(request, SendMessage) else request
    length = settings.history_length if isinstance(settings, Configuration | GetTask) else None
    return trim_history(task, length)


def _shows_version(request: Request, route: AgentRoute) -> bool:
    """True if an unknown-method error means that the peer does not speak this version. Over HTTP+JSON a 404 may mean an
    unknown task."""
    return isinstance(request, SendMessage if route.binding == HTTP_JSON else _IN_EVERY_VERSION)


def _fails_too(route: AgentRoute, tried: AgentRoute, error: A2AError) -> bool:
    """True if `route` fails for the same reason: nobody listens there, in any version. A port without gRPC may have HTTP/1.1."""
    if isinstance(error, NotSent):
        return _host(route.url) == _host(tried.url) and (route.binding == GRPC) == (tried.binding == GRPC)
    return isinstance(error, NotThere) and (route.url, route.binding) == (tried.url, tried.binding)


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]

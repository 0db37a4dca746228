"""Which of an agent's interfaces to use, in which dialect, and what to do when it turns out to speak another.

A card may be wrong about the version: then the agent does not know the method, has done nothing, and the next dialect
is tried. It may also name an address where nobody is: then the next interface is. What worked is remembered for as long
as the process runs and the card promises the same.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from msgspec.structs import replace

from dragoman.client.discover import Found, absolute, channel_address
from dragoman.client.origin import origin_of, within
from dragoman.client.transport.jsonrpc import JsonRpc
from dragoman.client.transport.rest import Rest
from dragoman.client.transport.transport import NotSent, NotThere, Transport
from dragoman.dialects.cards import era_of, version_of
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.select import DIALECTS, for_card, speaks
from dragoman.errors import (
    A2AError,
    InvalidRequest,
    MethodNotFound,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model.card import GRPC, HTTP_JSON, JSONRPC, Interface
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
    GetTask,
    Request,
    SendMessage,
    Service,
    SubscribeToTask,
)

log = logging.getLogger(__name__)

_R = TypeVar("_R", bound=Request)


class Binding(Service, Protocol):
    """A service over one binding. It finds out whether the peer is one of `ours`."""

    ours: bool


def _grpc(*where: Any, **how: Any) -> Binding:
    from dragoman.client.transport.grpc import Grpc

    return Grpc(*where, **how)


BINDINGS: dict[str, Callable[..., Binding]] = {JSONRPC: JsonRpc, HTTP_JSON: Rest}
if find_spec("grpc") is not None:  # the extra `grpc`
    BINDINGS[GRPC] = _grpc
_FALLBACKS = {JSONRPC: ("1.0", "0.3", "0.1"), HTTP_JSON: ("1.0", "0.3-proto"), GRPC: ("1.0", "0.3-proto")}
"""What to try on an endpoint that does not know the methods its card promises."""
_TRY_ANOTHER = (MethodNotFound, InvalidRequest, VersionNotSupported, NotSent, NotThere)
"""The peer has done nothing, and would do as little if it were asked in the same way again. Servers that were made after
the samples of 0.1 and 0.2 say of a method which they do not know that the request is invalid."""
_MAX_INTERFACES = 32
"""So many interfaces of a card are tried, the first ones: a card must not make us knock at a thousand doors."""
_EVERYWHERE = (SendMessage, GetTask, CancelTask, SubscribeToTask)
"""What every version has."""
_worked: dict[tuple[str, str, str], str] = {}
"""The dialect in which each endpoint answered, by its URL, its binding and what its card promised."""


class Route(NamedTuple):
    url: str
    binding: str
    dialect: Dialect
    tenant: str = ""
    promised: str = ""
    """The dialect that the card would have us begin with."""
    ours: bool = False
    """One of our own servers is there, as far as can be told from the card."""


def routes(
    found: Found,
    *,
    version: str = "",
    binding: str = "",
    prefer: str = "",
    remembered: bool = True,
    channels: bool = True,
) -> list[Route]:
    """The usable ways to reach an agent, best first. `prefer` is the endpoint the user named, if any.

    `remembered`: what worked at its address before comes first. `channels`: gRPC, which connects by itself, may be used.
    """
    bindings = [name for name in BINDINGS if channels or name != GRPC]
    offered = [
        (_here(each, found.url), dialect) for each, dialect in for_card(found.document, found_at=found.url)
    ]
    usable = [
        Route(each.url, each.protocol_binding.upper(), dialect, each.tenant, ours=_ours(found, each.url))
        for each, dialect in offered
        if each.protocol_binding.upper() in bindings
        and binding.upper() in ("", each.protocol_binding.upper())
    ]
    usable = _few(usable, prefer)
    if not usable:
        names = ", ".join(
            dict.fromkeys(
                f"{each.protocol_binding} {each.protocol_version}" for each in found.card.supported_interfaces
            )
        )
        spoken = f"we speak {', '.join(bindings)}"
        if binding:
            spoken = f"{binding.upper()} was asked for" + (
                "" if binding.upper() in bindings else f", and {spoken}"
            )
        missing = GRPC not in BINDINGS and GRPC in names and binding.upper() in ("", GRPC)
        hint = " (for gRPC: pip install 'dragoman[grpc]')" if missing else ""
        if GRPC in names and not channels and binding.upper() in ("", GRPC):
            hint = " (gRPC does not go through a transport, nor to an agent in this process)"
        raise UnsupportedOperation(f"{found.card.name!r} offers {names or 'no interface'}; {spoken}{hint}")
    if version:
        return _pinned(usable, version)
    usable.sort(key=lambda route: route.url.rstrip("/") != prefer.rstrip("/"))
    first = usable[0]
    promised = first.dialect.name
    known = _worked.get((first.url, first.binding, promised)) if remembered else None
    if known is not None:
        usable.insert(0, first._replace(dialect=DIALECTS[known]))
    newest = era_of(found.document, found_at=found.url)
    for name in _FALLBACKS.get(first.binding, ()):
        if name != "1.0" or newest == "1.0":  # a card of another form is never one of 1.0
            usable.append(first._replace(dialect=DIALECTS[name]))
    ways = {(way.url, way.binding, way.dialect.name): way._replace(promised=promised) for way in usable}
    return list(ways.values())


def _few(usable: list[Route], prefer: str) -> list[Route]:
    named = [route for route in usable if route.url.rstrip("/") == prefer.rstrip("/")][:_MAX_INTERFACES]
    return usable[:_MAX_INTERFACES] + [route for route in named if route not in usable[:_MAX_INTERFACES]]


def _ours(found: Found, url: str) -> bool:
    """A card from one of our servers says so of that server, and of no other it points to."""
    try:
        return found.ours and within(url, origin_of(found.url))
    except NotSent:  # it is no URL, and whoever uses it will be told
        return False


def _here(interface: Interface, found_at: str) -> Interface:
    resolved = channel_address if interface.protocol_binding.upper() == GRPC else absolute
    return Interface(
        url=resolved(interface.url, found_at),
        protocol_binding=interface.protocol_binding,
        protocol_version=interface.protocol_version,
        tenant=interface.tenant,
    )


def _pinned(usable: list[Route], version: str) -> list[Route]:
    """Only this version. An endpoint may speak it without saying so: cards have no room for the oldest."""
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


class Routed:
    """A `Peer` on the first of several routes that turns out to work."""

    def __init__(
        self, routes: Sequence[Route], transport: Transport, *, silence: float, remembered: bool = True
    ) -> None:
        self._routes = tuple(routes)
        self._remembered = remembered
        self._transport = transport
        self._silence = silence
        self._settled = len(self._routes) == 1
        self._tenants = {route.tenant for route in self._routes}
        self._take(0)

    def _take(self, n: int) -> None:
        self._n, self.route = n, self._routes[n]
        make = BINDINGS[self.route.binding]
        self._peer = make(self._transport, self.route.url, self.route.dialect, silence=self._silence)
        self._peer.ours = self.route.ours

    @property
    def dialect(self) -> Dialect:
        return self.route.dialect

    @property
    def ours(self) -> bool:
        return self._peer.ours

    async def call(self, call: Call, request: Request) -> Any:
        tried: dict[int, A2AError] = {}
        while True:
            n = self._n
            try:
                result = await self._peer.call(call, self._addressed(request))
            except _TRY_ANOTHER as error:
                self._next(n, tried, request, error)
            else:
                self._settle(n, request)
                return result

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        tried: dict[int, A2AError] = {}
        heard = False
        while True:
            n = self._n
            batches = cast(Any, self._peer.stream(call, self._addressed(request)))
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        heard = True
                        self._settle(n, request)
                        yield batch
                return
            except _TRY_ANOTHER as error:
                if heard:
                    raise
                self._next(n, tried, request, error)

    def _addressed(self, request: _R) -> _R:
        """The request for the tenant of the route it takes, unless its sender named another."""
        here = self.route.tenant
        if request.tenant == here or (request.tenant and request.tenant not in self._tenants):
            return request
        return replace(request, tenant=here)

    def _next(self, n: int, tried: dict[int, A2AError], request: Request, error: A2AError) -> None:
        """Route `n` was in vain: go on to one that this call has not `tried`.

        When there is none, raise what the first one said, and begin with that again.
        """
        was = self._routes[n]
        if isinstance(error, InvalidRequest) and not self._may_mean_version(n):
            raise error
        for i, route in enumerate(self._routes):
            if i == n or _as_vain(route, was, error):
                tried.setdefault(i, error)
        if self._n not in tried:
            return  # another call has gone on meanwhile
        nowhere = isinstance(error, NotSent | NotThere)
        if self._settled and not nowhere and isinstance(request, SendMessage):
            self._settled = len(self._routes) == 1  # it came to speak another version
        if self._settled or not (nowhere or _telling(request, was)):
            raise error
        left = [i for i in range(len(self._routes)) if i not in tried]
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
            or self._peer.ours
            or route.binding != JSONRPC
            or route.dialect.cancel_error_is_invalid_request
        )

    def _settle(self, n: int, request: Request) -> None:
        if not self._settled and isinstance(request, SendMessage):
            self._settled = True
            if n != self._n:  # another call has given up on what works
                self._take(n)
            if self._remembered:
                _worked[self.route.url, self.route.binding, self.route.promised] = self.route.dialect.name


def _telling(request: Request, route: Route) -> bool:
    """Whether who does not know `request` does not speak the version. Over HTTP+JSON a page that is not there may be a task
    that is not."""
    return isinstance(request, SendMessage if route.binding == HTTP_JSON else _EVERYWHERE)


def _as_vain(route: Route, tried: Route, error: A2AError) -> bool:
    """Whether `route` leads nowhere, too: nobody is there, whatever is spoken."""
    if isinstance(error, NotSent):
        return _host(route.url) == _host(tried.url)
    return isinstance(error, NotThere) and (route.url, route.binding) == (tried.url, tried.binding)


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]

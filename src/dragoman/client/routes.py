"""Which of an agent's interfaces to use, in which dialect, and what to do when it turns out to speak another.

A card may be wrong about the version: then the agent does not know the method, has done nothing, and the next dialect
is tried. It may also name a host that we cannot reach: then the next interface is. What worked is remembered for as long as the process runs.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from msgspec.structs import replace

from dragoman.client.discover import Found, absolute, channel_address
from dragoman.client.jsonrpc import JsonRpc
from dragoman.client.rest import Rest
from dragoman.client.transport import NotSent, Transport
from dragoman.dialects.cards import version_of
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.select import DIALECTS, for_card, speaks
from dragoman.errors import A2AError, MethodNotFound, UnsupportedOperation, VersionNotSupported
from dragoman.model.card import GRPC, HTTP_JSON, JSONRPC, Interface
from dragoman.model.ops import Batch, Call, Request, SendMessage, Service, SubscribeToTask

log = logging.getLogger(__name__)

_R = TypeVar("_R", bound=Request)


class Binding(Service, Protocol):
    """A service over one binding. It finds out whether the peer is one of `ours`."""

    ours: bool


def _grpc(*where: Any, **how: Any) -> Binding:
    from dragoman.client.grpc import Grpc

    return Grpc(*where, **how)


BINDINGS: dict[str, Callable[..., Binding]] = {JSONRPC: JsonRpc, HTTP_JSON: Rest}
if find_spec("grpc") is not None:  # the extra `grpc`
    BINDINGS[GRPC] = _grpc
_FALLBACKS = {JSONRPC: ("1.0", "0.3", "0.1"), HTTP_JSON: ("1.0", "0.3-proto"), GRPC: ("1.0", "0.3-proto")}
"""What to try on an endpoint that does not know the methods its card promises."""
_TRY_ANOTHER = (MethodNotFound, VersionNotSupported, NotSent)
"""The peer has done nothing, and would do as little if it were asked in the same way again."""
_worked: dict[tuple[str, str], str] = {}
"""The dialect in which each endpoint answered, by its URL and binding."""


class Route(NamedTuple):
    url: str
    binding: str
    dialect: Dialect
    tenant: str = ""


def routes(
    found: Found, *, version: str = "", binding: str = "", prefer: str = "", remembered: bool = True
) -> list[Route]:
    """The usable ways to reach an agent, best first. `prefer` is the endpoint the user named, if any.

    `remembered`: what worked at its address before comes first.
    """
    offered = [
        (_here(each, found.url), dialect) for each, dialect in for_card(found.document, found_at=found.url)
    ]
    usable = [
        Route(each.url, each.protocol_binding.upper(), dialect, each.tenant)
        for each, dialect in offered
        if each.protocol_binding.upper() in BINDINGS
        and binding.upper() in ("", each.protocol_binding.upper())
    ]
    if not usable:
        names = ", ".join(
            dict.fromkeys(
                f"{each.protocol_binding} {each.protocol_version}" for each in found.card.supported_interfaces
            )
        )
        speaks = binding if binding.upper() in BINDINGS else ", ".join(BINDINGS)
        hint = "" if GRPC in BINDINGS or GRPC not in names else " (for gRPC: pip install 'dragoman[grpc]')"
        raise UnsupportedOperation(
            f"{found.card.name!r} offers {names or 'no interface'}; we speak {speaks}{hint}"
        )
    if version:
        return _pinned(usable, version)
    usable.sort(key=lambda route: route.url.rstrip("/") != prefer.rstrip("/"))
    first = usable[0]
    known = _worked.get((first.url, first.binding)) if remembered else None
    if known is not None:
        usable.insert(0, first._replace(dialect=DIALECTS[known]))
    for name in _FALLBACKS.get(first.binding, ()):
        usable.append(first._replace(dialect=DIALECTS[name]))
    return list({(route.url, route.binding, route.dialect.name): route for route in usable}.values())


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
        self,
        routes: Sequence[Route],
        transport: Transport,
        *,
        silence: float,
        ours: bool = False,
        remembered: bool = True,
    ) -> None:
        self._routes = tuple(routes)
        self._remembered = remembered
        self._transport = transport
        self._silence = silence
        self._settled = len(self._routes) == 1
        self._tenants = {route.tenant for route in self._routes}
        self._take(0, ours)

    def _take(self, n: int, ours: bool) -> None:
        self._n, self.route = n, self._routes[n]
        make = BINDINGS[self.route.binding]
        self._peer = make(self._transport, self.route.url, self.route.dialect, silence=self._silence)
        self._peer.ours = ours

    @property
    def dialect(self) -> Dialect:
        return self.route.dialect

    @property
    def ours(self) -> bool:
        return self._peer.ours

    async def call(self, call: Call, request: Request) -> Any:
        while True:
            try:
                result = await self._peer.call(call, self._addressed(request))
            except _TRY_ANOTHER as error:
                self._next(request, error)
            else:
                self._settle(request)
                return result

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        while True:
            batches = cast(Any, self._peer.stream(call, self._addressed(request)))
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        self._settle(request)
                        yield batch
                return
            except _TRY_ANOTHER as error:
                self._next(request, error)

    def _addressed(self, request: _R) -> _R:
        """The request for the tenant of the route it takes, unless its sender named another."""
        here = self.route.tenant
        if request.tenant == here or (request.tenant and request.tenant not in self._tenants):
            return request
        return replace(request, tenant=here)

    def _next(self, request: Request, error: A2AError) -> None:
        """Go on to the next route; raise `error` when there is none, and begin with the first again."""
        absent = isinstance(error, NotSent)
        if self._settled or not (absent or isinstance(request, SendMessage)):
            raise error
        was, ours, n = self.route, self._peer.ours, self._n + 1
        while absent and n < len(self._routes) and _host(self._routes[n].url) == _host(was.url):
            n += 1  # nobody is there, whatever is spoken
        self._take(n % len(self._routes), ours)
        if self._n == 0:
            raise error
        log.info(
            "%s does not speak A2A %s (%s); trying %s", was.url, was.dialect.name, error, self.dialect.name
        )

    def _settle(self, request: Request) -> None:
        if not self._settled and isinstance(request, SendMessage):
            self._settled = True
            if self._remembered:
                _worked[self.route.url, self.route.binding] = self.route.dialect.name


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]

"""Open the connection to an agent: transport, card, credentials, route, and the service on top of them."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.client import credentials as creds
from dragoman.client import discover
from dragoman.client.authorize import AuthorizedTransport, origin_of
from dragoman.client.catalogue import RemoteCatalogue, card_of, is_catalogue, split_catalogue
from dragoman.client.config import find_entry, read_agents
from dragoman.client.credentials import Outgoing
from dragoman.client.discover import AgentCache, FoundCard, find_card, read_given_card, resolve_target
from dragoman.client.extensions import ClientExtension
from dragoman.client.resumable_stream import RetryingService
from dragoman.client.retry import Policy, is_transient, pause
from dragoman.client.routes import RoutedPeer, find_routes
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.client.transport.network import AddressGuard, HttpTransport
from dragoman.client.transport.tap import Tap, TappedTransport
from dragoman.client.transport.transport import NotSent, Transport
from dragoman.dialects.cards import era_of
from dragoman.errors import A2AError, Unauthenticated, Unreachable
from dragoman.model.card import AgentCard

log = logging.getLogger(__name__)

T = TypeVar("T")

IN_PROCESS = "http://localhost"
"""The URL of every agent in this process."""
_CARD_SECONDS = 15.0
"""For everything that it takes to read the card: all places where it may be, all attempts, with and without credentials, and the
keys that signed it. Only the time in which a person logs in is not counted."""


class ConnectOptions(TypedDict, total=False):
    """The options of `connect`, so that an editor knows them. `Options` has the defaults."""

    credentials: Any
    origin: str
    headers: Mapping[str, str]
    version: str
    binding: str
    policy: Policy
    tls: ssl.SSLContext | None
    proxy: str | None
    agents: Mapping[str, Any] | None
    transport: Transport | None
    url: str
    signed_by: Any
    guard: AddressGuard | None
    cache: AgentCache | None
    tap: Tap | None
    extensions: Sequence[str | ClientExtension]


class Options(Struct, frozen=True, kw_only=True):
    """How to reach an agent; see `connect`."""

    credentials: Any = None
    origin: str = ""
    headers: Mapping[str, str] = {}
    version: str = ""
    binding: str = ""
    policy: Policy = Policy()
    tls: ssl.SSLContext | None = None
    proxy: str | None = None
    agents: Mapping[str, Any] | None = None
    transport: Transport | None = None
    url: str = ""
    signed_by: Any = None
    guard: AddressGuard | None = None
    cache: AgentCache | None = None
    tap: Tap | None = None
    extensions: Sequence[str | ClientExtension] = ()


class Link(NamedTuple):
    """An open connection to an agent."""

    found: FoundCard
    peer: RoutedPeer
    service: RetryingService
    transport: AuthorizedTransport


async def open_link(target: Any, options: Options) -> Link:
    """Find the agent, read its card, and choose how to talk to it."""
    if isinstance(target, str):
        target, options = apply_config(target, options)
        if isinstance(target, str) and is_catalogue(target):
            target, options = await find_in_catalogue(target, options)
    transport, where = _make_transport(target, options)
    try:
        return await _open(transport, where, options)
    except BaseException:
        await transport.close()
        raise


def apply_config(target: str, options: Options) -> tuple[str | Path, Options]:
    """The place that `target` names, and the options with what `[agents]` says about it. Given options win."""
    try:
        agents = read_agents(options.agents)
    except ValueError as error:
        if "://" not in target:
            raise
        log.warning("the [agents] table cannot be read, so no credentials are taken from it: %s", error)
        agents = {}
    where = resolve_target(target, agents)
    entry = agents.get(target) or (find_entry(where, agents) if isinstance(where, str) else None)
    if entry is None:
        return where, options
    return where, replace(
        options,
        credentials=entry.credential if options.credentials is None else options.credentials,
        headers={**entry.headers, **options.headers},
        origin=options.origin or entry.origin,
        version=options.version or entry.version,
        binding=options.binding or entry.binding,
    )


async def find_in_catalogue(target: str, options: Options) -> tuple[Any, Options]:
    """The agent that `catalogue://host/name` names: the URL of its card or the card, and the options to connect to it.

    Credentials that were given are for the catalogue's own origin, wherever it says that the agent is. For an agent elsewhere, those of
    `[agents]` for its URL are used.
    """
    base, name = split_catalogue(target)
    _, asking = apply_config(base, options)
    transport, _ = _make_transport(base, asking)
    transport.origin = origin_of(asking.origin or base)
    transport.credential = combine_credentials(asking, None, transport.origin)
    try:
        found = card_of(await RemoteCatalogue(base, transport).find(name))
    finally:
        if options.transport is None:
            await transport.close()
    if options.credentials is not None or options.headers:
        return found, replace(options, origin=options.origin or base)
    return apply_config(found, options) if isinstance(found, str) else (found, options)


def _make_transport(target: Any, options: Options) -> tuple[AuthorizedTransport, Any]:
    """The transport, and where the agent is: a URL, or a card that was given."""
    if options.guard is not None and (options.transport is not None or not _is_remote(target)):
        raise TypeError(
            "guard= is for connections to other machines, not for a transport or an agent in this process"
        )

    def tapped(transport: Transport) -> Transport:
        return transport if options.tap is None else TappedTransport(transport, options.tap)

    if options.transport is not None:
        return AuthorizedTransport(tapped(options.transport)), options.url or target
    if hasattr(target, "app"):
        app = AsgiTransport(target.app(store="memory:"))
        return AuthorizedTransport(tapped(app)), options.url or IN_PROCESS
    if callable(target):
        return AuthorizedTransport(tapped(AsgiTransport(target))), options.url or IN_PROCESS
    if _is_remote(target):
        certificate, tls, guard = options.credentials, options.tls, options.guard
        proxy = options.proxy if guard is None else ""
        dial = None if guard is None else guard.dial
        network: dict[str, Any] = {
            "proxy": proxy,
            "guard": guard,
            "opens_channels": True,
            "tap": options.tap,
        }
        if isinstance(certificate, creds.ClientCertificate):
            bare = None if tls is None else creds.without_client_certificate(tls)
            plain = tapped(HttpTransport(tls=bare, proxy=proxy, dial=dial))
            own = tapped(HttpTransport(tls=certificate.context(tls), proxy=proxy, dial=dial))
            network |= {"elsewhere": plain, "tls": bare, "certificate": certificate}
            return AuthorizedTransport(own, **network), target
        over_http = tapped(HttpTransport(tls=tls, proxy=proxy, dial=dial))
        return AuthorizedTransport(over_http, tls=tls, **network), target
    raise TypeError(f"{target!r} is not an agent, a card, or the name of one")


def _is_remote(target: Any) -> bool:
    return isinstance(target, str | Path | AgentCard | Mapping)


async def _open(transport: AuthorizedTransport, where: Any, options: Options) -> Link:
    # All agents in this process have the same URL, so nothing is cached under it.
    cache = AgentCache() if where == IN_PROCESS else options.cache or discover.SHARED_CACHE
    limit = _TimeLimit(_CARD_SECONDS)
    if isinstance(where, str):
        found = await _find_card(transport, where, options, cache, limit)
        prefer = where
    else:
        found, prefer = read_given_card(where), ""
    if options.signed_by is not None:
        verifying = discover.verify_card(found, options.signed_by, transport.without_credentials)
        found = await limit.run(verifying, "the keys that may have signed the card could not be read")
    routes = find_routes(
        found,
        version=options.version,
        binding=options.binding,
        prefer=prefer,
        dialects=cache.dialects,
        channels=transport.opens_channels,
    )
    # A secret belongs to the agent that the user named, not to wherever the card points.
    transport.origin = origin_of(options.origin or (where if isinstance(where, str) else routes[0].url))
    transport.credential = combine_credentials(options, found.card, transport.origin)
    peer = RoutedPeer(routes, transport, silence=options.policy.silence, dialects=cache.dialects)
    service = RetryingService(
        peer,
        options.policy,
        streams=bool(found.card.capabilities.streaming),
        stops_unread=era_of(found.document, found_at=found.url) == "0.2",
    )
    return Link(found, peer, service, transport)


class _TimeLimit:
    """Limits the time of several steps together."""

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left = seconds

    async def run(self, step: Awaitable[T], failed: str) -> T:
        """The result of a step. Raises `Unreachable` if there is no time left; `failed` says what did not happen."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._left):
                return await step
        except TimeoutError:
            raise Unreachable(f"{failed} within {self._seconds:g} s") from None
        finally:
            self._left = max(0.0, self._left - (time.monotonic() - began))


async def _find_card(
    transport: AuthorizedTransport, url: str, options: Options, cache: AgentCache, limit: _TimeLimit
) -> FoundCard:
    """The card; without credentials if the agent shows it so."""
    transport.origin = origin_of(options.origin or url)
    if options.headers:
        transport.credential = creds.Headers(options.headers)
    version = options.version if options.version.startswith("1") else ""
    if options.signed_by is not None:
        version = version or "1.0"  # a signature fits one form of a card

    async def find(*, private: bool, has_credentials: bool) -> FoundCard:
        """A card is small and costs nothing to ask for: a server that is busy is asked again."""
        attempt = 0
        while True:
            try:
                return await find_card(
                    transport,
                    url,
                    cache,
                    version=version,
                    private=private,
                    has_credentials=has_credentials,
                )
            except A2AError as error:
                attempt += 1
                final = isinstance(error, NotSent) or not is_transient(error)
                if final or attempt >= options.policy.attempts:
                    raise
                await pause(options.policy, attempt, error, None)

    failed = f"{url} did not show its card"
    try:
        known = options.credentials is not None
        return await limit.run(find(private=bool(options.headers), has_credentials=known), failed)
    except Unauthenticated:
        transport.credential = combine_credentials(options, None, transport.origin)
        if transport.credential is None:
            raise
    await transport.add_credential(Outgoing(url, {}))  # fetches it: somebody may have to log in
    return await limit.run(find(private=True, has_credentials=True), failed)


def combine_credentials(options: Options, card: AgentCard | None, origin: str) -> creds.Credential | None:
    chosen: list[creds.Credential] = []
    if options.headers:
        chosen.append(creds.Headers(options.headers))
    if options.credentials is not None and not isinstance(options.credentials, creds.ClientCertificate):
        chosen.append(creds.choose_credential(options.credentials, card, origin))
    return chosen[0] if len(chosen) == 1 else creds.Combined(chosen) if chosen else None

"""Bring up the connection to an agent: transport, card, credentials, route, and a service that lasts on top."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dragoman.client import credentials as creds
from dragoman.client.agents_table import entry_for, read_agents
from dragoman.client.authorize import Authorized
from dragoman.client.discover import Found, address, find, given
from dragoman.client.origin import origin_of
from dragoman.client.resumable_stream import RetryingService
from dragoman.client.retry import Policy, is_transient, pause
from dragoman.client.routes import Routed, routes
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.client.transport.network import AddressGuard, HttpTransport
from dragoman.client.transport.transport import NotSent, Transport
from dragoman.errors import A2AError, Unauthenticated, Unreachable
from dragoman.model.card import AgentCard

log = logging.getLogger(__name__)

IN_PROCESS = "http://localhost"
_CARD_TIMEOUT = 30.0


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


class Link(NamedTuple):
    found: Found
    peer: Routed
    service: RetryingService
    transport: Authorized


async def open_link(target: Any, options: Options) -> Link:
    """Find the agent, and be ready to talk to it."""
    if isinstance(target, str):
        target, options = _looked_up(target, options)
    transport, where = _carrier(target, options)
    try:
        return await _open(transport, where, options)
    except BaseException:
        await transport.close()
        raise


def _looked_up(target: str, options: Options) -> tuple[str | Path, Options]:
    """Where a text leads, and how to go there: what `[agents]` says, where `connect` was not told otherwise."""
    try:
        agents = read_agents(options.agents)
    except ValueError as error:
        if "://" not in target:
            raise
        log.warning("no credentials are taken from a table that cannot be read: %s", error)
        agents = {}
    where = address(target, agents)
    entry = agents.get(target) or (entry_for(where, agents) if isinstance(where, str) else None)
    if entry is None:
        return where, options
    return where, replace(
        options,
        credentials=entry.proof if options.credentials is None else options.credentials,
        headers={**entry.headers, **options.headers},
        origin=options.origin or entry.origin,
        version=options.version or entry.version,
        binding=options.binding or entry.binding,
    )


def _carrier(target: Any, options: Options) -> tuple[Authorized, Any]:
    """What carries our requests, and where the agent is: a URL, or a card that is here already."""
    if options.guard is not None and (options.transport is not None or not _is_elsewhere(target)):
        raise TypeError(
            "guard= is for connections to other machines, not for a transport or an agent in this process"
        )
    if options.transport is not None:
        return Authorized(options.transport), options.url or target
    if hasattr(target, "app"):
        return Authorized(AsgiTransport(target.app(store="memory:"))), options.url or IN_PROCESS
    if callable(target):
        return Authorized(AsgiTransport(target)), options.url or IN_PROCESS
    if _is_elsewhere(target):
        certificate, tls, guard = options.credentials, options.tls, options.guard
        proxy = options.proxy if guard is None else ""
        dial = None if guard is None else guard.dial
        network: dict[str, Any] = {"proxy": proxy, "guard": guard, "opens_channels": True}
        if isinstance(certificate, creds.ClientCertificate):
            bare = None if tls is None else creds.showing_nothing(tls)
            plain = HttpTransport(tls=bare, proxy=proxy, dial=dial)
            shown = HttpTransport(tls=certificate.context(tls), proxy=proxy, dial=dial)
            return Authorized(shown, elsewhere=plain, tls=bare, certificate=certificate, **network), target
        return Authorized(HttpTransport(tls=tls, proxy=proxy, dial=dial), tls=tls, **network), target
    raise TypeError(f"{target!r} is not an agent, a card, or the name of one")


def _is_elsewhere(target: Any) -> bool:
    return isinstance(target, str | Path | AgentCard | Mapping)


async def _open(transport: Authorized, where: Any, options: Options) -> Link:
    if isinstance(where, str):
        found = await _find(transport, where, options)
        prefer = where
    else:
        found, prefer = given(where), ""
    if options.signed_by is not None:
        from dragoman.client.trust import vouched  # with cryptography, which takes its time

        found = await vouched(found, options.signed_by, transport.plain)
    elsewhere = where != IN_PROCESS  # all agents in this process have the same address
    ways = routes(
        found,
        version=options.version,
        binding=options.binding,
        prefer=prefer,
        remembered=elsewhere,
        channels=transport.opens_channels,
    )
    # A secret belongs to whoever the user named, not to wherever the card points.
    transport.origin = origin_of(options.origin or (where if isinstance(where, str) else ways[0].url))
    transport.credential = _credential(options, found.card, transport.origin)
    peer = Routed(ways, transport, silence=options.policy.silence, remembered=elsewhere)
    return Link(found, peer, RetryingService(peer, options.policy, streams=_streams(found.card)), transport)


async def _find(transport: Authorized, url: str, options: Options) -> Found:
    """The card; without credentials if it can be had so."""
    transport.origin = origin_of(options.origin or url)
    if options.headers:
        transport.credential = creds.Headers(options.headers)
    version = options.version if options.version.startswith("1") else ""
    if options.signed_by is not None:
        version = version or "1.0"  # a signature fits one shape of a card
    # All agents in this process have the same address, so a card is not kept under it.
    secret = bool(options.headers) or url == IN_PROCESS
    try:
        can_tell = options.credentials is not None
        return await _patiently(
            transport, url, options.policy, version=version, secret=secret, can_tell=can_tell
        )
    except Unauthenticated:
        transport.credential = _credential(options, None, transport.origin)
        if transport.credential is None:
            raise
    return await _patiently(transport, url, options.policy, version=version, secret=True, can_tell=True)


async def _patiently(transport: Authorized, url: str, policy: Policy, **how: Any) -> Found:
    """A card is small and costs nothing to ask for: a server that is busy is asked again, a silent one is not waited for."""
    attempt = 0
    while True:
        try:
            async with asyncio.timeout(_CARD_TIMEOUT):
                return await find(transport, url, **how)
        except TimeoutError:
            raise Unreachable(f"{url} did not show its card within {_CARD_TIMEOUT:g} s") from None
        except A2AError as error:
            attempt += 1
            if attempt >= policy.attempts or isinstance(error, NotSent) or not is_transient(error):
                raise
            await pause(policy, attempt, error, None)


def _credential(options: Options, card: AgentCard | None, origin: str) -> creds.Credential | None:
    shown: list[creds.Credential] = []
    if options.headers:
        shown.append(creds.Headers(options.headers))
    if options.credentials is not None and not isinstance(options.credentials, creds.ClientCertificate):
        shown.append(creds.chosen(options.credentials, card, origin))
    return shown[0] if len(shown) == 1 else creds.Several(shown) if shown else None


def _streams(card: AgentCard) -> bool:
    return bool(card.capabilities.streaming)

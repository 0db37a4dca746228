"""Where the entries of a catalogue come from, and who may see them.

A source lists what one viewer may see. What it does not list does not exist for that viewer: it is neither found nor counted. The
rule is that of cards: a card that is public is for everybody, a private card for callers that its agent accepts, and what an extended
card adds for the caller it is made for.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from dragoman.catalogue.entry import (
    AGENT,
    UP,
    Description,
    Entry,
    Health,
    describe,
    digest_of,
    search_text,
)
from dragoman.client.signature import UNSIGNED, VALID
from dragoman.dialects import select
from dragoman.errors import A2AError
from dragoman.model.card import AgentCard
from dragoman.model.ops import GetExtendedCard, Principal
from dragoman.server.exchange import Exchange
from dragoman.server.mount import Mount, client_certificate
from dragoman.server.pipeline import call_of

_MAX_KEPT = 4096
_EXTENDED_SECONDS = 60.0
"""How long an extended card is not asked for again."""
_ASK_SECONDS = 2.0
"""How long it is waited for: behind a bridge, an agent elsewhere has to answer."""


class Viewer:
    """Who looks at the catalogue: whoever sent a request, or the operator, who sees everything."""

    def __init__(
        self,
        exchange: Exchange | None = None,
        *,
        operator: bool = False,
        tenant: str = "",
        tenant_key: str = "",
    ) -> None:
        self.exchange, self.operator = exchange, operator
        self.known = operator or bool(tenant)
        """Somebody here accepted their credentials. Sources set it."""
        self.tenant = tenant
        """The tenant of a hub, by its name, as far as it is known already."""
        self.tenant_key = tenant_key
        """Its name in scopes."""

    async def principal(self, mount: Mount) -> Principal | None:
        """Who the viewer is for this agent; None if the agent does not accept them, or they show no credentials."""
        if (
            self.exchange is None
            or mount.authenticator is None
            or not _shows_credentials(self.exchange, mount)
        ):
            return None
        try:
            principal = await self.exchange.principal(mount)
        except A2AError:
            return None
        self.known = True
        return principal


def _shows_credentials(exchange: Exchange, mount: Mount) -> bool:
    """False for requests that nobody would take for an attempt to log in: they are not refused in log and audit."""
    if b"authorization" in exchange.headers or b"cookie" in exchange.headers:
        return True
    if client_certificate(exchange.scope):
        return True
    query = exchange.scope.get("query_string", b"").decode("latin-1")
    card = _card_of(mount)
    for scheme in card.security_schemes.values() if card is not None else ():
        if (key := scheme.api_key_security_scheme) is not None and (
            key.name.lower().encode("latin-1", "replace") in exchange.headers or f"{key.name}=" in query
        ):
            return True
    return False


def _may_read(mount: Mount, principal: Principal | None) -> bool:
    """True if a caller may read a private card."""
    if principal is not None and mount.check_reader is not None:
        try:
            mount.check_reader(principal)
        except A2AError:
            return False
    return principal is not None


def _card_of(mount: Mount) -> AgentCard | None:
    """None if it is not known: an agent behind a bridge that has not been reached yet."""
    try:
        return mount.current_card()
    except A2AError:
        return None


class Source(Protocol):
    async def entries(self, viewer: Viewer) -> Sequence[Entry]:
        """What the viewer may see."""
        ...


class Described:
    """Descriptions of cards, each made once for as long as the card stays the same."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], tuple[AgentCard, Description, str]] = OrderedDict()

    def get(self, key: tuple[str, ...], name: str, card: AgentCard) -> tuple[Description, str]:
        """The description of a card, and its digest."""
        kept = self._kept.get(key)
        if kept is None or (kept[0] is not card and kept[0] != card):
            while len(self._kept) >= _MAX_KEPT:
                self._kept.popitem(last=False)
            about = describe(card)
            kept = self._kept[key] = card, about, digest_of(search_text(name, about))
        return kept[1], kept[2]


class MountSource:
    """Agents at paths of this server. `health` says how one is, where that is not plain: behind a bridge, or nothing is known."""

    def __init__(
        self,
        mounts: Sequence[Mount] | Callable[[], Sequence[Mount]],
        *,
        kind: str = AGENT,
        health: Callable[[Mount], Health] | None = None,
        signature: Callable[[Mount], str] | None = None,
    ) -> None:
        self._mounts = mounts
        self._kind, self._health, self._signature = kind, health, signature
        self._described = Described()
        self._extended: OrderedDict[tuple[str, str, str], tuple[float, AgentCard | None]] = OrderedDict()

    async def entries(self, viewer: Viewer) -> Sequence[Entry]:
        found = []
        for mount in self._mounts() if callable(self._mounts) else self._mounts:
            principal = await viewer.principal(mount)
            if mount.private and not viewer.operator and not _may_read(mount, principal):
                continue
            card, whose = _card_of(mount) or AgentCard(name=mount.agent), ""
            if principal is not None and card.capabilities.extended_agent_card:
                extended = await self._extended_card(viewer, mount, principal)
                card, whose = (
                    (card, "") if extended is None else (extended, f"{principal.tenant}/{principal.id}")
                )
            found.append(self._entry(viewer, mount, card, whose))
        return found

    def _entry(self, viewer: Viewer, mount: Mount, card: AgentCard, whose: str) -> Entry:
        about, digest = self._described.get((mount.path, whose), mount.agent, card)
        if viewer.exchange is not None:
            here = viewer.exchange.shared.interfaces(mount, "")
            served = dict.fromkeys(f"{each.protocol_version} {each.protocol_binding}" for each in here)
            about = replace(about, interfaces=tuple(dict.fromkeys((*served, *about.interfaces)))[:24])
        if self._signature is not None:
            signature = self._signature(mount)
        else:
            signature = UNSIGNED if mount.signer is None else VALID
        return Entry(
            name=mount.agent,
            kind=self._kind,
            path=mount.path,
            private=mount.private,
            health=Health(state=UP) if self._health is None else self._health(mount),
            signature=signature,
            description=about,
            digest=digest,
        )

    async def _extended_card(self, viewer: Viewer, mount: Mount, principal: Principal) -> AgentCard | None:
        """What the agent shows to this caller; None if that is nothing more."""
        key = (mount.path, principal.tenant, principal.id)
        kept = self._extended.get(key)
        if kept is not None and kept[0] > time.monotonic():
            return kept[1]
        assert viewer.exchange is not None
        card: AgentCard | None
        try:
            call = call_of(viewer.exchange, mount, principal, select.by_name("1.0"))
            async with asyncio.timeout(_ASK_SECONDS):
                card = await mount.service.call(call, GetExtendedCard())
        except (A2AError, TimeoutError):
            card = None
        while len(self._extended) >= _MAX_KEPT:
            self._extended.popitem(last=False)
        self._extended[key] = time.monotonic() + _EXTENDED_SECONDS, card
        return card

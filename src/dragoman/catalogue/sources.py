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
    AgentHealth,
    Description,
    Entry,
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

_MAX_CACHED = 4096
_EXTENDED_SECONDS = 60.0
"""How long an extended card is cached."""
_ASK_SECONDS = 2.0
"""How long to wait for an extended card: behind a bridge, an agent elsewhere has to answer."""


class CatalogueViewer:
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
    """False for requests without credentials: they are not authenticated, so log and audit have no refusal of them."""
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
    async def entries(self, viewer: CatalogueViewer) -> Sequence[Entry]:
        """What the viewer may see."""
        ...


class DescriptionCache:
    """Caches the descriptions of cards until the cards change."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[str, ...], tuple[AgentCard, Description, str]] = OrderedDict()

    def get(self, key: tuple[str, ...], name: str, card: AgentCard) -> tuple[Description, str]:
        """The description of a card, and its digest."""
        cached = self._cache.get(key)
        if cached is None or (cached[0] is not card and cached[0] != card):
            while len(self._cache) >= _MAX_CACHED:
                self._cache.popitem(last=False)
            about = describe(card)
            cached = self._cache[key] = card, about, digest_of(search_text(name, about))
        return cached[1], cached[2]


class MountSource:
    """Agents at paths of this server. `health` returns the health of one, for agents behind a bridge; without it, they are up."""

    def __init__(
        self,
        mounts: Sequence[Mount] | Callable[[], Sequence[Mount]],
        *,
        kind: str = AGENT,
        health: Callable[[Mount], AgentHealth] | None = None,
        signature: Callable[[Mount], str] | None = None,
    ) -> None:
        self._mounts = mounts
        self._kind, self._health, self._signature = kind, health, signature
        self._descriptions = DescriptionCache()
        self._extended: OrderedDict[tuple[str, str, str], tuple[float, AgentCard | None]] = OrderedDict()

    async def entries(self, viewer: CatalogueViewer) -> Sequence[Entry]:
        found = []
        for mount in self._mounts() if callable(self._mounts) else self._mounts:
            principal = await viewer.principal(mount)
            if mount.private and not viewer.operator and not _may_read(mount, principal):
                continue
            card, reader = _card_of(mount) or AgentCard(name=mount.agent), ""
            if principal is not None and card.capabilities.extended_agent_card:
                extended = await self._extended_card(viewer, mount, principal)
                card, reader = (
                    (card, "") if extended is None else (extended, f"{principal.tenant}/{principal.id}")
                )
            found.append(self._entry(viewer, mount, card, reader))
        return found

    def _entry(self, viewer: CatalogueViewer, mount: Mount, card: AgentCard, reader: str) -> Entry:
        about, digest = self._descriptions.get((mount.path, reader), mount.agent, card)
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
            health=AgentHealth(state=UP) if self._health is None else self._health(mount),
            signature=signature,
            description=about,
            digest=digest,
        )

    async def _extended_card(
        self, viewer: CatalogueViewer, mount: Mount, principal: Principal
    ) -> AgentCard | None:
        """The extended card of the agent for this caller; None if there is none."""
        key = (mount.path, principal.tenant, principal.id)
        cached = self._extended.get(key)
        if cached is not None and cached[0] > time.monotonic():
            return cached[1]
        assert viewer.exchange is not None
        card: AgentCard | None
        try:
            call = call_of(viewer.exchange, mount, principal, select.DIALECTS["1.0"])
            async with asyncio.timeout(_ASK_SECONDS):
                card = await mount.service.call(call, GetExtendedCard())
        except (A2AError, TimeoutError):
            card = None
        while len(self._extended) >= _MAX_CACHED:
            self._extended.popitem(last=False)
        self._extended[key] = time.monotonic() + _EXTENDED_SECONDS, card
        return card

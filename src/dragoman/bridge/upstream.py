"""The agent behind a route, as a `Service`.

It is connected when it is first needed, and again after that failed, so a bridge starts while its agents are away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, Literal

from msgspec import Struct

from dragoman.bridge.settings import UpstreamSettings, shows_callers
from dragoman.client.client import Client, connect
from dragoman.client.credentials import ClientCertificate
from dragoman.client.discover import AgentCache
from dragoman.client.retry import Policy
from dragoman.errors import A2AError, keep_going
from dragoman.model.card import AgentCard
from dragoman.model.ops import Batch, Call, Request, SendMessage, SubscribeToTask

logger = logging.getLogger("dragoman.bridge")

_OPEN_SECONDS = 2.0
"""How long the start of a bridge waits for a card."""
_LONGEST_PAUSE_SECONDS = 10.0
"""Between two attempts to read it."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What is known of the signature of a card."""

    state: Literal["verified", "unchecked", "unsigned", "unknown"] = "unknown"
    """`unchecked`: it is signed, and nobody said by whom it has to be. `unknown`: the card was not read yet."""
    kid: str = ""
    algorithm: str = ""


class Health(Struct, frozen=True, kw_only=True):
    """How an upstream is, for operators."""

    state: Literal["up", "down", "unknown"] = "unknown"
    error: str = ""
    """Why it is down."""


class Upstream:
    """An agent elsewhere. `name` is that of its route."""

    def __init__(self, settings: UpstreamSettings, *, name: str) -> None:
        self.settings, self.name = settings, name
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._error = ""
        self._reading: asyncio.Task[None] | None = None
        self.known: AgentCard | None = None
        """Its card, as it was last read; None until then."""
        self.verdict = Verdict()

    async def open(self) -> None:
        """Reads the card. If the agent is away, tries again in the background: a bridge starts in any case."""
        first = asyncio.Event()
        self._reading = asyncio.create_task(self._read_card(first), name=f"dragoman-upstream-{self.name}")
        with suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_SECONDS):
                await first.wait()

    async def _read_card(self, tried: asyncio.Event) -> None:
        read, pause = False, 0.1
        while True:
            with keep_going(logger, f"reading the card of {self.name}", A2AError):
                await self.card()
                read = True
            tried.set()
            if read:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def card(self) -> AgentCard:
        """Its card. Raises `Unreachable`."""
        return (await self._connected()).card

    def health(self) -> Health:
        return Health(state="down" if self._error else "up" if self._client else "unknown", error=self._error)

    @property
    def deduplicates(self) -> bool:
        """True if it recognises a repeated `Idempotency-Key` and numbers its events: it is a Dragoman server."""
        return self._client is not None and self._client.link.peer.is_dragoman

    @property
    def shows_callers(self) -> bool:
        """True if the agent sees credentials of the caller, not only ours."""
        return shows_callers(self.settings)

    def remember_caller(self, call: Call) -> None:
        """A caller of the route was authenticated: what it showed may be needed to call the agent for it later."""

    async def call(self, call: Call, request: Request) -> Any:
        client = await self._connected()
        return await client.service.call(call, request)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        client = await self._connected()
        async with aclosing(client.service.stream(call, request)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                yield batch

    async def _connected(self) -> Client:
        if self._client is not None:
            return self._client
        async with self._opening:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        settings = self.settings
        client = connect(
            settings.addresses[0],
            credentials=ClientCertificate(settings.certificate)
            if settings.certificate
            else settings.credentials,
            headers=settings.headers,
            version=settings.version,
            binding=settings.binding,
            signed_by=settings.signed_by or None,
            policy=Policy(attempts=settings.retries + 1),
            agents={},
            cache=AgentCache(),
        )
        try:
            await client.open()
        except Exception as error:
            self._error = str(error)
            raise
        self._error = ""
        found = client.link.found
        self.known = found.card
        if found.verified is not None:
            self.verdict = Verdict(
                state="verified", kid=found.verified.kid, algorithm=found.verified.algorithm
            )
        else:
            self.verdict = Verdict(state="unchecked" if found.document.get("signatures") else "unsigned")
        return client

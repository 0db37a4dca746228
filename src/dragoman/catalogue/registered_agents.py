"""Agents elsewhere that the operator put into the catalogue, and the checks of whether they are alive.

A check fetches the card. It connects only where the guard allows it, sends no credentials, follows no redirect, and ends after
`CHECK_SECONDS`. A few checks run at a time. Nodes that share a store share the work: each agent is taken by one of them.
An agent that does not answer is asked less and less often, and what was known of it stays.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.catalogue.entry import (
    DOWN,
    REGISTERED,
    UP,
    AgentHealth,
    Description,
    Entry,
    describe,
    digest_of,
    search_text,
)
from dragoman.catalogue.sources import CatalogueViewer
from dragoman.client.discover import AgentCache, find_card
from dragoman.client.signature import UNKNOWN, check_signature
from dragoman.client.transport.network import AddressRefused, HttpTransport
from dragoman.client.transport.transport import Response, Transport, read_at_most
from dragoman.engine.protocols import CatalogueStore, RegisteredAgent
from dragoman.errors import A2AError, InvalidParams, Unauthenticated
from dragoman.model.ids import timestamp
from dragoman.observe.terminal import shorten
from dragoman.push.guard import Guard
from dragoman.server.routes import Conflict, NotFound

MAX_REGISTERED = 1000
CHECK_SECONDS = 10.0
MAX_CARD_BYTES = 256 << 10
CHECKS_AT_ONCE = 4
CHECK_INTERVAL_SECONDS = 300.0
MAX_INTERVAL_SECONDS = 3600.0
"""Seconds between two checks of an agent that has not answered for long."""
_POLL_SECONDS = 15.0
_ROWS_SECONDS = 1.0
"""How old a list of registered agents may be: other processes change it, too."""
_MAX_URL_CHARACTERS = 2048
_MAX_ERROR_CHARACTERS = 200
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

log = logging.getLogger("dragoman.catalogue")


class KnownAgent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a registered agent: the `body` of its row."""

    added: str = ""
    origin: Literal["operator", "settings"] = "operator"
    private: bool = False
    health: AgentHealth = AgentHealth()
    failures: int = 0
    """Checks in a row that failed."""
    signature: str = UNKNOWN
    card_url: str = ""
    description: Description | None = None


def check_url(url: str) -> None:
    """Raises `InvalidParams` for what cannot be the URL of an agent."""
    try:
        Guard(allow_private=True).check(url)
    except AddressRefused as error:
        raise InvalidParams(f"the URL of an agent: {error}", fields=(("url", str(error)),)) from None


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidParams(
            "a name in the catalogue has lower-case letters, digits, dots and dashes, and begins with one of the first two",
            fields=(("name", "is not a name"),),
        )


def name_from(text: str) -> str:
    """A name for the catalogue, from that of an agent or of its host."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")


class RegisteredAgents:
    """A `Source`. `transport` opens the transport of a check, instead of one that `guard` protects."""

    def __init__(
        self,
        store: CatalogueStore,
        guard: Guard,
        *,
        interval: float = CHECK_INTERVAL_SECONDS,
        transport: Callable[[], Transport] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._interval, self._clock = store, interval, clock
        self._transport = transport or (lambda: HttpTransport(dial=guard.dial, proxy=""))
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._rows: tuple[float, Sequence[RegisteredAgent]] = (float("-inf"), ())
        self._entries: dict[tuple[str, str, str, bytes], Entry] = {}

    # -- listing -----------------------------------------------------------------------------------------------

    async def entries(self, viewer: CatalogueViewer) -> Sequence[Entry]:
        return [
            entry
            for entry in map(self._entry, await self._list_registered())
            if viewer.operator
            or (entry.tenant in ("", viewer.tenant) and (viewer.known or not entry.private))
        ]

    async def _list_registered(self) -> Sequence[RegisteredAgent]:
        now = time.monotonic()
        if now - self._rows[0] > _ROWS_SECONDS:
            self._rows = now, await self._store.registered()
            keys = set(map(_key, self._rows[1]))
            self._entries = {key: entry for key, entry in self._entries.items() if key in keys}
        return self._rows[1]

    def _entry(self, agent: RegisteredAgent) -> Entry:
        """The entry of an agent. It is cached until its row changes."""
        entry = self._entries.get(key := _key(agent))
        if entry is None:
            entry = self._entries[key] = entry_of(agent, read_known(agent.body))
        return entry

    def _forget_rows(self) -> None:
        self._rows = float("-inf"), ()

    # -- registering -------------------------------------------------------------------------------------------

    async def add(self, url: str, *, name: str = "", tenant: str = "", private: bool = False) -> Entry:
        """Register an agent, and check it at once. Without a `name`, it gets one from its card or its host.

        An agent that does not answer is registered all the same. Raises `InvalidParams`, `Conflict`.
        """
        check_url(url)
        if name:
            check_name(name)
        known = await self._check(url, KnownAgent(added=timestamp(), private=private))
        name = name or name_from(known.description.name if known.description is not None else "")
        name = name or name_from(urlsplit(url).hostname or "") or "agent"
        agent = RegisteredAgent(
            tenant=tenant, name=name, url=url, due=self._next_check(known), body=msgspec.json.encode(known)
        )
        if not await self._store.register(agent, limit=MAX_REGISTERED):
            self._forget_rows()
            taken = any((each.tenant, each.name) == (tenant, name) for each in await self._list_registered())
            raise Conflict(
                f"there is an agent {name!r} in the catalogue: give this one another name"
                if taken
                else f"the catalogue has {MAX_REGISTERED} registered agents, and cannot have more"
            )
        self._forget_rows()
        return entry_of(agent, known)

    async def remove(self, name: str, *, tenant: str = "") -> None:
        """Raises `NotFound`."""
        if not await self._store.unregister(tenant, name):
            raise NotFound(f"there is no registered agent {shorten(name, 80)!r}")
        self._forget_rows()

    async def check(self, name: str, *, tenant: str = "") -> Entry:
        """Check an agent now. Raises `NotFound`."""
        self._forget_rows()
        for agent in await self._list_registered():
            if (agent.tenant, agent.name) == (tenant, name):
                return await self._refresh(agent)
        raise NotFound(f"there is no registered agent {shorten(name, 80)!r}")

    async def apply_settings(self, agents: Mapping[str, str]) -> None:
        """Register the agents of the settings, by name and URL. Unregister those that the settings do not list any more."""
        for agent in await self._store.registered():
            if read_known(agent.body).origin == "settings" and agents.get(agent.name) != agent.url:
                await self._store.unregister(agent.tenant, agent.name)
        body = msgspec.json.encode(KnownAgent(added=timestamp(), origin="settings"))
        for name, url in agents.items():
            await self._store.register(RegisteredAgent(name=name, url=url, body=body), limit=MAX_REGISTERED)
        self._forget_rows()
        self._wake.set()

    # -- checks ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._work(), name=f"dragoman-catalogue-{n}") for n in range(CHECKS_AT_ONCE)
        ]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            try:
                now = self._clock()
                due = await self._store.take_due(now, now + max(self._interval, 2 * CHECK_SECONDS), limit=1)
                for agent in due:
                    await self._refresh(agent)
            except Exception as error:
                log.warning(
                    "the catalogue could not be refreshed: %s",
                    shorten(str(error), _MAX_ERROR_CHARACTERS) or type(error).__name__,
                )
                due = ()
            if not due:
                await self._pause()

    async def _pause(self) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_POLL_SECONDS, self._interval)):
                await self._wake.wait()

    def _next_check(self, known: KnownAgent) -> float:
        wait = self._interval * 2 ** min(known.failures, 10) if known.failures else self._interval
        return self._clock() + max(self._interval, min(wait, MAX_INTERVAL_SECONDS))

    async def _refresh(self, agent: RegisteredAgent) -> Entry:
        before = read_known(agent.body)
        known = await self._check(agent.url, before)
        if known.health.state != before.health.state:
            log.info("%s (%s) is %s%s", agent.name, agent.url, known.health.state,
                     f": {known.health.error}" if known.health.error else "")  # fmt: skip
        agent = replace(agent, due=self._next_check(known), body=msgspec.json.encode(known))
        await self._store.update(agent)
        self._forget_rows()
        return entry_of(agent, known)

    async def _check(self, url: str, before: KnownAgent) -> KnownAgent:
        """What is known of the agent now. Never raises because of the agent."""
        transport, began = _LimitedTransport(self._transport()), time.monotonic()
        card: Mapping[str, object] = {}
        error, state = "", UP
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                card = await self._read_card(url, transport)
        except Unauthenticated:
            error = "its card needs credentials"
        except TimeoutError:
            error, state = f"it did not answer within {CHECK_SECONDS:g} s", DOWN
        except (A2AError, OSError, ValueError, RecursionError) as failure:
            error, state = shorten(str(failure), _MAX_ERROR_CHARACTERS) or type(failure).__name__, DOWN
        except Exception as failure:  # no card may stop the checks of others
            log.exception("the card at %s cannot be read", url)
            error, state = type(failure).__name__, DOWN
        finally:
            with suppress(Exception):
                await transport.close()
        now = timestamp()
        health = AgentHealth(
            state=state,
            checked=now,
            since=before.health.since if before.health.state == state else now,
            error=error,
            ms=round((time.monotonic() - began) * 1000) if state == UP else None,
        )
        failures = before.failures + 1 if state == DOWN else 0
        return replace(before, health=health, failures=failures, **card)

    async def _read_card(self, url: str, transport: Transport) -> Mapping[str, object]:
        found = await find_card(transport, url, AgentCache())
        checked = await check_signature(found, transport)
        about = await asyncio.to_thread(describe, found.card)
        return {"description": about, "signature": checked.state, "card_url": found.url[:_MAX_URL_CHARACTERS]}


def _key(agent: RegisteredAgent) -> tuple[str, str, str, bytes]:
    return agent.tenant, agent.name, agent.url, agent.body


class _LimitedTransport:
    """A transport that reads at most `MAX_CARD_BYTES` of an answer: parsing a large card would block other requests."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        return _LimitedResponse(await self._transport.request(method, url, headers, body), url)

    async def close(self) -> None:
        await self._transport.close()


class _LimitedResponse:
    def __init__(self, response: Response, url: str) -> None:
        self._response, self._url = response, url
        self.status, self.headers, self.close = response.status, response.headers, response.close

    async def chunks(self) -> AsyncIterator[bytes]:
        yield await self.read()

    async def read(self) -> bytes:
        return await read_at_most(self._response, MAX_CARD_BYTES, self._url)


def read_known(body: bytes) -> KnownAgent:
    try:
        return msgspec.json.decode(body, type=KnownAgent)
    except msgspec.MsgspecError:
        return KnownAgent()  # written by a newer version; the next check replaces it


def entry_of(agent: RegisteredAgent, known: KnownAgent) -> Entry:
    about = known.description or Description(name=agent.name)
    return Entry(
        name=agent.name,
        kind=REGISTERED,
        tenant=agent.tenant,
        url=agent.url,
        card_url=known.card_url,
        private=known.private,
        health=known.health,
        signature=known.signature,
        description=about,
        digest=digest_of(search_text(agent.name, about)),
        added=known.added,
    )

"""The keys of an issuer: given, or fetched and cached.

Fetched keys are fetched again when they are old, and when a token names an unknown key (the issuer has rotated them), but
not more often than every `PAUSE_SECONDS`: made-up key names cost one request. If the issuer cannot be reached, its last
keys stay valid for a day, and callers with one of them do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from dragoman.auth.jose import NOT_JSON, VerifyingKey, choose, read_keys
from dragoman.auth.schemes import Fetch
from dragoman.errors import A2AError, Unavailable

log = logging.getLogger(__name__)

FRESH_SECONDS, PAUSE_SECONDS, STALE_SECONDS = 300.0, 30.0, 86_400.0
"""Until keys are fetched again, between two requests, and until keys that cannot be fetched expire."""


class Keys(Protocol):
    async def find(self, kid: str, algorithm: str, fetch: Fetch) -> VerifyingKey | None:
        """Raises `Unavailable` if the keys are not known."""
        ...


class GivenKeys:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._keys = read_keys(document)
        if not self._keys:
            raise ValueError("no key in the set can verify a signature")

    async def find(self, kid: str, algorithm: str, fetch: Fetch) -> VerifyingKey | None:
        return choose(self._keys, kid, algorithm)


class FetchedKeys:
    """The keys at `where`: a URL, or a function that returns it."""

    def __init__(
        self, where: str | Callable[[Fetch], Awaitable[str]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._where, self._clock = where, clock
        self._keys: tuple[VerifyingKey, ...] | None = None
        self._fetched = self._tried = float("-inf")
        self._failed = False
        """The last request failed."""
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str, algorithm: str, fetch: Fetch) -> VerifyingKey | None:
        age = self._clock() - self._fetched
        if age > FRESH_SECONDS:
            fetching = self._begin_fetch(fetch)
            if fetching is not None and (not self._failed or age > STALE_SECONDS):
                await asyncio.shield(fetching)
        key = choose(self._keys or (), kid, algorithm)
        if key is None and (fetching := self._begin_fetch(fetch)) is not None:
            await asyncio.shield(fetching)
            key = choose(self._keys or (), kid, algorithm)
        if self._keys is None or (key is None and self._failed):  # nobody knows whether the issuer has it
            raise Unavailable(
                "the keys of the issuer cannot be fetched at the moment", retry_after=PAUSE_SECONDS
            )
        return key

    def _begin_fetch(self, fetch: Fetch) -> asyncio.Task[None] | None:
        """Begin to fetch the keys, unless that was just done. Concurrent calls share one request."""
        running = self._fetching
        if running is None or running.done() or running.get_loop() is not asyncio.get_running_loop():
            if self._clock() - self._tried < PAUSE_SECONDS:
                return None
            self._tried = self._clock()
            running = self._fetching = asyncio.create_task(self._fetch(fetch))
        return running

    async def _fetch(self, fetch: Fetch) -> None:
        try:
            url = self._where if isinstance(self._where, str) else await self._where(fetch)
            self._keys = read_keys(msgspec.json.decode(await fetch(url)))
            self._fetched, self._failed = self._clock(), False
        except (A2AError, ValueError, *NOT_JSON) as error:
            log.warning("the keys of an issuer could not be fetched: %s", error)
            self._failed = True
            if self._clock() - self._fetched > STALE_SECONDS:
                self._keys = None

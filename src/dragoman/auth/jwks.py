"""The keys of an issuer: given, or fetched and cached.

Fetched keys are fetched again when they are old, and when a token names an unknown key (the issuer has rotated them), but
not more often than every `PAUSE_SECONDS`: made-up key names cost one request. If the issuer cannot be reached, its last
keys stay valid for a day.
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
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str, algorithm: str, fetch: Fetch) -> VerifyingKey | None:
        if self._keys is None or self._clock() - self._fetched > FRESH_SECONDS:
            await self._refresh(fetch)
        key = choose(self._keys or (), kid, algorithm)
        if key is None and await self._refresh(fetch):
            key = choose(self._keys or (), kid, algorithm)
        if self._keys is None:
            raise Unavailable(
                "the keys of the issuer cannot be fetched at the moment", retry_after=PAUSE_SECONDS
            )
        return key

    async def _refresh(self, fetch: Fetch) -> bool:
        """Fetch the keys, unless that was just done. Concurrent calls share one request."""
        running = self._fetching
        if running is None or running.done() or running.get_loop() is not asyncio.get_running_loop():
            if self._clock() - self._tried < PAUSE_SECONDS:
                return False
            self._tried = self._clock()
            running = self._fetching = asyncio.create_task(self._fetch(fetch))
        await asyncio.shield(running)
        return True

    async def _fetch(self, fetch: Fetch) -> None:
        try:
            url = self._where if isinstance(self._where, str) else await self._where(fetch)
            self._keys = read_keys(msgspec.json.decode(await fetch(url)))
            self._fetched = self._clock()
        except (A2AError, ValueError, *NOT_JSON) as error:
            log.warning("the keys of an issuer could not be fetched: %s", error)
            if self._clock() - self._fetched > STALE_SECONDS:
                self._keys = None

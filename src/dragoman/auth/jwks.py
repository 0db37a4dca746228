"""Where the keys of an issuer come from: given, or fetched and kept for a while.

Fetched keys are asked for again when they are old, and when a message names one we do not have (the issuer has rotated
them), but never more often than once in a pause: a stranger who makes up key names costs one request. When the issuer
cannot be reached, what we had stays good for a day.
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

FRESH, PAUSE, STALE = 300.0, 30.0, 86_400.0
"""Seconds: until keys are asked for again, between two requests, and until unreachable keys are given up."""


class Keys(Protocol):
    async def find(self, kid: str, algorithm: str, fetch: Fetch) -> VerifyingKey | None:
        """Raises `Unavailable` when nobody can say."""
        ...


class GivenKeys:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._keys = read_keys(document)
        if not self._keys:
            raise ValueError("there is no key in the set that could verify a signature")

    async def find(self, kid: str, algorithm: str, fetch: Fetch) -> VerifyingKey | None:
        return choose(self._keys, kid, algorithm)


class FetchedKeys:
    """The keys at `where`: a URL, or a function that finds it out."""

    def __init__(
        self, where: str | Callable[[Fetch], Awaitable[str]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._where, self._clock = where, clock
        self._keys: tuple[VerifyingKey, ...] | None = None
        self._fetched = self._tried = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str, algorithm: str, fetch: Fetch) -> VerifyingKey | None:
        if self._keys is None or self._clock() - self._fetched > FRESH:
            await self._refresh(fetch)
        key = choose(self._keys or (), kid, algorithm)
        if key is None and await self._refresh(fetch):
            key = choose(self._keys or (), kid, algorithm)
        if self._keys is None:
            raise Unavailable("the keys of the issuer cannot be had at the moment", retry_after=PAUSE)
        return key

    async def _refresh(self, fetch: Fetch) -> bool:
        """Ask for the keys, unless that was just done; those who ask meanwhile wait for the same answer."""
        running = self._fetching
        if running is None or running.done() or running.get_loop() is not asyncio.get_running_loop():
            if self._clock() - self._tried < PAUSE:
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
            if self._clock() - self._fetched > STALE:
                self._keys = None

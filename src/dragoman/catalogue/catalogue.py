"""The catalogue of a server: its own agents, those behind bridges, and those that the operator registered.

Sources say what a viewer may see; the store ranks the texts of exactly these.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dragoman.catalogue.entry import Entry, search_text
from dragoman.catalogue.registered import NotRegistered, RegisteredAgents
from dragoman.catalogue.sources import Source, Viewer
from dragoman.engine.protocols import CatalogueStore
from dragoman.errors import RateLimited

MAX_SEARCHES = 64
"""Searches at a time; more are refused."""
_DAY = 86_400.0
_IN_USE, _UNUSED = _DAY, 7 * _DAY
"""How often a text that is in use is stored again, and when one that is not in use is deleted."""


_TEXTS_AT_ONCE = 25
"""Texts in one transaction, which other work of the process waits for."""


class Found(NamedTuple):
    entry: Entry
    score: float
    """From 0 to 1."""


class Catalogue:
    def __init__(
        self,
        store: CatalogueStore,
        sources: Sequence[Source],
        registered: RegisteredAgents,
        *,
        settings: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`settings`: the agents that the settings register, by name and URL; None: leave those of the store as they are."""
        self._store, self._sources, self._clock = store, tuple(sources), clock
        self.registered = registered
        self._settings = settings
        self._stored: dict[str, float] = {}
        """When texts were last stored, by digest."""
        self._searches = 0
        self._tidying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._settings is not None:
            await self.registered.take_settings(self._settings)
        self.registered.start()
        self._tidying = asyncio.create_task(self._tidy(), name="dragoman-catalogue-tidy")

    async def stop(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)
            self._tidying = None
        await self.registered.stop()

    async def list(self, viewer: Viewer) -> Sequence[Entry]:
        """All that the viewer may see, by name; agents of this server before others of the same name."""
        found: list[Entry] = []
        for source in self._sources:
            found += await source.entries(viewer)
        found += await self.registered.entries(viewer)  # last: by now it is known who looks
        return sorted(found, key=lambda entry: (entry.name, bool(entry.url), entry.tenant))

    async def search(self, viewer: Viewer, text: str) -> Sequence[Found]:
        """What matches, best first; without words to search, everything by name. Raises `RateLimited`."""
        if self._searches >= MAX_SEARCHES:
            raise RateLimited("too many searches at a time", retry_after=1)
        self._searches += 1
        try:
            entries = await self.list(viewer)
            if not text.strip():
                return [Found(entry, 1.0) for entry in entries]
            by_digest: dict[str, list[Entry]] = {}
            for entry in entries:
                by_digest.setdefault(entry.digest, []).append(entry)
            await self._store_texts(by_digest)
            ranked = await self._store.search(text, list(by_digest), limit=len(by_digest))
            found = [Found(entry, score) for digest, score in ranked for entry in by_digest[digest]]
            return sorted(found, key=lambda each: (-round(each.score, 6), each.entry.name))
        finally:
            self._searches -= 1

    async def find(self, viewer: Viewer, matches: Callable[[Entry], bool]) -> Entry:
        """The first entry that matches. Raises `NotRegistered`, also for what the viewer may not see."""
        for entry in await self.list(viewer):
            if matches(entry):
                return entry
        raise NotRegistered("there is no such agent in the catalogue")

    async def _store_texts(self, entries: Mapping[str, Sequence[Entry]]) -> None:
        now = self._clock()
        missing = {
            digest: search_text(some[0].name, some[0].description)
            for digest, some in entries.items()
            if now - self._stored.get(digest, 0.0) > _IN_USE
        }
        if missing:
            self._stored = {digest: at for digest, at in self._stored.items() if now - at <= _IN_USE}
        digests = list(missing)
        for start in range(0, len(digests), _TEXTS_AT_ONCE):
            batch = {digest: missing[digest] for digest in digests[start : start + _TEXTS_AT_ONCE]}
            await self._store.put_texts(batch, now)
            self._stored |= dict.fromkeys(batch, now)

    async def _tidy(self) -> None:
        """Delete texts that nobody uses."""
        while True:
            try:
                while await self._store.forget_texts(self._clock() - _UNUSED):
                    pass
            except Exception:  # the store is away, and has said so in the log
                pass
            await asyncio.sleep(_DAY)

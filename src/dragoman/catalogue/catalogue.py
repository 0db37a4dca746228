"""The catalogue of a server: its own agents, those behind bridges, and those that the operator registered.

Sources say what a viewer may see; the store ranks the texts of exactly these.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dragoman.catalogue.entry import Entry, search_text
from dragoman.catalogue.registered_agents import RegisteredAgents
from dragoman.catalogue.sources import CatalogueViewer, Source
from dragoman.engine.protocols import CatalogueStore
from dragoman.errors import RateLimited
from dragoman.server.routes import NotFound

MAX_SEARCHES = 64
"""Searches at a time; more are refused."""
_DAY_SECONDS = 86_400.0
_STORE_AGAIN_SECONDS, _DELETE_SECONDS = _DAY_SECONDS, 7 * _DAY_SECONDS
"""After how long a text that is used is stored again, and a text that is not used is deleted."""


_BATCH_TEXTS = 25
"""Texts in one transaction. Other work of the process waits for it."""


class Match(NamedTuple):
    entry: Entry
    score: float
    """From 0 to 1."""


class CatalogueSearch:
    def __init__(
        self,
        store: CatalogueStore,
        sources: Sequence[Source],
        registered: RegisteredAgents,
        *,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings`: the agents that the settings register, by name and URL; None: leave those of the store as they are."""
        self._store, self._sources, self._settings = store, tuple(sources), settings
        self.registered = registered
        self._stored: dict[str, float] = {}
        """When texts were last stored, by digest."""
        self._searches = 0
        self._deleting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._settings is not None:
            await self.registered.apply_settings(self._settings)
        self.registered.start()
        self._deleting = asyncio.create_task(self._delete_unused_texts(), name="dragoman-catalogue-tidy")

    async def stop(self) -> None:
        if self._deleting is not None:
            self._deleting.cancel()
            await asyncio.gather(self._deleting, return_exceptions=True)
            self._deleting = None
        await self.registered.stop()

    async def list(self, viewer: CatalogueViewer) -> Sequence[Entry]:
        """All that the viewer may see, by name; agents of this server before others of the same name."""
        found: list[Entry] = []
        for source in self._sources:
            found += await source.entries(viewer)
        found += await self.registered.entries(
            viewer
        )  # last: the other sources have authenticated the viewer
        return sorted(found, key=lambda entry: (entry.name, bool(entry.url), entry.tenant))

    async def search(self, viewer: CatalogueViewer, text: str) -> Sequence[Match]:
        """What matches, best first; without words to search, everything by name. Raises `RateLimited`."""
        if self._searches >= MAX_SEARCHES:
            raise RateLimited("too many searches at a time", retry_after=1)
        self._searches += 1
        try:
            entries = await self.list(viewer)
            if not text.strip():
                return [Match(entry, 1.0) for entry in entries]
            by_digest: dict[str, list[Entry]] = {}
            for entry in entries:
                by_digest.setdefault(entry.digest, []).append(entry)
            await self._store_texts(by_digest)
            ranked = await self._store.search(text, list(by_digest), limit=len(by_digest))
            found = [Match(entry, score) for digest, score in ranked for entry in by_digest[digest]]
            return sorted(found, key=lambda each: (-round(each.score, 6), each.entry.name))
        finally:
            self._searches -= 1

    async def find(self, viewer: CatalogueViewer, matches: Callable[[Entry], bool]) -> Entry:
        """The first entry that matches. Raises `NotFound`, also for what the viewer may not see."""
        for entry in await self.list(viewer):
            if matches(entry):
                return entry
        raise NotFound("there is no such agent in the catalogue")

    async def _store_texts(self, entries: Mapping[str, Sequence[Entry]]) -> None:
        now = time.time()
        missing = {
            digest: search_text(some[0].name, some[0].description)
            for digest, some in entries.items()
            if now - self._stored.get(digest, 0.0) > _STORE_AGAIN_SECONDS
        }
        if missing:
            self._stored = {
                digest: at for digest, at in self._stored.items() if now - at <= _STORE_AGAIN_SECONDS
            }
        digests = list(missing)
        for start in range(0, len(digests), _BATCH_TEXTS):
            batch = {digest: missing[digest] for digest in digests[start : start + _BATCH_TEXTS]}
            await self._store.put_texts(batch, now)
            self._stored |= dict.fromkeys(batch, now)

    async def _delete_unused_texts(self) -> None:
        """Delete texts that nobody uses."""
        while True:
            try:
                while await self._store.forget_texts(time.time() - _DELETE_SECONDS):
                    pass
            except Exception:  # the store is down, and has logged it
                pass
            await asyncio.sleep(_DAY_SECONDS)

"""The agents elsewhere that agents here call: one connection each, opened when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dragoman.client.agents_table import is_below
from dragoman.client.client import Client, connect
from dragoman.model.ops import Scope, Service


class Peers:
    """`credentials` by URL or name: what an agent here shows to one elsewhere. Its callers' are never passed on."""

    def __init__(self, *, credentials: Mapping[str, Any] | None = None, **options: Any) -> None:
        self._credentials = credentials or {}
        self._options = options
        self._open: dict[str, asyncio.Task[Client]] = {}

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        opening = self._open.get(name)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = self._open[name] = asyncio.create_task(self._connect(name))
        client = await asyncio.shield(opening)
        return client.service, Scope()

    async def close(self) -> None:
        opened, self._open = list(self._open.values()), {}
        for opening in opened:
            opening.cancel()  # those that are not open yet
        for client in await asyncio.gather(*opened, return_exceptions=True):
            if isinstance(client, Client):
                await client.close()

    async def _connect(self, name: str) -> Client:
        options = dict(self._options)
        if (credentials := self._meant_for(name)) is not None:
            options["credentials"] = credentials
        return await connect(name, **options).open()

    def _meant_for(self, name: str) -> Any:
        """The credential under this very name, or under the nearest URL above it."""
        if name in self._credentials or "://" not in name:
            return self._credentials.get(name)
        above = [url for url in self._credentials if is_below(name, url)]
        return self._credentials[max(above, key=len)] if above else None

"""The connections of an MCP server to its agent: one for each set of credentials, opened when first needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from dragoman.client.client import Client
from dragoman.errors import A2AError

Headers = Mapping[str, str]
"""The headers that carry the credentials of a caller; empty: those that the server was started with."""

MAX_CLIENTS = 64
REFRESH_SECONDS = 60.0
"""When somebody lists the tools, a card that is older than this is read again."""


class Clients:
    """`connect` makes a client that sends these headers to the agent."""

    def __init__(
        self,
        connect: Callable[[Headers], Client],
        *,
        limit: int = MAX_CLIENTS,
        refresh: float = REFRESH_SECONDS,
    ) -> None:
        self._connect, self._limit, self._refresh = connect, limit, refresh
        self._current: dict[tuple[tuple[str, str], ...], Client] = {}
        self._opened: dict[Client, float] = {}
        self._users: dict[Client, int] = {}

    async def acquire(self, headers: Headers = MappingProxyType({}), *, fresh: bool = False) -> Client:
        """A connected client; `release` it after use. `fresh`: with a card that is not old. Raises `A2AError`."""
        key = tuple(sorted(headers.items()))
        client = self._current.pop(key, None)
        if client is not None and fresh and time.monotonic() - self._opened.get(client, 0.0) > self._refresh:
            await self._close_unused(client)
            client = None
        client = client or self._connect(headers)
        self._current[key] = client  # in the order of their last use
        self.retain(client)
        try:
            await client.open()
            if client not in self._opened:
                self._opened[client] = time.monotonic()
                if client.card.capabilities.extended_agent_card:
                    with suppress(A2AError):  # only authenticated callers get it
                        await client.extended_card()
        except BaseException:
            await self.release(client)
            raise
        await self._close_oldest()
        return client

    def retain(self, client: Client) -> None:
        """Count one more user of a client; `release` it, too."""
        self._users[client] = self._users.get(client, 0) + 1

    async def release(self, client: Client) -> None:
        self._users[client] -= 1
        if client not in self._current.values():
            await self._close_unused(client)

    async def close(self) -> None:
        clients = {*self._current.values(), *self._users}
        self._current.clear()
        for client in clients:
            await client.close()

    async def _close_oldest(self) -> None:
        while len(self._current) > self._limit:
            await self._close_unused(self._current.pop(next(iter(self._current))))

    async def _close_unused(self, client: Client) -> None:
        """Close a client that is no longer current. If it is in use, its last user closes it."""
        if not self._users.get(client):
            self._users.pop(client, None)
            self._opened.pop(client, None)
            await client.close()

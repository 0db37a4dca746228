"""Notices what is done to tenants from the shell, which has the same file and nothing else of ours."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable

from dragoman.errors import A2AError
from dragoman.hub.database import Database
from dragoman.hub.quotas import Quotas
from dragoman.hub.tenants import Tenant, Tenants

log = logging.getLogger(__name__)

EVERY = 0.25
"""Seconds between two looks at whether somebody else has written to the hub's file."""


class Watch:
    """`silence` stops what runs for a tenant that may not go on."""

    def __init__(
        self,
        database: Database,
        tenants: Tenants,
        quotas: Quotas,
        silence: Callable[[Tenant], Awaitable[object]],
    ) -> None:
        self._database, self._tenants, self._quotas, self._silence = database, tenants, quotas, silence
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))

    async def _watch(self) -> None:
        seen = None
        while True:
            await asyncio.sleep(EVERY)
            try:
                if (now := self._database.version()) == seen:
                    continue
                for key in self._quotas.counts():
                    if (tenant := self._tenants.look(int(key))) is not None:
                        await self._silence(tenant)
                seen = now
            except (A2AError, sqlite3.Error) as error:
                log.warning("whether tenants were changed cannot be seen right now: %s", error)

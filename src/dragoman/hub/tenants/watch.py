"""Notices what is done to tenants from the shell, which has the same file and nothing else of ours."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable

from dragoman.errors import A2AError, keep_going
from dragoman.hub.database import Database
from dragoman.hub.tenants.quotas import Quotas
from dragoman.hub.tenants.tenants import Tenant, Tenants

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
        silence: Callable[[Tenant], Awaitable[tuple[int, bool]]],
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
        seen, pause = None, EVERY
        while True:
            await asyncio.sleep(pause)
            pause = 1.0
            with keep_going(log, "looking whether tenants were changed", A2AError, sqlite3.Error):
                if (now := self._database.version()) == seen:
                    pause = EVERY
                    continue
                if all(await asyncio.gather(*map(self._look, self._quotas.counts()))):
                    seen, pause = now, EVERY

    async def _look(self, key: str) -> bool:
        """Stop what runs for one tenant, if it may not. False: that has to be tried again."""
        with keep_going(log, f"stopping what runs for tenant {key}", A2AError, sqlite3.Error):
            if (tenant := self._tenants.look(int(key))) is not None:
                _, told = await self._silence(tenant)
                return told
            return True
        return False

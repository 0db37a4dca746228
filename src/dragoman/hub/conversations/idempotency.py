"""Keys by which clients repeat a request without having it done twice.

A key stands for a request's id from before the request begins, so that one who repeats it after a crash, or while the
first is still on its way, means the same request. After a day (or as the operator says) it is a new key again.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

from dragoman.hub.database import Database

_FORGET = "delete from idempotency_keys where at <= ?"
_FIND = "select request_id from idempotency_keys where tenant_id = ? and key = ?"
_KEEP = "insert or replace into idempotency_keys (tenant_id, key, request_id, at) values (?, ?, ?, ?)"


class Keys:
    def __init__(
        self, database: Database, *, seconds: float = 86_400, clock: Callable[[], float] = time.time
    ) -> None:
        self._db, self._seconds, self._clock = database, seconds, clock

    async def claim(self, tenant: int, key: str, request: str) -> str:
        """The request that a key stands for: `request`, unless there is one already."""
        now = self._clock()

        def claim(db: sqlite3.Connection) -> str:
            db.execute(_FORGET, (int(now - self._seconds),))
            known = db.execute(_FIND, (tenant, key)).fetchone()
            if known is not None:
                return str(known["request_id"])
            db.execute(_KEEP, (tenant, key, request, int(now)))
            return request

        return await self._db.run(claim)

    async def renew(self, tenant: int, key: str, request: str) -> None:
        """It stands for another request from now on: the one from before is gone."""
        values = (tenant, key, request, int(self._clock()))
        await self._db.run(lambda db: db.execute(_KEEP, values))

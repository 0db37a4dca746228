"""Who did what, in the store's own database.

Entries are one chain, whichever node writes them, so one writes at a time: each node writes all it has, in a transaction of
its own that keeps no task waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from dragoman.engine.protocols import AuditEntry
from dragoman.errors import Unavailable
from dragoman.stores.audit_chain import chained, entries_of, fields
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.database import Database, brief, clean

_TURN = "select pg_advisory_xact_lock(7237091846325302)"
_LAST = "select hash from dragoman.audit order by id desc limit 1"
_RECORD = """
insert into dragoman.audit (at, tenant, agent, principal, operation, task, outcome, dialect, trace, hash)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
$9::text[], $10::bytea[])
"""
_ENTRIES = """
select at, operation, outcome, tenant, agent, principal, task, dialect, trace, id, encode(hash, 'hex') from dragoman.audit
"""
_OLDEST = _ENTRIES + " where id < (select max(id) from dragoman.audit) order by id limit $1"
_FORGET = "delete from dragoman.audit where id <= $1"

_KEPT = 50_000
"""Entries that wait while the database is away. What comes then has no place."""
_MOST = 1000

_log = logging.getLogger("dragoman.stores")


class PostgresAudit:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[AuditEntry] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    def open(self) -> None:
        self._closed = False

    def record(self, entry: AuditEntry) -> None:
        if self._closed or len(self._waiting) >= _KEPT:
            _log.error(
                "an entry of the audit is lost: %s of %s", entry.operation, entry.principal or "somebody"
            )
            return
        self._waiting.append(entry)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="dragoman-audit")

    async def close(self) -> None:
        """Write what waits, if that is possible."""
        self._closed = True
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting[i] for i in range(min(len(self._waiting), _MOST))]
                try:
                    await self._database.write(partial(_add, entries=batch))
                except Unavailable:
                    if self._closed:
                        _log.error("%d entries of the audit are lost", len(self._waiting))
                        return
                    await asyncio.sleep(0.5)
                    continue
                except Exception:  # it would fail again and again, and what comes after it would wait
                    _log.exception("%d entries of the audit are lost", len(batch))
                for _ in batch:
                    self._waiting.popleft()
        finally:
            self._writer = None

    async def entries(
        self,
        *,
        tenant: str | None = None,
        principal: str = "",
        task: str = "",
        operation: str = "",
        since: str = "",
        before: int = 0,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        asked: dict[str, Any] = {
            "tenant = ": None if tenant is None else clean(tenant),
            "principal <> '' and principal = ": brief(principal) or None,  # as its index says
            "task <> '' and task = ": brief(task) or None,
            "operation = ": clean(operation) or None,
            "at >= ": clean(since) or None,
            "id < ": before or None,
        }
        terms = {term: value for term, value in asked.items() if value is not None}
        where = " and ".join(f"{term}${n}" for n, term in enumerate(terms, 1))
        sql = _ENTRIES + (f" where {where}" if where else "") + f" order by id desc limit ${len(terms) + 1}"

        async def look(db: Connection) -> list[AuditEntry]:
            return entries_of(await db.fetch(sql, *terms.values(), limit))

        return await self._database.read(look)

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        async def work(db: Connection) -> Sequence[AuditEntry]:
            await db.execute(_TURN)
            oldest = entries_of(await db.fetch(_OLDEST, limit))
            gone = list(takewhile(lambda entry: entry.at < before, oldest))
            if gone:
                await db.execute(_FORGET, gone[-1].id)
            return gone

        return await self._database.write(work)


async def _add(db: Connection, entries: Sequence[AuditEntry]) -> None:
    await db.execute(_TURN)
    before: bytes = await db.fetchval(_LAST) or b""
    rows = chained(before, (tuple(map(brief, fields(entry))) for entry in entries))
    await db.execute(_RECORD, *(list(column) for column in zip(*rows, strict=True)))

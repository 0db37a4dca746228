"""The audit log in a PostgreSQL database.

The entries of all nodes are one chain, so one node writes at a time. Each writes all its entries in a transaction of their own,
which delays no task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Unpack

from dragoman.engine.protocols import AuditEntry, AuditQuery
from dragoman.errors import Unavailable
from dragoman.stores.audit_chain import chain_rows, make_condition, read_entries, read_older, stored_fields
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.database import Database
from dragoman.stores.postgres.text import shorten_for_index

_LOCK_CHAIN = "select pg_advisory_xact_lock(7237091846325302)"
_LAST = "select hash from dragoman.audit order by id desc limit 1"
_RECORD = """
insert into dragoman.audit (at, tenant, agent, principal, operation, task, outcome, dialect, trace, hash)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
$9::text[], $10::bytea[])
"""
_ENTRIES = """
select at, operation, outcome, tenant, agent, principal, task, dialect, trace, id, encode(hash, 'hex') from dragoman.audit
"""
_TERMS = {
    "tenant": "tenant = ${n}",
    "principal": "principal <> '' and principal = ${n}",  # as its index says
    "task": "task <> '' and task = ${n}",
    "operation": "operation = ${n}",
    "since": "at >= ${n}",
    "before": "id < ${n}",
}
_OLDEST = _ENTRIES + " where id < (select max(id) from dragoman.audit) order by id limit $1"
_FORGET = "delete from dragoman.audit where id <= $1"

_MAX_WAITING_ENTRIES = 50_000
"""Entries that wait in memory while the database is away. Further entries are lost."""
_BATCH_ENTRIES = 1000
"""Entries in one transaction."""

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
        if self._closed or len(self._waiting) >= _MAX_WAITING_ENTRIES:
            _log.error(
                "an entry of the audit is lost: %s of %s", entry.operation, entry.principal or "somebody"
            )
            return
        self._waiting.append(entry)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="dragoman-audit")

    async def close(self) -> None:
        """Write the entries that wait, if that is possible."""
        self._closed = True
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting[i] for i in range(min(len(self._waiting), _BATCH_ENTRIES))]
                try:
                    await self._database.write(partial(_add, entries=batch))
                except Unavailable:
                    if self._closed:
                        _log.error("%d entries of the audit are lost", len(self._waiting))
                        return
                    await asyncio.sleep(0.5)
                    continue
                except Exception:  # it would fail again, and later entries would wait for ever
                    _log.exception("%d entries of the audit are lost", len(batch))
                for _ in batch:
                    self._waiting.popleft()
        finally:
            self._writer = None

    async def entries(self, *, limit: int = 100, **query: Unpack[AuditQuery]) -> Sequence[AuditEntry]:
        where, asked = make_condition(_TERMS, query)
        values = [shorten_for_index(value) if isinstance(value, str) else value for value in asked]
        sql = f"{_ENTRIES}{where} order by id desc limit ${len(values) + 1}"
        return read_entries(await self._database.read(lambda db: db.fetch(sql, *values, limit)))

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        async def work(db: Connection) -> Sequence[AuditEntry]:
            await db.execute(_LOCK_CHAIN)
            gone = read_older(await db.fetch(_OLDEST, limit), before)
            if gone:
                await db.execute(_FORGET, gone[-1].id)
            return gone

        return await self._database.write(work)


async def _add(db: Connection, entries: Sequence[AuditEntry]) -> None:
    await db.execute(_LOCK_CHAIN)
    before: bytes = await db.fetchval(_LAST) or b""
    rows = chain_rows(before, (tuple(map(shorten_for_index, stored_fields(entry))) for entry in entries))
    await db.execute(_RECORD, *(list(column) for column in zip(*rows, strict=True)))

"""The audit log in a SQLite file: entries join the next commit.

Transactions of all processes run one after the other, so all entries are one chain.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Unpack

from dragoman.engine.protocols import AuditEntry, AuditQuery
from dragoman.errors import Unavailable
from dragoman.stores.audit_chain import chain_rows, make_condition, read_entries, read_older, stored_fields
from dragoman.stores.sqlite.commits import NOTHING, Finish
from dragoman.stores.sqlite.file import SqliteFile

_RECORD = """
insert into audit (at, tenant, agent, principal, operation, task, outcome, dialect, trace, hash)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_LAST = "select hash from audit order by id desc limit 1"
_ENTRIES = "select at, operation, outcome, tenant, agent, principal, task, dialect, trace, id, lower(hex(hash)) from audit"

_TERMS = {
    "tenant": "tenant = ?",
    "principal": "principal <> '' and principal = ?",  # as its index says
    "task": "task = ?",
    "operation": "operation = ?",
    "since": "at >= ?",
    "before": "id < ?",
}
_OLDEST = _ENTRIES + " where id < (select max(id) from audit) order by id limit ?"
_FORGET = "delete from audit where id <= ?"


class SqliteAudit:
    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._open: list[AuditEntry] | None = None
        """Entries for the next transaction; None if none wait."""
        self._written: asyncio.Future[None] | None = None
        """Done when those entries are on disk, or could not be written, which is logged."""

    def record(self, entry: AuditEntry) -> None:
        if self._open is not None and self._written is not None and not self._written.done():
            self._open.append(entry)
            return
        self._open = [entry]
        with suppress(Unavailable):  # the store is closed
            self._written = self._file.commits.submit(partial(self._write_job, self._open))

    def _write_job(self, batch: list[AuditEntry], db: sqlite3.Connection) -> Finish[None]:
        if self._open is batch:
            self._open = None
        last = db.execute(_LAST).fetchone()
        db.executemany(_RECORD, chain_rows((last and last[0]) or b"", map(stored_fields, batch)))
        return NOTHING

    async def entries(self, *, limit: int = 100, **query: Unpack[AuditQuery]) -> Sequence[AuditEntry]:
        where, values = make_condition(_TERMS, query)
        sql = f"{_ENTRIES}{where} order by id desc limit ?"
        rows = await self._file.reads.in_thread(lambda db: db.execute(sql, (*values, limit)).fetchall())
        return read_entries(rows)

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        def job(db: sqlite3.Connection) -> Finish[Sequence[AuditEntry]]:
            gone = read_older(db.execute(_OLDEST, (limit,)), before)
            if gone:
                db.execute(_FORGET, (gone[-1].id,))
            return lambda: gone

        return await self._file.commits.submit(job)

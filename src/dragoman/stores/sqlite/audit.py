"""Who did what, in the store's own file: an entry joins the commit that is being made anyway.

However many processes write, their transactions come one after the other, so all entries are one chain.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile

from dragoman.engine.protocols import AuditEntry
from dragoman.errors import Unavailable
from dragoman.stores.audit_chain import chained, entries_of, fields
from dragoman.stores.sqlite.commits import NOTHING, Finish
from dragoman.stores.sqlite.file import SqliteFile

_RECORD = """
insert into audit (at, tenant, agent, principal, operation, task, outcome, dialect, trace, hash)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_LAST = "select hash from audit order by id desc limit 1"
_ENTRIES = "select at, operation, outcome, tenant, agent, principal, task, dialect, trace, id, lower(hex(hash)) from audit"

_OLDEST = _ENTRIES + " where id < (select max(id) from audit) order by id limit ?"
_FORGET = "delete from audit where id <= ?"


class SqliteAudit:
    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._open: list[AuditEntry] | None = None
        """What the next transaction takes along; None if nothing waits for one."""
        self._written: asyncio.Future[None] | None = None
        """Done when those are on disk, or when they could not be written: then the log says why."""

    def record(self, entry: AuditEntry) -> None:
        if self._open is not None and self._written is not None and not self._written.done():
            self._open.append(entry)
            return
        self._open = [entry]
        with suppress(Unavailable):  # closed; the log has said why
            self._written = self._file.commits.submit(partial(self._write, self._open))

    def _write(self, batch: list[AuditEntry], db: sqlite3.Connection) -> Finish[None]:
        if self._open is batch:
            self._open = None
        last = db.execute(_LAST).fetchone()
        db.executemany(_RECORD, chained((last and last[0]) or b"", map(fields, batch)))
        return NOTHING

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
        asked = {
            "tenant = ?": tenant,
            "principal <> '' and principal = ?": principal or None,  # as its index says
            "task = ?": task or None,
            "operation = ?": operation or None,
            "at >= ?": since or None,
            "id < ?": before or None,
        }
        terms = {term: value for term, value in asked.items() if value is not None}
        sql = _ENTRIES + (" where " + " and ".join(terms) if terms else "") + " order by id desc limit ?"
        values = (*terms.values(), limit)
        rows = await self._file.reads.in_thread(lambda db: db.execute(sql, values).fetchall())
        return entries_of(rows)

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        def job(db: sqlite3.Connection) -> Finish[Sequence[AuditEntry]]:
            oldest = entries_of(db.execute(_OLDEST, (limit,)).fetchall())
            gone = list(takewhile(lambda entry: entry.at < before, oldest))
            if gone:
                db.execute(_FORGET, (gone[-1].id,))
            return lambda: gone

        return await self._file.commits.submit(job)

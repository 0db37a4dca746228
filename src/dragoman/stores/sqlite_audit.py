"""Who did what, in the store's own file: an entry joins the commit that is being made anyway."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence

from dragoman.engine.seams import AuditEntry
from dragoman.errors import Unavailable
from dragoman.stores.sqlite_commits import Finish
from dragoman.stores.sqlite_file import SqliteFile

_RECORD = """
insert into audit (at, tenant, agent, principal, operation, task, outcome, dialect, trace) values (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ENTRIES = "select at, operation, outcome, tenant, agent, principal, task, dialect, trace, id from audit"


class SqliteAudit:
    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._waiting: list[AuditEntry] = []

    def record(self, entry: AuditEntry) -> None:
        self._waiting.append(entry)
        if len(self._waiting) > 1:
            return  # a job is on its way, and takes this one along
        try:
            written = self._file.commits.submit(self._write)
        except Unavailable:
            self._waiting.clear()  # closed; the log has said why
            return
        written.add_done_callback(self._done)

    def _done(self, written: asyncio.Future[None]) -> None:
        if written.cancelled() or written.exception():  # the store is away, and has said so in the log
            self._waiting.clear()

    def _write(self, db: sqlite3.Connection) -> Finish[None]:
        entries = list(self._waiting)
        db.executemany(_RECORD, [_row(entry) for entry in entries])

        def written() -> None:
            del self._waiting[: len(entries)]
            if self._waiting:  # they came while this was being committed
                rest, self._waiting = self._waiting, []
                for entry in rest:
                    self.record(entry)

        return written

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
        rows = await self._file.reads.elsewhere(lambda db: db.execute(sql, values).fetchall())
        names = AuditEntry.__struct_fields__
        return [AuditEntry(**dict(zip(names, row, strict=True))) for row in rows]


def _row(entry: AuditEntry) -> tuple[str, ...]:
    return (
        entry.at,
        entry.tenant,
        entry.agent,
        entry.principal,
        entry.operation,
        entry.task,
        entry.outcome,
        entry.dialect,
        entry.trace,
    )

"""Who did what, in the store's own file: an entry joins the commit that is being made anyway."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

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

    def record(self, entry: AuditEntry) -> None:
        try:
            written = self._file.commits.submit(partial(_record, entry))
        except Unavailable:
            return  # closed; the log has said why
        written.add_done_callback(lambda done: done.cancelled() or done.exception())

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
            "principal = ?": principal or None,
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


def _record(entry: AuditEntry, db: sqlite3.Connection) -> Finish[None]:
    db.execute(
        _RECORD,
        (
            entry.at,
            entry.tenant,
            entry.agent,
            entry.principal,
            entry.operation,
            entry.task,
            entry.outcome,
            entry.dialect,
            entry.trace,
        ),
    )
    return _nothing


def _nothing() -> None:
    return None

"""Reads of a PostgreSQL database, and what is cached of it: snapshots, the numbers of scopes, and damage."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.engine.records import Record, unpack
from dragoman.engine.snapshot import SnapshotCache
from dragoman.errors import InvalidParams, TaskUnreadable, Unavailable
from dragoman.model.ops import Scope
from dragoman.stores.damage import UNREADABLE_ERRORS, Damage
from dragoman.stores.postgres.address import CORRUPTION_ERRORS
from dragoman.stores.postgres.database import Database
from dragoman.stores.postgres.text import is_indexable, is_storable

_SCOPE = "select scope from dragoman.scopes where tenant = $1 and agent = $2 and owner = $3"
_NEW_SCOPE = "insert into dragoman.scopes (tenant, agent, owner) values ($1, $2, $3) on conflict do nothing"
# A row is named by its last record. Its size is known without reading it.
_RECORDS = """
with first as (
    select seq, sum(octet_length(body)) over (order by seq) as size
    from (select seq, body from dragoman.log where key = $1 and seq > $2 order by seq limit $3) as rows
), piece as (select coalesce(min(seq) filter (where size >= $4), max(seq)) as upto from first)
select seq, body from dragoman.log, piece where key = $1 and seq > $2 and seq <= upto order by seq
"""
_MANY_ROWS, _MANY_BYTES = 2**31 - 1, 2**62


class Reads:
    def __init__(self, database: Database, *, cached_snapshots: int) -> None:
        self._database = database
        self._scopes: dict[Scope, int] = {}
        self.snapshots = SnapshotCache(count=cached_snapshots)
        self.damage = Damage()

    async def scope(self, scope: Scope) -> int | None:
        """The number of a scope; None if nothing was ever stored in it."""
        number = self._scopes.get(scope)
        names = (scope.tenant, scope.agent, scope.owner)
        if number is None and is_storable(*names):
            number = await self._database.read(lambda db: db.fetchval(_SCOPE, *names))
            if number is not None:
                if len(self._scopes) > 10_000:
                    self._scopes.clear()
                self._scopes[scope] = number
        return number

    async def new_scope(self, scope: Scope) -> int:
        """The number of a scope. Inserts the scope if it is new."""
        number = self._scopes.get(scope)
        if number is None:
            names = (scope.tenant, scope.agent, scope.owner)
            if not is_indexable(*names):
                raise InvalidParams(
                    "tenant, agent or owner cannot be stored: there is a NUL in a name, or it is too long"
                )
            await self._database.write(lambda db: db.execute(_NEW_SCOPE, *names))
            number = await self.scope(scope)
            assert number is not None
        return number

    async def records(
        self, task: str, key: int, after: int, limit: int | None, max_bytes: int | None
    ) -> list[Record]:
        """The records after `after`: whole appends, until they have `limit` records or `max_bytes`."""
        rows_wanted = _MANY_ROWS if limit is None else limit
        size = _MANY_BYTES if max_bytes is None else max_bytes
        try:
            rows = await self._database.read(lambda db: db.fetch(_RECORDS, key, after, rows_wanted, size))
        except Unavailable as error:
            if isinstance(error.__cause__, CORRUPTION_ERRORS):
                self.damage.note_task(task, error.__cause__)
                raise TaskUnreadable(task) from error
            raise
        return self.unpack(task, rows, after)

    def unpack(self, task: str, rows: Iterable[tuple[int, bytes]], after: int) -> list[Record]:
        try:
            records = _unpack(rows, after)
        except UNREADABLE_ERRORS as error:
            self.damage.note_task(task, error)
            raise TaskUnreadable(task) from error
        self.damage.clear(task)
        return records


def _unpack(rows: Iterable[tuple[int, bytes]], after: int) -> list[Record]:
    out: list[Record] = []
    for last, body in rows:
        records = unpack(body, last - body.count(b"\n"))
        if not out and records[0].seq <= after:  # `after` is in the middle of a row
            del records[: after - records[0].seq + 1]
        out += records
    return out

"""Reading the PostgreSQL store: what was committed, and nothing else.

Snapshots of the last tasks are kept, and brought up to date from the log when they are behind, so it does not matter who
wrote: this process, by moving them on itself, or another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from dragoman.engine.log import Record, Snapshot, unpack
from dragoman.engine.seams import Found
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model.ops import ListTasks, Scope
from dragoman.stores.pages import Filters, read_filters
from dragoman.stores.postgres_address import Connection
from dragoman.stores.postgres_database import Database
from dragoman.stores.postgres_text import fits, indexed

_SCOPE = "select scope from dragoman.scopes where tenant = $1 and agent = $2 and owner = $3"
_NEW_SCOPE = "insert into dragoman.scopes (tenant, agent, owner) values ($1, $2, $3) on conflict do nothing"
_TASK = "select key, seq, context from dragoman.tasks where scope = $1 and id = $2"
_TASK_OF_KEY = "select seq, id, context from dragoman.tasks where key = $1"
# A row is named by its last record: those up to the first one that reaches `upto` have all records until then.
_ROWS = """
seq > $2 and seq <= coalesce((select min(seq) from dragoman.log where key = $1 and seq >= $3), $3)
"""
_RECORDS = f"select seq, body from dragoman.log where key = $1 and {_ROWS} order by seq"
_MATCH = """
from dragoman.tasks where scope = $1 and (not reply or state <> 'TASK_STATE_SUBMITTED')
and ($2 = '' or context = $2) and ($3 = '' or state = $3) and updated >= $4
"""
_COUNT = "select count(*) " + _MATCH
_PAGE = (
    "select key, seq, id, context, updated "
    + _MATCH
    + " and updated <= $5 and not (updated = $5 and id <= $6) order by updated desc, id limit $7"
)
_FIRST_PAGE = "~"  # after every timestamp
_END = 2**31 - 1

_LONG = 1000
"""So many records are folded at a time."""


class Reads:
    def __init__(self, database: Database, *, keep: int) -> None:
        self._database = database
        self._keep = keep
        self._scopes: dict[Scope, int] = {}
        self._snapshots: OrderedDict[int, Snapshot] = OrderedDict()

    async def scope(self, scope: Scope) -> int | None:
        """The number of a scope; None if nothing was ever stored in it."""
        number = self._scopes.get(scope)
        names = (scope.tenant, scope.agent, scope.owner)
        if number is None and fits(*names):
            number = await self._database.read(lambda db: db.fetchval(_SCOPE, *names))
            if number is not None:
                if len(self._scopes) > 10_000:
                    self._scopes.clear()
                self._scopes[scope] = number
        return number

    async def new_scope(self, scope: Scope) -> int:
        """The number of a scope, which has one from now on."""
        number = self._scopes.get(scope)
        if number is None:
            names = (scope.tenant, scope.agent, scope.owner)
            if not indexed(*names):
                raise InvalidParams(
                    "whose task it is cannot be kept: there is a NUL in a name, or it is too long"
                )
            await self._database.write(lambda db: db.execute(_NEW_SCOPE, *names))
            number = await self.scope(scope)
            assert number is not None
        return number

    async def load(self, scope: Scope, task: str) -> Snapshot:
        key, seq, context = await self._task(scope, task)
        return await self._caught_up(key, seq, self._snapshots.get(key) or Snapshot(scope, task, context))

    async def load_key(self, scope: Scope, key: int) -> Snapshot:
        """The task that the database calls `key`. Raises `TaskNotFound` if it was purged."""
        row = await self._database.read(lambda db: db.fetchrow(_TASK_OF_KEY, key))
        if row is None:
            raise TaskNotFound
        seq, task, context = row
        return await self._caught_up(key, seq, self._snapshots.get(key) or Snapshot(scope, task, context))

    async def _caught_up(self, key: int, seq: int, snapshot: Snapshot) -> Snapshot:
        while snapshot.seq < seq:
            _apply(snapshot, await self._records(key, snapshot.seq, snapshot.seq + _LONG))
        newer = self._snapshots.get(key)
        if newer is not None and newer.seq >= snapshot.seq:
            snapshot = newer  # somebody else was reading, too
        self.keep(key, snapshot)
        return snapshot

    async def read(self, scope: Scope, task: str, after: int, limit: int | None) -> Sequence[Record]:
        key, seq, _ = await self._task(scope, task)
        if seq <= after:
            return ()
        return (await self._records(key, after, _END if limit is None else after + limit))[:limit]

    def kept(self, key: int) -> Snapshot | None:
        return self._snapshots.get(key)

    def keep(self, key: int, snapshot: Snapshot) -> None:
        self._snapshots[key] = snapshot
        self._snapshots.move_to_end(key)
        if len(self._snapshots) > self._keep:
            self._snapshots.popitem(last=False)

    def move(self, key: int, records: Sequence[Record]) -> None:
        """Move the kept snapshot on by what was just committed."""
        snapshot = self._snapshots.get(key)
        if snapshot is None or not records:
            return
        if snapshot.seq < records[0].seq - 1:  # another process wrote in between
            del self._snapshots[key]
            return
        for record in records:
            snapshot.apply(record)

    async def find(self, scope: Scope, query: ListTasks, limit: int) -> Found:
        filters = read_filters(scope, query)
        if filters.after is not None and not fits(*filters.after):
            why = "is not from a page of this list"
            raise InvalidParams(f"pageToken {why}", fields=(("pageToken", why),))
        number = await self.scope(scope)
        if number is None or not fits(filters.context):
            return Found((), "", 0)

        total, rows = await self._database.read(lambda db: _page(db, number, filters, limit))
        next = filters.cursor(rows[limit - 1][4], rows[limit - 1][2]) if len(rows) > limit else ""
        return Found(await self._as_of(scope, rows[:limit]), next, total)

    async def _as_of(self, scope: Scope, rows: Sequence[tuple[int, int, str, str, str]]) -> list[Snapshot]:
        """The tasks of these rows, as they were then. What is kept may have moved on, and may while we read."""
        folded: dict[int, Snapshot | None] = {}
        while True:
            behind = [row for row in rows if row[0] not in folded and not self._is_at(*row[:2])]
            if not behind:
                break
            for key, seq, task, context, _ in behind:
                snapshot: Snapshot | None = Snapshot(scope, task, context)
                try:
                    while snapshot is not None and snapshot.seq < seq:
                        upto = min(snapshot.seq + _LONG, seq)
                        _apply(snapshot, await self._records(key, snapshot.seq, upto))
                except TaskNotFound:  # purged meanwhile
                    snapshot = None
                folded[key] = snapshot
        found = [folded[row[0]] if row[0] in folded else self._snapshots[row[0]] for row in rows]
        return [snapshot for snapshot in found if snapshot is not None]

    def _is_at(self, key: int, seq: int) -> bool:
        kept = self._snapshots.get(key)
        return kept is not None and kept.seq == seq

    async def _task(self, scope: Scope, task: str) -> tuple[int, int, str]:
        number = await self.scope(scope)
        row: tuple[int, int, str] | None = None
        if number is not None and fits(task):
            row = await self._database.read(lambda db: db.fetchrow(_TASK, number, task))
        if row is None:
            raise TaskNotFound(task)
        return row

    async def _records(self, key: int, after: int, upto: int) -> list[Record]:
        """The records after `after`, at least until `upto` if there are so many."""
        rows = await self._database.read(lambda db: db.fetch(_RECORDS, key, after, upto))
        return _unpacked(rows, after)


async def _page(
    db: Connection, scope: int, filters: Filters, limit: int
) -> tuple[int, list[tuple[int, int, str, str, str]]]:
    """How many match, and the rows of the page and the first of the next, as of one moment."""
    before, id = filters.after or (_FIRST_PAGE, "")
    match = (scope, filters.context, filters.state, filters.since)
    async with db.transaction(isolation="repeatable_read", readonly=True):
        total: int = await db.fetchval(_COUNT, *match)
        return total, await db.fetch(_PAGE, *match, before, id, limit + 1)


def _apply(snapshot: Snapshot, records: Sequence[Record]) -> None:
    if not records:
        raise TaskNotFound(snapshot.task_id)  # purged between the two reads
    for record in records:
        snapshot.apply(record)


def _unpacked(rows: Iterable[tuple[int, bytes]], after: int) -> list[Record]:
    out: list[Record] = []
    for last, body in rows:
        records = unpack(body, last - body.count(b"\n"))
        if not out and records[0].seq <= after:  # `after` is in the middle of a row
            del records[: after - records[0].seq + 1]
        out += records
    return out

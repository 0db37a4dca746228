"""Reading the SQLite store: what was committed, and nothing else.

A point read takes tens of microseconds and happens where it is asked for; a search or a long log is read on a thread
of its own. Snapshots of the last tasks are kept, and brought up to date from the log when they are behind, so it does
not matter who wrote: this process, by moving them on itself, or another.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from dragoman.engine.log import Record, Snapshot, unpack
from dragoman.engine.seams import Found
from dragoman.errors import TaskNotFound, Unavailable
from dragoman.model.ops import ListTasks, Scope
from dragoman.stores.pages import Filters, read_filters

_SCOPE = "select scope from scopes where tenant = ? and agent = ? and owner = ?"
_TASK = "select key, seq, context from tasks where scope = ? and id = ?"
_TASK_OF_KEY = "select seq, id, context from tasks where key = ?"
_RECORDS = f"select place & {(1 << 28) - 1}, body from log where place > ? and place < ? order by place"
_MATCH = """
 from tasks where scope = :scope and (reply = 0 or state <> 'TASK_STATE_SUBMITTED')
 and (:context = '' or context = :context) and (:state = '' or state = :state) and updated >= :since
"""
_COUNT = "select count(*)" + _MATCH
_PAGE = (
    "select key, seq, id, context, updated"
    + _MATCH
    + " and updated <= :before and not (updated = :before and id <= :id) order by updated desc, id limit :limit"
)
_FIRST_PAGE = "~"  # after every timestamp

_LONG = 1000
"""So many records are read on the other thread, and folded so many at a time."""

T = TypeVar("T")

_log = logging.getLogger("dragoman.stores")


class Reads:
    def __init__(self, connect: Callable[[], sqlite3.Connection], *, keep: int) -> None:
        self._keep = keep
        self._here = connect()
        self._there = connect()
        self._thread = ThreadPoolExecutor(1, "dragoman-reads")
        self._scopes: dict[Scope, int] = {}
        self._snapshots: OrderedDict[int, Snapshot] = OrderedDict()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._here.close()
        self._there.close()

    def scope(self, scope: Scope) -> int | None:
        """The number of a scope; None if nothing was ever stored in it."""
        number = self._scopes.get(scope)
        if number is None:
            row = self.one(_SCOPE, (scope.tenant, scope.agent, scope.owner))
            if row is None:
                return None
            if len(self._scopes) > 10_000:
                self._scopes.clear()
            number = self._scopes[scope] = row[0]
        return number

    async def load(self, scope: Scope, task: str) -> Snapshot:
        key, seq, context = self._task(scope, task)
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            snapshot = Snapshot(scope, task, context)
        else:
            self._snapshots.move_to_end(key)
        if snapshot.seq < seq:
            while snapshot.seq < seq:
                _advance(snapshot, await self._records(key, snapshot.seq, seq, _LONG))
            self.keep(key, snapshot)
        return snapshot

    def load_key(self, scope: Scope, key: int) -> Snapshot:
        """The task the store calls `key`, folded here and now. Raises `TaskNotFound` if it was purged."""
        row = self.one(_TASK_OF_KEY, (key,))
        if row is None:
            raise TaskNotFound
        seq, task, context = row
        snapshot = self._snapshots.get(key) or Snapshot(scope, task, context)
        while snapshot.seq < seq:
            _advance(snapshot, guarded(partial(_read, self._here, key, snapshot.seq, _LONG)))
        self.keep(key, snapshot)
        return snapshot

    async def read(self, scope: Scope, task: str, after: int, limit: int | None) -> Sequence[Record]:
        key, seq, _ = self._task(scope, task)
        return await self._records(key, after, seq, limit) if seq > after else ()

    def keep(self, key: int, snapshot: Snapshot) -> None:
        self._snapshots[key] = snapshot
        self._snapshots.move_to_end(key)
        if len(self._snapshots) > self._keep:
            self._snapshots.popitem(last=False)

    def seq(self, key: int) -> int:
        """The last record of a task that we know of; 0 if we know none."""
        snapshot = self._snapshots.get(key)
        return snapshot.seq if snapshot is not None else 0

    def move(self, key: int, records: Sequence[Record]) -> Snapshot | None:
        """Move the kept snapshot on by what was just committed. None if there is none to move."""
        snapshot = self._snapshots.get(key)
        if snapshot is None or not records:
            return snapshot
        if snapshot.seq < records[0].seq - 1:  # another process wrote in between
            del self._snapshots[key]
            return None
        for record in records:
            snapshot.apply(record)
        return snapshot

    async def find(self, scope: Scope, query: ListTasks, limit: int) -> Found:
        filters = read_filters(scope, query)
        number = self.scope(scope)
        if number is None:
            return Found((), "", 0)
        kept = self._snapshots
        total, rows, next = await self.elsewhere(lambda db: _find(db, scope, number, filters, limit, kept))
        snapshots = []
        for key, seq, task, context, snapshot in rows:
            if snapshot is None:
                snapshot = kept.get(key)
            if snapshot is None or snapshot.seq != seq:  # it moved on since, or was dropped
                snapshot = guarded(partial(_fold, self._here, Snapshot(scope, task, context), key, seq))
            snapshots.append(snapshot)
        return Found(snapshots, next, total)

    def _task(self, scope: Scope, task: str) -> tuple[int, int, str]:
        number = self.scope(scope)
        row: tuple[int, int, str] | None = None
        if number is not None:
            row = self.one(_TASK, (number, task))
        if row is None:
            raise TaskNotFound(task)
        return row

    async def _records(self, key: int, after: int, last: int, limit: int | None) -> list[Record]:
        if last - after >= _LONG:
            return await self.elsewhere(lambda db: _read(db, key, after, limit))
        return guarded(lambda: _read(self._here, key, after, limit))

    def one(self, sql: str, values: tuple[Any, ...]) -> Any:
        return guarded(lambda: self._here.execute(sql, values).fetchone())

    def all(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        return guarded(lambda: self._here.execute(sql, values).fetchall())

    async def elsewhere(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on the other thread."""
        try:
            future = asyncio.get_running_loop().run_in_executor(
                self._thread, guarded, partial(read, self._there)
            )
        except RuntimeError:
            raise Unavailable("the store is closed") from None
        return await future


def place(key: int, seq: int) -> int:
    """Where a record is among those of all tasks: next to the others of its own."""
    return key << 28 | seq


def guarded(read: Callable[[], T]) -> T:
    """Run a read; what goes wrong with the database is nothing a peer should read about."""
    try:
        return read()
    except sqlite3.Error as error:
        _log.error("cannot read the database: %s", error)
        raise Unavailable("the task store cannot be read at the moment") from error


def _advance(snapshot: Snapshot, records: Sequence[Record]) -> None:
    if not records:
        raise TaskNotFound(snapshot.task_id)  # purged between the two reads
    for record in records:
        snapshot.apply(record)


def _read(db: sqlite3.Connection, key: int, after: int, limit: int | None = None) -> list[Record]:
    out: list[Record] = []
    for last, body in db.execute(_RECORDS, (place(key, after), place(key + 1, 0))):
        records = unpack(body, last - body.count(b"\n"))
        if not out and records[0].seq <= after:  # `after` is in the middle of a row
            del records[: after - records[0].seq + 1]
        out += records
        if limit is not None and len(out) >= limit:
            return out[:limit]
    return out


def _fold(db: sqlite3.Connection, snapshot: Snapshot, key: int, seq: int) -> Snapshot:
    for record in _read(db, key, 0):
        if record.seq <= seq:
            snapshot.apply(record)
    return snapshot


def _find(
    db: sqlite3.Connection,
    scope: Scope,
    number: int,
    filters: Filters,
    limit: int,
    kept: Mapping[int, Snapshot],
) -> tuple[int, list[tuple[int, int, str, str, Snapshot | None]], str]:
    """How many, the rows of the page, each with its fold unless that is kept already, and the next cursor."""
    before, id = filters.after or (_FIRST_PAGE, "")
    values = {
        "scope": number,
        "context": filters.context,
        "state": filters.state,
        "since": filters.since,
        "before": before,
        "id": id,
        "limit": limit + 1,
    }
    db.execute("begin")  # so that the count, the rows and the logs are of one moment
    try:
        total: int = db.execute(_COUNT, values).fetchone()[0]
        rows = db.execute(_PAGE, values).fetchall()
        found = []
        for key, seq, task, context, _ in rows[:limit]:
            live = kept.get(key)
            fold = None if live and live.seq == seq else _fold(db, Snapshot(scope, task, context), key, seq)
            found.append((key, seq, task, context, fold))
    finally:
        db.execute("rollback")
    next = filters.cursor(rows[limit - 1][4], rows[limit - 1][2]) if len(rows) > limit else ""
    return total, found, next

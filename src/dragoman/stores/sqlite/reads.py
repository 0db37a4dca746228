"""Reading the SQLite store: what was committed, and nothing else.

A point read takes tens of microseconds and happens where it is asked for; a search or a long log is read on a thread
of its own, in pieces. Snapshots of the last tasks are kept, and brought up to date from the log when they are behind, so
it does not matter who wrote: this process, by moving them on itself, or another.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from dragoman.engine.protocols import FoundTasks, Head, WaitForMemory
from dragoman.engine.records import PIECE_BYTES, Record, Snapshot, SnapshotCache, size_of, unpack
from dragoman.engine.transition import visible
from dragoman.errors import TaskNotFound, TaskUnreadable, Unavailable
from dragoman.model.byte_budget import LARGE_BYTES
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TERMINAL, TaskState
from dragoman.stores.common import (
    FIRST_PAGE,
    UNREADABLE_ERRORS,
    Damage,
    Filters,
    Row,
    merge,
    read_filters,
)
from dragoman.stores.sqlite.commits import SEQ_BITS

_SCOPE = "select scope from scopes where tenant = ? and agent = ? and owner = ?"
_TASK = "select key, seq, context, size from tasks where scope = ? and id = ?"
_TASK_OF_KEY = "select seq, id, context, size from tasks where key = ?"
_HEAD = "select context, seq, state, done, reply, mail, size from tasks where scope = ? and id = ?"
_RECORDS = f"select place & {(1 << SEQ_BITS) - 1}, body from log where place > ? and place < ? order by place"
_COUNTS = "select state, n from counts where scope = ? and n > 0"
_MATCH = """
 from tasks indexed by {index} where scope = :scope and state = :state and (reply = 0 or state <> 'TASK_STATE_SUBMITTED')
"""
_OF_STATE = _MATCH.format(index="tasks_by_state")
_OF_CONTEXT = _MATCH.format(index="tasks_by_context") + " and context = :context"
_TIES = "select key, seq, id, context, updated, size{match} and updated = :before and id > :id order by id limit :limit"
_OLDER = """
select key, seq, id, context, updated, size{match} and updated < :before and updated >= :since
order by updated desc, id limit :limit
"""
_COUNT = "select count(*){match} and updated >= :since"

_REPLIES = """
select updated, id from tasks indexed by tasks_replied
where scope = :scope and context = :context and reply = 1 and state = 'TASK_STATE_SUBMITTED' and done = 1
and (updated, id) < (:before, :id) order by updated desc, id desc limit :limit
"""

_FEW_BYTES = 64 << 10
"""A log up to this size is read where it is asked for. A longer one is read on the other thread."""

T = TypeVar("T")

_log = logging.getLogger("dragoman.stores")


class Reads:
    def __init__(self, connect: Callable[[], sqlite3.Connection], *, keep: int, keep_bytes: int) -> None:
        self._here = connect()
        self._there = connect()
        self._thread = ThreadPoolExecutor(1, "dragoman-reads")
        self._scopes: dict[Scope, int] = {}
        self.snapshots = SnapshotCache(count=keep, max_bytes=keep_bytes)
        self.damage = Damage()

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

    def one(self, sql: str, values: tuple[Any, ...]) -> Any:
        try:
            return self._here.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def all(self, sql: str, values: tuple[Any, ...] | dict[str, Any]) -> list[Any]:
        try:
            return self._here.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    async def in_thread(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on the other thread."""
        try:
            future = asyncio.get_running_loop().run_in_executor(
                self._thread, self._guarded, partial(read, self._there)
            )
        except RuntimeError:
            raise Unavailable("the store is closed") from None
        return await future

    def here(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on this thread."""
        return self._guarded(partial(read, self._here))

    def _guarded(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: sqlite3.Error) -> Unavailable:
        """Log what is wrong with the database: a peer should not read about that."""
        if is_damage(error):
            self.damage.note_database(error)
        else:
            _log.error("cannot read the database: %s", error)
        return Unavailable("the task store cannot be read at the moment")

    def read_log(self, db: sqlite3.Connection, task: str, key: int, after: int) -> Iterator[list[Record]]:
        """The records after `after`, one list for each append. Raises `TaskUnreadable` if they are damaged."""
        try:
            for last, body in db.execute(_RECORDS, (key << SEQ_BITS | after, key + 1 << SEQ_BITS)):
                records = unpack(body, last - body.count(b"\n"))
                if records[0].seq <= after:  # `after` is in the middle of a row
                    del records[: after - records[0].seq + 1]
                after = last
                yield records
        except (sqlite3.DatabaseError, *UNREADABLE_ERRORS) as error:
            if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
                raise
            self.damage.note_task(task, error)
            raise TaskUnreadable(task) from error
        self.damage.clear(task)

    def fold(self, snapshot: Snapshot, db: sqlite3.Connection, *, key: int, seq: int) -> Snapshot:
        """`snapshot` at record `seq`, one append after the other: a long log is not in memory at once."""
        for records in self.read_log(db, snapshot.task_id, key, 0):
            snapshot = snapshot.after(record for record in records if record.seq <= seq)
            if snapshot.seq >= seq:
                break
        return snapshot


class OpenFile(Protocol):
    """A `SqliteFile` while it is open."""

    @property
    def reads(self) -> Reads: ...


class LogReads:
    """What can be read of the tasks of one scope: the half of a `Log` that changes nothing."""

    def __init__(self, file: OpenFile, scope: Scope) -> None:
        self._opened = file
        self._scope = scope
        self._number: int | None = None

    @property
    def number(self) -> int | None:
        """The number of the scope; None if nothing was ever stored in it. It never changes."""
        if self._number is None:
            self._number = self._opened.reads.scope(self._scope)
        return self._number

    async def load(self, task: str, *, wait_for_memory: WaitForMemory | None = None) -> Snapshot:
        key, seq, context, size = self._task(task)
        if wait_for_memory is not None and size >= LARGE_BYTES:
            await wait_for_memory(size)
        if (snapshot := self._opened.reads.snapshots.use(key, seq)) is not None:
            return snapshot
        return await self._caught_up(key, seq, task, context, size)

    async def _load_key(self, key: int) -> Snapshot:
        """The task the store calls `key`. Raises `TaskNotFound` if it was purged."""
        row = self._opened.reads.one(_TASK_OF_KEY, (key,))
        if row is None:
            raise TaskNotFound("")
        seq, task, context, size = row
        return await self._caught_up(key, seq, task, context, size)

    async def _caught_up(self, key: int, seq: int, task: str, context: str, size: int) -> Snapshot:
        snapshots = self._opened.reads.snapshots
        snapshot = snapshots.get(key)
        if snapshot is None:
            snapshot = Snapshot(self._scope, task, context)
        while snapshot.seq < seq:
            few = size - snapshot.size <= _FEW_BYTES
            records = await self._records(task, key, snapshot.seq, None, PIECE_BYTES, few=few)
            if not records:
                raise TaskNotFound(task)  # purged between the two reads
            snapshot = snapshot.after(records)
        newer = snapshots.get(key)
        if newer is not None and newer.seq > snapshot.seq:
            snapshot = newer  # somebody else was reading, too
        snapshots.keep(key, snapshot)
        return snapshot.share()

    async def read(
        self, task: str, *, after: int = 0, limit: int | None = None, max_bytes: int | None = None
    ) -> Sequence[Record]:
        key, seq, _, size = self._task(task)
        if seq <= after:
            return ()
        few = size * (seq - after) // seq <= _FEW_BYTES
        return await self._records(task, key, after, limit, max_bytes, few=few)

    async def head(self, task: str) -> Head:
        number = self.number
        row = None if number is None else self._opened.reads.one(_HEAD, (number, task))
        if row is None:
            raise TaskNotFound(task)
        context, seq, state, done, reply, mail, size = row
        hidden = not visible(state, reply)
        return Head(self._scope, task, context, seq, TaskState(state), bool(done), hidden, mail, size)

    async def unfinished(self) -> int:
        number = self.number
        if number is None:
            return 0
        counts = self._opened.reads.all(_COUNTS, (number,))
        return sum(n for state, n in counts if TaskState(state) not in TERMINAL)

    async def find(self, query: ListTasks, *, limit: int) -> FoundTasks:
        filters = read_filters(self._scope, query)
        number, reads = self.number, self._opened.reads
        if number is None:
            return FoundTasks((), "", 0)
        total, rows, next = await reads.in_thread(lambda db: self._find(db, number, filters, limit))
        snapshots = []
        for (key, seq, task, context, _, _), snapshot in rows:
            if snapshot is None:
                snapshot = reads.snapshots.get(key)
            if snapshot is None or snapshot.seq != seq:  # it moved on since, or was dropped
                again = partial(reads.fold, Snapshot(self._scope, task, context), key=key, seq=seq)
                snapshot = await reads.in_thread(again)
            if snapshot.seq == seq:  # else it was purged meanwhile
                snapshots.append(snapshot.share())
        return FoundTasks(snapshots, next, total)

    async def replies(
        self, context: str, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[tuple[str, str]]:
        number = self.number
        if number is None:
            return ()
        before, id = after or (FIRST_PAGE, "")
        values = {"scope": number, "context": context, "before": before, "id": id, "limit": limit}
        return self._opened.reads.all(_REPLIES, values)

    def _task(self, task: str) -> tuple[int, int, str, int]:
        number = self._number or self.number
        row: tuple[int, int, str, int] | None = None
        if number is not None:
            row = self._opened.reads.one(_TASK, (number, task))
        if row is None:
            raise TaskNotFound(task)
        return row

    async def _records(
        self, task: str, key: int, after: int, limit: int | None, max_bytes: int | None, *, few: bool
    ) -> list[Record]:
        reads = self._opened.reads

        def read(db: sqlite3.Connection) -> list[Record]:
            out: list[Record] = []
            size = 0
            for records in reads.read_log(db, task, key, after):
                out += records
                if limit is not None and len(out) >= limit:
                    return out[:limit]
                if max_bytes is not None:
                    size += size_of(records)
                    if size >= max_bytes:
                        break
            return out

        return reads.here(read) if few else await reads.in_thread(read)

    def _find(
        self, db: sqlite3.Connection, number: int, filters: Filters, limit: int
    ) -> tuple[int, list[tuple[Row, Snapshot | None]], str]:
        """How many, the rows of the page, each with its fold unless that is kept already, and the next cursor."""
        reads = self._opened.reads
        db.execute("begin")  # so that the count, the rows and the logs are of one moment
        try:
            counts = dict(db.execute(_COUNTS, (number,)).fetchall())
            states = [state for state in ([filters.state] if filters.state else counts) if state in counts]
            rows: list[Row] = []
            total = 0
            for state in states:
                match = _OF_CONTEXT if filters.context else _OF_STATE
                before, id = filters.after or (FIRST_PAGE, "")
                values = {
                    "scope": number,
                    "state": state,
                    "context": filters.context,
                    "since": filters.since,
                    "before": before,
                    "id": id,
                    "limit": limit + 1,
                }
                if filters.after is not None:
                    rows += db.execute(_TIES.format(match=match), values)
                rows += db.execute(_OLDER.format(match=match), values)
                if filters.context or filters.since:
                    total += db.execute(_COUNT.format(match=match), values).fetchone()[0]
                else:
                    total += counts[state]
            page, next = merge(rows, filters, limit)
            found: list[tuple[Row, Snapshot | None]] = []
            for row in page:
                key, seq, task, context, _, _ = row
                live = reads.snapshots.get(key)
                if live is not None and live.seq == seq:
                    found.append((row, None))
                    continue
                try:
                    fold = reads.fold(Snapshot(self._scope, task, context), db, key=key, seq=seq)
                    found.append((row, fold))
                except TaskUnreadable:
                    pass  # the log says which: the other tasks of the page can be read
        finally:
            db.execute("rollback")
        return total, found, next


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is broken: what is in it cannot be read now and will not be later."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

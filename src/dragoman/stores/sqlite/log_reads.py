"""Reading the tasks of one scope in a SQLite file: what was committed, and nothing else.

A read of one row takes tens of microseconds and runs on the event loop's thread. Searches and long logs are read on a thread of
their own, in pieces. Snapshots of the last tasks are cached. Commits of this process update them; commits of other processes are
read from the log when a task is loaded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from dragoman.engine.protocols import FoundTasks, Head, WaitForMemory
from dragoman.engine.records import PIECE_BYTES, Record, size_of
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.transition import visible
from dragoman.errors import TaskNotFound, TaskUnreadable
from dragoman.model.byte_budget import LARGE_BYTES
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TERMINAL, TaskState
from dragoman.stores.pages import FIRST_PAGE, Filters, ListRow, merge_page, read_filters
from dragoman.stores.sqlite.file import SqliteFile

_TASK = "select key, seq, context, size from tasks where scope = ? and id = ?"
_TASK_OF_KEY = "select seq, id, context, size from tasks where key = ?"
_HEAD = "select context, seq, state, done, reply, mail, size from tasks where scope = ? and id = ?"
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

_MAX_LOOP_BYTES = 64 << 10
"""A log up to this size is read on the event loop's thread. A longer one is read on the reading thread."""


class LogReads:
    """What can be read of the tasks of one scope: the half of a `Log` that changes nothing."""

    def __init__(self, file: SqliteFile, scope: Scope) -> None:
        self.file = file
        self._scope = scope
        self._number: int | None = None

    @property
    def number(self) -> int | None:
        """The number of the scope, which never changes; None if nothing was ever stored in it."""
        if self._number is None:
            self._number = self.file.reads.scope(self._scope)
        return self._number

    async def load(self, task: str, *, wait_for_memory: WaitForMemory | None = None) -> Snapshot:
        key, seq, context, size = self._task(task)
        if wait_for_memory is not None and size >= LARGE_BYTES:
            await wait_for_memory(size)
        if (snapshot := self.file.reads.snapshots.use(key, seq)) is not None:
            return snapshot
        return await self._catch_up(key, seq, task, context, size)

    async def _load_key(self, key: int) -> Snapshot:
        """The task with this key. Raises `TaskNotFound` if it was purged."""
        row = self.file.reads.one(_TASK_OF_KEY, (key,))
        if row is None:
            raise TaskNotFound("")
        seq, task, context, size = row
        return await self._catch_up(key, seq, task, context, size)

    async def _catch_up(self, key: int, seq: int, task: str, context: str, size: int) -> Snapshot:
        snapshots = self.file.reads.snapshots
        snapshot = snapshots.get(key)
        if snapshot is None:
            snapshot = Snapshot(self._scope, task, context)
        while snapshot.seq < seq:
            in_loop = size - snapshot.size <= _MAX_LOOP_BYTES
            records = await self._records(task, key, snapshot.seq, None, PIECE_BYTES, in_loop=in_loop)
            if not records:
                raise TaskNotFound(task)  # purged between the two reads
            snapshot = snapshot.after(records)
        newer = snapshots.get(key)
        if newer is not None and newer.seq > snapshot.seq:
            snapshot = newer  # another task of this process read it, too
        snapshots.keep(key, snapshot)
        return snapshot.share()

    async def read(
        self, task: str, *, after: int = 0, limit: int | None = None, max_bytes: int | None = None
    ) -> Sequence[Record]:
        key, seq, _, size = self._task(task)
        if seq <= after:
            return ()
        in_loop = size * (seq - after) // seq <= _MAX_LOOP_BYTES
        return await self._records(task, key, after, limit, max_bytes, in_loop=in_loop)

    async def head(self, task: str) -> Head:
        number = self.number
        row = None if number is None else self.file.reads.one(_HEAD, (number, task))
        if row is None:
            raise TaskNotFound(task)
        context, seq, state, done, reply, mail, size = row
        hidden = not visible(state, reply)
        return Head(self._scope, task, context, seq, TaskState(state), bool(done), hidden, mail, size)

    async def count_unfinished(self) -> int:
        number = self.number
        if number is None:
            return 0
        counts = self.file.reads.all(_COUNTS, (number,))
        return sum(n for state, n in counts if TaskState(state) not in TERMINAL)

    async def find(self, query: ListTasks, *, limit: int) -> FoundTasks:
        filters = read_filters(self._scope, query)
        number, reads = self.number, self.file.reads
        if number is None:
            return FoundTasks((), "", 0)
        total, rows, next = await reads.in_thread(lambda db: self._find(db, number, filters, limit))
        snapshots = []
        for (key, seq, task, context, _, _), snapshot in rows:
            if snapshot is None:
                snapshot = reads.snapshots.get(key)
            if snapshot is None or snapshot.seq != seq:  # it has changed since, or was dropped
                again = partial(reads.fold, Snapshot(self._scope, task, context), key=key, seq=seq)
                snapshot = await reads.in_thread(again)
            if snapshot.seq == seq:  # else it was purged meanwhile
                snapshots.append(snapshot.share())
        return FoundTasks(snapshots, next, total)

    async def find_replies(
        self, context: str, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[tuple[str, str]]:
        number = self.number
        if number is None:
            return ()
        before, id = after or (FIRST_PAGE, "")
        values = {"scope": number, "context": context, "before": before, "id": id, "limit": limit}
        return self.file.reads.all(_REPLIES, values)

    def _task(self, task: str) -> tuple[int, int, str, int]:
        number = self._number or self.number
        row: tuple[int, int, str, int] | None = None
        if number is not None:
            row = self.file.reads.one(_TASK, (number, task))
        if row is None:
            raise TaskNotFound(task)
        return row

    async def _records(
        self, task: str, key: int, after: int, limit: int | None, max_bytes: int | None, *, in_loop: bool
    ) -> list[Record]:
        reads = self.file.reads

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

        return reads.in_loop(read) if in_loop else await reads.in_thread(read)

    def _find(
        self, db: sqlite3.Connection, number: int, filters: Filters, limit: int
    ) -> tuple[int, list[tuple[ListRow, Snapshot | None]], str]:
        """The number of all tasks, the rows of the page, each with its fold unless that is cached, and the next cursor."""
        reads = self.file.reads
        db.execute("begin")  # one state of the database for the count, the rows and the logs
        try:
            counts = dict(db.execute(_COUNTS, (number,)).fetchall())
            states = [state for state in ([filters.state] if filters.state else counts) if state in counts]
            rows: list[ListRow] = []
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
                    rows += map(ListRow._make, db.execute(_TIES.format(match=match), values))
                rows += map(ListRow._make, db.execute(_OLDER.format(match=match), values))
                if filters.context or filters.since:
                    total += db.execute(_COUNT.format(match=match), values).fetchone()[0]
                else:
                    total += counts[state]
            page, next = merge_page(rows, filters, limit)
            found: list[tuple[ListRow, Snapshot | None]] = []
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
                    pass  # logged; the other tasks of the page can be read
        finally:
            db.execute("rollback")
        return total, found, next

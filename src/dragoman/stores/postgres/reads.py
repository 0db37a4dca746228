"""Reading the PostgreSQL store: what was committed, and nothing else.

Snapshots of the last tasks are kept, and brought up to date from the log when they are behind, so it does not matter who
wrote: this process, by moving them on itself, or another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from dragoman.engine.protocols import PAGE_BYTES, FoundTasks, Head, WaitForMemory
from dragoman.engine.records import PIECE_BYTES, Record, Snapshot, SnapshotCache, size_of, unpack
from dragoman.engine.transition import visible
from dragoman.errors import InvalidParams, TaskNotFound, TaskUnreadable, Unavailable
from dragoman.model.byte_budget import LARGE_BYTES
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TERMINAL, TaskState
from dragoman.stores.common import FIRST_PAGE, UNREADABLE_ERRORS, Damage, Filters, Row, merge, read_filters
from dragoman.stores.postgres.address import DAMAGED, Connection
from dragoman.stores.postgres.database import Database, fits, indexed

_SCOPE = "select scope from dragoman.scopes where tenant = $1 and agent = $2 and owner = $3"
_NEW_SCOPE = "insert into dragoman.scopes (tenant, agent, owner) values ($1, $2, $3) on conflict do nothing"
_TASK = "select key, seq, context, size from dragoman.tasks where scope = $1 and id = $2"
_HEAD = "select context, seq, state, done, reply, mail, size from dragoman.tasks where scope = $1 and id = $2"
_COUNTS = (
    "select state, sum(n)::bigint from dragoman.counts where scope = $1 group by state having sum(n) > 0"
)
_TASK_OF_KEY = "select seq, id, context from dragoman.tasks where key = $1"
# A row is named by its last record. Its size is known without reading it.
_RECORDS = """
with first as (
    select seq, sum(octet_length(body)) over (order by seq) as size
    from (select seq, body from dragoman.log where key = $1 and seq > $2 order by seq limit $3) as rows
), piece as (select coalesce(min(seq) filter (where size >= $4), max(seq)) as upto from first)
select seq, body from dragoman.log, piece where key = $1 and seq > $2 and seq <= upto order by seq
"""
MAX_CACHED_LOGS = """
select key, log.seq, body from dragoman.log join unnest($1::bigint[], $2::integer[]) as n(key, upto) using (key)
where log.seq <= upto order by key, log.seq
"""
_COLUMNS = "select key, seq, id, context, updated, size"
_MATCH = """
from dragoman.tasks where scope = $1 and state = $2 and (not reply or state <> 'TASK_STATE_SUBMITTED')
"""


def _searches(context: str) -> tuple[str, str, str]:
    """The rest of a page that begins among ties, what is older than them, and how many there are of both."""
    ties, count = (f"{context.format(n=n)}" for n in (6, 4))
    return (
        f"{_COLUMNS} {_MATCH} and updated = $3 and id > $4 {ties} order by id limit $5",
        f"{_COLUMNS} {_MATCH} and updated < $3 and updated >= $4 {ties} order by updated desc, id limit $5",
        f"select count(*) {_MATCH} and updated >= $3 {count}",
    )


_OF_STATE, _OF_CONTEXT = _searches(""), _searches("and md5(context) = md5(${n}) and context = ${n}")
_REPLIES = """
select updated, id from dragoman.tasks
where scope = $1 and md5(context) = md5($2) and context = $2 and reply and state = 'TASK_STATE_SUBMITTED' and done
and (updated, id) < ($3, $4) order by updated desc, id desc limit $5
"""
_MANY_ROWS, _MANY_BYTES = 2**31 - 1, 2**62


class Reads:
    def __init__(self, database: Database, *, keep: int, keep_bytes: int) -> None:
        self._database = database
        self._scopes: dict[Scope, int] = {}
        self.snapshots = SnapshotCache(count=keep, max_bytes=keep_bytes)
        self.damage = Damage()

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

    async def records(
        self, task: str, key: int, after: int, limit: int | None, max_bytes: int | None
    ) -> list[Record]:
        """The records after `after`: whole appends, as many as have `limit` records or `max_bytes`."""
        most = _MANY_ROWS if limit is None else limit
        size = _MANY_BYTES if max_bytes is None else max_bytes
        try:
            rows = await self._database.read(lambda db: db.fetch(_RECORDS, key, after, most, size))
        except Unavailable as error:
            if isinstance(error.__cause__, DAMAGED):
                self.damage.note_task(task, error.__cause__)
                raise TaskUnreadable(task) from error
            raise
        return self.unpack(task, rows, after)

    def unpack(self, task: str, rows: Iterable[tuple[int, bytes]], after: int) -> list[Record]:
        try:
            records = _unpacked(rows, after)
        except UNREADABLE_ERRORS as error:
            self.damage.note_task(task, error)
            raise TaskUnreadable(task) from error
        self.damage.clear(task)
        return records


class OpenDatabase(Protocol):
    """A `StoreState` while it is open."""

    database: Database

    @property
    def reads(self) -> Reads: ...


class LogReads:
    """What can be read of the tasks of one scope: the half of a `Log` that changes nothing."""

    def __init__(self, state: OpenDatabase, scope: Scope) -> None:
        self._opened = state
        self._scope = scope

    async def number(self) -> int | None:
        """The number of the scope; None if nothing was ever stored in it."""
        return await self._opened.reads.scope(self._scope)

    async def load(self, task: str, *, wait_for_memory: WaitForMemory | None = None) -> Snapshot:
        key, seq, context, size = await self._task(task)
        if wait_for_memory is not None and size >= LARGE_BYTES:
            await wait_for_memory(size)
        snapshots = self._opened.reads.snapshots
        if (snapshot := snapshots.use(key, seq)) is not None:
            return snapshot
        return await self._caught_up(key, seq, snapshots.get(key) or Snapshot(self._scope, task, context))

    async def _load_key(self, key: int) -> Snapshot:
        """The task that the database calls `key`. Raises `TaskNotFound` if it was purged."""
        row = await self._opened.database.read(lambda db: db.fetchrow(_TASK_OF_KEY, key))
        if row is None:
            raise TaskNotFound
        seq, task, context = row
        return await self._caught_up(
            key, seq, self._opened.reads.snapshots.get(key) or Snapshot(self._scope, task, context)
        )

    async def _caught_up(self, key: int, seq: int, snapshot: Snapshot) -> Snapshot:
        snapshot = await self._fold(snapshot, key, seq)
        newer = self._opened.reads.snapshots.get(key)
        if newer is not None and newer.seq >= snapshot.seq:
            snapshot = newer  # somebody else was reading, too
        self._opened.reads.snapshots.keep(key, snapshot)
        return snapshot.share()

    async def _fold(self, snapshot: Snapshot, key: int, seq: int) -> Snapshot:
        """`snapshot` at record `seq`. The log is read in pieces: a long one is not in memory at once."""
        task = snapshot.task_id
        while snapshot.seq < seq:
            records = await self._opened.reads.records(task, key, snapshot.seq, None, PIECE_BYTES)
            if not records:
                raise TaskNotFound(task)  # purged between the two reads
            snapshot = snapshot.after(record for record in records if record.seq <= seq)
        return snapshot

    async def read(
        self, task: str, *, after: int = 0, limit: int | None = None, max_bytes: int | None = None
    ) -> Sequence[Record]:
        key, seq, _, _ = await self._task(task)
        if seq <= after:
            return ()
        reads = self._opened.reads
        records = await reads.records(task, key, after, limit, max_bytes)
        # A row takes more bytes than its records have, so a piece by the bytes of rows may be too small.
        while (
            max_bytes is not None
            and records
            and records[-1].seq < seq
            and (limit is None or len(records) < limit)
            and size_of(records) < max_bytes
        ):
            rest = None if limit is None else limit - len(records)
            more = await reads.records(task, key, records[-1].seq, rest, max_bytes)
            if not more:
                break
            records += more
        return records[:limit]

    async def head(self, task: str) -> Head:
        number = await self.number()
        row = None
        if number is not None and fits(task):
            row = await self._opened.database.read(lambda db: db.fetchrow(_HEAD, number, task))
        if row is None:
            raise TaskNotFound(task)
        context, seq, state, done, reply, mail, size = row
        hidden = not visible(state, reply)
        return Head(self._scope, task, context, seq, TaskState(state), done, hidden, mail, size)

    async def unfinished(self) -> int:
        number = await self.number()
        if number is None:
            return 0
        counts = await self._opened.database.read(lambda db: db.fetch(_COUNTS, number))
        return sum(n for state, n in counts if TaskState(state) not in TERMINAL)

    async def find(self, query: ListTasks, *, limit: int) -> FoundTasks:
        filters = read_filters(self._scope, query)
        if filters.after is not None and not fits(*filters.after):
            why = "is not from a page of this list"
            raise InvalidParams(f"pageToken {why}", fields=(("pageToken", why),))
        number = await self.number()
        if number is None or not fits(filters.context):
            return FoundTasks((), "", 0)

        total, rows = await self._opened.database.read(lambda db: _rows(db, number, filters, limit))
        page, next = merge(rows, filters, limit)
        return FoundTasks(await self._as_of(page), next, total)

    async def replies(
        self, context: str, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[tuple[str, str]]:
        number = await self.number()
        if number is None or not fits(context):
            return ()
        before, id = after or (FIRST_PAGE, "")
        rows = await self._opened.database.read(
            lambda db: db.fetch(_REPLIES, number, context, before, id, limit)
        )
        return [(updated, task) for updated, task in rows]

    async def _as_of(self, rows: Sequence[Row]) -> list[Snapshot]:
        """The tasks of these rows, as they were then. What is kept may have moved on, and may while we read."""
        folded: dict[int, Snapshot | None] = {}
        while True:
            behind = [row for row in rows if row[0] not in folded and not self._is_at(*row[:2])]
            if not behind:
                break
            folded |= await self._fold_all(behind)
        found = [
            folded[row[0]] if row[0] in folded else self._opened.reads.snapshots.get(row[0]) for row in rows
        ]
        return [snapshot.share() for snapshot in found if snapshot is not None]

    async def _fold_all(self, rows: Sequence[Row]) -> dict[int, Snapshot | None]:
        """The tasks of these rows, by key; None for one that cannot be read. Small ones are read together."""
        folded: dict[int, Snapshot | None] = {}
        bodies: dict[int, list[tuple[int, bytes]]] = {}
        if sum(row[5] for row in rows) <= PAGE_BYTES:
            keys, seqs = [row[0] for row in rows], [row[1] for row in rows]
            for key, seq, body in await self._opened.database.read(
                lambda db: db.fetch(MAX_CACHED_LOGS, keys, seqs)
            ):
                bodies.setdefault(key, []).append((seq, body))
        for key, seq, task, context, _, _ in rows:
            try:
                records = self._opened.reads.unpack(task, bodies.pop(key, ()), 0)
                folded[key] = await self._fold(Snapshot(self._scope, task, context).after(records), key, seq)
            except (TaskNotFound, TaskUnreadable):  # purged meanwhile; or damaged, and the log says so
                folded[key] = None
        return folded

    def _is_at(self, key: int, seq: int) -> bool:
        cached = self._opened.reads.snapshots.get(key)
        return cached is not None and cached.seq == seq

    async def _task(self, task: str) -> tuple[int, int, str, int]:
        number = await self.number()
        row: tuple[int, int, str, int] | None = None
        if number is not None and fits(task):
            row = await self._opened.database.read(lambda db: db.fetchrow(_TASK, number, task))
        if row is None:
            raise TaskNotFound(task)
        return row


async def _rows(db: Connection, scope: int, filters: Filters, limit: int) -> tuple[int, list[Row]]:
    """How many match, and the first rows of each state: what the page and the first of the next are merged from."""
    rows: list[Row] = []
    total = 0
    named = (filters.context,) if filters.context else ()
    ties, older, count = _OF_CONTEXT if filters.context else _OF_STATE
    before, id = filters.after or (FIRST_PAGE, "")
    async with db.transaction(isolation="repeatable_read", readonly=True):
        counts = dict(await db.fetch(_COUNTS, scope))
        for state in [filters.state] if filters.state else counts:
            if state not in counts:
                continue
            match = (scope, state)

            if filters.after is not None:
                rows += map(tuple, await db.fetch(ties, *match, before, id, limit + 1, *named))
            rows += map(tuple, await db.fetch(older, *match, before, filters.since, limit + 1, *named))
            if filters.context or filters.since:
                total += await db.fetchval(count, *match, filters.since, *named)
            else:
                total += counts[state]
    return total, rows


def _unpacked(rows: Iterable[tuple[int, bytes]], after: int) -> list[Record]:
    out: list[Record] = []
    for last, body in rows:
        records = unpack(body, last - body.count(b"\n"))
        if not out and records[0].seq <= after:  # `after` is in the middle of a row
            del records[: after - records[0].seq + 1]
        out += records
    return out

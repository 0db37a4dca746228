"""Reading the tasks of one scope in a PostgreSQL database: what was committed, and nothing else.

Snapshots of the last tasks are cached. Commits of this process update them; commits of other processes are read from the log
when a task is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.engine.protocols import PAGE_BYTES, FoundTasks, Head, WaitForMemory
from dragoman.engine.records import PIECE_BYTES, Record, size_of
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.transition import visible
from dragoman.errors import TaskNotFound, TaskUnreadable
from dragoman.model.byte_budget import LARGE_BYTES
from dragoman.model.ops import ListTasks, Scope, refuse_page_token
from dragoman.model.task import TERMINAL, TaskState
from dragoman.stores.pages import FIRST_PAGE, Filters, ListRow, merge_page, read_filters
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.state import StoreState
from dragoman.stores.postgres.text import is_storable

_TASK = "select key, seq, context, size from dragoman.tasks where scope = $1 and id = $2"
_HEAD = "select context, seq, state, done, reply, mail, size from dragoman.tasks where scope = $1 and id = $2"
_COUNTS = (
    "select state, sum(n)::bigint from dragoman.counts where scope = $1 group by state having sum(n) > 0"
)
_TASK_OF_KEY = "select seq, id, context from dragoman.tasks where key = $1"
_LOGS = """
select key, log.seq, body from dragoman.log join unnest($1::bigint[], $2::integer[]) as n(key, upto) using (key)
where log.seq <= upto order by key, log.seq
"""
_COLUMNS = "select key, seq, id, context, updated, size"
_MATCH = """
from dragoman.tasks where scope = $1 and state = $2 and (not reply or state <> 'TASK_STATE_SUBMITTED')
"""


def _searches(context: str) -> tuple[str, str, str]:
    """Three statements: the rest of the ties at the beginning of a page, the tasks that are older, and the count of all."""
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


class LogReads:
    """What can be read of the tasks of one scope: the half of a `Log` that changes nothing."""

    def __init__(self, state: StoreState, scope: Scope) -> None:
        self._state = state
        self._scope = scope

    async def number(self) -> int | None:
        """The number of the scope; None if nothing was ever stored in it."""
        return await self._state.reads.scope(self._scope)

    async def load(self, task: str, *, wait_for_memory: WaitForMemory | None = None) -> Snapshot:
        key, seq, context, size = await self._task(task)
        if wait_for_memory is not None and size >= LARGE_BYTES:
            await wait_for_memory(size)
        snapshots = self._state.reads.snapshots
        if (snapshot := snapshots.use(key, seq)) is not None:
            return snapshot
        return await self._catch_up(key, seq, snapshots.get(key) or Snapshot(self._scope, task, context))

    async def _load_key(self, key: int) -> Snapshot:
        """The task that the database calls `key`. Raises `TaskNotFound` if it was purged."""
        row = await self._state.database.read(lambda db: db.fetchrow(_TASK_OF_KEY, key))
        if row is None:
            raise TaskNotFound
        seq, task, context = row
        return await self._catch_up(
            key, seq, self._state.reads.snapshots.get(key) or Snapshot(self._scope, task, context)
        )

    async def _catch_up(self, key: int, seq: int, snapshot: Snapshot) -> Snapshot:
        snapshot = await self._fold(snapshot, key, seq)
        newer = self._state.reads.snapshots.get(key)
        if newer is not None and newer.seq >= snapshot.seq:
            snapshot = newer  # another task of this process read it, too
        self._state.reads.snapshots.keep(key, snapshot)
        return snapshot.share()

    async def _fold(self, snapshot: Snapshot, key: int, seq: int) -> Snapshot:
        """`snapshot` at record `seq`. The log is read in pieces: a long one is not in memory at once."""
        task = snapshot.task_id
        while snapshot.seq < seq:
            records = await self._state.reads.records(task, key, snapshot.seq, None, PIECE_BYTES)
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
        reads = self._state.reads
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
        if number is not None and is_storable(task):
            row = await self._state.database.read(lambda db: db.fetchrow(_HEAD, number, task))
        if row is None:
            raise TaskNotFound(task)
        context, seq, state, done, reply, mail, size = row
        hidden = not visible(state, reply)
        return Head(self._scope, task, context, seq, TaskState(state), done, hidden, mail, size)

    async def count_unfinished(self) -> int:
        number = await self.number()
        if number is None:
            return 0
        counts = await self._state.database.read(lambda db: db.fetch(_COUNTS, number))
        return sum(n for state, n in counts if TaskState(state) not in TERMINAL)

    async def find(self, query: ListTasks, *, limit: int) -> FoundTasks:
        filters = read_filters(self._scope, query)
        if filters.after is not None and not is_storable(*filters.after):
            refuse_page_token()
        number = await self.number()
        if number is None or not is_storable(filters.context):
            return FoundTasks((), "", 0)

        total, rows = await self._state.database.read(lambda db: _find_rows(db, number, filters, limit))
        page, next = merge_page(rows, filters, limit)
        return FoundTasks(await self._load_as_of(page), next, total)

    async def find_replies(
        self, context: str, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[tuple[str, str]]:
        number = await self.number()
        if number is None or not is_storable(context):
            return ()
        before, id = after or (FIRST_PAGE, "")
        rows = await self._state.database.read(
            lambda db: db.fetch(_REPLIES, number, context, before, id, limit)
        )
        return [(updated, task) for updated, task in rows]

    async def _load_as_of(self, rows: Sequence[ListRow]) -> list[Snapshot]:
        """The tasks of these rows, as they were then. Cached snapshots may be newer, and may change while we read."""
        folded: dict[int, Snapshot | None] = {}
        while True:
            behind = [row for row in rows if row.key not in folded and not self._is_at(row.key, row.seq)]
            if not behind:
                break
            folded |= await self._fold_all(behind)
        cached = self._state.reads.snapshots
        found = [folded[row.key] if row.key in folded else cached.get(row.key) for row in rows]
        return [snapshot.share() for snapshot in found if snapshot is not None]

    async def _fold_all(self, rows: Sequence[ListRow]) -> dict[int, Snapshot | None]:
        """The tasks of these rows, by key; None for one that cannot be read. Small ones are read together."""
        folded: dict[int, Snapshot | None] = {}
        bodies: dict[int, list[tuple[int, bytes]]] = {}
        if sum(row.size for row in rows) <= PAGE_BYTES:
            keys, seqs = [row.key for row in rows], [row.seq for row in rows]
            for key, seq, body in await self._state.database.read(lambda db: db.fetch(_LOGS, keys, seqs)):
                bodies.setdefault(key, []).append((seq, body))
        for key, seq, task, context, _, _ in rows:
            try:
                records = self._state.reads.unpack(task, bodies.pop(key, ()), 0)
                folded[key] = await self._fold(Snapshot(self._scope, task, context).after(records), key, seq)
            except (TaskNotFound, TaskUnreadable):  # purged meanwhile; or damaged, and the log says so
                folded[key] = None
        return folded

    def _is_at(self, key: int, seq: int) -> bool:
        cached = self._state.reads.snapshots.get(key)
        return cached is not None and cached.seq == seq

    async def _task(self, task: str) -> tuple[int, int, str, int]:
        number = await self.number()
        row: tuple[int, int, str, int] | None = None
        if number is not None and is_storable(task):
            row = await self._state.database.read(lambda db: db.fetchrow(_TASK, number, task))
        if row is None:
            raise TaskNotFound(task)
        return row


async def _find_rows(db: Connection, scope: int, filters: Filters, limit: int) -> tuple[int, list[ListRow]]:
    """How many tasks match, and the first rows of each state, from which the page is merged."""
    rows: list[ListRow] = []
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
                rows += map(ListRow._make, await db.fetch(ties, *match, before, id, limit + 1, *named))
            rows += map(
                ListRow._make, await db.fetch(older, *match, before, filters.since, limit + 1, *named)
            )
            if filters.context or filters.since:
                total += await db.fetchval(count, *match, filters.since, *named)
            else:
                total += counts[state]
    return total, rows

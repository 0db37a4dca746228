"""Push configs in a SQLite file, and the notifications that are due.

A webhook is due when `cursor < last`: `last` moves in the transaction that adds a public record to its task's log, and
`cursor` when a notification was delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from sqlite3 import Connection
from typing import Unpack

from msgspec.structs import replace

from dragoman.engine import push_configs
from dragoman.engine.protocols import LeaseLost
from dragoman.engine.push_configs import Delivery, PushRow, ReleaseOptions, StoredPushConfig
from dragoman.engine.transition import (
    Advance,
    ClaimPush,
    PushJob,
    Redeliver,
    ReleasePush,
    Replace,
    TaskRow,
    check_push_config,
    decide_push,
    first_push_row,
)
from dragoman.errors import TaskNotFound
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores import lease_clock
from dragoman.stores.rows import (
    PUSH_COLUMNS,
    PushListeners,
    decode_push_config,
    encode_push_config,
    read_delivery,
    read_push_row,
    write_push_row,
)
from dragoman.stores.sqlite.commits import NOTHING, Finish
from dragoman.stores.sqlite.file import SqliteFile

_TASK = "select key, seq, state, done from tasks where scope = ? and id = ?"
_KEY = "select key from tasks where scope = ? and id = ?"
_SAME = "select webhook, body from webhooks where key = ? and id = ?"
_COUNT = "select count(*) from webhooks where key = ?"
_ADD = "insert into webhooks (key, id, body, cursor, last) values (?, ?, ?, ?, ?)"
_FLAG = "update tasks set webhooks = 1 where key = ?"
_REPLACE = "update webhooks set body = ? where webhook = ?"
_ROW = f"select {PUSH_COLUMNS} from webhooks where webhook = ?"
_CHANGE = f"update webhooks set ({PUSH_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?, ?, ?) where webhook = ?"
_OF_TASK = "select body from webhooks where key = ? order by webhook"
_DELETE = "delete from webhooks where key = ? and id = ?"
_UNFLAG = (
    "update tasks set webhooks = exists (select 1 from webhooks where webhooks.key = tasks.key) where key = ?"
)
_NOTIFY = "update webhooks set last = ? where key = ?"
_DELIVERY = """
select webhook, tenant, agent, owner, tasks.id, body, cursor, last, webhooks.node, webhooks.fence, webhooks.attempt, since, at, error, dead
from webhooks {index} cross join tasks using (key) cross join scopes using (scope) where {which}
"""
_DUE = (
    _DELIVERY.format(index="indexed by webhooks_due", which="cursor < last")
    + """
and dead = 0 and at <= ?1
and (webhooks.node is null or webhooks.node <> ?4 and webhooks.node not in (select node from nodes where until > ?2))
order by at limit ?3
"""
)
_CORRECT_TIMES = (
    "update webhooks indexed by webhooks_due set at = 0 where cursor < last and dead = 0 and at > ?"
)
_WHEN = "select min(at) from webhooks where cursor < last and dead = 0 and node is null"
_WAITING = _DELIVERY.format(index="", which="cursor < last") + "order by webhook limit ?"
_DEAD = (
    _DELIVERY.format(index="indexed by webhooks_dead", which="cursor < last")
    + "and dead = 1 order by webhook limit ?"
)
_BROWSE = _DELIVERY.format(index="", which="webhook > ?") + "order by webhook limit ?"
_BROWSE_TASK = (
    _DELIVERY.format(index="", which="webhooks.key = ? and webhook > ?") + "order by webhook limit ?"
)
_LEAVE = "update webhooks set node = null where node = ?"
_PURGE = "delete from webhooks where key = ?"


class SqlitePushQueue(PushListeners):
    """`PushConfigStore` and `PushQueue` of one file."""

    def __init__(self, file: SqliteFile, remove_dead_nodes: Callable[[Connection], None]) -> None:
        super().__init__()
        self._file = file
        self._remove_dead_nodes = remove_dead_nodes

    # -- PushConfigStore -------------------------------------------------------------------------------------------------

    async def put(self, scope: Scope, task: str, webhook: StoredPushConfig) -> StoredPushConfig:
        return await self._file.commits.submit(partial(self._put_job, scope, task, webhook))

    async def list(self, scope: Scope, task: str) -> Sequence[StoredPushConfig]:
        reads = self._file.reads
        number = reads.scope(scope)
        row = None if number is None else reads.one(_KEY, (number, task))
        if row is None:
            raise TaskNotFound(task)
        return [decode_push_config(body) for (body,) in reads.all(_OF_TASK, row)]

    async def delete(self, scope: Scope, task: str, id: str) -> None:
        await self._file.commits.submit(partial(self._delete_job, scope, task, id))

    def _put_job(
        self, scope: Scope, task: str, webhook: StoredPushConfig, db: Connection
    ) -> Finish[StoredPushConfig]:
        number = self._file.reads.scope(scope)
        row = None if number is None else db.execute(_TASK, (number, task)).fetchone()
        if row is None:
            raise TaskNotFound(task)
        key, seq, state, done = row
        first = first_push_row(TaskRow(seq=seq, state=TaskState(state), done=bool(done)))
        webhook = self.check(db, key, webhook)
        self.add(db, key, webhook, cursor=first.cursor, last=first.last)

        def finish() -> StoredPushConfig:
            self.wake()
            return webhook

        return finish

    def _delete_job(self, scope: Scope, task: str, id: str, db: Connection) -> Finish[None]:
        number = self._file.reads.scope(scope)
        row = None if number is None else db.execute(_KEY, (number, task)).fetchone()
        if row is None:
            raise TaskNotFound(task)
        if db.execute(_DELETE, (row[0], id)).rowcount:
            db.execute(_UNFLAG, row)
        return NOTHING

    # -- for the log, in its transactions ----------------------------------------------------------------------

    def check(self, db: Connection, key: int, webhook: StoredPushConfig) -> StoredPushConfig:
        """The webhook as it is stored. Writes nothing. Raises `InvalidParams` if there are too many."""
        same = db.execute(_SAME, (key, webhook.config.id)).fetchone()
        count = db.execute(_COUNT, (key,)).fetchone()[0]
        return check_push_config(webhook, decode_push_config(same[1]) if same else None, count)

    def add(self, db: Connection, key: int, webhook: StoredPushConfig, *, cursor: int, last: int) -> None:
        """Store a webhook that was checked. It replaces one with the same id."""
        same = db.execute(_SAME, (key, webhook.config.id)).fetchone()
        if same is not None:
            db.execute(_REPLACE, (encode_push_config(webhook), same[0]))
            _change(db, same[0], Replace())
        else:
            db.execute(_ADD, (key, webhook.config.id, encode_push_config(webhook), cursor, last))
            db.execute(_FLAG, (key,))

    def notify(self, db: Connection, key: int, seq: int) -> None:
        """Make the webhooks of a task due for all records up to `seq`."""
        db.execute(_NOTIFY, (seq, key))

    # -- PushQueue ------------------------------------------------------------------------------------------------

    async def claim_due(self, node: str, *, limit: int, longest: float = float("inf")) -> Sequence[Delivery]:
        return await self._file.commits.submit(partial(self._claim_due_job, node, limit, longest))

    async def advance(self, delivery: Delivery, cursor: int) -> None:
        def job(db: Connection) -> Finish[None]:
            if _change(db, delivery.key, Advance(delivery.task, delivery.fence, cursor)) is None:
                raise LeaseLost(delivery.task)
            return NOTHING

        await self._file.commits.submit(job)

    async def release(self, delivery: Delivery, cursor: int, **options: Unpack[ReleaseOptions]) -> None:
        def job(db: Connection) -> Finish[None]:
            _change(
                db, delivery.key, ReleasePush(delivery.fence, cursor, push_configs.steady_time(), **options)
            )
            return NOTHING

        await self._file.commits.submit(job)

    async def next_due(self) -> float | None:
        at: float | None = self._file.reads.one(_WHEN, ())[0]
        return at

    async def find(self, *, dead: bool = False, limit: int) -> Sequence[Delivery]:
        sql = _DEAD if dead else _WAITING
        rows = await self._file.reads.in_thread(lambda db: db.execute(sql, (limit,)).fetchall())
        return [read_delivery(row) for row in rows]

    async def browse(
        self, *, of: tuple[Scope, str] | None = None, after: int = 0, limit: int
    ) -> Sequence[Delivery]:
        reads = self._file.reads
        sql, values = _BROWSE, (after, limit)
        if of is not None:
            number = reads.scope(of[0])
            row = None if number is None else reads.one(_KEY, (number, of[1]))
            if row is None:
                raise TaskNotFound(of[1])
            sql, values = _BROWSE_TASK, (*row, after, limit)
        rows = await reads.in_thread(lambda db: db.execute(sql, values).fetchall())
        return [read_delivery(row) for row in rows]

    async def redeliver(self, key: int, *, cursor: int | None = None) -> bool:
        return await self._file.commits.submit(partial(self._redeliver_job, key, cursor))

    def _claim_due_job(
        self, node: str, limit: int, longest: float, db: Connection
    ) -> Finish[Sequence[Delivery]]:
        self._remove_dead_nodes(db)
        now, claimed = push_configs.steady_time(), []
        db.execute(_CORRECT_TIMES, (now + longest,))
        for row in db.execute(_DUE, (now, lease_clock.now(), limit, node)).fetchall():
            due = read_delivery(row)
            if (taken := _change(db, due.key, ClaimPush(node, now))) is not None:
                claimed.append(replace(due, node=node, fence=taken.fence))
        return lambda: claimed

    def _redeliver_job(self, key: int, cursor: int | None, db: Connection) -> Finish[bool]:
        found = _change(db, key, Redeliver(cursor))

        def finish() -> bool:
            self.wake()
            return found is not None

        return finish


def _change(db: Connection, key: int, job: PushJob) -> PushRow | None:
    """Apply the decision of `decide_push`, and return the new row. None if there is no such webhook."""
    found = db.execute(_ROW, (key,)).fetchone()
    if found is None:
        return None
    row = read_push_row(found)
    after = decide_push(row, job)
    if after is not row:
        db.execute(_CHANGE, (*write_push_row(after), key))
    return after


def leave(db: Connection, node: str) -> None:
    """Release all webhooks that a node holds."""
    db.execute(_LEAVE, (node,))


def purge(db: Connection, keys: Iterable[tuple[int]]) -> None:
    """Delete the webhooks of these tasks."""
    db.executemany(_PURGE, keys)

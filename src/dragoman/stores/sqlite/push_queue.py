"""Push configs in a SQLite file, and what is still to be told to them.

A hook is due when `cursor < last`: `last` moves in the transaction that adds a public record to its task's log, and
`cursor` when somebody has been told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from sqlite3 import Connection

from msgspec.structs import replace

from dragoman.engine import push_configs
from dragoman.engine.protocols import LeaseLost
from dragoman.engine.push_configs import MAX_HOOKS, Delivery, Hook
from dragoman.engine.records import PUBLIC, Record
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores import heartbeat
from dragoman.stores.rows import decode_hook, delivery_of, encode_hook
from dragoman.stores.sqlite.commits import Finish
from dragoman.stores.sqlite.file import SqliteFile

_TASK = "select key, seq, state, done from tasks where scope = ? and id = ?"
_KEY = "select key from tasks where scope = ? and id = ?"
_SAME = "select hook, body from hooks where key = ? and id = ?"
_COUNT = "select count(*) from hooks where key = ?"
_ADD = "insert into hooks (key, id, body, cursor, last) values (?, ?, ?, ?, ?)"
_FLAG = "update tasks set hooks = 1 where key = ?"
_REPLACE = """
update hooks set body = ?, at = 0, attempt = 0, since = 0, error = '', dead = 0, node = null, fence = fence + 1
where hook = ?
"""
_OF_TASK = "select body from hooks where key = ? order by hook"
_DELETE = "delete from hooks where key = ? and id = ?"
_UNFLAG = "update tasks set hooks = exists (select 1 from hooks where hooks.key = tasks.key) where key = ?"
_MARK = "update hooks set last = ? where key = ?"
_DELIVERY = """
select hook, tenant, agent, owner, tasks.id, body, cursor, last, hooks.fence, hooks.attempt, since, at, error, dead
from hooks {index} cross join tasks using (key) cross join scopes using (scope) where cursor < last
"""
_DUE = (
    _DELIVERY.format(index="indexed by hooks_due")
    + """
and dead = 0 and at <= ?1
and (hooks.node is null or hooks.node <> ?4 and hooks.node not in (select node from nodes where until > ?2))
order by at limit ?3
"""
)
_HASTEN = "update hooks indexed by hooks_due set at = 0 where cursor < last and dead = 0 and at > ?"
_CLAIM = "update hooks set node = ?, fence = fence + 1 where hook = ?"
_ADVANCE = """
update hooks set cursor = ?, attempt = 0, since = 0, at = 0, error = '' where hook = ? and fence = ? and node is not null
"""
_RELEASE = """
update hooks set attempt = case when cursor = ?1 then attempt else 0 end,
since = case when cursor = ?1 then since else 0 end, error = case when cursor = ?1 then error else '' end,
cursor = ?1, at = ?2, node = null where hook = ?3 and fence = ?4
"""
_FAILED = """
update hooks set attempt = case when cursor = ?1 then attempt + 1 else 1 end,
since = case when cursor = ?1 and attempt > 0 then since else ?2 end,
cursor = ?1, at = ?3, error = ?4, dead = ?5, node = null where hook = ?6 and fence = ?7
"""
_WHEN = "select min(at) from hooks where cursor < last and dead = 0 and node is null"
_WAITING = _DELIVERY.format(index="") + "order by hook limit ?"
_DEAD = _DELIVERY.format(index="indexed by hooks_dead") + "and dead = 1 order by hook limit ?"
_AGAIN = """
update hooks set cursor = min(coalesce(?, cursor), last), at = 0, attempt = 0, since = 0, error = '', dead = 0,
node = null, fence = fence + 1 where hook = ?
"""
_LEAVE = "update hooks set node = null where node = ?"
_PURGE = "delete from hooks where key = ?"


class SqliteHooks:
    """`Hooks` and `Outbox` of one file."""

    def __init__(self, file: SqliteFile, bury: Callable[[Connection], None]) -> None:
        self._file = file
        self._bury = bury
        self._listeners: list[Callable[[], None]] = []

    # -- Hooks -------------------------------------------------------------------------------------------------

    async def put(self, scope: Scope, task: str, hook: Hook) -> Hook:
        return await self._file.commits.submit(partial(self._put, scope, task, hook))

    async def list(self, scope: Scope, task: str) -> Sequence[Hook]:
        reads = self._file.reads
        number = reads.scope(scope)
        row = None if number is None else reads.one(_KEY, (number, task))
        if row is None:
            raise TaskNotFound(task)
        return [decode_hook(body) for (body,) in reads.all(_OF_TASK, row)]

    async def delete(self, scope: Scope, task: str, id: str) -> None:
        await self._file.commits.submit(partial(self._delete, scope, task, id))

    def _put(self, scope: Scope, task: str, hook: Hook, db: Connection) -> Finish[Hook]:
        number = self._file.reads.scope(scope)
        row = None if number is None else db.execute(_TASK, (number, task)).fetchone()
        if row is None:
            raise TaskNotFound(task)
        key, seq, state, done = row
        over = bool(done) or TaskState(state).over
        hook = self.check(db, key, hook)
        self.add(db, key, hook, cursor=seq - 1 if over else seq, last=seq)

        def finish() -> Hook:
            self.wake()
            return hook

        return finish

    def _delete(self, scope: Scope, task: str, id: str, db: Connection) -> Finish[None]:
        number = self._file.reads.scope(scope)
        row = None if number is None else db.execute(_KEY, (number, task)).fetchone()
        if row is None:
            raise TaskNotFound(task)
        if db.execute(_DELETE, (row[0], id)).rowcount:
            db.execute(_UNFLAG, row)
        return _nothing

    # -- for the log, in its transactions ----------------------------------------------------------------------

    def check(self, db: Connection, key: int, hook: Hook) -> Hook:
        """The hook as it will be kept. Writes nothing. Raises `InvalidParams` if there are too many."""
        same = db.execute(_SAME, (key, hook.config.id)).fetchone()
        if same is not None:
            return replace(hook, uid=decode_hook(same[1]).uid)
        if db.execute(_COUNT, (key,)).fetchone()[0] >= MAX_HOOKS:
            raise InvalidParams(f"a task can have up to {MAX_HOOKS} push configs")
        return hook

    def add(self, db: Connection, key: int, hook: Hook, *, cursor: int, last: int) -> None:
        """Keep a hook that was checked; one with the same id gives way."""
        same = db.execute(_SAME, (key, hook.config.id)).fetchone()
        if same is not None:
            db.execute(_REPLACE, (encode_hook(hook), same[0]))
        else:
            db.execute(_ADD, (key, hook.config.id, encode_hook(hook), cursor, last))
            db.execute(_FLAG, (key,))

    def mark(self, db: Connection, key: int, records: Sequence[Record]) -> bool:
        """There is news of a task that has hooks, if one of these records is news."""
        for record in reversed(records):
            if record.kind in PUBLIC:
                db.execute(_MARK, (record.seq, key))
                return True
        return False

    def wake(self) -> None:
        for woken in tuple(self._listeners):
            woken()

    # -- Outbox ------------------------------------------------------------------------------------------------

    async def claim_due(self, node: str, *, limit: int, longest: float = float("inf")) -> Sequence[Delivery]:
        return await self._file.commits.submit(partial(self._claim_due, node, limit, longest))

    async def advance(self, delivery: Delivery, cursor: int) -> None:
        await self._file.commits.submit(partial(_advance, delivery, cursor))

    async def release(
        self,
        delivery: Delivery,
        cursor: int,
        *,
        retry_in: float = 0.0,
        error: str = "",
        dead: bool = False,
    ) -> None:
        await self._file.commits.submit(partial(_release, delivery, cursor, retry_in, error, dead))

    async def when(self) -> float | None:
        at: float | None = self._file.reads.one(_WHEN, ())[0]
        return at

    @contextmanager
    def listen(self, woken: Callable[[], None]) -> Iterator[None]:
        self._listeners.append(woken)
        try:
            yield
        finally:
            self._listeners.remove(woken)

    async def find(self, *, dead: bool = False, limit: int) -> Sequence[Delivery]:
        sql = _DEAD if dead else _WAITING
        rows = await self._file.reads.elsewhere(lambda db: db.execute(sql, (limit,)).fetchall())
        return [delivery_of(row) for row in rows]

    async def redeliver(self, key: int, *, cursor: int | None = None) -> bool:
        return await self._file.commits.submit(partial(self._redeliver, key, cursor))

    def _claim_due(self, node: str, limit: int, longest: float, db: Connection) -> Finish[Sequence[Delivery]]:
        self._bury(db)
        now, claimed = push_configs.now(), []
        db.execute(_HASTEN, (now + longest,))
        for row in db.execute(_DUE, (now, heartbeat.now(), limit, node)).fetchall():
            due = delivery_of(row)
            db.execute(_CLAIM, (node, due.key))
            claimed.append(replace(due, fence=due.fence + 1))
        return lambda: claimed

    def _redeliver(self, key: int, cursor: int | None, db: Connection) -> Finish[bool]:
        found = db.execute(_AGAIN, (cursor, key)).rowcount > 0

        def finish() -> bool:
            self.wake()
            return found

        return finish


def _advance(delivery: Delivery, cursor: int, db: Connection) -> Finish[None]:
    if not db.execute(_ADVANCE, (cursor, delivery.key, delivery.fence)).rowcount:
        raise LeaseLost(delivery.task)
    return _nothing


def _release(
    delivery: Delivery, cursor: int, retry_in: float, error: str, dead: bool, db: Connection
) -> Finish[None]:
    now = push_configs.now()
    if error or dead:
        db.execute(_FAILED, (cursor, now, now + retry_in, error, dead, delivery.key, delivery.fence))
    else:
        db.execute(_RELEASE, (cursor, now + retry_in if retry_in else 0.0, delivery.key, delivery.fence))
    return _nothing


def leave(db: Connection, node: str) -> None:
    """Whatever the node held is free."""
    db.execute(_LEAVE, (node,))


def purge(db: Connection, keys: Iterable[tuple[int]]) -> None:
    """Forget the hooks of these tasks."""
    db.executemany(_PURGE, keys)


def _nothing() -> None:
    pass

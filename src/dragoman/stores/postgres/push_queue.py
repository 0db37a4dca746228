"""Push configs in a PostgreSQL database, and the notifications that are due.

A webhook is due when `cursor < last`: `last` moves in the transaction that adds a public record to its task's log, and
`cursor` when a notification was delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Unpack

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
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.database import Database
from dragoman.stores.postgres.text import is_storable, replace_unstorable
from dragoman.stores.rows import (
    PUSH_COLUMNS,
    PushListeners,
    decode_push_config,
    encode_push_config,
    read_delivery,
    read_push_row,
    write_push_row,
)

_FIND = """
from dragoman.tasks join dragoman.scopes using (scope) where tenant = $1 and agent = $2 and owner = $3 and id = $4
"""
_TASK = "select key, seq, state, done " + _FIND + "for update of tasks"
_KEY = "select key " + _FIND
_OF_TASK = "select body from dragoman.webhooks where key = $1 order by webhook"
_OF_TASKS = "select key, id, body from dragoman.webhooks where key = any($1::bigint[])"
_SAME = "select webhook from dragoman.webhooks where key = $1 and id = $2"
_ADD = "insert into dragoman.webhooks (key, id, body, cursor, last) values ($1, $2, $3, $4, $5)"
_REPLACE = "update dragoman.webhooks set body = $2 where webhook = $1"
_ROW = f"select {PUSH_COLUMNS} from dragoman.webhooks where webhook = $1 for update"
_CHANGE = f"""
update dragoman.webhooks set ({PUSH_COLUMNS}) = ($1, $2, $3, $4, $5, $6, $7, $8, $9) where webhook = $10
"""
_FLAG = "update dragoman.tasks set webhooks = true where key = $1"
_DELETE = "delete from dragoman.webhooks where key = $1 and id = $2"
_UNFLAG = """
update dragoman.tasks set webhooks = exists (select 1 from dragoman.webhooks where webhooks.key = tasks.key) where key = $1
"""
_NOTIFY = """
update dragoman.webhooks set last = greatest(last, n.seq)
from unnest($1::bigint[], $2::integer[]) as n(key, seq) where webhooks.key = n.key
"""
_DELIVERY = """
select webhook, tenant, agent, owner, tasks.id, body, cursor, last, webhooks.node, webhooks.fence, webhooks.attempt, since, at, error, dead
from dragoman.webhooks join dragoman.tasks using (key) join dragoman.scopes using (scope) where cursor < last
"""
_CORRECT_TIMES = "update dragoman.webhooks set at = 0 where cursor < last and not dead and at > $1"
_DUE = """
select webhook from dragoman.webhooks where cursor < last and not dead and at <= $2
and (node is null or node <> $1 and node not in (select node from dragoman.nodes where until > dragoman.clock()))
order by at limit $3 for update skip locked
"""
_CLAIMED = _DELIVERY + "and webhook = any($1::bigint[]) order by at, webhook"
_WHEN = "select min(at) from dragoman.webhooks where cursor < last and not dead and node is null"
_WAITING = _DELIVERY + "order by webhook limit $1"
_BROWSE = _DELIVERY.replace("cursor < last", "webhook > $1") + "order by webhook limit $2"
_BROWSE_TASK = (
    _DELIVERY.replace(
        "cursor < last", "webhook > $1 and tenant = $3 and agent = $4 and owner = $5 and tasks.id = $6"
    )
    + "order by webhook limit $2"
)
_DEAD = _DELIVERY + "and dead order by webhook limit $1"


class PostgresPushQueue(PushListeners):
    """`PushConfigStore` and `PushQueue` of one database."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    # -- PushConfigStore -------------------------------------------------------------------------------------------------

    async def put(self, scope: Scope, task: str, webhook: StoredPushConfig) -> StoredPushConfig:
        stored = await self._database.write(partial(_put, name=_name(scope, task), webhook=webhook))
        self.wake()
        return stored

    async def list(self, scope: Scope, task: str) -> Sequence[StoredPushConfig]:
        name = _name(scope, task)

        async def look(db: Connection) -> list[StoredPushConfig] | None:
            key = await db.fetchval(_KEY, *name)
            return (
                None
                if key is None
                else [decode_push_config(body) for (body,) in await db.fetch(_OF_TASK, key)]
            )

        found = await self._database.read(look)
        if found is None:
            raise TaskNotFound(task)
        return found

    async def delete(self, scope: Scope, task: str, id: str) -> None:
        name = _name(scope, task)

        async def work(db: Connection) -> None:
            row = await db.fetchrow(_TASK, *name)
            if row is None:
                raise TaskNotFound(task)
            await db.execute(_DELETE, row["key"], replace_unstorable(id))
            await db.execute(_UNFLAG, row["key"])

        await self._database.write(work)

    # -- PushQueue ------------------------------------------------------------------------------------------------

    async def claim_due(self, node: str, *, limit: int, longest: float = float("inf")) -> Sequence[Delivery]:
        async def work(db: Connection) -> Sequence[Delivery]:
            now = push_configs.steady_time()
            if longest != float("inf"):
                await db.execute(_CORRECT_TIMES, now + longest)
            claimed = [webhook for (webhook,) in await db.fetch(_DUE, node, now, limit)]
            for webhook in claimed:
                await _change(db, webhook, ClaimPush(node, now))
            return [read_delivery(row) for row in await db.fetch(_CLAIMED, claimed)] if claimed else ()

        return await self._database.write(work)

    async def advance(self, delivery: Delivery, cursor: int) -> None:
        async def work(db: Connection) -> None:
            if await _change(db, delivery.key, Advance(delivery.task, delivery.fence, cursor)) is None:
                raise LeaseLost(delivery.task)

        await self._database.write(work)

    async def release(self, delivery: Delivery, cursor: int, **options: Unpack[ReleaseOptions]) -> None:
        options["error"] = replace_unstorable(options.get("error", ""))

        async def work(db: Connection) -> None:
            await _change(
                db, delivery.key, ReleasePush(delivery.fence, cursor, push_configs.steady_time(), **options)
            )

        await self._database.write(work)

    async def next_due(self) -> float | None:
        at: float | None = await self._database.read(lambda db: db.fetchval(_WHEN))
        return at

    async def find(self, *, dead: bool = False, limit: int) -> Sequence[Delivery]:
        rows = await self._database.read(lambda db: db.fetch(_DEAD if dead else _WAITING, limit))
        return [read_delivery(row) for row in rows]

    async def browse(
        self, *, of: tuple[Scope, str] | None = None, after: int = 0, limit: int
    ) -> Sequence[Delivery]:
        name = () if of is None else _name(*of)

        async def look(db: Connection) -> Sequence[Delivery]:
            if name and await db.fetchrow(_TASK, *name) is None:
                raise TaskNotFound(name[-1])
            sql = _BROWSE_TASK if name else _BROWSE
            return [read_delivery(row) for row in await db.fetch(sql, after, limit, *name)]

        return await self._database.read(look)

    async def redeliver(self, key: int, *, cursor: int | None = None) -> bool:
        found = await self._database.write(lambda db: _change(db, key, Redeliver(cursor)))
        self.wake()
        return found is not None


# -- in transactions of the log --------------------------------------------------------------------------------


async def find_webhooks(db: Connection, keys: Sequence[int]) -> dict[int, dict[str, StoredPushConfig]]:
    """The webhooks of these tasks, by task and id."""
    found: dict[int, dict[str, StoredPushConfig]] = {}
    for key, id, body in await db.fetch(_OF_TASKS, keys) if keys else ():
        found.setdefault(key, {})[id] = decode_push_config(body)
    return found


def check_webhook(others: Mapping[str, StoredPushConfig], webhook: StoredPushConfig) -> StoredPushConfig:
    """The webhook as it is stored beside the `others`. Raises `InvalidParams` if there are too many."""
    if not is_storable(webhook.config.id):
        raise InvalidParams("the id of a push config is text, without a NUL")
    return check_push_config(webhook, others.get(webhook.config.id), len(others))


async def put_webhook(db: Connection, key: int, webhook: StoredPushConfig, *, cursor: int, last: int) -> None:
    """Store a webhook that was checked. It replaces one with the same id."""
    body = encode_push_config(webhook)
    same = await db.fetchval(_SAME, key, webhook.config.id)
    if same is None:
        await db.execute(_ADD, key, webhook.config.id, body, cursor, last)
    else:
        await db.execute(_REPLACE, same, body)
        await _change(db, same, Replace())


async def _change(db: Connection, key: int, job: PushJob) -> PushRow | None:
    """Apply the decision of `decide_push`, and return the new row. None if there is no such webhook."""
    found = await db.fetchrow(_ROW, key)
    if found is None:
        return None
    row = read_push_row(found)
    after = decide_push(row, job)
    if after is not row:
        await db.execute(_CHANGE, *write_push_row(after), key)
    return after


async def notify_webhooks(db: Connection, last: Mapping[int, int]) -> None:
    """Make the webhooks of tasks due for all records up to `last`, by the key of the task."""
    await db.execute(_NOTIFY, [*last], [*last.values()])


async def _put(db: Connection, name: tuple[str, ...], webhook: StoredPushConfig) -> StoredPushConfig:
    row = await db.fetchrow(_TASK, *name)
    if row is None:
        raise TaskNotFound(name[-1])
    key, seq, state, done = row
    first = first_push_row(TaskRow(seq=seq, state=TaskState(state), done=done))
    webhook = check_webhook((await find_webhooks(db, [key])).get(key, {}), webhook)
    await put_webhook(db, key, webhook, cursor=first.cursor, last=first.last)
    await db.execute(_FLAG, key)
    return webhook


def _name(scope: Scope, task: str) -> tuple[str, ...]:
    name = (scope.tenant, scope.agent, scope.owner, task)
    if not is_storable(*name):
        raise TaskNotFound(task)
    return name

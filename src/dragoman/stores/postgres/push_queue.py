"""Push configs in a PostgreSQL database, and what is still to be told to them.

A webhook is due when `cursor < last`: `last` moves in the transaction that adds a public record to its task's log, and
`cursor` when somebody has been told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from dragoman.engine import push_configs
from dragoman.engine.protocols import LeaseLost
from dragoman.engine.push_configs import MAX_PUSH_CONFIGS, Delivery, StoredPushConfig
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.database import Database
from dragoman.stores.postgres.text import clean, fits
from dragoman.stores.rows import decode_push_config, delivery_of, encode_push_config

_FIND = """
from dragoman.tasks join dragoman.scopes using (scope) where tenant = $1 and agent = $2 and owner = $3 and id = $4
"""
_TASK = "select key, seq, state, done " + _FIND + "for update of tasks"
_KEY = "select key " + _FIND
_OF_TASK = "select body from dragoman.webhooks where key = $1 order by webhook"
_OF_TASKS = "select key, id, body from dragoman.webhooks where key = any($1::bigint[])"
_KEEP = """
insert into dragoman.webhooks (key, id, body, cursor, last) values ($1, $2, $3, $4, $5)
on conflict (key, id) do update set body = excluded.body, at = 0, attempt = 0, since = 0, error = '', dead = false,
node = null, fence = webhooks.fence + 1
"""
_FLAG = "update dragoman.tasks set webhooks = true where key = $1"
_DELETE = "delete from dragoman.webhooks where key = $1 and id = $2"
_UNFLAG = """
update dragoman.tasks set webhooks = exists (select 1 from dragoman.webhooks where webhooks.key = tasks.key) where key = $1
"""
_MARK = """
update dragoman.webhooks set last = greatest(last, n.seq)
from unnest($1::bigint[], $2::integer[]) as n(key, seq) where webhooks.key = n.key
"""
_DELIVERY = """
select webhook, tenant, agent, owner, tasks.id, body, cursor, last, webhooks.fence, webhooks.attempt, since, at, error, dead
from dragoman.webhooks join dragoman.tasks using (key) join dragoman.scopes using (scope) where cursor < last
"""
_HASTEN = "update dragoman.webhooks set at = 0 where cursor < last and not dead and at > $1"
_CLAIM = """
update dragoman.webhooks set node = $1, fence = fence + 1 where webhook in (
    select webhook from dragoman.webhooks where cursor < last and not dead and at <= $2
    and (node is null or node <> $1 and node not in (select node from dragoman.nodes where until > dragoman.clock()))
    order by at limit $3 for update skip locked
) returning webhook
"""
_CLAIMED = _DELIVERY + "and webhook = any($1::bigint[]) order by at, webhook"
_ADVANCE = """
update dragoman.webhooks set cursor = $1, attempt = 0, since = 0, at = 0, error = ''
where webhook = $2 and fence = $3 and node is not null returning webhook
"""
_RELEASE = """
update dragoman.webhooks set attempt = case when cursor = $1 then attempt else 0 end,
since = case when cursor = $1 then since else 0 end, error = case when cursor = $1 then error else '' end,
cursor = $1, at = $2, node = null where webhook = $3 and fence = $4
"""
_FAILED = """
update dragoman.webhooks set attempt = case when cursor = $1 then attempt + 1 else 1 end,
since = case when cursor = $1 and attempt > 0 then since else $2 end,
cursor = $1, at = $3, error = $4, dead = $5, node = null where webhook = $6 and fence = $7
"""
_WHEN = "select min(at) from dragoman.webhooks where cursor < last and not dead and node is null"
_WAITING = _DELIVERY + "order by webhook limit $1"
_DEAD = _DELIVERY + "and dead order by webhook limit $1"
_AGAIN = """
update dragoman.webhooks set cursor = least(coalesce($1, cursor), last), at = 0, attempt = 0, since = 0, error = '',
dead = false, node = null, fence = fence + 1 where webhook = $2 returning webhook
"""


class PostgresPushQueue:
    """`PushConfigStore` and `PushQueue` of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listeners: list[Callable[[], None]] = []

    # -- PushConfigStore -------------------------------------------------------------------------------------------------

    async def put(self, scope: Scope, task: str, webhook: StoredPushConfig) -> StoredPushConfig:
        kept = await self._database.write(partial(_put, name=_name(scope, task), webhook=webhook))
        self.wake()
        return kept

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
            await db.execute(_DELETE, row["key"], clean(id))
            await db.execute(_UNFLAG, row["key"])

        await self._database.write(work)

    def wake(self) -> None:
        for woken in tuple(self._listeners):
            woken()

    # -- PushQueue ------------------------------------------------------------------------------------------------

    async def claim_due(self, node: str, *, limit: int, longest: float = float("inf")) -> Sequence[Delivery]:
        async def work(db: Connection) -> Sequence[Delivery]:
            now = push_configs.now()
            if longest != float("inf"):
                await db.execute(_HASTEN, now + longest)
            claimed = [webhook for (webhook,) in await db.fetch(_CLAIM, node, now, limit)]
            return [delivery_of(row) for row in await db.fetch(_CLAIMED, claimed)] if claimed else ()

        return await self._database.write(work)

    async def advance(self, delivery: Delivery, cursor: int) -> None:
        async def work(db: Connection) -> None:
            if await db.fetchval(_ADVANCE, cursor, delivery.key, delivery.fence) is None:
                raise LeaseLost(delivery.task)

        await self._database.write(work)

    async def release(
        self,
        delivery: Delivery,
        cursor: int,
        *,
        retry_in: float = 0.0,
        error: str = "",
        dead: bool = False,
    ) -> None:
        async def work(db: Connection) -> None:
            now, mine = push_configs.now(), (delivery.key, delivery.fence)
            if error or dead:
                await db.execute(_FAILED, cursor, now, now + retry_in, clean(error), dead, *mine)
            else:
                await db.execute(_RELEASE, cursor, now + retry_in if retry_in else 0.0, *mine)

        await self._database.write(work)

    async def when(self) -> float | None:
        async def look(db: Connection) -> float | None:
            at: float | None = await db.fetchval(_WHEN)
            return at

        return await self._database.read(look)

    @contextmanager
    def listen(self, woken: Callable[[], None]) -> Iterator[None]:
        self._listeners.append(woken)
        try:
            yield
        finally:
            self._listeners.remove(woken)

    async def find(self, *, dead: bool = False, limit: int) -> Sequence[Delivery]:
        async def look(db: Connection) -> Sequence[Delivery]:
            return [delivery_of(row) for row in await db.fetch(_DEAD if dead else _WAITING, limit)]

        return await self._database.read(look)

    async def redeliver(self, key: int, *, cursor: int | None = None) -> bool:
        async def work(db: Connection) -> bool:
            return await db.fetchval(_AGAIN, cursor, key) is not None

        found = await self._database.write(work)
        self.wake()
        return found


# -- in transactions of the log --------------------------------------------------------------------------------


async def of_tasks(db: Connection, keys: Sequence[int]) -> dict[int, dict[str, StoredPushConfig]]:
    """The webhooks that these tasks have, by their ids."""
    found: dict[int, dict[str, StoredPushConfig]] = {}
    for key, id, body in await db.fetch(_OF_TASKS, keys) if keys else ():
        found.setdefault(key, {})[id] = decode_push_config(body)
    return found


def checked(others: Mapping[str, StoredPushConfig], webhook: StoredPushConfig) -> StoredPushConfig:
    """The webhook as it will be kept beside the `others`. Raises `InvalidParams` if there are too many."""
    if not fits(webhook.config.id):
        raise InvalidParams("the id of a push config is text, without a NUL")
    if (same := others.get(webhook.config.id)) is not None:
        return replace(webhook, uid=same.uid)
    if len(others) >= MAX_PUSH_CONFIGS:
        raise InvalidParams(f"a task can have up to {MAX_PUSH_CONFIGS} push configs")
    return webhook


async def keep(db: Connection, key: int, webhook: StoredPushConfig, *, cursor: int, last: int) -> None:
    """Keep a webhook that was checked; one with the same id gives way."""
    await db.execute(_KEEP, key, webhook.config.id, encode_push_config(webhook), cursor, last)


async def mark(db: Connection, news: Mapping[int, int]) -> None:
    """There is news of these tasks: by their keys, the last of it."""
    await db.execute(_MARK, [*news], [*news.values()])


async def _put(db: Connection, name: tuple[str, ...], webhook: StoredPushConfig) -> StoredPushConfig:
    row = await db.fetchrow(_TASK, *name)
    if row is None:
        raise TaskNotFound(name[-1])
    key, seq, state, done = row
    over = done or TaskState(state).over
    webhook = checked((await of_tasks(db, [key])).get(key, {}), webhook)
    await keep(db, key, webhook, cursor=seq - 1 if over else seq, last=seq)
    await db.execute(_FLAG, key)
    return webhook


def _name(scope: Scope, task: str) -> tuple[str, ...]:
    name = (scope.tenant, scope.agent, scope.owner, task)
    if not fits(*name):
        raise TaskNotFound(task)
    return name

"""From one SQLite file to a PostgreSQL database: everything that is in the file, in one transaction.

The file stays as it is, and nobody may write to it meanwhile. Tasks that were at work go on where they are taken up next.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dragoman.errors import Unavailable
from dragoman.stores import heartbeat
from dragoman.stores.node_locks import NodeLocks
from dragoman.stores.postgres.address import CONFUSED, GONE, HOUR, Connection, PostgresAddress, PostgresError
from dragoman.stores.postgres.database import brief, clean, fits, indexed, migrate
from dragoman.stores.sqlite.store import SqliteStore

_NODES = "select node from nodes where until > ?"
_SCOPES = "select scope, tenant, agent, owner from scopes"
_TASKS = """
select key, scope, id, context, updated, state, done, reply, webhooks, seq, mail, ready, null, fence, attempt, size from tasks
"""
_LOG = f"select place >> 28, place & {(1 << 28) - 1}, body from log"
_SEEN = "select scope, dedupe, key, seq, at from seen"
_WEBHOOKS = (
    "select webhook, key, id, body, cursor, last, at, attempt, since, error, dead, null, fence from webhooks"
)
_AUDIT = """
select id, at, tenant, agent, principal, operation, task, outcome, dialect, trace, coalesce(hash, x'') from audit order by id
"""
_REGISTERED = "select tenant, name, url, due, body from catalogue_agents"
_ALONE = "lock table dragoman.tasks, dragoman.scopes, dragoman.audit in access exclusive mode"
_SERVED = "select exists (select 1 from dragoman.nodes where until > dragoman.clock())"
_EMPTY = "select not exists (select 1 from dragoman.tasks) and not exists (select 1 from dragoman.audit)"
_FORGET_SCOPES = (
    "delete from dragoman.scopes",
    "delete from dragoman.counts",
    "delete from dragoman.purged",
    "delete from dragoman.catalogue_agents",
)
_COUNT_TASKS = """
insert into dragoman.counts (scope, state, slot, n) select scope, state, -1, count(*) from dragoman.tasks
where not reply or state <> 'TASK_STATE_SUBMITTED' group by scope, state
"""
_COUNT_ON = """
select setval(pg_get_serial_sequence('dragoman.{table}', '{column}'), greatest(max({column}), 1), max({column}) is not null)
from dragoman.{table}
"""


class Copied(Struct):
    """How much there was of what."""

    tasks: int = 0
    webhooks: int = 0
    entries: int = 0
    left: int = 0
    """Tasks that stay behind: there is a NUL in a name of theirs, or it is too long. PostgreSQL does not take that."""


async def copy(path: Path, url: str) -> Copied:
    """Copy the file at `path` to the database at `url`, which must be empty. Raises `Unavailable`; `ValueError` for a url."""
    address = PostgresAddress(url)
    store = SqliteStore(path)
    await store.open()  # which brings it up to date
    await store.close()
    source = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    try:
        source.execute("begin immediate")
        locks = NodeLocks(Path(f"{path}-nodes"))
        if not all(locks.dead(node) for (node,) in source.execute(_NODES, (heartbeat.now(),))):
            raise Unavailable("a server is at work on this file: stop it first")
        return await _into(source, address)
    except sqlite3.Error as error:
        raise Unavailable(f"the file {path.name} cannot be read: {error}") from error
    except (*GONE, *CONFUSED, PostgresError) as error:
        raise Unavailable(f"the database cannot be written to: {error}") from error
    finally:
        source.close()


async def _into(source: sqlite3.Connection, address: PostgresAddress) -> Copied:
    db = await address.connect()
    try:
        await migrate(db)
        async with db.transaction():
            await db.execute(_ALONE)
            if not await db.fetchval(_EMPTY):
                raise Unavailable("there are tasks in that database already: take an empty one")
            if await db.fetchval(_SERVED):  # it may know scopes by the numbers that ours are about to have
                raise Unavailable("a server is at work on that database: stop it first")
            for statement in _FORGET_SCOPES:
                await db.execute(statement)
            return await _all(source, db)
    finally:
        await db.close()


async def _all(source: sqlite3.Connection, db: Connection) -> Copied:
    copied = Copied()
    scopes = {row[0]: row for row in source.execute(_SCOPES) if indexed(*row[1:])}
    await _put(db, "scopes", scopes.values(), "scope")
    copied_keys: set[int] = set()

    def tasks() -> Iterator[Sequence[Any]]:
        for row in source.execute(_TASKS):
            key, scope, id, context, updated, state, done, reply, webhooks, seq, mail, ready, *lease = row
            if scope in scopes and fits(id, context):
                copied_keys.add(key)
                yield (key, scope, id, context, updated, state, bool(done), bool(reply), bool(webhooks), seq, mail,
                       bool(ready), *lease)  # fmt: skip
            else:
                copied.left += 1

    def webhooks() -> Iterator[Sequence[Any]]:
        for webhook, key, id, body, cursor, last, at, attempt, since, error, dead, *rest in source.execute(
            _WEBHOOKS
        ):
            if key in copied_keys and fits(id):
                copied.webhooks += 1
                yield (
                    webhook,
                    key,
                    id,
                    body,
                    cursor,
                    last,
                    at,
                    attempt,
                    since,
                    clean(error),
                    bool(dead),
                    *rest,
                )

    def entries() -> Iterator[Sequence[Any]]:
        for id, *words, hash in source.execute(_AUDIT):
            copied.entries += 1
            yield id, *(brief(word) for word in words), hash

    await _put(db, "tasks", tasks(), "key")
    copied.tasks = len(copied_keys)
    await db.execute(_COUNT_TASKS, timeout=HOUR)
    await _put(db, "log", (row for row in source.execute(_LOG) if row[0] in copied_keys))
    await _put(db, "seen", (row for row in source.execute(_SEEN) if row[2] in copied_keys and fits(row[1])))
    await _put(db, "webhooks", webhooks(), "webhook")
    await _put(db, "audit", entries(), "id")
    await _put(db, "catalogue_agents", (row for row in source.execute(_REGISTERED) if fits(*row[:3])))
    return copied


async def _put(db: Connection, table: str, rows: Iterable[Sequence[Any]], numbered: str = "") -> None:
    """Fill a table whose columns are those of `rows`, and have what comes next be `numbered` after them."""
    columns = _COLUMNS[table].split()
    await db.copy_records_to_table(table, schema_name="dragoman", records=rows, columns=columns, timeout=HOUR)
    if numbered:
        await db.execute(_COUNT_ON.format(table=table, column=numbered))


_COLUMNS = {
    "scopes": "scope tenant agent owner",
    "tasks": "key scope id context updated state done reply webhooks seq mail ready node fence attempt size",
    "log": "key seq body",
    "seen": "scope dedupe key seq at",
    "webhooks": "webhook key id body cursor last at attempt since error dead node fence",
    "audit": "id at tenant agent principal operation task outcome dialect trace hash",
    "catalogue_agents": "tenant name url due body",
}

"""Copy a SQLite file to a PostgreSQL database, in one transaction.

The file does not change, and no process may write to it meanwhile. Unfinished tasks continue at the next node of the database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from dragoman.errors import Unavailable
from dragoman.stores import lease_clock
from dragoman.stores.node_locks import NodeLocks
from dragoman.stores.postgres.address import (
    BROKEN_CONNECTION_ERRORS,
    LONG_COMMAND_SECONDS,
    UNAVAILABLE_ERRORS,
    Connection,
    PostgresAddress,
    PostgresError,
)
from dragoman.stores.postgres.migrations import migrate
from dragoman.stores.postgres.text import is_indexable, is_storable, replace_unstorable, shorten_for_index
from dragoman.stores.sqlite.store import SqliteStore

_NODES = "select node from nodes where until > ?"
_COLUMNS = {
    "scopes": "scope tenant agent owner",
    "tasks": "key scope id context updated state done reply webhooks seq mail ready node fence attempt size",
    "log": "key seq body",
    "seen": "scope dedupe key seq at",
    "webhooks": "webhook key id body cursor last at attempt since error dead node fence",
    "audit": "id at tenant agent principal operation task outcome dialect trace hash",
    "catalogue_agents": "tenant name url due body",
}
"""The tables that are copied, and their columns."""
_FLAGS = ("done", "reply", "webhooks", "ready", "dead")
"""Columns that are numbers in SQLite."""
_VALUES = {
    ("log", "key"): "place >> 28",
    ("log", "seq"): f"place & {(1 << 28) - 1}",
    ("tasks", "node"): "null",
    ("webhooks", "node"): "null",
    ("audit", "hash"): "coalesce(hash, x'')",
}
"""Columns that have another name or value in SQLite."""
_LOCK_TABLES = "lock table dragoman.tasks, dragoman.scopes, dragoman.audit in access exclusive mode"
_IS_SERVED = "select exists (select 1 from dragoman.nodes where until > dragoman.clock())"
_IS_EMPTY = "select not exists (select 1 from dragoman.tasks) and not exists (select 1 from dragoman.audit)"
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
_SET_SEQUENCE = """
select setval(pg_get_serial_sequence('dragoman.{table}', '{column}'), greatest(max({column}), 1), max({column}) is not null)
from dragoman.{table}
"""


class Copied(Struct):
    """How many rows were copied."""

    tasks: int = 0
    webhooks: int = 0
    entries: int = 0
    left: int = 0
    """Tasks that were not copied: a name of theirs is too long or has a NUL in it, which PostgreSQL does not store."""


async def copy(path: Path, url: str, also: Callable[[Connection], Awaitable[None]] | None = None) -> Copied:
    """Copy the file at `path` to the database at `url`, which must be empty. Raises `Unavailable`, and `ValueError` for
    an invalid URL.

    `also` writes something else in the same transaction.
    """
    address = PostgresAddress(url)
    store = SqliteStore(path)
    await store.open()  # runs the migrations
    await store.close()
    source = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    try:
        source.execute("begin immediate")
        locks = NodeLocks(Path(f"{path}-nodes"))
        if not all(locks.is_dead(node) for (node,) in source.execute(_NODES, (lease_clock.now(),))):
            raise Unavailable("a server uses this file: stop it first")
        return await _copy_to(source, address, also)
    except sqlite3.Error as error:
        raise Unavailable(f"the file {path.name} cannot be read: {error}") from error
    except (*UNAVAILABLE_ERRORS, *BROKEN_CONNECTION_ERRORS, PostgresError) as error:
        raise Unavailable(f"the database cannot be written to: {error}") from error
    finally:
        source.close()


async def _copy_to(
    source: sqlite3.Connection,
    address: PostgresAddress,
    also: Callable[[Connection], Awaitable[None]] | None,
) -> Copied:
    db = await address.connect()
    try:
        await migrate(db)
        async with db.transaction():
            await db.execute(_LOCK_TABLES)
            if not await db.fetchval(_IS_EMPTY):
                raise Unavailable("there are tasks in that database already: use an empty one")
            if await db.fetchval(_IS_SERVED):  # it may have cached other numbers of scopes
                raise Unavailable("a server uses that database: stop it first")
            for statement in _FORGET_SCOPES:
                await db.execute(statement)
            if also is not None:
                await also(db)
            return await _copy_tables(source, db)
    finally:
        await db.close()


async def _copy_tables(source: sqlite3.Connection, db: Connection) -> Copied:
    copied = Copied()
    scopes = {
        row["scope"]: row
        for row in _read(source, "scopes")
        if is_indexable(*_words(row, "tenant agent owner"))
    }
    await _put(db, "scopes", scopes.values(), "scope")
    copied_keys: set[int] = set()

    def tasks() -> Iterator[dict[str, Any]]:
        for row in _read(source, "tasks"):
            if row["scope"] in scopes and is_storable(row["id"], row["context"]):
                copied_keys.add(row["key"])
                yield row
            else:
                copied.left += 1

    def webhooks() -> Iterator[dict[str, Any]]:
        for row in _read(source, "webhooks"):
            if row["key"] in copied_keys and is_storable(row["id"]):
                copied.webhooks += 1
                yield {**row, "error": replace_unstorable(row["error"])}

    def entries() -> Iterator[dict[str, Any]]:
        for row in _read(source, "audit"):
            copied.entries += 1
            yield {
                name: shorten_for_index(value) if isinstance(value, str) else value
                for name, value in row.items()
            }

    await _put(db, "tasks", tasks(), "key")
    copied.tasks = len(copied_keys)
    await db.execute(_COUNT_TASKS, timeout=LONG_COMMAND_SECONDS)
    await _put(db, "log", (row for row in _read(source, "log") if row["key"] in copied_keys))
    seen = (row for row in _read(source, "seen") if row["key"] in copied_keys and is_storable(row["dedupe"]))
    await _put(db, "seen", seen)
    await _put(db, "webhooks", webhooks(), "webhook")
    await _put(db, "audit", entries(), "id")
    agents = _read(source, "catalogue_agents")
    await _put(
        db, "catalogue_agents", (row for row in agents if is_storable(*_words(row, "tenant name url")))
    )
    return copied


def _words(row: dict[str, Any], names: str) -> list[str]:
    return [row[name] for name in names.split()]


def _read(source: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """The rows of a table, with the columns and types of PostgreSQL."""
    columns = _COLUMNS[table].split()
    values = ", ".join(_VALUES.get((table, column), column) for column in columns)
    order = " order by id" if table == "audit" else ""
    for row in source.execute(f"select {values} from {table}{order}"):
        named = zip(columns, row, strict=True)
        yield {name: bool(value) if name in _FLAGS else value for name, value in named}


async def _put(db: Connection, table: str, rows: Iterable[dict[str, Any]], numbered: str = "") -> None:
    """Fill a table. `numbered`: its column with a sequence, which continues after the last row."""
    columns, records = _COLUMNS[table].split(), (tuple(row.values()) for row in rows)
    await db.copy_records_to_table(
        table, schema_name="dragoman", records=records, columns=columns, timeout=LONG_COMMAND_SECONDS
    )
    if numbered:
        await db.execute(_SET_SEQUENCE.format(table=table, column=numbered))

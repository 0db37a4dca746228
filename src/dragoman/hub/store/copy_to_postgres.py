"""Copy the tables and tasks of a hub from its folder to a PostgreSQL database, in one transaction.

The files do not change, and are locked meanwhile. Contents of large files and the folders of tenants are not copied: the tables refer
to them by the same keys.

All tables of the PostgreSQL schema are filled, from the columns of the table with the same name in `hub.db`. New ids begin after all ids
that were ever used, also those of deleted rows, so the number of a tenant is never used again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from msgspec import Struct

from dragoman.errors import Unavailable
from dragoman.hub.folder_lock import FolderLock
from dragoman.hub.store.postgres import create_tables
from dragoman.hub.store.sqlite import SqliteDatabase
from dragoman.stores.copy_to_postgres import Copied, copy
from dragoman.stores.postgres.address import LONG_COMMAND_SECONDS, Connection
from dragoman.stores.postgres.text import replace_unstorable

NOT_COPIED = ("migrations", "workspace_leases")
"""Tables that only PostgreSQL has, or that have no rows when no hub runs."""
_COLUMNS = """
select table_name, array_agg(column_name::text order by ordinal_position), max(column_name) filter (where is_identity = 'YES')
from information_schema.columns where table_schema = 'hub' and is_generated = 'NEVER' group by table_name order by table_name
"""
_REFERENCES = """
select one.relname, other.relname from pg_constraint join pg_class as one on one.oid = conrelid
join pg_class as other on other.oid = confrelid where contype = 'f' and connamespace = 'hub'::regnamespace
"""
_CLAIM_DATABASE = (
    "lock table hub.tenants, hub.admin_tokens in access exclusive mode",
    "delete from hub.admin_tokens where not exists (select 1 from hub.tenants)",
)
"""Lock out hubs, and delete the admin token of a hub that was started on the empty database: that of the folder is copied."""
_HAS_ROWS = "select exists (select 1 from hub.{table})"
_LAST_ID = "select seq from sqlite_sequence where name = ?"
_SET_NEXT_ID = "select setval(pg_get_serial_sequence('hub.{table}', '{column}'), $1)"


class CopiedHub(Struct):
    """How much was copied."""

    tasks: Copied
    rows: dict[str, int]
    """By table."""


async def copy_hub(folder: Path, url: str) -> CopiedHub:
    """Copy the hub in a folder to the database at `url`, which must be empty. Raises `Unavailable`; `ValueError` for an invalid URL."""
    lock, rows = FolderLock(folder), dict[str, int]()
    lock.acquire()
    try:
        database = await SqliteDatabase(folder / "hub.db").open()  # migrates its tables to this version
        await database.close()
        with closing(sqlite3.connect(folder / "hub.db", isolation_level=None, timeout=5.0)) as source:
            source.execute("begin immediate")
            tasks = await copy(folder / "tasks.db", url, partial(_copy_tables, source, rows))
    except sqlite3.Error as error:
        raise Unavailable(f"the file hub.db cannot be read: {error}") from error
    finally:
        lock.release()
    return CopiedHub(tasks, rows)


async def _copy_tables(source: sqlite3.Connection, rows: dict[str, int], db: Connection) -> None:
    """Create the tables and fill them, those first to which others refer."""
    await create_tables(db)
    for statement in _CLAIM_DATABASE:
        await db.execute(statement)
    tables = {table: (columns, number) for table, columns, number in await db.fetch(_COLUMNS)}
    order = TopologicalSorter({table: set[str]() for table in tables if table not in NOT_COPIED})
    for one, other in await db.fetch(_REFERENCES):
        if one in tables and one not in NOT_COPIED:
            order.add(one, other)
    for table in order.static_order():
        if await db.fetchval(_HAS_ROWS.format(table=table)):
            raise Unavailable("there is a hub in that database already: use an empty one")
        columns, number = tables[table]
        rows[table] = 0

        def count(found: Iterator[Sequence[Any]], table: str = table) -> Iterator[Sequence[Any]]:
            for row in found:
                rows[table] += 1
                yield [replace_unstorable(value) if isinstance(value, str) else value for value in row]

        found = source.execute(f"select {', '.join(columns)} from {table}")
        await db.copy_records_to_table(
            table, schema_name="hub", records=count(found), columns=columns, timeout=LONG_COMMAND_SECONDS
        )
        last = source.execute(_LAST_ID, (table,)).fetchone() if number else None
        if last is not None and last[0]:
            await db.execute(_SET_NEXT_ID.format(table=table, column=number), last[0])

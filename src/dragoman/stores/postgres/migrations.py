"""Makes and changes the tables of a PostgreSQL database."""

from __future__ import annotations

from dragoman.stores.migrations import find_missing_scripts, find_scripts
from dragoman.stores.postgres.address import LONG_COMMAND_SECONDS, Connection

_MIGRATED = "select to_regclass('{schema}.migrations') is not null"
_MIGRATION_LOCK = "select pg_advisory_xact_lock(7237091846325301)"
"""Nodes may start at the same time. The number has no meaning."""
_TABLE = """
create schema if not exists {schema};
create table if not exists {schema}.migrations (number integer primary key, name text not null)
"""
_DONE = "select coalesce(max(number), 0) from {schema}.migrations"
_RECORD = "insert into {schema}.migrations (number, name) values ($1, $2)"


async def migrate(db: Connection, package: str = "dragoman.stores", schema: str = "dragoman") -> None:
    """Run the scripts of `package` that `schema` has not seen, all in one transaction. Raises `UnsupportedSchema`."""
    known = find_scripts("postgres", package)
    migrated, done = _MIGRATED.format(schema=schema), _DONE.format(schema=schema)
    async with db.transaction():
        if await db.fetchval(migrated) and not find_missing_scripts(known, await db.fetchval(done)):
            return  # without a lock, and without the right to create tables, which an administrator may have created
        await db.execute(_MIGRATION_LOCK, timeout=LONG_COMMAND_SECONDS)
        await db.execute(_TABLE.format(schema=schema))
        for number, name, script in find_missing_scripts(known, await db.fetchval(done)):
            await db.execute(script, timeout=LONG_COMMAND_SECONDS)
            await db.execute(_RECORD.format(schema=schema), number, name)

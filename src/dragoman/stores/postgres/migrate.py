"""Bring a PostgreSQL database up to date."""

from __future__ import annotations

from dragoman.stores.migrations import missing, scripts
from dragoman.stores.postgres.address import HOUR, Connection

_THERE = "select to_regclass('dragoman.migrations') is not null"
_LOCK = "select pg_advisory_xact_lock(7237091846325301)"
"""Nodes may start at the same time. The number is ours, and means nothing."""
_TABLE = """
create schema if not exists dragoman;
create table if not exists dragoman.migrations (number integer primary key, name text not null)
"""
_DONE = "select coalesce(max(number), 0) from dragoman.migrations"
_RECORD = "insert into dragoman.migrations (number, name) values ($1, $2)"


async def migrate(db: Connection) -> None:
    """Run the scripts this database has not seen, all in one transaction. Raises `NewerDatabase`."""
    known = scripts("postgres")
    async with db.transaction():
        if await db.fetchval(_THERE) and not missing(known, await db.fetchval(_DONE)):
            return  # without a lock, and without the right to make tables: somebody else may have made them
        await db.execute(_LOCK, timeout=HOUR)
        await db.execute(_TABLE)
        for number, name, script in missing(known, await db.fetchval(_DONE)):
            await db.execute(script, timeout=HOUR)
            await db.execute(_RECORD, number, name)

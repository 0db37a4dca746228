"""The hub's tables in the PostgreSQL database of its tasks, in a schema of their own (`hub`), for any number of hubs.

Each transaction holds the lock of its tenant: transactions of one tenant run one after another, on whichever node, as they do in
SQLite. Those of one node wait for each other before they take a connection, so a tenant takes one at most. A commit whose answer
is lost is looked up, so nothing is written twice (`stores/postgres/database.py`).

The schema is the scripts `schema/*.postgres.sql`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

import asyncpg

from dragoman.errors import InvalidParams, StoreUnavailable, Unavailable
from dragoman.hub.store.database import PACKAGE, UNKNOWN, Database, MissingReference, NoHub, Row, Work
from dragoman.hub.tenants.policy import Policy
from dragoman.server.routes import Conflict
from dragoman.stores import UnsupportedSchema
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.database import Database as Connections
from dragoman.stores.postgres.migrations import migrate
from dragoman.stores.postgres.text import replace_unstorable

T = TypeVar("T")

READERS, WRITERS = 4, 8
PATIENCE_SECONDS = 10.0
"""How long to wait for a database that is down, and for the lock of a tenant."""

_LOCK = "select pg_advisory_xact_lock(1684369000, $1)"
"""The first number only separates these locks from those of other programs."""
_WAIT = f"set local lock_timeout = {int(PATIENCE_SECONDS * 1000)}"
_VERSION = "select coalesce(sum(hashint8extended(id, generation)), 0) from tenants"
_UNKNOWN_TABLES = "select to_regclass('hub.tenants') is not null and to_regclass('hub.migrations') is null"
_HAS_TABLES = "select to_regclass('hub.tenants') is not null"
_SEARCH = """
select * from (select m.*, -ts_rank_cd('{{0.2, 0.4, 0.8, 1.0}}', m.words, query) as score
from memories as m, to_tsquery('hub.english', ?) as query where m.words @@ query and {where}) as found order by score limit ?
"""


class PostgresDatabase(Database):
    def __init__(self, url: str, policy: Policy | None = None) -> None:
        super().__init__(policy)
        self._connections = Connections(
            url,
            outage_timeout=PATIENCE_SECONDS,
            readers=READERS,
            writers=WRITERS,
            migrations=[create_tables],
        )
        self._tenant_locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def open(self, *, create: bool = True) -> Self:
        try:
            await self._connections.open(None if create else _check_tables)
        except _NoTables:
            raise NoHub("there is no hub in this database: `dragoman init --store` creates one") from None
        except UnsupportedSchema as error:
            raise Unavailable(str(error)) from error
        return self

    async def close(self) -> None:
        await self._connections.close()

    async def run(self, work: Work[T], *, tenant: int = 0) -> T:
        async def write(db: Connection) -> T:
            await db.execute(_WAIT)
            if tenant:
                await db.execute(_LOCK, tenant & 0x7FFF_FFFF)
            return await _translate_errors(work(PostgresTransaction(db, self.policy)))

        if not tenant:
            return await self._connections.write(write)
        lock = self._tenant_locks.setdefault(tenant, asyncio.Lock())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await lock.acquire()
        except TimeoutError:
            raise StoreUnavailable("other writes of this tenant take too long; try again later") from None
        try:
            return await self._connections.write(write)
        finally:
            lock.release()

    async def read(self, work: Work[T]) -> T:
        return await self._connections.read(
            lambda db: _translate_errors(work(PostgresTransaction(db, self.policy)))
        )

    async def look_up(self, statement: str, values: Sequence[Any] = ()) -> Row:
        return await self.read(lambda db: db.one(statement, values))

    async def version(self) -> int:
        return int((await self.look_up(_VERSION))[0])


class PostgresTransaction:
    def __init__(self, db: Connection, policy: Policy) -> None:
        self._db, self.policy = db, policy

    async def one(self, statement: str, values: Sequence[Any] = ()) -> Row:
        return await self._db.fetchrow(_translate(statement), *_replace_unstorable(values))

    async def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        rows: Sequence[Row] = await self._db.fetch(_translate(statement), *_replace_unstorable(values))
        return rows

    async def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        command_tag: str = await self._db.execute(_translate(statement), *_replace_unstorable(values))
        return int(command_tag.rpartition(" ")[2])

    async def change_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        await self._db.executemany(_translate(statement), [_replace_unstorable(values) for values in rows])

    async def search_memories(
        self, words: Sequence[str], where: str, values: Sequence[Any], limit: int
    ) -> Sequence[Row]:
        return await self.all(_SEARCH.format(where=where), (_search_expression(words), *values, limit))


def _search_expression(words: Sequence[str]) -> str:
    """The full-text search expression: any of the words. Words that are close together rank higher."""
    return " | ".join(f"'{word}'" for word in words)


_PLACEHOLDER = re.compile(r"\?(\d*)")
_HINT = re.compile(r" indexed by \w+")
_TABLE = re.compile(r"\b(from|into|update|join) (?!set\b)(\w+)\b(?![.(])")
"""A table, which always follows one of these words. (`do update set` has none.)"""


@lru_cache(maxsize=1024)
def _translate(statement: str) -> str:
    """A statement with PostgreSQL's placeholders and the schema of its tables."""
    number = 0

    def placeholder(match: re.Match[str]) -> str:
        nonlocal number
        number += 1
        return f"${match[1] or number}"

    statement = _PLACEHOLDER.sub(placeholder, _HINT.sub("", statement))
    return _TABLE.sub(r"\1 hub.\2", statement)


def _replace_unstorable(values: Sequence[Any]) -> Sequence[Any]:
    return [replace_unstorable(value) if isinstance(value, str) else value for value in values]


async def _translate_errors(work: Awaitable[T]) -> T:
    """Raise errors that the caller caused as `A2AError`."""
    try:
        return await work
    except asyncpg.DataError as error:
        raise InvalidParams("a number is too large") from error
    except asyncpg.UniqueViolationError as error:
        raise Conflict("there is one already: another request has just created it") from error
    except asyncpg.IntegrityConstraintViolationError as error:
        raise MissingReference("what this belongs to is gone") from error


class _NoTables(UnsupportedSchema):
    pass


async def _check_tables(db: Connection) -> None:
    if not await db.fetchval(_HAS_TABLES):
        raise _NoTables


async def create_tables(db: Connection) -> None:
    if await db.fetchval(_UNKNOWN_TABLES):
        raise UnsupportedSchema(UNKNOWN)
    await migrate(db, PACKAGE, "hub")

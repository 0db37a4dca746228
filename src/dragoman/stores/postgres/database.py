"""One PostgreSQL database: reads and transactions on it, which wait for a while when it is away.

A connection that breaks as a transaction is committed leaves a doubt: was it, or was it not? The database knows, when it
is back. Until then nobody is told anything, so that what was written is never written twice, and never believed lost. Each
transaction leaves a stamp to be known by: its number is not enough, because after a crash others get the numbers of those
that were lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import asyncpg

from dragoman.engine.protocols import LeaseLost, NewMail, TaskExists
from dragoman.errors import A2AError, StoreUnavailable, Unavailable
from dragoman.model.ids import new_id
from dragoman.stores.common import missing, scripts
from dragoman.stores.postgres.address import CONFUSED, GONE, HOUR, Connection, PostgresAddress

ANSWERS = (A2AError, LeaseLost, NewMail, TaskExists)
"""What work on a connection may raise as its answer. Anything else is a fault."""


class Pool:
    def __init__(self, address: PostgresAddress, size: int, idle: list[Connection]) -> None:
        """Pools that share what is `idle` do not keep from each other what the database grants no more of."""
        self._address = address
        self._idle = idle
        self._room = asyncio.Semaphore(size)
        self._closed = False
        self._limits: set[asyncio.Timeout] = set()
        """Of those who have a connection, or wait for one."""
        self._end: float | None = None

    def end_by(self, when: float) -> None:
        """Whoever has a connection then, by the loop's clock, is told that it is gone."""
        self._end = when
        for limit in self._limits:
            limit.reschedule(when)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Connection]:
        """A connection, for a while. One on which something went wrong is not used again."""
        async with asyncio.timeout_at(self._end) as limit:
            self._limits.add(limit)
            try:
                async with self._taken() as db:
                    yield db
            finally:
                self._limits.discard(limit)

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[Connection]:
        async with self._room:
            if self._closed:
                raise Unavailable("the store is closed")
            while self._idle and self._idle[-1].is_closed():
                self._idle.pop()
            db = self._idle.pop() if self._idle else await self._address.connect()
            try:
                yield db
            except CONFUSED as error:
                broken = db.is_closed() or isinstance(error, asyncpg.InternalClientError)
                db.terminate()
                if broken:
                    raise ConnectionResetError("the connection is gone") from error
                raise
            except ANSWERS:
                raise
            except BaseException:
                db.terminate()
                raise
            finally:
                self._back(db)

    def _back(self, db: Connection) -> None:
        if self._closed:
            db.terminate()
        elif not db.is_closed():
            self._idle.append(db)

    async def close(self) -> None:
        self._closed = True
        for db in self._idle:
            with suppress(*GONE, *CONFUSED, asyncpg.PostgresError):
                await db.close(timeout=1.0)
        self._idle.clear()


_BEGIN = """
begin;
set local idle_in_transaction_session_timeout = {idle};
set local lock_timeout = {lock}
"""
"""A machine that is gone in the middle of a transaction must not keep a task from the others until TCP notices."""
_IDLE, _LOCK = 10_000, 500
"""Milliseconds. Who cannot have the row of a task holds up all who share the transaction, and is told to come again."""
_XID = "select pg_current_xact_id_if_assigned()::text"
_COMMIT = """
insert into dragoman.writers (writer, stamp, at) values ('{writer}', '{stamp}', dragoman.clock())
on conflict (writer) do update set stamp = excluded.stamp, at = excluded.at; commit"""
_STATUS = "select pg_xact_status($1::text::xid8)"
_STAMP = "select stamp from dragoman.writers where writer = $1"

_HURRY, _CUT = 1.0, 4.0
"""Seconds, once we are to close: until nothing is tried again, and until nobody waits for an answer."""
_OUTAGE, _GRACE = 1.0, 10.0
"""Seconds: away for so long, the database may have missed somebody's heartbeat; and so long they then get to make up for it."""

_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
"""Somebody else was in the way."""

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]
Migration = Callable[[Connection], Awaitable[None]]
Named = Callable[[Connection], Awaitable[tuple[T, str | None]]]
"""Work in a transaction: what it comes to, and the transaction's id, by which to ask for it later, if it wrote anything."""

_log = logging.getLogger("dragoman.stores")


class Database:
    def __init__(
        self,
        url: str,
        *,
        patience: float,
        readers: int,
        writers: int,
        migrations: Sequence[Migration] = (),
    ) -> None:
        """`migrations` run after those of the tables of tasks."""
        self._address = PostgresAddress(url)
        self._migrations = (migrate, *migrations)
        self._patience = patience
        self._readers, self._writers = readers, writers
        self._reads: Pool | None = None
        self._writes: Pool | None = None
        self._under_way: set[asyncio.Future[Any]] = set()
        self._names: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()
        """What connections call themselves in what they write."""
        self._latest = float("inf")
        self._failing = False
        self._away: float | None = None
        """Since when nothing works."""
        self._back = float("-inf")
        """When something worked again."""

    async def open(self) -> None:
        if self._reads is not None:
            return
        self._latest = float("inf")
        try:
            await self._retry_while_away(self._migrate, quietly=True)
        except Unavailable as error:
            raise Unavailable(f"the database cannot be opened: {error.__cause__}") from error
        except (*CONFUSED, asyncpg.PostgresError) as error:
            raise Unavailable(f"the database cannot be opened: {error}") from error
        idle: list[Connection] = []
        self._reads = Pool(self._address, self._readers, idle)
        self._writes = Pool(self._address, self._writers, idle)

    async def _migrate(self) -> None:
        db = await self._address.connect()
        try:
            for migration in self._migrations:
                await migration(db)
        except CONFUSED as error:
            if db.is_closed():  # the database restarts, perhaps
                raise ConnectionResetError(str(error)) from error
            raise
        finally:
            db.terminate()

    def stop_waiting(self) -> None:
        """We are about to close: a database that is away is waited for, but not until it is back."""
        if self._latest == float("inf"):
            self._latest = time.monotonic() + _HURRY
            for pool in (self._reads, self._writes):
                if pool is not None:
                    pool.end_by(asyncio.get_running_loop().time() + _CUT)

    def _hurries(self, pause: float) -> bool:
        return time.monotonic() + pause > self._latest

    async def close(self) -> None:
        """Finish what was begun, then let go of all connections."""
        self.stop_waiting()
        if self._under_way:
            await asyncio.wait(tuple(self._under_way))
        reads, writes, self._reads, self._writes = self._reads, self._writes, None, None
        for pool in (reads, writes):
            if pool is not None:
                await pool.close()

    async def read(self, work: Work[T]) -> T:
        """Look at what was committed."""
        return await self._clearly(self._retry_while_away(partial(self._look, work)))

    async def write(self, work: Work[T]) -> T:
        """Do `work` in a transaction of its own, perhaps more than once; what it raises as an answer undoes it.

        A caller that leaves does not stop it.
        """

        async def named(db: Connection) -> tuple[T, str | None]:
            return await work(db), await db.fetchval(_XID)

        begun = asyncio.ensure_future(self._clearly(self.transact(named)))
        self._under_way.add(begun)
        begun.add_done_callback(self._ended)
        return await asyncio.shield(begun)

    async def transact(self, work: Named[T]) -> T:
        """`write`, for work that names its transaction itself; an error of a statement comes as it is."""
        return await self._retry_while_away(partial(self._transaction, work))

    def _ended(self, work: asyncio.Future[Any]) -> None:
        self._under_way.discard(work)
        if not work.cancelled():
            work.exception()

    async def _look(self, work: Work[T]) -> T:
        async with self._pool(self._reads).take() as db:
            if self._address.cache:
                return await work(db)
            # Or a pooler might give us another connection between two steps.
            async with db.transaction(isolation="repeatable_read", readonly=True):
                return await work(db)

    async def _transaction(self, work: Named[T]) -> T:
        doubt: BaseException
        async with self._pool(self._writes).take() as db:
            await db.execute(_BEGIN.format(idle=_IDLE, lock=_LOCK))
            try:
                result, xid = await work(db)
            except ANSWERS:
                await db.execute("rollback")
                raise
            writer, stamp = self._names.setdefault(db, new_id()), new_id()
            try:
                await db.execute("commit" if xid is None else _COMMIT.format(writer=writer, stamp=stamp))
                return result
            except (*GONE, *CONFUSED) as error:
                db.terminate()
                doubt = error
        if xid is None or await self._committed(xid, writer, stamp):
            return result
        raise ConnectionResetError("the transaction was not committed") from doubt

    async def _committed(self, xid: str, writer: str, stamp: str) -> bool:
        """Whether a transaction was committed after all. Asks until somebody knows."""
        pause = 0.05
        while True:
            try:
                async with self._pool(self._writes).take() as db:
                    status = await db.fetchval(_STATUS, xid)
                    if status == "committed":
                        return bool(await db.fetchval(_STAMP, writer) == stamp)
                if status != "in progress":
                    return False
            except asyncpg.InvalidParameterValueError:
                return False  # it knows of no such transaction: it is another one than it was
            except (*GONE, asyncpg.PostgresError):
                if self._hurries(pause):
                    raise Unavailable("the store is closed, and nobody knows what is in it") from None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def _retry_while_away(self, attempt: Callable[[], Awaitable[T]], *, quietly: bool = False) -> T:
        """Try until it works, or for as long as anybody would wait."""
        deadline, pause = time.monotonic() + self._patience, 0.02
        while True:
            try:
                result = await attempt()
                self._well()
                return result
            except (*GONE, *_AGAIN) as error:
                if self._away is None and not isinstance(error, _AGAIN):
                    self._away = time.monotonic()
                if time.monotonic() + pause > deadline or self._hurries(pause):
                    if not quietly:
                        self.log_once(error)
                    raise StoreUnavailable("the task store cannot be reached at the moment") from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 0.5)

    async def _clearly(self, work: Awaitable[T]) -> T:
        """What goes wrong with the database is nothing a peer should read about."""
        try:
            return await work
        except asyncpg.PostgresError as error:
            self.log_once(error)
            waited = isinstance(error, asyncpg.LockNotAvailableError)
            kind = StoreUnavailable if waited else Unavailable
            raise kind("the task store cannot be used at the moment") from error

    @property
    def recovering(self) -> bool:
        """It was away, and those who could not say that they are alive may not have done so yet."""
        return time.monotonic() < self._back + _GRACE

    def _well(self) -> None:
        self._failing = False
        if self._away is not None:
            if time.monotonic() - self._away >= _OUTAGE:
                self._back = time.monotonic()
            self._away = None

    def log_once(self, error: Exception) -> None:
        """Say what is wrong, once until it is well again."""
        if not self._failing:
            self._failing = True
            _log.error("the database: %s", str(error) or type(error).__name__)

    def _pool(self, pool: Pool | None) -> Pool:
        if pool is None:
            raise Unavailable("the store is closed")
        return pool


_MIGRATED = "select to_regclass('{schema}.migrations') is not null"
_MIGRATION_LOCK = "select pg_advisory_xact_lock(7237091846325301)"
"""Nodes may start at the same time. The number is ours, and means nothing."""
_TABLE = """
create schema if not exists {schema};
create table if not exists {schema}.migrations (number integer primary key, name text not null)
"""
_DONE = "select coalesce(max(number), 0) from {schema}.migrations"
_RECORD = "insert into {schema}.migrations (number, name) values ($1, $2)"


async def migrate(db: Connection, package: str = "dragoman.stores", schema: str = "dragoman") -> None:
    """Run the scripts of `package` that `schema` has not seen, all in one transaction. Raises `UnsupportedSchema`."""
    known = scripts("postgres", package)
    migrated, done = _MIGRATED.format(schema=schema), _DONE.format(schema=schema)
    async with db.transaction():
        if await db.fetchval(migrated) and not missing(known, await db.fetchval(done)):
            return  # without a lock, and without the right to make tables: somebody else may have made them
        await db.execute(_MIGRATION_LOCK, timeout=HOUR)
        await db.execute(_TABLE.format(schema=schema))
        for number, name, script in missing(known, await db.fetchval(done)):
            await db.execute(script, timeout=HOUR)
            await db.execute(_RECORD.format(schema=schema), number, name)


# -- text: PostgreSQL takes all of Unicode but NUL, and no halves of characters. What it indexes has to be short. -------------

MAX_INDEXED_BYTES = 2500
"""Bytes in an entry of an index: a third of a page, and something is in there, too."""


def fits(*words: str) -> bool:
    """Whether all of these can be kept."""
    return not any("\0" in word or not (word.isascii() or _whole(word)) for word in words)


def clean(word: str) -> str:
    """What can be kept of a word; a mark where something cannot."""
    return word if fits(word) else word.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def indexed(*words: str) -> bool:
    """Whether these can be kept, and be found together."""
    return fits(*words) and sum(len(word.encode()) for word in words) <= MAX_INDEXED_BYTES


def brief(word: str) -> str:
    """What can be kept of a word that is to be found by it: of a long one, its beginning and what tells it from others."""
    word = clean(word)
    if indexed(word):
        return word
    return f"{word[:200]}#{blake2b(word.encode(), digest_size=16).hexdigest()}"


def _whole(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True

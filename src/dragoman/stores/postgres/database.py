"""One PostgreSQL database: reads and transactions, which are retried for a while when the database is away.

If a connection breaks while a transaction is committed, only the database knows whether it was committed. The caller gets no
answer until the database is back and has said so. So nothing is written twice, and nothing that was written counts as lost. Each
transaction writes a stamp. Its number alone would not identify it: after a crash, new transactions get the numbers of
those that were lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import asyncpg

from dragoman.errors import StoreUnavailable, Unavailable
from dragoman.model.ids import new_id
from dragoman.stores.postgres.address import (
    BROKEN_CONNECTION_ERRORS,
    UNAVAILABLE_ERRORS,
    Connection,
    PostgresAddress,
)
from dragoman.stores.postgres.migrations import migrate
from dragoman.stores.postgres.pool import ANSWERS, Pool

_BEGIN = """
begin;
set local idle_in_transaction_session_timeout = {idle};
set local lock_timeout = {lock}
"""
"""If a machine fails in the middle of a transaction, the locks of that transaction end before TCP notices."""
_IDLE_MILLISECONDS, _LOCK_MILLISECONDS = 10_000, 500
"""The second is short: a job that waits for a row delays all jobs of its transaction. The transaction is retried instead."""
_XID = "select pg_current_xact_id_if_assigned()::text"
_COMMIT = """
insert into dragoman.writers (writer, stamp, at) values ('{writer}', '{stamp}', dragoman.clock())
on conflict (writer) do update set stamp = excluded.stamp, at = excluded.at; commit"""
_STATUS = "select pg_xact_status($1::text::xid8)"
_STAMP = "select stamp from dragoman.writers where writer = $1"

_CLOSE_RETRY_SECONDS, _CLOSE_CONNECTION_SECONDS = 1.0, 4.0
"""After `stop_waiting`: until attempts are no longer repeated, and until open connections are ended."""
_OUTAGE_SECONDS, _RECOVERY_SECONDS = 1.0, 10.0
"""If the database was away for the first time, heartbeats may be missing. Nodes have the second time to send them again."""

_CONFLICT_ERRORS = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
"""Another transaction was in the way."""

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]
Migration = Callable[[Connection], Awaitable[None]]
WorkWithId = Callable[[Connection], Awaitable[tuple[T, str | None]]]
"""Work in a transaction that also returns the transaction's id; None if it wrote nothing."""

_log = logging.getLogger("dragoman.stores")


class Database:
    def __init__(
        self,
        url: str,
        *,
        outage_timeout: float,
        readers: int,
        writers: int,
        migrations: Sequence[Migration] = (),
    ) -> None:
        """`migrations` run after those of the tables of tasks."""
        self._address = PostgresAddress(url)
        self._migrations = (migrate, *migrations)
        self._outage_timeout = outage_timeout
        self._readers, self._writers = readers, writers
        self._reads: Pool | None = None
        self._writes: Pool | None = None
        self._under_way: set[asyncio.Future[Any]] = set()
        self._writer_names: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()
        """The name of each connection, in the row with its last stamp."""
        self._give_up_at = float("inf")
        """No attempt begins after this time."""
        self._failing = False
        self._away_since: float | None = None
        self._recovered_at = float("-inf")

    async def open(self, check: Migration | None = None) -> None:
        """`check` runs before the migrations, and may raise `UnsupportedSchema`."""
        if self._reads is not None:
            return
        self._give_up_at = float("inf")
        try:
            await self._retry_while_away(partial(self._migrate, check), quietly=True)
        except Unavailable as error:
            raise Unavailable(f"the database cannot be opened: {error.__cause__}") from error
        except (*BROKEN_CONNECTION_ERRORS, asyncpg.PostgresError) as error:
            raise Unavailable(f"the database cannot be opened: {error}") from error
        idle: list[tuple[float, Connection]] = []
        self._reads = Pool(self._address, self._readers, idle)
        self._writes = Pool(self._address, self._writers, idle)

    async def _migrate(self, check: Migration | None) -> None:
        db = await self._address.connect()
        try:
            for migration in (*((check,) if check is not None else ()), *self._migrations):
                await migration(db)
        except BROKEN_CONNECTION_ERRORS as error:
            if db.is_closed():  # the database restarts, perhaps
                raise ConnectionResetError(str(error)) from error
            raise
        finally:
            db.terminate()

    def stop_waiting(self) -> None:
        """The store is about to close: soon give up what waits for a database that is away."""
        if self._give_up_at == float("inf"):
            self._give_up_at = time.monotonic() + _CLOSE_RETRY_SECONDS
            for pool in (self._reads, self._writes):
                if pool is not None:
                    pool.end_by(asyncio.get_running_loop().time() + _CLOSE_CONNECTION_SECONDS)

    def _must_give_up(self, pause: float) -> bool:
        return time.monotonic() + pause > self._give_up_at

    async def close(self) -> None:
        """Finish the work that has begun, then close all connections."""
        self.stop_waiting()
        await self.finish_writes()
        reads, writes, self._reads, self._writes = self._reads, self._writes, None, None
        for pool in (reads, writes):
            if pool is not None:
                await pool.close()

    async def finish_writes(self) -> None:
        """Wait for the writes that have begun, also for those whose callers were cancelled."""
        if self._under_way:
            await asyncio.wait(tuple(self._under_way))

    async def read(self, work: Work[T]) -> T:
        """Read what was committed."""
        return await self._translate_errors(self._retry_while_away(partial(self._read_once, work)))

    async def write(self, work: Work[T]) -> T:
        """Do `work` in a transaction of its own, perhaps more than once. One of `ANSWERS` undoes it.

        It goes on if the caller is cancelled.
        """

        async def with_id(db: Connection) -> tuple[T, str | None]:
            return await work(db), await db.fetchval(_XID)

        begun = asyncio.ensure_future(
            self._translate_errors(self.transact(with_id, timeout=self._outage_timeout))
        )
        self._under_way.add(begun)
        begun.add_done_callback(self._forget_work)
        return await asyncio.shield(begun)

    async def transact(self, work: WorkWithId[T], *, timeout: float | None = None) -> T:
        """`write`, for work that returns the id of its transaction. Errors of statements are not translated.

        `timeout`: how many seconds it waits for a connection when others have all of them; None: for as long as they do.
        """
        return await self._retry_while_away(partial(self._transact_once, work, timeout))

    def _forget_work(self, work: asyncio.Future[Any]) -> None:
        self._under_way.discard(work)
        if not work.cancelled():
            work.exception()

    async def _read_once(self, work: Work[T]) -> T:
        async with self._pool(self._reads).take(self._outage_timeout) as db:
            if self._address.cache:
                return await work(db)
            # Without a transaction, a pooler may give us another connection between two statements.
            async with db.transaction(isolation="repeatable_read", readonly=True):
                return await work(db)

    async def _transact_once(self, work: WorkWithId[T], timeout: float | None) -> T:
        broken: BaseException
        async with self._pool(self._writes).take(timeout) as db:
            await db.execute(_BEGIN.format(idle=_IDLE_MILLISECONDS, lock=_LOCK_MILLISECONDS))
            try:
                result, xid = await work(db)
            except ANSWERS:
                await db.execute("rollback")
                raise
            writer, stamp = self._writer_names.setdefault(db, new_id()), new_id()
            try:
                await db.execute("commit" if xid is None else _COMMIT.format(writer=writer, stamp=stamp))
                return result
            except (*UNAVAILABLE_ERRORS, *BROKEN_CONNECTION_ERRORS) as error:
                db.terminate()
                broken = error
        if xid is None or await self._was_committed(xid, writer, stamp):
            return result
        raise ConnectionResetError("the transaction was not committed") from broken

    async def _was_committed(self, xid: str, writer: str, stamp: str) -> bool:
        """True if a transaction was committed although its connection broke. Asks until the database answers."""
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
                return False  # the database knows no such transaction: it is another server now
            except (*UNAVAILABLE_ERRORS, asyncpg.PostgresError):
                if self._must_give_up(pause):
                    raise Unavailable(
                        "the store is closed, and it is not known whether this was stored"
                    ) from None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def _retry_while_away(self, attempt: Callable[[], Awaitable[T]], *, quietly: bool = False) -> T:
        """Repeat `attempt` while the database is away, for `outage_timeout` seconds."""
        deadline, pause = time.monotonic() + self._outage_timeout, 0.02
        while True:
            try:
                result = await attempt()
                self._mark_available()
                return result
            except (*UNAVAILABLE_ERRORS, *_CONFLICT_ERRORS) as error:
                if self._away_since is None and not isinstance(error, _CONFLICT_ERRORS):
                    self._away_since = time.monotonic()
                if time.monotonic() + pause > deadline or self._must_give_up(pause):
                    if not quietly:
                        self.log_once(error)
                    raise StoreUnavailable("the task store cannot be reached at the moment") from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 0.5)

    async def _translate_errors(self, work: Awaitable[T]) -> T:
        """Log errors of the database, and raise `Unavailable`: a peer should not read their texts."""
        try:
            return await work
        except asyncpg.PostgresError as error:
            self.log_once(error)
            waited = isinstance(error, asyncpg.LockNotAvailableError)
            kind = StoreUnavailable if waited else Unavailable
            raise kind("the task store cannot be used at the moment") from error

    @property
    def recovering(self) -> bool:
        """True shortly after an outage: nodes that are alive may not have sent their heartbeats yet."""
        return time.monotonic() < self._recovered_at + _RECOVERY_SECONDS

    def _mark_available(self) -> None:
        self._failing = False
        if self._away_since is not None:
            if time.monotonic() - self._away_since >= _OUTAGE_SECONDS:
                self._recovered_at = time.monotonic()
            self._away_since = None

    def log_once(self, error: Exception) -> None:
        """Log an error, once until the database works again."""
        if not self._failing:
            self._failing = True
            _log.error("the database: %s", str(error) or type(error).__name__)

    def _pool(self, pool: Pool | None) -> Pool:
        if pool is None:
            raise Unavailable("the store is closed")
        return pool

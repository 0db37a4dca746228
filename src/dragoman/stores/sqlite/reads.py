"""The connections that read a SQLite file, and what is cached of it: snapshots, the numbers of scopes, and damage."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from dragoman.engine.records import Record, unpack
from dragoman.engine.snapshot import Snapshot, SnapshotCache
from dragoman.errors import TaskUnreadable, Unavailable
from dragoman.model.ops import Scope
from dragoman.stores.damage import UNREADABLE_ERRORS, Damage
from dragoman.stores.sqlite.commits import SEQ_BITS

T = TypeVar("T")

SCOPE_NUMBER = "select scope from scopes where tenant = ? and agent = ? and owner = ?"
_RECORDS = f"select place & {(1 << SEQ_BITS) - 1}, body from log where place > ? and place < ? order by place"

_log = logging.getLogger("dragoman.stores")


class Reads:
    """Reads from one file: on the event loop's thread, and on a thread of its own."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], *, cached_snapshots: int) -> None:
        self._loop_db = connect()
        self._thread_db = connect()
        self._thread = ThreadPoolExecutor(1, "dragoman-reads")
        self._scopes: dict[Scope, int] = {}
        self.snapshots = SnapshotCache(count=cached_snapshots)
        self.damage = Damage()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._loop_db.close()
        self._thread_db.close()

    def scope(self, scope: Scope) -> int | None:
        """The number of a scope; None if nothing was ever stored in it."""
        number = self._scopes.get(scope)
        if number is None:
            row = self.one(SCOPE_NUMBER, (scope.tenant, scope.agent, scope.owner))
            if row is None:
                return None
            if len(self._scopes) > 10_000:
                self._scopes.clear()
            number = self._scopes[scope] = row[0]
        return number

    def one(self, sql: str, values: tuple[Any, ...]) -> Any:
        try:
            return self._loop_db.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def all(self, sql: str, values: tuple[Any, ...] | dict[str, Any]) -> list[Any]:
        try:
            return self._loop_db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    async def in_thread(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on the reading thread."""
        try:
            future = asyncio.get_running_loop().run_in_executor(
                self._thread, self._guard, partial(read, self._thread_db)
            )
        except RuntimeError:
            raise Unavailable("the store is closed") from None
        return await future

    def in_loop(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on the event loop's thread."""
        return self._guard(partial(read, self._loop_db))

    def _guard(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: sqlite3.Error) -> Unavailable:
        """Log an error of the database, and return the error for the caller: a peer should not read its text."""
        if is_damage(error):
            self.damage.note_database(error)
        else:
            _log.error("cannot read the database: %s", error)
        return Unavailable("the task store cannot be read at the moment")

    def read_log(self, db: sqlite3.Connection, task: str, key: int, after: int) -> Iterator[list[Record]]:
        """The records after `after`, one list for each append. Raises `TaskUnreadable` if they are damaged."""
        try:
            for last, body in db.execute(_RECORDS, (key << SEQ_BITS | after, key + 1 << SEQ_BITS)):
                records = unpack(body, last - body.count(b"\n"))
                if records[0].seq <= after:  # `after` is in the middle of a row
                    del records[: after - records[0].seq + 1]
                after = last
                yield records
        except (sqlite3.DatabaseError, *UNREADABLE_ERRORS) as error:
            if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
                raise
            self.damage.note_task(task, error)
            raise TaskUnreadable(task) from error
        self.damage.clear(task)

    def fold(self, snapshot: Snapshot, db: sqlite3.Connection, *, key: int, seq: int) -> Snapshot:
        """Fold a log up to record `seq`, one append after the other, so that a long log is not in memory at once."""
        for records in self.read_log(db, snapshot.task_id, key, 0):
            snapshot = snapshot.after(record for record in records if record.seq <= seq)
            if snapshot.seq >= seq:
                break
        return snapshot


def is_damage(error: sqlite3.Error) -> bool:
    """True if the file is damaged, so that reading fails now and later."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

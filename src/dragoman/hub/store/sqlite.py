"""The hub's tables in one SQLite file in WAL mode.

One transaction writes at a time, on the writer's thread; a read runs on the reader's thread. A row is looked up by its key on the
caller's thread, which is faster than another thread. Other processes may write to the file at the same time (`dragoman tenant add`
beside a running hub); their changes are visible at once.

The schema is the scripts `schema/*.sqlite.sql`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeVar, cast

from dragoman.errors import InvalidParams, Unavailable
from dragoman.hub.store.database import PACKAGE, UNKNOWN, Database, MissingReference, NoHub, Row, Work
from dragoman.hub.tenants.policy import Policy
from dragoman.server.temporary import TemporaryFolder
from dragoman.stores import UnsupportedSchema
from dragoman.stores.sqlite.migrations import migrate

log = logging.getLogger(__name__)

T = TypeVar("T")

_SEARCH = """
select m.*, bm25(memory_words, 10.0, 4.0, 8.0, 2.0) as score from memory_words
join memories m on m.id = memory_words.rowid where memory_words match ? and {where} order by score limit ?
"""

_UNKNOWN_TABLES = """
select 1 from sqlite_master where name = 'tenants'
and not exists (select 1 from sqlite_master where name = 'migrations')
"""


class SqliteDatabase(Database):
    """`:memory:` is a temporary file that `close` deletes."""

    def __init__(self, path: str | Path, policy: Policy | None = None, *, busy_seconds: float = 10.0) -> None:
        super().__init__(policy)
        self._folder: TemporaryFolder | None = None
        if str(path) == ":memory:":
            self._folder = TemporaryFolder("hub")
            path = self._folder.path / "hub.db"
        self.path = Path(path)
        self._busy_seconds = busy_seconds
        self._open: tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection] | None = None
        self._lookup_lock = Lock()

    async def open(self, *, create: bool = True) -> Self:
        """Open the file, or create it for this user alone. Raises `Unavailable`."""
        if not create and not self.path.is_file():
            raise NoHub(f"there is no hub in {self.path.parent}: `dragoman init` creates one")
        if self._open is None:
            self._writer = ThreadPoolExecutor(1, "dragoman-hub-writer")
            self._reader = ThreadPoolExecutor(1, "dragoman-hub-reader")
            try:
                self._open = await asyncio.get_running_loop().run_in_executor(self._writer, self._prepare)
            except UnsupportedSchema as error:
                raise Unavailable(str(error)) from error
            except (sqlite3.Error, OSError) as error:
                raise Unavailable(f"the database {self.path.name} cannot be opened: {error}") from error
        return self

    def _prepare(self) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
        if self._folder is not None:
            self._folder.make()
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(OSError):  # it exists; if it cannot be created, SQLite reports the reason
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
        writing = self._connect()
        writing.execute("pragma journal_mode = wal")
        _create_tables(writing)
        return writing, self._connect(), self._connect()

    async def close(self) -> None:
        if self._open is not None:
            self._writer.shutdown()
            self._reader.shutdown()
            connections, self._open = self._open, None
            for connection in connections:
                connection.close()
        if self._folder is not None:
            self._folder.remove()

    async def run(self, work: Work[T], *, tenant: int = 0) -> T:
        db = self._connections[0]
        return await asyncio.get_running_loop().run_in_executor(
            self._writer, _translate_errors, lambda work: _write(db, self.policy, work), work
        )

    async def read(self, work: Work[T]) -> T:
        db = self._connections[1]
        return await asyncio.get_running_loop().run_in_executor(
            self._reader,
            _translate_errors,
            lambda work: _run_to_end(work(SqliteTransaction(db, self.policy))),
            work,
        )

    async def look_up(self, statement: str, values: Sequence[Any] = ()) -> Row:
        db = self._connections[2]
        with self._lookup_lock:
            return _translate_errors(lambda values: db.execute(statement, values).fetchone(), values)

    async def version(self) -> int:
        """It changes with every write of this or another process."""
        return int((await self.look_up("pragma data_version"))[0])

    @property
    def _connections(self) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
        if self._open is None:
            raise Unavailable("the hub's database is closed")
        return self._open

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        db.row_factory = sqlite3.Row
        db.execute("pragma foreign_keys = on")
        db.execute("pragma synchronous = full")  # as the log of tasks: after a power cut, both have the same
        return db


class SqliteTransaction:
    """Its methods never wait, so a coroutine that uses only them runs to its end without an event loop (`_run_to_end`)."""

    def __init__(self, db: sqlite3.Connection, policy: Policy) -> None:
        self.db, self.policy = db, policy

    async def one(self, statement: str, values: Sequence[Any] = ()) -> Row:
        rows = self.db.execute(statement, values)
        row = rows.fetchone()
        rows.close()
        return row

    async def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        return self.db.execute(statement, values).fetchall()

    async def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self.db.execute(statement, values).rowcount

    async def change_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self.db.executemany(statement, rows)

    async def search_memories(
        self, words: Sequence[str], where: str, values: Sequence[Any], limit: int
    ) -> Sequence[Row]:
        return await self.all(_SEARCH.format(where=where), (_search_expression(words), *values, limit))


def _search_expression(words: Sequence[str]) -> str:
    """The FTS expression: the phrase, the words near each other, or any of them."""
    quoted = [f'"{word}"' for word in words]
    alternatives = [" OR ".join(quoted)]
    if 2 <= len(words) <= 6:
        alternatives = ['"' + " ".join(words) + '"', f"NEAR({' '.join(quoted)}, 8)", *alternatives]
    return " OR ".join(alternatives)


def _write(db: sqlite3.Connection, policy: Policy, work: Work[T]) -> T:
    db.execute("begin immediate")
    try:
        result = _run_to_end(work(SqliteTransaction(db, policy)))
        db.execute("commit")
    except BaseException:
        if db.in_transaction:  # if the disk is full, SQLite has rolled back already
            db.execute("rollback")
        raise
    return result


def _run_to_end(work: Awaitable[T]) -> T:
    """The result of a coroutine that never waits."""
    running = cast(Coroutine[Any, Any, T], work)
    try:
        running.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    running.close()
    raise RuntimeError("work on the database waited for something else")


def _translate_errors(work: Callable[[Any], T], argument: Any) -> T:
    """Call `work`. Raises `InvalidParams` for a number that no column holds, and `Unavailable` if the disk is full or another process
    locks the file for too long."""
    try:
        return work(argument)
    except OverflowError:
        raise InvalidParams("a number is too large") from None
    except sqlite3.IntegrityError as error:
        raise MissingReference("what this belongs to is gone") from error
    except sqlite3.Error as error:
        log.error("the hub's database: %s", error)
        raise Unavailable("the hub's database cannot be used right now") from error


def _create_tables(db: sqlite3.Connection) -> None:
    if db.execute(_UNKNOWN_TABLES).fetchone() is not None:
        raise UnsupportedSchema(UNKNOWN)
    db.execute("pragma foreign_keys = off")  # a script may replace a table that others refer to
    migrate(db, PACKAGE)
    db.execute("pragma foreign_keys = on")

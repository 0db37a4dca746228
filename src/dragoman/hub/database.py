"""The hub's own tables: tenants, agents, conversations, memory. Tasks are in the task store.

One SQLite file in WAL mode. `run` writes, one transaction at a time, on the writer's thread. `run_once` does that for a write
that may be repeated after a crash. `read` reads on the reader's thread. `look` reads a row by its key on the caller's thread,
which is faster than another thread. Other processes may write to the file at the same time (`dragoman tenant add` beside a
running hub); their changes are visible at once.

The schema is `schema.sql`; `pragma user_version` says which version of it a file has.

    await database.run(lambda db: db.execute("insert into notes (text) values (?)", (text,)).lastrowid)
    rows = await database.read(lambda db: db.execute("select text from notes").fetchall())
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import msgspec

from dragoman.errors import InvalidParams, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

SCHEMA_VERSION = 1
_RESULT_SECONDS = 30 * 86_400
"""How long `run_once` keeps results."""


class Database:
    """`:memory:` is a temporary file that `close` deletes."""

    def __init__(self, path: str | Path, *, busy_seconds: float = 10.0) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if str(path) == ":memory:":
            self._folder = tempfile.TemporaryDirectory(prefix="dragoman-hub-")
            path = Path(self._folder.name) / "hub.db"
        self.path = Path(path)
        self._busy_seconds = busy_seconds
        self._open: tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection] | None = None
        self._writer = ThreadPoolExecutor(1, "dragoman-hub-writer")
        self._reader = ThreadPoolExecutor(1, "dragoman-hub-reader")
        self._looking = Lock()

    def open(self) -> Database:
        """Open the file, or create it for this user alone. Raises `Unavailable`."""
        if self._open is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with suppress(OSError):  # it exists; if it cannot be created, SQLite reports the reason
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
                writing = self._connect()
                writing.execute("pragma journal_mode = wal")
                _create_tables(writing)
                self._open = writing, self._connect(), self._connect()
            except (sqlite3.Error, OSError) as error:
                raise Unavailable(f"the database {self.path.name} cannot be opened: {error}") from error
        return self

    def close(self) -> None:
        """Finish pending work, then close the file."""
        self._writer.shutdown()
        self._reader.shutdown()
        if self._open is not None:
            connections, self._open = self._open, None
            for connection in connections:
                connection.close()
        if self._folder is not None:
            self._folder.cleanup()

    async def run(self, work: Work[T]) -> T:
        """Run `work` in a transaction on the writer's thread. An exception rolls it back."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, _bounded, self._write, work)

    async def run_once(self, key: str, work: Work[T], kind: Any) -> T:
        """`run`, or the stored result, of type `kind`, if `key` was run before. An empty key always runs."""
        if not key:
            return await self.run(work)

        def run_or_load(db: sqlite3.Connection) -> T:
            known = db.execute("select outcome from done where key = ?", (key,)).fetchone()
            if known is not None:
                before: T = msgspec.json.decode(known["outcome"], type=kind)
                return before
            result, now = work(db), int(time.time())
            db.execute("delete from done where at < ?", (now - _RESULT_SECONDS,))
            outcome = key, msgspec.json.encode(result), now
            db.execute("insert into done (key, outcome, at) values (?, ?, ?)", outcome)
            return result

        return await self.run(run_or_load)

    async def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run one statement in a transaction of its own. Returns how many rows it changed."""
        return await self.run(lambda db: db.execute(statement, values).rowcount)

    async def all(self, statement: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        return await self.read(lambda db: db.execute(statement, values).fetchall())

    async def one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return await self.read(lambda db: db.execute(statement, values).fetchone())

    def look_up(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """The first row, or None, on the caller's thread: for rows that are found by their key."""
        return self.look(lambda db: db.execute(statement, values).fetchone())

    async def read(self, work: Work[T]) -> T:
        """Run `work`, which only reads, on the reader's thread."""
        db = self._connections[1]
        return await asyncio.get_running_loop().run_in_executor(self._reader, _bounded, work, db)

    def look(self, work: Work[T]) -> T:
        """Run `work`, which only looks up a row or two, on the caller's thread."""
        db = self._connections[2]
        with self._looking:
            return _bounded(work, db)

    def version(self) -> int:
        """A number that changes when this or another process writes to the file."""
        number: int = self.look(lambda db: db.execute("pragma data_version").fetchone()[0])
        return number

    def _write(self, work: Work[T]) -> T:
        db = self._connections[0]
        db.execute("begin immediate")
        try:
            result = work(db)
            db.execute("commit")
        except BaseException:
            if db.in_transaction:  # a full disk makes SQLite end it itself
                db.execute("rollback")
            raise
        return result

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
        db.execute("pragma synchronous = normal")
        return db


def _bounded(work: Callable[[Any], T], given: Any) -> T:
    """Translate errors: `InvalidParams` for a number that no column holds, `Unavailable` when the disk is full or another
    process locks the file for too long."""
    try:
        return work(given)
    except OverflowError:
        raise InvalidParams("a number is too large") from None
    except sqlite3.OperationalError as error:
        log.error("the hub's database: %s", error)
        raise Unavailable("the hub's database cannot be used right now") from error


def _create_tables(db: sqlite3.Connection) -> None:
    """Create the tables of a new file, in one transaction. Raises `Unavailable` for a file of a newer version."""
    db.execute("begin immediate")  # two processes may open a new file at the same time
    try:
        version = db.execute("pragma user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise Unavailable("the database was written by a newer version of dragoman")
        if version == 0:
            for statement in _statements(files("dragoman.hub").joinpath("schema.sql").read_text("utf-8")):
                db.execute(statement)
            db.execute(f"pragma user_version = {SCHEMA_VERSION}")
    except BaseException:
        db.execute("rollback")
        raise
    db.execute("commit")


def _statements(script: str) -> list[str]:
    """The statements of a script. (`executescript` would commit the open transaction.)"""
    out, statement = [], ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            out.append(statement)
            statement = ""
    return out

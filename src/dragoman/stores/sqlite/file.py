"""One SQLite file, open: who writes to it, and who reads from it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import Unavailable
from dragoman.stores.common import missing, scripts
from dragoman.stores.sqlite.commits import Commits
from dragoman.stores.sqlite.reads import Reads


class SqliteFile:
    def __init__(self, path: Path, *, synchronous: str, patience: float, keep: int, keep_bytes: int) -> None:
        if synchronous not in ("off", "normal", "full", "extra"):
            raise ValueError(f"synchronous is off, normal, full or extra, not {synchronous!r}")
        self.path = path
        self._synchronous = synchronous
        self._patience = patience
        self._keep, self._keep_bytes = keep, keep_bytes
        self._db: sqlite3.Connection | None = None
        self.commits: Commits
        """Here, and `reads`, only while the file is open."""
        self.reads: Reads
        self.on_commit: Callable[[float], None] | None = None
        """Hears how long each transaction took, in seconds."""

    async def open(self) -> None:
        """A new file is for its owner alone. Raises `UnsupportedSchema` if a newer version of the program wrote it."""
        if self._db is not None:
            return
        with suppress(OSError):  # it is there already; if it cannot be made, SQLite knows better why
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
        try:
            # in a thread: whoever holds the file's lock may need this loop to let go of it
            db, reads = await asyncio.to_thread(self._prepare)
        except sqlite3.Error as error:
            raise Unavailable(f"the database {self.path.name} cannot be opened: {error}") from error
        self._db, self.reads = db, reads
        self.commits = Commits(db, patience=self._patience, on_commit=self.on_commit)

    def _prepare(self) -> tuple[sqlite3.Connection, Reads]:
        db = self._connect()
        try:
            self._set_format(db)
            migrate(db)
            db.execute("pragma busy_timeout = 0")  # `Commits` waits by itself, elsewhere
            return db, Reads(self._connect, keep=self._keep, keep_bytes=self._keep_bytes)
        except BaseException:
            db.close()
            raise

    def _set_format(self, db: sqlite3.Connection) -> None:
        """Set what the file keeps. Where another process opens the same file, SQLite does not wait for it by itself."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                db.execute("pragma auto_vacuum = incremental")  # has an effect only while there is no table
                db.execute("pragma journal_mode = wal")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    async def close(self) -> None:
        """Finish what was submitted, then let go of the file. The last to close it tidies its journal into it."""
        db = self._db
        if db is None:
            return
        await self.commits.close()
        if self._db is db:  # not if somebody else closed it while we waited
            self._db = None
            self.reads.close()
            db.close()
            del self.commits, self.reads

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("commits", "reads"):
                raise Unavailable("the store is closed")
            raise AttributeError(name)

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path,
            timeout=self._patience,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        db.execute(f"pragma synchronous = {self._synchronous}")
        db.execute("pragma cache_size = -16384")  # 16 MiB: the indexes of a busy day
        db.execute(
            "pragma journal_size_limit = 67108864"
        )  # after a large transaction it is cut back to 64 MiB
        return db


_TABLE = "create table if not exists migrations (number integer primary key, name text not null)"
_DONE = "select coalesce(max(number), 0) from migrations"
_RECORD = "insert into migrations (number, name) values (?, ?)"


def migrate(db: sqlite3.Connection, package: str = "dragoman.stores") -> None:
    """Run the scripts of `package` that this database has not seen, all in one transaction. Raises `UnsupportedSchema`."""
    known = scripts("sqlite", package)
    if _up_to_date(db, max(known)):
        return  # without a lock: others may be writing
    db.execute("begin immediate")  # two processes may open a new file at the same time
    try:
        db.execute(_TABLE)
        for number, name, script in missing(known, db.execute(_DONE).fetchone()[0]):
            for statement in _statements(script):
                db.execute(statement)
            db.execute(_RECORD, (number, name))
    except BaseException:
        db.execute("rollback")
        raise
    db.execute("commit")


def _up_to_date(db: sqlite3.Connection, newest: int) -> bool:
    try:
        return bool(db.execute(_DONE).fetchone()[0] == newest)
    except sqlite3.OperationalError:
        return False  # a new file


def _statements(script: str) -> Iterator[str]:
    """One at a time, because `executescript` would commit what came before it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""

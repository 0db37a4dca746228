"""One SQLite file: how it is opened, and its `Commits` and `Reads` while it is open."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import Unavailable
from dragoman.stores.sqlite.commits import Commits
from dragoman.stores.sqlite.migrations import migrate
from dragoman.stores.sqlite.reads import Reads


class SqliteFile:
    def __init__(self, path: Path, *, synchronous: str, busy_timeout: float, cached_snapshots: int) -> None:
        if synchronous not in ("off", "normal", "full", "extra"):
            raise ValueError(f"synchronous is off, normal, full or extra, not {synchronous!r}")
        self.path = path
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._cached_snapshots = cached_snapshots
        self._db: sqlite3.Connection | None = None
        self.commits: Commits
        """This and `reads` exist only while the file is open."""
        self.reads: Reads
        self.on_commit: Callable[[float], None] | None = None
        """Called with the seconds of each transaction."""

    async def open(self) -> None:
        """Open or create the file. Only its owner can read a new one. Raises `UnsupportedSchema` if a newer program wrote it."""
        if self._db is not None:
            return
        with suppress(OSError):  # it exists; if it cannot be created, SQLite says why
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
        try:
            # in a thread: the process that holds the lock of the file may need this event loop to release it
            db, reads = await asyncio.to_thread(self._prepare)
        except sqlite3.Error as error:
            raise Unavailable(f"the database {self.path.name} cannot be opened: {error}") from error
        self._db, self.reads = db, reads
        self.commits = Commits(db, busy_timeout=self._busy_timeout, on_commit=self.on_commit)

    def _prepare(self) -> tuple[sqlite3.Connection, Reads]:
        db = self._connect()
        try:
            self._set_format(db)
            migrate(db)
            db.execute("pragma busy_timeout = 0")  # `Commits` waits itself, on its thread
            return db, Reads(self._connect, cached_snapshots=self._cached_snapshots)
        except BaseException:
            db.close()
            raise

    def _set_format(self, db: sqlite3.Connection) -> None:
        """Set the properties that the file keeps. SQLite does not wait here for another process that opens the same file."""
        deadline = time.monotonic() + self._busy_timeout
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
        """Finish the jobs that were submitted, then close the file. The last process to close it merges the write-ahead log."""
        db = self._db
        if db is None:
            return
        await self.commits.close()
        if self._db is db:  # not if another call closed it meanwhile
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
            timeout=self._busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        db.execute(f"pragma synchronous = {self._synchronous}")
        db.execute("pragma cache_size = -16384")  # 16 MiB: the indexes of a busy day
        db.execute("pragma journal_size_limit = 67108864")  # 64 MiB, after a large transaction
        return db

"""Bring a SQLite database up to date."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dragoman.stores.migrations import missing, scripts

_TABLE = "create table if not exists migrations (number integer primary key, name text not null)"
_DONE = "select coalesce(max(number), 0) from migrations"
_RECORD = "insert into migrations (number, name) values (?, ?)"


def migrate(db: sqlite3.Connection) -> None:
    """Run the scripts this database has not seen, all in one transaction. Raises `NewerDatabase`."""
    known = scripts("sqlite")
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

"""Makes and changes the tables of a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dragoman.stores.migrations import find_missing_scripts, find_scripts

_TABLE = "create table if not exists migrations (number integer primary key, name text not null)"
_DONE = "select coalesce(max(number), 0) from migrations"
_RECORD = "insert into migrations (number, name) values (?, ?)"


def migrate(db: sqlite3.Connection, package: str = "dragoman.stores") -> None:
    """Run the scripts of `package` that this database has not seen, all in one transaction. Raises `UnsupportedSchema`."""
    known = find_scripts("sqlite", package)
    if _up_to_date(db, max(known)):
        return  # without a lock: others may be writing
    db.execute("begin immediate")  # two processes may open a new file at the same time
    try:
        db.execute(_TABLE)
        for number, name, script in find_missing_scripts(known, db.execute(_DONE).fetchone()[0]):
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
    """The statements of a script. `executescript` would commit before each script."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""

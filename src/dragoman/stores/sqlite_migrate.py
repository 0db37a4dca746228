"""Bring a SQLite database up to date: numbered scripts, run in order, each once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib.resources import files

_TABLE = "create table if not exists migrations (number integer primary key, name text not null)"
_DONE = "select coalesce(max(number), 0) from migrations"
_RECORD = "insert into migrations (number, name) values (?, ?)"


class NewerDatabase(Exception):
    """The database was written by a newer version of the program."""


def migrate(db: sqlite3.Connection) -> None:
    """Run the scripts this database has not seen, all in one transaction. Raises `NewerDatabase`."""
    scripts = _scripts()
    if _up_to_date(db, max(scripts)):
        return  # without a lock: others may be writing
    db.execute("begin immediate")  # two processes may open a new file at the same time
    try:
        db.execute(_TABLE)
        done: int = db.execute(_DONE).fetchone()[0]
        newest = max(scripts)
        if done > newest:
            raise NewerDatabase(
                f"the database has schema {done}, and this version of dragoman knows schemas up to {newest}: "
                "upgrade dragoman, or use another database"
            )
        for number in range(done + 1, newest + 1):
            name, script = scripts[number]
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


def _scripts() -> dict[int, tuple[str, str]]:
    folder = files("dragoman.stores").joinpath("schema")
    found = [file for file in folder.iterdir() if file.name.endswith(".sqlite.sql")]
    return {int(file.name[:3]): (file.name, file.read_text(encoding="utf-8")) for file in found}


def _statements(script: str) -> Iterator[str]:
    """One at a time, because `executescript` would commit what came before it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""

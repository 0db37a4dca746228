"""Deletes old tasks from a SQLite file in bounded pieces, because the statements run on the event loop's thread.

The row of a purged task is deleted at once. If its log is long, its key is added to the table `purged`, and the log is deleted later,
in pieces.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from sqlite3 import Connection

import msgspec

from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores import lease_clock
from dragoman.stores.rows import DEDUPE_SECONDS
from dragoman.stores.sqlite import push_queue
from dragoman.stores.sqlite.commits import SEQ_BITS, Finish
from dragoman.stores.sqlite.file import SqliteFile

LAST_TIME = "~"
"""After every time of a task."""
PIECE_ROWS, PIECE_BYTES = 500, 1 << 20
"""Rows and bytes of a log that one transaction deletes. A single append may be larger."""
VACUUM_PAGES = 200
"""Pages that one transaction gives back to the file system."""
MIN_FREE_PAGES, MAX_FREE_SHARE = 256, 8
"""Free pages that are not given back: the first number, or the file's pages divided by the second."""

_AT_REST = """
(webhooks = 0 or not exists (select 1 from webhooks where webhooks.key = tasks.key and cursor < last and dead = 0))
"""
_FINISHED = f"""
select key from tasks indexed by tasks_by_age where done = 1 and updated < ? and {_AT_REST} order by updated limit ?
"""
_UNFINISHED = f"""
select key from tasks indexed by tasks_by_age where done = 0 and updated < ? and node is null and {_AT_REST}
order by updated limit ?
"""
_OF_TENANT = """
select key from tasks where scope in (select scope from scopes where tenant = ?) and (done = 1 or node is null) limit ?
"""
_NAMED = (
    "select key from scopes join tasks using (scope) where tenant = ? and agent = ? and owner = ? and id = ?"
)
_LEFT = "select 1 from tasks where scope in (select scope from scopes where tenant = ?) limit 1"
_FORGET_SEEN = "delete from seen where scope in (select scope from scopes where tenant = ?)"
_STILL_OLD = """
select key, scope, state, reply, seq, size from tasks where key in (select value from json_each(?)) and updated < ?
and (done = 1 or node is null)
"""
_DELETE_LOG = "delete from log where place between ? and ?"
_DELETE_TASK = "delete from tasks where key = ?"
_PURGE_LATER = "insert into purged (key) values (?)"
_NEXT = "select key from purged order by key limit 1"
_PIECE = "select place, length(body) from log where place between ? and ? order by place limit ?"
_NO_LOG = "delete from purged where key = ?"
_QUOTAS = "delete from quotas where key in (select key from quotas where until <= ? limit 1000)"
_EXPIRED = (
    "delete from seen where (scope, dedupe) in (select scope, dedupe from seen where at <= ? limit 1000)"
)


def find(before: str, limit: int, unfinished: bool, db: Connection) -> Sequence[tuple[int]]:
    """The keys of up to `limit` tasks that may be purged."""
    return db.execute(_UNFINISHED if unfinished else _FINISHED, (before, limit)).fetchall()


def find_of_tenant(tenant: str, limit: int, db: Connection) -> Sequence[tuple[int]]:
    """The keys of up to `limit` tasks of a tenant that no node runs."""
    return db.execute(_OF_TENANT, (tenant, limit)).fetchall()


def find_named(tasks: Sequence[tuple[Scope, str]], db: Connection) -> Sequence[tuple[int]]:
    """The keys of these tasks."""
    names = [(scope.tenant, scope.agent, scope.owner, task) for scope, task in tasks]
    return [row for name in names for row in db.execute(_NAMED, name)]


def forget_tenant(tenant: str, db: Connection) -> Finish[bool]:
    """Delete the idempotency keys of a tenant. True if it has tasks."""
    db.execute(_FORGET_SEEN, (tenant,))
    left = db.execute(_LEFT, (tenant,)).fetchone() is not None
    return lambda: left


def purge(file: SqliteFile, before: str, found: Sequence[tuple[int]], db: Connection) -> Finish[int]:
    """Delete those of the tasks `found` that are still older than `before`: an unfinished one may have gone on."""
    purged: list[tuple[int]] = []
    logs: list[tuple[int, int]] = []
    later: list[tuple[int]] = []
    room = PIECE_BYTES
    keys = msgspec.json.encode([key for (key,) in found]).decode()
    for key, scope, state, reply, seq, size in db.execute(_STILL_OLD, (keys, before)).fetchall():
        room -= size
        if seq <= PIECE_ROWS and room >= 0:
            logs.append((key << SEQ_BITS, (key + 1 << SEQ_BITS) - 1))
        else:
            later.append((key,))
        file.commits.count(scope, reply, TaskState(state), None)
        purged.append((key,))
    if purged:
        db.executemany(_DELETE_LOG, logs)
        db.executemany(_PURGE_LATER, later)
        db.executemany(_DELETE_TASK, purged)
        push_queue.purge(db, purged)

    def finish() -> int:
        for (key,) in purged:
            file.reads.snapshots.drop(key)
        return len(purged)

    return finish


def tidy(file: SqliteFile, db: Connection) -> Finish[bool]:
    """Delete a piece of each: logs of purged tasks, expired idempotency keys and quotas, free pages. True if there may be more."""
    more = _delete_logs(db)
    more |= db.execute(_EXPIRED, (time.time() - DEDUPE_SECONDS,)).rowcount >= 1000
    more |= db.execute(_QUOTAS, (lease_clock.now(),)).rowcount >= 1000
    if _shrink(db):
        more = file.commits.must_commit = True
    return lambda: more


def _delete_logs(db: Connection) -> bool:
    row = db.execute(_NEXT).fetchone()
    if row is None:
        return False
    (key,) = row
    first, last, room = key << SEQ_BITS, (key + 1 << SEQ_BITS) - 1, PIECE_BYTES
    upto = -1
    for at, size in db.execute(_PIECE, (first, last, PIECE_ROWS)).fetchall():
        upto, room = at, room - size
        if room <= 0:
            break
    if upto >= 0:
        db.execute(_DELETE_LOG, (first, upto))
    else:
        db.execute(_NO_LOG, (key,))
    return True


def _shrink(db: Connection) -> bool:
    free: int = db.execute("pragma freelist_count").fetchone()[0]
    if free <= MIN_FREE_PAGES or free <= db.execute("pragma page_count").fetchone()[0] // MAX_FREE_SHARE:
        return False
    for _ in range(VACUUM_PAGES):
        db.execute(
            "pragma incremental_vacuum(1)"
        )  # one page: Python runs only the first step of this statement
    left: int = db.execute("pragma freelist_count").fetchone()[0]
    return left < free  # False for a file without incremental vacuum

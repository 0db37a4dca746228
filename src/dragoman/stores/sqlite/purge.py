"""Deletes what is old from a SQLite file, a bounded piece at a time: the statements run on the event loop's thread.

A purged task is gone at once. If its log is long, its key is written down (`purged`) and the log follows in pieces.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from sqlite3 import Connection

import msgspec

from dragoman.model.task import TaskState
from dragoman.stores import heartbeat
from dragoman.stores.sqlite import push_queue
from dragoman.stores.sqlite.commits import SEQ_BITS, Finish
from dragoman.stores.sqlite.file import SqliteFile
from dragoman.stores.sqlite.log import DAY

LAST_TIME = "~"
"""After every time of a task."""
PIECE_ROWS, PIECE_BYTES = 500, 1 << 20
"""What one transaction deletes of a log. A single append may be larger."""
VACUUM_PAGES = 200
"""Pages that one transaction gives back to the file system."""
MIN_FREE_PAGES, MAX_FREE_SHARE = 256, 8
"""Free pages are kept for what comes next: so many, or one in so many of the file."""

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
    """One piece of each: logs of purged tasks, expired keys and quotas, and pages of the file that nothing is in."""
    more = _delete_logs(db)
    more |= db.execute(_EXPIRED, (time.time() - DAY,)).rowcount >= 1000
    more |= db.execute(_QUOTAS, (heartbeat.now(),)).rowcount >= 1000
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
        db.execute("pragma incremental_vacuum(1)")  # one at a time: Python stops after the first step
    left: int = db.execute("pragma freelist_count").fetchone()[0]
    return left < free  # a file from elsewhere may not know how to shrink

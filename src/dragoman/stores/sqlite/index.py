"""Tasks of every scope in a SQLite file, for operators.

A search goes through the tasks by age, a batch at a time on the reading thread, and stops after `SCAN_TASKS`: the index by age
is there for the purge anyway, so operators cost the writers nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Sequence
from typing import Any

from dragoman.engine.protocols import HEAD_BYTES, FoundInfos, NodeInfo, TaskInfo, TaskQuery
from dragoman.errors import TaskNotFound
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores.lease_clock import wall_time
from dragoman.stores.node_locks import NodeLocks
from dragoman.stores.pages import (
    FIRST_PAGE,
    MAX_SCOPE_SEARCHES,
    SCAN_BATCH_TASKS,
    Scan,
    find_infos,
    finish_scan,
    select_complete,
)
from dragoman.stores.rows import read_task_info
from dragoman.stores.sqlite.commits import SEQ_BITS
from dragoman.stores.sqlite.file import SqliteFile

_COLUMNS = f"""
select tenant, agent, owner, tasks.id, context, tasks.key, seq, size, state, updated, done, reply, ready, tasks.node, until, attempt, fence,
(select substr(body, 1, {HEAD_BYTES}) from log where place > tasks.key << {SEQ_BITS} and place < (tasks.key + 1) << {SEQ_BITS}
order by place limit 1)
"""
_ONE = (
    _COLUMNS
    + """
from scopes join tasks using (scope) left join nodes on nodes.node = tasks.node
where tenant = ? and agent = ? and owner = ? and tasks.id = ?
"""
)
# The tie of a page's last task first: the index has no key, and there are few ties.
_SCAN = """
select updated, key from tasks indexed by tasks_by_age
where done = :done and updated <= :updated and updated >= :since and updated < :until
and (updated < :updated or key < :key) order by updated desc, key desc limit :limit
"""
# The tasks of one scope that peers can see, in one state. Ties are in no order.
_SCAN_SCOPE = """
select updated, key from tasks indexed by tasks_by_state
where scope = :scope and state = :state and (reply = 0 or state <> 'TASK_STATE_SUBMITTED')
and updated <= :updated and updated >= :since and updated < :until and (updated < :updated or key < :key)
order by updated desc limit :limit
"""
_SCOPES = """
select scope, state from scopes cross join counts using (scope)
where tenant = :tenant and (:agent is null or agent = :agent) and (:owner is null or owner = :owner) and n > 0 limit :limit
"""
_PAGE = (
    _COLUMNS
    + """
from json_each(:keys) as asked cross join tasks on tasks.key = asked.value
cross join scopes using (scope) left join nodes on nodes.node = tasks.node
where (:tenant is null or tenant = :tenant and (reply = 0 or state <> 'TASK_STATE_SUBMITTED')) and (:agent is null or agent = :agent) and (:owner is null or owner = :owner)
and (:context = '' or context = :context) and (:states = '[]' or state in (select value from json_each(:states)))
order by asked.key limit :limit
"""
)
_COUNTS = """
select tenant, agent, state, sum(n) from counts cross join scopes using (scope) where n > 0 group by tenant, agent, state
"""
_SIZE = """
select coalesce(sum(size), 0) + coalesce(sum(
    case when webhooks then (select sum(length(body)) from webhooks where webhooks.key = tasks.key) end
), 0) from scopes cross join tasks using (scope) where tenant = ?
"""
_NODES = """
select node, until, (select count(*) from tasks where ready = 1 and tasks.node = nodes.node) from nodes order by node
"""


class SqliteIndex:
    def __init__(self, file: SqliteFile, locks: NodeLocks) -> None:
        self._file, self._locks = file, locks

    async def find(self, query: TaskQuery, *, limit: int) -> FoundInfos:
        def scan(before: tuple[str, int] | None, rows: int) -> Awaitable[Scan]:
            return self._file.reads.in_thread(lambda db: _scan(db, query, before, rows))

        return await find_infos(scan, self._expires, query, limit)

    async def get(self, scope: Scope, task: str) -> TaskInfo:
        row = self._file.reads.one(_ONE, (scope.tenant, scope.agent, scope.owner, task))
        if row is None:
            raise TaskNotFound(task)
        return read_task_info(row, self._expires)

    async def counts(self) -> Sequence[tuple[str, str, TaskState, int]]:
        rows = await self._file.reads.in_thread(lambda db: db.execute(_COUNTS).fetchall())
        return [(tenant, agent, TaskState(state), n) for tenant, agent, state, n in rows]

    async def size(self, tenant: str) -> int:
        row = await self._file.reads.in_thread(lambda db: db.execute(_SIZE, (tenant,)).fetchone())
        return int(row[0])

    async def nodes(self) -> Sequence[NodeInfo]:
        rows = await self._file.reads.in_thread(lambda db: db.execute(_NODES).fetchall())
        return [
            NodeInfo(id=node, expires=self._expires(node, until), leases=leases)
            for node, until, leases in rows
        ]

    def _expires(self, node: str, until: float) -> float:
        return 0.0 if self._locks.is_dead(node) else wall_time(until)


def _names(query: TaskQuery) -> dict[str, Any]:
    return {"tenant": query.tenant, "agent": query.agent, "owner": query.owner}


def _of_tenant(
    db: sqlite3.Connection, query: TaskQuery, values: dict[str, Any]
) -> tuple[list[tuple[str, int]], bool] | None:
    """The next tasks of a tenant, without those of others, and whether there are more. None if it has very many scopes, or too many ties."""
    scopes = db.execute(_SCOPES, {**_names(query), "limit": MAX_SCOPE_SEARCHES + 1}).fetchall()
    if len(scopes) > MAX_SCOPE_SEARCHES:
        return None
    wanted = {state.value for state in query.states}
    searches = [
        db.execute(_SCAN_SCOPE, {**values, "scope": scope, "state": state}).fetchall()
        for scope, state in scopes
        if not wanted or state in wanted
    ]
    return select_complete(searches, values["limit"])


def _scan(db: sqlite3.Connection, query: TaskQuery, before: tuple[str, int] | None, limit: int) -> Scan:
    updated, key = before or (FIRST_PAGE, 0)
    values = {"updated": updated, "key": key, "since": query.since, "until": query.until or FIRST_PAGE}
    values["limit"] = SCAN_BATCH_TASKS + 1
    db.execute("begin")
    try:
        found = _of_tenant(db, query, values) if query.tenant is not None else None
        if found is None:
            found = (
                [row for done in (0, 1) for row in db.execute(_SCAN, values | {"done": done}).fetchall()],
                False,
            )
        candidates, cut = found
        candidates.sort(reverse=True)
        keys = "[" + ",".join([str(key) for _, key in candidates[:SCAN_BATCH_TASKS]]) + "]"
        states = "[" + ",".join(sorted(f'"{state.value}"' for state in query.states)) + "]"
        page = {"context": query.context, "keys": keys, "states": states, "limit": limit}
        rows = db.execute(_PAGE, {**_names(query), **page}).fetchall()
    finally:
        db.execute("rollback")
    return finish_scan(rows, candidates, cut, before, limit)

"""Tasks of every scope in a PostgreSQL database, for operators.

A search goes through the tasks by age, a batch at a time, and stops after `SCAN_TASKS`: the index by age is there for the purge
anyway, so operators cost the writers nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Any

from dragoman.engine.protocols import HEAD_BYTES, FoundInfos, NodeInfo, TaskInfo, TaskQuery
from dragoman.errors import TaskNotFound
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores.pages import (
    FIRST_PAGE,
    MAX_SCOPE_SEARCHES,
    SCAN_BATCH_TASKS,
    Scan,
    find_infos,
    finish_scan,
    select_complete,
)
from dragoman.stores.postgres.address import Connection
from dragoman.stores.postgres.database import Database
from dragoman.stores.postgres.text import is_storable
from dragoman.stores.rows import read_task_info

_COLUMNS = f"""
select tenant, agent, owner, tasks.id, context, key, seq, size, state, updated, done, reply, ready, tasks.node,
until - dragoman.clock(), attempt, fence,
(select substring(body from 1 for {HEAD_BYTES}) from dragoman.log where log.key = tasks.key order by log.seq limit 1)
"""
_ONE = (
    _COLUMNS
    + """
from dragoman.scopes join dragoman.tasks using (scope) left join dragoman.nodes on nodes.node = tasks.node
where tenant = $1 and agent = $2 and owner = $3 and tasks.id = $4
"""
)
_SCAN = """
select updated, key from dragoman.tasks where done = $1 and updated <= $2 and updated >= $4 and updated < $5
and (updated < $2 or key < $3) order by updated desc, key desc limit $6
"""
# The tasks of one scope that peers can see, in one state. Ties are in no order.
_SCAN_SCOPES = """
select n, found.updated, found.key from unnest($1::integer[], $2::text[]) with ordinality as asked(scope, state, n)
cross join lateral (
    select updated, key from dragoman.tasks where tasks.scope = asked.scope and tasks.state = asked.state
    and (not reply or tasks.state <> 'TASK_STATE_SUBMITTED')
    and updated <= $3 and updated >= $5 and updated < $6 and (updated < $3 or key < $4) order by updated desc limit $7
) as found
"""
_SCOPES = """
select scope, state from dragoman.scopes join dragoman.counts using (scope)
where tenant = $1 and ($2::text is null or agent = $2) and ($3::text is null or owner = $3)
group by scope, state having sum(n) > 0 limit $4
"""
_PAGE = (
    _COLUMNS
    + """
from unnest($1::bigint[]) with ordinality as asked(task, place) join dragoman.tasks on tasks.key = asked.task
join dragoman.scopes using (scope) left join dragoman.nodes on nodes.node = tasks.node
where ($2::text is null or tenant = $2 and (not reply or state <> 'TASK_STATE_SUBMITTED')) and ($3::text is null or agent = $3) and ($4::text is null or owner = $4)
and ($5::text = '' or context = $5) and (cardinality($6::text[]) = 0 or state = any($6::text[]))
order by asked.place limit $7
"""
)
_COUNTS = """
select tenant, agent, state, sum(n)::bigint from dragoman.counts join dragoman.scopes using (scope)
group by tenant, agent, state having sum(n) > 0
"""
_SIZE = """
select (coalesce(sum(size), 0) + coalesce(sum(
    case when webhooks then (select sum(length(body)) from dragoman.webhooks where webhooks.key = tasks.key) end
), 0))::bigint from dragoman.scopes join dragoman.tasks using (scope) where tenant = $1
"""
_NODES = """
select node, until - dragoman.clock(),
(select count(*) from dragoman.tasks where ready and tasks.node = nodes.node) from dragoman.nodes order by node
"""


class PostgresIndex:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, query: TaskQuery, *, limit: int) -> FoundInfos:
        words = (query.tenant, query.agent, query.owner, query.context, query.since, query.until)
        if not is_storable(*(word or "" for word in words), query.before[0] if query.before else ""):
            return FoundInfos((), None)

        def scan(before: tuple[str, int] | None, rows: int) -> Awaitable[Scan]:
            return self._database.read(lambda db: _scan(db, query, before, rows))

        return await find_infos(scan, _expires, query, limit)

    async def get(self, scope: Scope, task: str) -> TaskInfo:
        names = (scope.tenant, scope.agent, scope.owner, task)
        row = await self._database.read(lambda db: db.fetchrow(_ONE, *names)) if is_storable(*names) else None
        if row is None:
            raise TaskNotFound(task)
        return read_task_info(row, _expires)

    async def counts(self) -> Sequence[tuple[str, str, TaskState, int]]:
        rows = await self._database.read(lambda db: db.fetch(_COUNTS))
        return [(tenant, agent, TaskState(state), n) for tenant, agent, state, n in rows]

    async def size(self, tenant: str) -> int:
        return int(await self._database.read(lambda db: db.fetchval(_SIZE, tenant)))

    async def nodes(self) -> Sequence[NodeInfo]:
        rows = await self._database.read(lambda db: db.fetch(_NODES))
        now = time.time()
        return [NodeInfo(id=node, expires=now + left, leases=leases) for node, left, leases in rows]


def _expires(node: str, left: float) -> float:
    return time.time() + left


async def _of_tenant(
    db: Connection, query: TaskQuery, place: tuple[Any, ...]
) -> tuple[list[tuple[str, int]], bool] | None:
    """The next tasks of a tenant, without those of others, and whether there are more. None if it has very many scopes, or too many
    ties."""
    names = (query.tenant, query.agent, query.owner)
    scopes = await db.fetch(_SCOPES, *names, MAX_SCOPE_SEARCHES + 1)
    if len(scopes) > MAX_SCOPE_SEARCHES:
        return None
    wanted = {state.value for state in query.states}
    chosen = [(scope, state) for scope, state in scopes if not wanted or state in wanted]
    searches: list[list[tuple[str, int]]] = [[] for _ in chosen]
    numbers, states = [scope for scope, _ in chosen], [state for _, state in chosen]
    for n, updated, key in await db.fetch(_SCAN_SCOPES, numbers, states, *place):
        searches[n - 1].append((updated, key))
    return select_complete(searches, SCAN_BATCH_TASKS + 1)


async def _scan(db: Connection, query: TaskQuery, before: tuple[str, int] | None, limit: int) -> Scan:
    updated, key = before or (FIRST_PAGE, 0)
    async with db.transaction(isolation="repeatable_read", readonly=True):
        place = (updated, key, query.since, query.until or FIRST_PAGE, SCAN_BATCH_TASKS + 1)
        found = await _of_tenant(db, query, place) if query.tenant is not None else None
        if found is None:
            searches = [await db.fetch(_SCAN, done, *place) for done in (False, True)]
            found = [tuple(row) for search in searches for row in search], False
        candidates, cut = found
        candidates.sort(reverse=True)
        keys = [key for _, key in candidates[:SCAN_BATCH_TASKS]]
        states = [state.value for state in query.states]
        names = (query.tenant, query.agent, query.owner)
        rows = list(await db.fetch(_PAGE, keys, *names, query.context, states, limit))
    return finish_scan(rows, candidates, cut, before, limit)

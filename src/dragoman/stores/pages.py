"""Pages of tasks: of a scope, for peers, and of all scopes, for operators.

A page ends with a cursor: the place of its last task in the order "newest first, then by id". A task that changes moves to the
front, so a page never repeats a task that did not change.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2s
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from dragoman.engine.protocols import PAGE_BYTES, SCAN_TASKS, FoundInfos, TaskInfo, TaskQuery
from dragoman.model.ops import ListTasks, Scope, refuse_page_token
from dragoman.model.task import TaskState
from dragoman.stores.rows import read_task_info


class ListRow(NamedTuple):
    """The columns of a task in a list."""

    key: int
    seq: int
    id: str
    context: str
    updated: str
    size: int


FIRST_PAGE = "~"
"""After every timestamp."""


class _Cursor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    updated: str
    id: str
    filters: str


class Filters(Struct, frozen=True):
    """Which tasks of a scope a list has, and where the page begins. An empty string does not filter."""

    context: str
    state: str
    since: str
    """The oldest `updated` wanted."""
    after: tuple[str, str] | None
    """`(updated, id)` of the last task of the page before."""
    digest: str

    def cursor(self, updated: str, id: str) -> str:
        """The token for the page after this task."""
        return urlsafe_b64encode(msgspec.json.encode(_Cursor(updated, id, self.digest))).rstrip(b"=").decode()


def merge_page(rows: Iterable[ListRow], filters: Filters, limit: int) -> tuple[Sequence[ListRow], str]:
    """The page, from the first `limit + 1` tasks of each state, and the cursor of the next page."""
    ordered = sorted(sorted(rows, key=attrgetter("id")), key=attrgetter("updated"), reverse=True)
    page: list[ListRow] = []
    total = 0
    for row in ordered[:limit]:
        total += row.size
        if page and total > PAGE_BYTES:
            break
        page.append(row)
    more = len(ordered) > len(page)
    return page, filters.cursor(page[-1].updated, page[-1].id) if more and page else ""


def read_filters(scope: Scope, query: ListTasks) -> Filters:
    """The filters of a query. Raises `InvalidParams` for a token that is not from this scope and these filters."""
    since = query.status_timestamp_after
    state = "" if query.status is TaskState.UNSPECIFIED else query.status.value
    words = (scope.tenant, scope.agent, scope.owner, query.context_id, state, since)
    digest = blake2s(msgspec.json.encode(words), digest_size=6).hexdigest()
    after = None
    if query.page_token:
        cursor = _read_cursor(query.page_token)
        if cursor is None or cursor.filters != digest:
            refuse_page_token()
        after = (cursor.updated, cursor.id)
    return Filters(query.context_id, state, since, after, digest)


def _read_cursor(token: str) -> _Cursor | None:
    try:
        return msgspec.json.decode(urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=_Cursor)
    except (ValueError, msgspec.MsgspecError):
        return None


SCAN_BATCH_TASKS = 1000
"""Tasks that one statement of an operator's search looks at."""

Scan = tuple[list[Any], "tuple[str, int] | None", bool]
"""The rows that match among the next tasks, the last task looked at, and whether there are more."""


async def find_infos(
    scan: Callable[[tuple[str, int] | None, int], Awaitable[Scan]],
    expires: Callable[[str, Any], float],
    query: TaskQuery,
    limit: int,
) -> FoundInfos:
    """A page of an operator's search. `scan` reads a batch, from the place where it begins and the number of rows wanted."""
    found: list[TaskInfo] = []
    at, looked = query.before, 0
    while len(found) < limit and looked < SCAN_TASKS:
        rows, at, more = await scan(at, limit - len(found))
        found += [read_task_info(row, expires) for row in rows]
        looked += SCAN_BATCH_TASKS
        if not more:
            return FoundInfos(found, None)
    return FoundInfos(found, at)


def finish_scan(
    rows: list[Any], candidates: list[tuple[str, int]], cut: bool, before: tuple[str, int] | None, limit: int
) -> Scan:
    """The result of a scan that found `rows` among the first `candidates`, at most `limit`. `cut`: there are more candidates."""
    if len(rows) == limit:
        last = (rows[-1][9], rows[-1][5])  # `updated` and `key` (`read_task_info`)
        return rows, last, cut or last != candidates[-1]
    batch = candidates[:SCAN_BATCH_TASKS]
    return rows, batch[-1] if batch else before, cut or len(candidates) > len(batch)


MAX_SCOPE_SEARCHES = 200
"""Scopes and states of a tenant that an operator's list searches one by one. If a tenant has more, all tasks are searched by age."""


def select_complete(
    searches: Sequence[Sequence[tuple[str, int]]], limit: int
) -> tuple[list[tuple[str, int]], bool] | None:
    """The results of these searches that are complete, and whether there are more. Each search is newest first, with `limit`.

    A search with `limit` results may have been cut among tasks of the same time, so tasks of that time may be missing. None if no
    time is complete.
    """
    found = [(updated, key) for search in searches for updated, key in search]
    cut = [search[-1][0] for search in searches if len(search) == limit]
    if not cut:
        return found, False
    complete = [row for row in found if row[0] > max(cut)]
    return (complete, True) if complete else None

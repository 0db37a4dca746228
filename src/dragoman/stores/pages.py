"""What every store's `find` has in common: reading the query, and the cursor between two pages.

A cursor is the place of the last task of a page in the order "newest first, then by id". Tasks that move while
somebody pages through them move to the front, so a page never repeats a task that kept its place.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from hashlib import blake2s

import msgspec
from msgspec import Struct

from dragoman.engine.protocols import PAGE_BYTES
from dragoman.errors import InvalidParams
from dragoman.model.ids import read_timestamp
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState

Row = tuple[int, int, str, str, str, int]
"""Of a task: key, seq, id, context, updated, size."""

FIRST_PAGE = "~"
"""After every timestamp."""


class _Cursor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    updated: str
    id: str
    filters: str


class Filters(Struct, frozen=True):
    """Which tasks of a scope, and from where on. An empty string filters nothing."""

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


def visible(state: str, reply: bool) -> bool:
    """Whether peers can see a task: what the partial indexes and `counts` hold."""
    return not reply or state != TaskState.SUBMITTED.value


def merge(rows: Iterable[Row], filters: Filters, limit: int) -> tuple[Sequence[Row], str]:
    """The page of these candidates, which are the first `limit + 1` of each state, and the cursor of the next page."""
    ordered = sorted(sorted(rows, key=_id), key=_updated, reverse=True)
    page: list[Row] = []
    total = 0
    for row in ordered[:limit]:
        total += row[5]
        if page and total > PAGE_BYTES:
            break
        page.append(row)
    more = len(ordered) > len(page)
    return page, filters.cursor(page[-1][4], page[-1][2]) if more and page else ""


def _id(row: Row) -> str:
    return row[2]


def _updated(row: Row) -> str:
    return row[4]


def read_filters(scope: Scope, query: ListTasks) -> Filters:
    """Raises `InvalidParams` for a token that did not come from this scope and these filters."""
    try:
        since = read_timestamp(query.status_timestamp_after) if query.status_timestamp_after else ""
    except ValueError:
        raise InvalidParams("statusTimestampAfter is not a timestamp") from None
    state = "" if query.status is TaskState.UNSPECIFIED else query.status.value
    words = (scope.tenant, scope.agent, scope.owner, query.context_id, state, since)
    digest = blake2s(msgspec.json.encode(words), digest_size=6).hexdigest()
    after = None
    if query.page_token:
        cursor = _read_cursor(query.page_token)
        if cursor is None or cursor.filters != digest:
            why = "is not from a page of this list"
            raise InvalidParams(f"pageToken {why}", fields=(("pageToken", why),))
        after = (cursor.updated, cursor.id)
    return Filters(query.context_id, state, since, after, digest)


def _read_cursor(token: str) -> _Cursor | None:
    try:
        return msgspec.json.decode(urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=_Cursor)
    except (ValueError, msgspec.MsgspecError):
        return None

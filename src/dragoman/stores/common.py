"""What the stores have in common: schema scripts, damage, the rows of webhooks and tasks, pages,
the words of a search.

Schemas are numbered scripts, run in order, each once.

A page of tasks ends with a cursor: the place of its last task in the order "newest first, then by id". Tasks that move while
somebody pages through them move to the front, so a page never repeats a task that kept its place.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2s
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.engine.protocols import PAGE_BYTES, TaskInfo
from dragoman.engine.push_configs import Delivery, StoredPushConfig
from dragoman.engine.transition import PushRow, visible
from dragoman.errors import InvalidParams
from dragoman.model.ids import read_timestamp
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState

# -- schema scripts --------------------------------------------------------------------------------------------------


class UnsupportedSchema(Exception):
    """The tables were made by a newer or an unknown version of the program."""


def scripts(database: str, package: str = "dragoman.stores") -> dict[int, tuple[str, str]]:
    """The scripts of a package for `sqlite` or `postgres`, by number: name and text."""
    folder = files(package).joinpath("schema")
    found = [file for file in folder.iterdir() if file.name.endswith(f".{database}.sql")]
    return {int(file.name[:3]): (file.name, file.read_text(encoding="utf-8")) for file in found}


def missing(known: dict[int, tuple[str, str]], done: int) -> list[tuple[int, str, str]]:
    """What is to be run on a database that has seen the scripts up to `done`: number, name, text. Raises `UnsupportedSchema`."""
    newest = max(known)
    if done > newest:
        raise UnsupportedSchema(
            f"the database has schema {done}, and this version of dragoman knows schemas up to {newest}: "
            "upgrade dragoman, or use another database"
        )
    return [(number, *known[number]) for number in range(done + 1, newest + 1)]


# -- damage ----------------------------------------------------------------------------------------------------------


UNREADABLE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, KeyError, IndexError, AssertionError)
"""What unpacking and folding raise when the bytes of a log are not what was written."""
MAX_NAMES = 1000
"""Damaged tasks that are remembered by name."""

_log = logging.getLogger("dragoman.stores")


class Damage:
    def __init__(self) -> None:
        self._tasks: dict[str, None] = {}
        self._database = ""

    def __str__(self) -> str:
        """In a sentence; empty if nothing is damaged."""
        if self._database:
            return f"the database is damaged: {self._database}"
        if not self._tasks:
            return ""
        some = ", ".join(list(self._tasks)[:3])
        more = f" and {len(self._tasks) - 3} more" if len(self._tasks) > 3 else ""
        return f"tasks cannot be read because the database is damaged: {some}{more}"

    def note_task(self, task: str, error: Exception) -> None:
        if task not in self._tasks and len(self._tasks) < MAX_NAMES:
            self._tasks[task] = None
            _log.error("task %s cannot be read, what is stored of it is damaged: %s", task, error)

    def note_database(self, error: Exception) -> None:
        if not self._database:
            self._database = str(error)
            _log.error("the database is damaged, restore it from a copy: %s", error)

    def clear(self, task: str) -> None:
        """The task can be read."""
        if self._tasks:
            self._tasks.pop(task, None)


# -- rows ------------------------------------------------------------------------------------------------------------


encode_push_config = msgspec.json.Encoder().encode
decode_push_config = msgspec.json.Decoder(StoredPushConfig).decode


def delivery_of(row: Sequence[Any]) -> Delivery:
    """A webhook that has something to tell, from its row and those of its task and scope."""
    key, tenant, agent, owner, task, body, cursor, last, fence, attempt, since, at, error, dead = row
    return Delivery(
        key=key,
        scope=Scope(tenant, agent, owner),
        task=task,
        webhook=decode_push_config(body),
        cursor=cursor,
        last=last,
        fence=fence,
        attempt=attempt,
        since=since,
        at=at,
        error=error,
        dead=bool(dead),
    )


class PushListeners:
    """Those who want to know when a write of this process makes a webhook due: part of `PushQueue`."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    @contextmanager
    def listen(self, woken: Callable[[], None]) -> Iterator[None]:
        self._listeners.append(woken)
        try:
            yield
        finally:
            self._listeners.remove(woken)

    def wake(self) -> None:
        for woken in tuple(self._listeners):
            woken()


def task_info(row: Sequence[Any], expires: Callable[[str, Any], float]) -> TaskInfo:
    """What an operator's list shows of a task. `expires`: when the lease of a node ends, from its row; 0 if the node is dead."""
    (tenant, agent, owner, id, context, key, seq, size, state, updated, done, reply, ready, node, until, attempt,
     fence, head) = row  # fmt: skip
    return TaskInfo(
        scope=Scope(tenant, agent, owner),
        id=id,
        context=context,
        key=key,
        seq=seq,
        size=size,
        state=TaskState(state),
        updated=updated,
        done=bool(done),
        hidden=not visible(state, reply),
        ready=bool(ready),
        node=(node or "") if ready else "",
        expires=expires(node, until) if ready and node is not None and until is not None else 0.0,
        attempt=attempt,
        fence=fence,
        head=bytes(head or b""),
    )


PUSH_COLUMNS = "cursor, last, node, fence, attempt, since, at, error, dead"


def push_row(values: Sequence[Any]) -> PushRow:
    """How far a webhook has been told, from its `PUSH_COLUMNS`."""
    cursor, last, node, fence, attempt, since, at, error, dead = values
    return PushRow(
        cursor=cursor,
        last=last,
        node=node or "",
        fence=fence,
        attempt=attempt,
        since=since,
        at=at,
        error=error,
        dead=bool(dead),
    )


def push_values(row: PushRow) -> tuple[Any, ...]:
    """The values of `PUSH_COLUMNS`."""
    return (
        row.cursor,
        row.last,
        row.node or None,
        row.fence,
        row.attempt,
        row.since,
        row.at,
        row.error,
        row.dead,
    )


# -- pages of tasks --------------------------------------------------------------------------------------------------


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


MAX_SCOPE_SEARCHES = 200
"""Scopes and states that are searched one by one for an operator's list. A tenant with more is searched by age."""


def complete_part(
    searches: Sequence[Sequence[tuple[str, int]]], limit: int
) -> tuple[list[tuple[str, int]], bool] | None:
    """What of these searches, each newest first and at most `limit` long, is surely complete; and whether there is more.

    A search that is as long as it may be was cut, perhaps among tasks of the same time: that time is not complete. None if nothing
    is.
    """
    found = [(updated, key) for search in searches for updated, key in search]
    cut = [search[-1][0] for search in searches if len(search) == limit]
    if not cut:
        return found, False
    complete = [row for row in found if row[0] > max(cut)]
    return (complete, True) if complete else None


# -- the words of a search -------------------------------------------------------------------------------------------


MAX_SEARCH_WORDS = 12
_MAX_QUERY_CHARACTERS, _MAX_WORD_CHARACTERS = 1000, 40
_PREFIX_CHARACTERS = 3
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]|[^\W_\u2e80-\u9fff\uac00-\ud7af]+")
"""A run of letters and digits; in scripts without spaces, one character."""
_STOP_WORDS = frozenset(
    [
        "a",
        "about",
        "all",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "because",
        "been",
        "before",
        "being",
        "between",
        "both",
        "but",
        "by",
        "can",
        "did",
        "do",
        "does",
        "doing",
        "down",
        "during",
        "each",
        "few",
        "for",
        "from",
        "further",
        "had",
        "has",
        "have",
        "having",
        "he",
        "her",
        "here",
        "hers",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "just",
        "me",
        "more",
        "most",
        "my",
        "no",
        "nor",
        "not",
        "now",
        "of",
        "off",
        "on",
        "once",
        "only",
        "or",
        "other",
        "our",
        "out",
        "over",
        "own",
        "same",
        "she",
        "should",
        "so",
        "some",
        "such",
        "than",
        "that",
        "the",
        "their",
        "theirs",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "through",
        "to",
        "too",
        "under",
        "until",
        "up",
        "very",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whom",
        "why",
        "will",
        "with",
        "you",
        "your",
        "yours",
    ]
)


def plain_words(text: str) -> list[str]:
    """The words of a text in lower case, without accents. `refundOrder` and `refund_order` are two words."""
    letters = _CAMEL.sub(" ", text)
    if not letters.isascii():
        decomposed = unicodedata.normalize("NFKD", letters)
        letters = "".join(each for each in decomposed if not unicodedata.combining(each))
    return [word[:_MAX_WORD_CHARACTERS] for word in _WORD.findall(letters.lower())]


def query_words(query: str) -> list[str]:
    """The words that are searched: at most `MAX_SEARCH_WORDS`, without those that every text has."""
    words = dict.fromkeys(plain_words(query[:_MAX_QUERY_CHARACTERS]))
    return [word for word in words if word not in _STOP_WORDS][:MAX_SEARCH_WORDS]


def is_prefix(word: str) -> bool:
    """Whether a word of a query also finds longer words."""
    return len(word) >= _PREFIX_CHARACTERS

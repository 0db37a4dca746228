"""The hub's own tables: tenants, agents, conversations, memory. Tasks are in the task store.

The tables are in a SQLite file (`sqlite.py`) or in the PostgreSQL database of the tasks (`postgres.py`). The statements are the
same for both: placeholders are `?` or `?1`, new ids come from `returning id`, and only the search of memories differs.

Work on the tables is an async function with a `Transaction`. It may run more than once, so it must change nothing else. Most are
methods of a repository:

    class Notes(Repository):
        @transaction
        async def add(self, db: Transaction, tenant: int, text: str) -> int:
            row = await db.one("insert into notes (tenant_id, text) values (?, ?) returning id", (tenant, text))
            return int(row["id"])

    id = await Notes(database).add(7, "Buy milk")
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, get_type_hints

import msgspec

from dragoman.errors import InvalidParams, Unavailable
from dragoman.hub.tenants.policy import Policy

T = TypeVar("T")
R = TypeVar("R", bound="Repository")
P = ParamSpec("P")

PACKAGE = "dragoman.hub.store"
"""Where the numbered scripts of the schema are (`schema/`)."""
UNKNOWN = "the tables of the hub were made by an unknown version of dragoman: use another database"
_RESULT_SECONDS = 30 * 86_400
"""How long `run_once` stores results."""

Place = tuple[int, int]
"""A place in a list with the latest changed first: a time and an id. The rows after it changed earlier, or at that time and have a lower id."""
NEWEST: Place = (2**62, 0)
"""The beginning of such a list."""

Row = Any
"""Values by name and by number; `dict(row)` works."""


class NoHub(Unavailable):
    """There are no tables of a hub, and `open` may not create them."""


class MissingReference(InvalidParams):
    """A row refers to another one, such as a conversation, that is gone."""


class Transaction(Protocol):
    """A transaction, or a read."""

    @property
    def policy(self) -> Policy:
        """That of the hub (`Database.policy`)."""
        ...

    async def one(self, statement: str, values: Sequence[Any] = ()) -> Row:
        """The first row, or None."""
        ...

    async def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]: ...

    async def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Returns how many rows changed."""
        ...

    async def change_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None: ...

    async def search_memories(
        self, words: Sequence[str], where: str, values: Sequence[Any], limit: int
    ) -> Sequence[Row]:
        """Rows of `memories` that have one of the words, with a `score`: the lower, the better. `where` limits `m`."""
        ...


Work = Callable[[Transaction], Awaitable[T]]


class Database(ABC):
    """Where the tables are. `policy`: what tenants may use and store that have no policy of their own."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()

    @abstractmethod
    async def open(self, *, create: bool = True) -> Self:
        """Create the tables, or bring them to this version. Raises `Unavailable`, also for tables of a newer version.

        `create`: False raises `NoHub` if there are no tables.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish pending work, then close."""

    @abstractmethod
    async def run(self, work: Work[T], *, tenant: int = 0) -> T:
        """Run `work` in a transaction. An exception rolls it back. Two of one tenant never run at the same time, on any node."""

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run `work`, which only reads."""

    @abstractmethod
    async def look_up(self, statement: str, values: Sequence[Any] = ()) -> Row:
        """The row of a key, or None: faster than `one`."""

    @abstractmethod
    async def version(self) -> int:
        """A number that changes when a tenant is disabled or has a new token, by whichever process."""

    async def run_once(self, key: str, work: Work[T], kind: Any, *, tenant: int = 0) -> T:
        """`run`, or the stored result, of type `kind`, if `key` was run before. An empty key always runs."""
        if not key:
            return await self.run(work, tenant=tenant)

        async def run_or_load(db: Transaction) -> T:
            known = await db.one("select outcome from done where key = ?", (key,))
            if known is not None:
                before: T = msgspec.json.decode(known["outcome"], type=kind)
                return before
            result, now = await work(db), int(time.time())
            await db.change("delete from done where at < ?", (now - _RESULT_SECONDS,))
            outcome = key, msgspec.json.encode(result), now
            await db.change("insert into done (key, outcome, at) values (?, ?, ?)", outcome)
            return result

        return await self.run(run_or_load, tenant=tenant)

    async def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run one statement in a transaction of its own. Returns how many rows it changed."""
        return await self.run(lambda db: db.change(statement, values))

    async def all(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        return await self.read(lambda db: db.all(statement, values))

    async def one(self, statement: str, values: Sequence[Any] = ()) -> Row:
        """The first row, or None."""
        return await self.read(lambda db: db.one(statement, values))

    async def find(self, kind: type[T], statement: str, values: Sequence[Any] = ()) -> T | None:
        """`look_up`, as a struct."""
        row = await self.look_up(statement, values)
        return None if row is None else read_row(kind, row)

    async def select(self, kind: type[T], statement: str, values: Sequence[Any] = ()) -> list[T]:
        """`all`, as structs."""
        return [read_row(kind, row) for row in await self.all(statement, values)]


def read_row(kind: type[T], row: Row) -> T:
    """A row as a struct. Columns that it does not have are left out; 0 and 1 may be false and true."""
    return msgspec.convert(dict(row), kind, strict=False)


class Repository:
    """The tables of one noun. Every method finds only what its tenant has."""

    def __init__(self, database: Database) -> None:
        self._db, self._key = database, ""

    def once(self, key: str) -> Self:
        """The same repository, for one write that happens once under this key, also if it is repeated after a crash."""
        out = copy(self)
        out._key = key
        return out


def transaction(
    method: Callable[Concatenate[R, Transaction, int, P], Awaitable[T]],
) -> Callable[Concatenate[R, str | int, P], Coroutine[Any, Any, T]]:
    """Decorates a method of a repository: it runs in a transaction of the tenant, its first argument. It may run more than once."""

    @wraps(method)
    async def run(self: R, tenant: str | int, /, *args: P.args, **options: P.kwargs) -> T:
        def work(db: Transaction) -> Awaitable[T]:
            return method(self, db, int(tenant), *args, **options)

        kind = get_type_hints(method)["return"] if self._key else None
        return await self._db.run_once(self._key, work, kind, tenant=int(tenant))

    return run


def open_database(where: str | Path, folder: Path | None = None, *, policy: Policy | None = None) -> Database:
    """The tables of a hub: in the database at a `postgresql:` URL, or in `hub.db` in a folder. `memory:` is a temporary file."""
    if str(where).startswith(("postgresql:", "postgres:")):
        from dragoman.hub.store.postgres import PostgresDatabase

        return PostgresDatabase(str(where), policy)
    from dragoman.hub.store.sqlite import SqliteDatabase

    if str(where) == "memory:":
        return SqliteDatabase(":memory:", policy)
    return SqliteDatabase(where if folder is None else folder / "hub.db", policy)

"""Folders: where a tenant keeps its conversations. A folder that goes leaves its conversations behind."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.database import Database
from dragoman.hub.refusals import NotFound

MOST = 200
"""Folders that a tenant may have."""

_FIELDS = "id, tenant_id, name, position, created_at, updated_at"
_ONE = f"select {_FIELDS} from folders where tenant_id = ? and id = ?"
_ALL = f"select {_FIELDS} from folders where tenant_id = ? order by position, name, id"
_COUNT = "select count(*) from folders where tenant_id = ?"
_ADD = (
    f"insert into folders (tenant_id, name, created_at, updated_at) values (?, ?, ?, ?) returning {_FIELDS}"
)
_CHANGE = f"""
update folders set name = coalesce(?, name), position = coalesce(?, position), updated_at = ?
where tenant_id = ? and id = ? returning {_FIELDS}
"""
_DELETE = "delete from folders where tenant_id = ? and id = ?"


class Folder(Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: int
    name: str
    position: int
    created_at: int
    updated_at: int


class Folders:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, tenant: int, name: str) -> Folder:
        """Raises `InvalidParams`."""
        name, now = _checked(name), int(time.time())

        def add(db: sqlite3.Connection) -> Folder:
            if db.execute(_COUNT, (tenant,)).fetchone()[0] >= MOST:
                raise InvalidParams(f"a tenant has at most {MOST} folders: delete one first")
            return Folder(**db.execute(_ADD, (tenant, name, now, now)).fetchone())

        return await self._db.run(add)

    def find(self, tenant: int, id: int) -> Folder:
        """Raises `NotFound`."""
        return _there(self._db.look(lambda db: db.execute(_ONE, (tenant, id)).fetchone()), id)

    async def list(self, tenant: int) -> Sequence[Folder]:
        """By position, then by name."""
        rows = await self._db.read(lambda db: db.execute(_ALL, (tenant,)).fetchall())
        return [Folder(**row) for row in rows]

    async def change(
        self, tenant: int, id: int, *, name: str | None = None, position: int | None = None
    ) -> Folder:
        """Raises `NotFound`, `InvalidParams`."""
        values = (None if name is None else _checked(name), position, int(time.time()), tenant, id)
        return _there(await self._db.run(lambda db: db.execute(_CHANGE, values).fetchone()), id)

    async def delete(self, tenant: int, id: int) -> None:
        """Its conversations stay, in none. Raises `NotFound`."""
        if not await self._db.run(lambda db: db.execute(_DELETE, (tenant, id)).rowcount):
            raise NotFound(f"there is no folder {id}")


def _checked(name: str) -> str:
    name = name.strip()
    if not 1 <= len(name) <= 200:
        raise InvalidParams(
            "the name of a folder has 1 to 200 characters", fields=(("name", "has 1 to 200"),)
        )
    return name


def _there(row: sqlite3.Row | None, id: int) -> Folder:
    if row is None:
        raise NotFound(f"there is no folder {id}")
    return Folder(**row)

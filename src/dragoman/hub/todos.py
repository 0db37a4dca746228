"""What is still to do: in a conversation, or (conversation 0) for the whole tenant.

`once` names a write that may be asked for again after a crash (`Database.once`).
"""

from __future__ import annotations

import sqlite3
import time

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.database import Database

STATES = ("pending", "in_progress", "completed", "canceled")
OPEN = ("pending", "in_progress")


class Todo(Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: int
    conversation_id: int
    subject: str
    description: str
    state: str
    created_at: int
    updated_at: int


class Todos:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(
        self, tenant: str | int, subject: str, description: str = "", *, conversation: int = 0, once: str = ""
    ) -> Todo:
        subject, now = subject.strip(), int(time.time())
        if not 1 <= len(subject) <= 200 or len(description) > 4096:
            raise InvalidParams("a todo has a subject of 1 to 200 characters and a description of up to 4096")

        def work(db: sqlite3.Connection) -> Todo:
            id = db.execute(
                "insert into todos (tenant_id, conversation_id, subject, description, created_at, updated_at) "
                "values (?, ?, ?, ?, ?, ?)",
                (int(tenant), conversation, subject, description, now, now),
            ).lastrowid
            return Todo(**db.execute("select * from todos where id = ?", (id,)).fetchone())

        return await self._db.once(once, work, Todo)

    async def list(
        self, tenant: str | int, *, conversation: int = 0, states: tuple[str, ...] = OPEN, limit: int = 100
    ) -> list[Todo]:
        """Those of a conversation and those of the tenant, oldest first."""
        marks = ", ".join("?" * len(states))
        rows = await self._db.read(
            lambda db: db.execute(
                f"select * from todos where tenant_id = ? and conversation_id in (0, ?) and state in ({marks}) "
                "order by id limit ?",
                (int(tenant), conversation, *states, limit),
            ).fetchall()
        )
        return [Todo(**row) for row in rows]

    async def get(self, tenant: str | int, id: int) -> Todo | None:
        row = await self._db.read(
            lambda db: db.execute(
                "select * from todos where tenant_id = ? and id = ?", (int(tenant), id)
            ).fetchone()
        )
        return None if row is None else Todo(**row)

    async def mark(self, tenant: str | int, id: int, state: str, *, once: str = "") -> Todo | None:
        """Change the state; None if there is no such todo. Raises `InvalidParams` for a state nobody knows."""
        if state not in STATES:
            raise InvalidParams(f"a todo is one of {', '.join(STATES)}")

        def work(db: sqlite3.Connection) -> Todo | None:
            row = db.execute(
                "update todos set state = ?, updated_at = ? where tenant_id = ? and id = ? returning *",
                (state, int(time.time()), int(tenant), id),
            ).fetchone()
            return None if row is None else Todo(**row)

        return await self._db.once(once, work, Todo | None)

    async def delete(self, tenant: str | int, id: int) -> bool:
        return await self._db.run(
            lambda db: (
                db.execute("delete from todos where tenant_id = ? and id = ?", (int(tenant), id)).rowcount > 0
            )
        )

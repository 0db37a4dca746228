"""Todos of a conversation, or (conversation 0) of the whole tenant.

`once` is the key of a write that may be repeated after a crash (`Database.run_once`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.store.database import Database, Transaction
from dragoman.hub.store.policies import check_room, policy_of

STATES = ("pending", "in_progress", "completed", "canceled")
OPEN = ("pending", "in_progress")
MAX_SUBJECT_CHARACTERS = 200
_COUNT = "select count(*) from todos where tenant_id = ?"


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
        _check(subject, description)

        async def work(db: Transaction) -> Todo:
            most = (await policy_of(self._db, db, int(tenant))).max_todos
            await check_room(db, most, _COUNT, (int(tenant),), "todos")
            row = await db.one(
                "insert into todos (tenant_id, conversation_id, subject, description, created_at, updated_at) "
                "values (?, ?, ?, ?, ?, ?) returning *",
                (int(tenant), conversation, subject, description, now, now),
            )
            return Todo(**row)

        return await self._db.run_once(once, work, Todo, tenant=int(tenant))

    async def list(
        self,
        tenant: str | int,
        *,
        conversation: int | None = 0,
        states: Sequence[str] = OPEN,
        limit: int = 100,
    ) -> Sequence[Todo]:
        """Todos of a conversation and of none, oldest first; None: of all conversations."""
        where, values = "tenant_id = ?", [int(tenant)]
        if conversation is not None:
            where, values = f"{where} and conversation_id in (0, ?)", [*values, conversation]
        marks = ", ".join("?" * len(states))
        rows = await self._db.all(
            f"select * from todos where {where} and state in ({marks}) order by id limit ?",
            (*values, *states, limit),
        )
        return [Todo(**row) for row in rows]

    async def get(self, tenant: str | int, id: int) -> Todo | None:
        row = await self._db.one("select * from todos where tenant_id = ? and id = ?", (int(tenant), id))
        return None if row is None else Todo(**row)

    async def change(
        self,
        tenant: str | int,
        id: int,
        *,
        state: str | None = None,
        subject: str | None = None,
        description: str | None = None,
        once: str = "",
    ) -> Todo | None:
        """None leaves a field as it is. Returns None if there is no such todo. Raises `InvalidParams`."""
        if state is not None and state not in STATES:
            raise InvalidParams(f"a todo is one of {', '.join(STATES)}", fields=(("state", "is unknown"),))
        subject = None if subject is None else subject.strip()
        _check("there" if subject is None else subject, description or "")

        async def work(db: Transaction) -> Todo | None:
            row = await db.one(
                "update todos set state = coalesce(?, state), subject = coalesce(?, subject), "
                "description = coalesce(?, description), updated_at = ? where tenant_id = ? and id = ? returning *",
                (state, subject, description, int(time.time()), int(tenant), id),
            )
            return None if row is None else Todo(**row)

        return await self._db.run_once(once, work, Todo | None, tenant=int(tenant))

    async def delete(self, tenant: str | int, id: int) -> bool:
        return (
            await self._db.change("delete from todos where tenant_id = ? and id = ?", (int(tenant), id)) > 0
        )


def _check(subject: str, description: str) -> None:
    if not 1 <= len(subject) <= MAX_SUBJECT_CHARACTERS or len(description) > 4096:
        raise InvalidParams("a todo has a subject of 1 to 200 characters and a description of up to 4096")

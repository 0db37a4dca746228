"""Todos of a conversation, or (conversation 0) of the whole tenant."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.store.database import Repository, Transaction, read_row, transaction
from dragoman.hub.store.policies import check_room

STATES = ("pending", "in_progress", "completed", "canceled")
OPEN = ("pending", "in_progress")
MAX_SUBJECT_CHARACTERS = 200
_ADD = """
insert into todos (tenant_id, conversation_id, subject, description, created_at, updated_at)
values (?, ?, ?, ?, ?, ?) returning *
"""
_CHANGE = """
update todos set state = coalesce(?, state), subject = coalesce(?, subject), description = coalesce(?, description),
updated_at = ? where tenant_id = ? and id = ? returning *
"""


class Todo(Struct, frozen=True, kw_only=True):
    id: int
    tenant_id: int
    conversation_id: int
    subject: str
    description: str
    state: str
    created_at: int
    updated_at: int


class Todos(Repository):
    @transaction
    async def add(
        self, db: Transaction, tenant: int, subject: str, description: str = "", *, conversation: int = 0
    ) -> Todo:
        subject, now = subject.strip(), int(time.time())
        _check(subject, description)
        await check_room(db, tenant, "todos")
        row = await db.one(_ADD, (tenant, conversation, subject, description, now, now))
        return read_row(Todo, row)

    async def list(
        self,
        tenant: str | int,
        *,
        conversation: int | None = 0,
        states: Sequence[str] = OPEN,
        after: int = 0,
        limit: int = 100,
    ) -> Sequence[Todo]:
        """Todos of a conversation and of none, oldest first, after an id; None: of all conversations."""
        where, values = "tenant_id = ? and id > ?", [int(tenant), after]
        if conversation is not None:
            where, values = f"{where} and conversation_id in (0, ?)", [*values, conversation]
        marks = ", ".join("?" * len(states))
        statement = f"select * from todos where {where} and state in ({marks}) order by id limit ?"
        return await self._db.select(Todo, statement, (*values, *states, limit))

    async def get(self, tenant: int, id: int) -> Todo | None:
        return await self._db.find(Todo, "select * from todos where tenant_id = ? and id = ?", (tenant, id))

    @transaction
    async def change(
        self,
        db: Transaction,
        tenant: int,
        id: int,
        *,
        state: str | None = None,
        subject: str | None = None,
        description: str | None = None,
    ) -> Todo | None:
        """None leaves a field as it is. Returns None if there is no such todo. Raises `InvalidParams`."""
        if state is not None and state not in STATES:
            raise InvalidParams(f"a todo is one of {', '.join(STATES)}", fields=(("state", "is unknown"),))
        subject = None if subject is None else subject.strip()
        _check("there" if subject is None else subject, description or "")
        row = await db.one(_CHANGE, (state, subject, description, int(time.time()), tenant, id))
        return None if row is None else read_row(Todo, row)

    async def delete(self, tenant: int, id: int) -> bool:
        return await self._db.change("delete from todos where tenant_id = ? and id = ?", (tenant, id)) > 0


def _check(subject: str, description: str) -> None:
    if not 1 <= len(subject) <= MAX_SUBJECT_CHARACTERS or len(description) > 4096:
        raise InvalidParams("a todo has a subject of 1 to 200 characters and a description of up to 4096")

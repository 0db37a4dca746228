"""What tenants asked for: an index from a request's id to the agent whose task it is.

A request is a task, and its id is the task's. How it goes is in the task's log; here is only what finds it.
"""

from __future__ import annotations

import sqlite3
import time

from msgspec import Struct

from dragoman.hub.database import Database

_NOTE = """
insert or ignore into requests (tenant_id, request_id, agent_id, conversation_id, via, started_at)
values (?, ?, ?, ?, ?, ?)
"""
_FIELDS = "request_id, agent_id, conversation_id, via, started_at"
_ONE = f"select {_FIELDS} from requests where tenant_id = ? and request_id = ?"
_LIST = f"""
select {_FIELDS} from requests where tenant_id = ? order by n desc limit ?
"""


class Asked(Struct, frozen=True, kw_only=True):
    """One request."""

    request_id: str
    agent_id: str
    conversation_id: int = 0
    via: str = ""
    """`native` or `a2a`."""
    started_at: int = 0


class Requests:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def note(self, tenant: int, request: str, agent: str, *, via: str, conversation: int = 0) -> None:
        """Remember a request; one that is known already stays as it is."""
        values = (tenant, request, agent, conversation, via, int(time.time()))
        await self._db.run(lambda db: db.execute(_NOTE, values))

    def find(self, tenant: int, request: str) -> Asked | None:
        row = self._db.look(lambda db: db.execute(_ONE, (tenant, request)).fetchone())
        return None if row is None else _asked(row)

    async def list(self, tenant: int, limit: int) -> list[Asked]:
        """Newest first."""
        rows = await self._db.read(lambda db: db.execute(_LIST, (tenant, limit)).fetchall())
        return [_asked(row) for row in rows]


def _asked(row: sqlite3.Row) -> Asked:
    return Asked(**dict(row))

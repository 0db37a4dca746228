"""What agents learned from their mistakes: a few words for where one happens, and what to do instead.

A lesson is an agent's own. Those that have words in common with a request are put before it, and the ones that are
needed often come first.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Sequence

from msgspec import Struct

from dragoman.errors import InvalidParams
from dragoman.hub.database import Database

MAX_REQUEST = 64 * 1024
"""Characters of a request that lessons are compared with."""
MOST = 500
"""Lessons that an agent keeps."""
IN_ALL = 10_000
"""Those of all agents of a tenant, also of agents that are gone."""
REMINDED = 3
"""How many are put before a request."""
_COLUMNS = "id, agent_id, signature, lesson_text, hit_count, created_at, updated_at, last_seen_at"
_ADD = f"""
insert into lessons (tenant_id, agent_id, signature, lesson_text, created_at, updated_at, last_seen_at)
values (?, ?, ?, ?, ?, ?, ?) returning {_COLUMNS}
"""
_COUNT = "select count(*), coalesce(sum(agent_id = ?), 0) from lessons where tenant_id = ?"
_ALL = f"select {_COLUMNS} from lessons where tenant_id = ? and (? = '' or agent_id = ?)"
_LIST = f"{_ALL} order by last_seen_at desc, id desc limit ?"
_SEARCH = f"""
{_ALL} and instr(lower(signature || ' ' || lesson_text), ?) > 0 order by hit_count desc, last_seen_at desc, id desc limit ?
"""
_ONE = f"select {_COLUMNS} from lessons where tenant_id = ? and id = ?"
_CHANGE = f"""
update lessons set signature = ?, lesson_text = ?, updated_at = ? where tenant_id = ? and id = ? returning {_COLUMNS}
"""
_SEEN = "update lessons set hit_count = hit_count + 1, last_seen_at = ? where id = ?"
_DELETE = "delete from lessons where tenant_id = ? and id = ? and (? = '' or agent_id = ?)"


class Lesson(Struct, frozen=True, kw_only=True):
    id: int
    agent_id: str
    signature: str
    lesson_text: str
    hit_count: int
    created_at: int
    updated_at: int
    last_seen_at: int

    @property
    def line(self) -> str:
        return f"[{self.signature}] {self.lesson_text} (#{self.id})"


class Lessons:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(
        self, tenant: str | int, agent: str, signature: str, text: str, *, once: str = ""
    ) -> Lesson:
        """Raises `InvalidParams`."""
        signature, text = _checked(signature, text)
        if not 1 <= len(agent) <= 64:
            raise InvalidParams("an agent's id has 1 to 64 characters", fields=(("agent_id", "has 1 to 64"),))
        now = int(time.time())

        def add(db: sqlite3.Connection) -> Lesson:
            in_all, its_own = db.execute(_COUNT, (agent, int(tenant))).fetchone()
            if its_own >= MOST or in_all >= IN_ALL:
                raise InvalidParams(
                    f"an agent keeps {MOST} lessons, and a tenant {IN_ALL} in all: delete one first"
                )
            values = (int(tenant), agent, signature, text, now, now, now)
            return Lesson(**db.execute(_ADD, values).fetchone())

        return await self._db.once(once, add, Lesson)

    async def list(
        self, tenant: str | int, agent: str = "", *, words: str = "", limit: int = 200
    ) -> Sequence[Lesson]:
        """Those seen last first; with `words`, those that have them, the most needed first."""
        whose = (int(tenant), agent, agent)
        if words:
            rows = await self._db.read(
                lambda db: db.execute(_SEARCH, (*whose, words.lower(), limit)).fetchall()
            )
        else:
            rows = await self._db.read(lambda db: db.execute(_LIST, (*whose, limit)).fetchall())
        return [Lesson(**row) for row in rows]

    async def get(self, tenant: str | int, id: int) -> Lesson | None:
        row = await self._db.read(lambda db: db.execute(_ONE, (int(tenant), id)).fetchone())
        return None if row is None else Lesson(**row)

    async def change(
        self, tenant: str | int, id: int, *, signature: str | None = None, text: str | None = None
    ) -> Lesson | None:
        """None if there is no such lesson. Raises `InvalidParams`."""

        def change(db: sqlite3.Connection) -> Lesson | None:
            old = db.execute(_ONE, (int(tenant), id)).fetchone()
            if old is None:
                return None
            new = _checked(
                old["signature"] if signature is None else signature,
                old["lesson_text"] if text is None else text,
            )
            return Lesson(**db.execute(_CHANGE, (*new, int(time.time()), int(tenant), id)).fetchone())

        return await self._db.run(change)

    async def delete(self, tenant: str | int, id: int, agent: str = "", *, once: str = "") -> bool:
        """False: there was none, or none of this agent's."""

        def delete(db: sqlite3.Connection) -> bool:
            return db.execute(_DELETE, (int(tenant), id, agent, agent)).rowcount > 0

        return await self._db.once(once, delete, bool)

    async def remind(self, tenant: str | int, agent: str, text: str, *, once: str = "") -> Sequence[Lesson]:
        """Those that a request brings to mind. They count as seen."""

        def look(db: sqlite3.Connection) -> list[Lesson]:
            """On the reader's thread: all lessons of an agent together may have two million characters."""
            asked = _words(text[:MAX_REQUEST])
            known = [Lesson(**row) for row in db.execute(_LIST, (int(tenant), agent, agent, MOST))]
            found = [(len(asked & _words(f"{each.signature} {each.lesson_text}")), each) for each in known]
            best = sorted(
                ((n, each) for n, each in found if n),
                key=lambda pair: (-pair[0], -pair[1].hit_count, -pair[1].last_seen_at, -pair[1].id),
            )[:REMINDED]
            return [each for _, each in best]

        lessons = await self._db.read(look)

        def seen(db: sqlite3.Connection) -> bool:
            db.executemany(_SEEN, [(int(time.time()), each.id) for each in lessons])
            return True

        if lessons:
            await self._db.once(once, seen, bool)
        return lessons


def _checked(signature: str, text: str) -> tuple[str, str]:
    signature, text = signature.strip(), text.strip()
    if not 1 <= len(signature) <= 200:
        raise InvalidParams("a signature has 1 to 200 characters", fields=(("signature", "has 1 to 200"),))
    if not 1 <= len(text) <= 4096:
        raise InvalidParams("a lesson has 1 to 4096 characters", fields=(("lesson_text", "has 1 to 4096"),))
    return signature, text


def _words(text: str) -> set[str]:
    """Those that mean something: short ones are in every sentence."""
    return set(re.findall(r"[^\W_]{4,}", text.lower()))

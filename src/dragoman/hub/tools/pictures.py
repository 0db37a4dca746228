"""Pictures that commands give to the model.

A command's result is text, and its picture goes along with the model's next prompt. The log of the task has the text and
the picture's key; the bytes are in the hub's database, from where a turn that runs again after a crash gets them.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from dragoman.hub.database import Database
from dragoman.hub.models.model import Image, Model, about
from dragoman.hub.tools.tool import Session

_KEPT = 7 * 86_400
"""Seconds. A turn that comes back later than that reads that there was a picture."""
MOST = 256 << 20
"""Bytes of pictures that a tenant has here; older ones make room."""
_KEEP = "insert or replace into pictures (key, media_type, content, at) values (?, ?, ?, ?)"
_FORGET = "delete from pictures where at < ?"
_MAKE_ROOM = """
delete from pictures where key in (select key from (select key, sum(length(content)) over (order by rowid desc) as bytes
from pictures where key > ? || '/' and key < ? || '0') where bytes > ?)
"""  # what comes after a slash comes before a 0
_FIND = "select media_type, content from pictures where key = ?"


class Pictures:
    """`model` says which agents' models see."""

    def __init__(self, database: Database, model: Model) -> None:
        self._db, self._model = database, model

    async def show(self, session: Session, image: Image) -> str:
        """Have the model see a picture with its next prompt, if it can. Returns what the command says of it."""
        if not about(self._model, session.constitution.model).sees:
            return f"({image.title}: a picture, and your model cannot see pictures)"
        key, now = session.once, int(time.time())

        def keep(db: sqlite3.Connection) -> None:
            db.execute(_FORGET, (now - _KEPT,))
            db.execute(_KEEP, (key, image.media_type, image.content, now))
            db.execute(_MAKE_ROOM, (session.tenant, session.tenant, MOST))

        await self._db.run(keep)
        session.pictures.append(key)
        return f"(picture {len(session.pictures)}: {image.title}; it is attached to this message)"

    async def find(self, keys: Sequence[str]) -> list[Image]:
        """Those of them that are still there."""

        def find(db: sqlite3.Connection) -> list[sqlite3.Row]:
            rows = [db.execute(_FIND, (key,)).fetchone() for key in keys]
            return [row for row in rows if row is not None]

        return [Image(**row) for row in await self._db.read(find)]

"""Images that commands gave to a model, for a turn that runs again after a crash."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dragoman.hub.models.model import Image
from dragoman.hub.store.database import Database, Row, Transaction

_PICTURE_SECONDS = 7 * 86_400
"""How long images are stored."""
MAX_PICTURE_BYTES = 256 << 20
"""Bytes of stored images per tenant; older ones are deleted."""
_PUT = """
insert into pictures (key, media_type, content, at) values (?, ?, ?, ?)
on conflict (key) do update set media_type = excluded.media_type, content = excluded.content, at = excluded.at
"""
_DROP_OLD = "delete from pictures where at < ?"
_MAKE_ROOM = """
delete from pictures where key in (select key from (select key, sum(length(content)) over (order by n desc) as bytes
from pictures where key > ? and key < ?) as counted where bytes > ?)
"""
_FIND = "select media_type, content from pictures where key = ?"


class StoredPictures:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def put(self, tenant: str, key: str, image: Image) -> None:
        """Store an image under `key`, which begins with the tenant. The oldest of a tenant that has too many go."""
        now = int(time.time())

        async def put(db: Transaction) -> None:
            await db.change(_DROP_OLD, (now - _PICTURE_SECONDS,))
            await db.change(_PUT, (key, image.media_type, image.content, now))
            await db.change(_MAKE_ROOM, (f"{tenant}/", f"{tenant}0", MAX_PICTURE_BYTES))  # "0" follows "/"

        await self._db.run(put)

    async def find(self, keys: Sequence[str]) -> list[Image]:
        """The stored images of these keys."""

        async def find(db: Transaction) -> list[Row]:
            return [await db.one(_FIND, (key,)) for key in keys]

        return [Image(**row) for row in await self._db.read(find) if row is not None]

"""Requests, by their ids, and idempotency keys.

A request is a task, and has its id. The table says which agent has the task; the state is in the task's log. A key is stored with the id
of its request before the request starts, so a repetition after a crash, or during the first request, gets the same request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman.hub.metadata import AGENT_VERSION, VIA
from dragoman.hub.store.database import Database, Repository, Transaction, read_row, transaction
from dragoman.server.routes import NotFound

_ADD = """
insert into requests (tenant_id, request_id, agent_id, conversation_id, via, started_at, version)
values (?, ?, ?, ?, ?, ?, ?) on conflict do nothing
"""
_FIELDS = "request_id, agent_id, conversation_id, via, started_at"
_ONE = f"select {_FIELDS} from requests where tenant_id = ? and request_id = ? order by n limit 1"
_AT = f"select {_FIELDS} from requests where tenant_id = ? and request_id = ? and agent_id = ?"
_LIST = f"select {_FIELDS} from requests where tenant_id = ? and n < ? order by n desc limit ?"
_NUMBER = "select n from requests where tenant_id = ? and request_id = ? order by n limit 1"
_OLD = f"select n, tenant_id, {_FIELDS} from requests where started_at < ? and n > ? order by n limit ?"
_WITH_VERSION = f"select {_FIELDS} from requests where tenant_id = ? and version > 0 order by n limit ?"
_RELEASE = "update requests set version = 0 where tenant_id = ? and request_id = ? and agent_id = ?"
_DELETE = "delete from requests where tenant_id = ?1 and request_id = ?2 and agent_id = ?3"
_DELETE_KEY = "delete from idempotency_keys where tenant_id = ?1 and request_id = ?2"
_SETTLE_MESSAGES = """
update messages set settled = 1 where role = 'user' and request_id = ?2
and conversation_id in (select id from conversations where tenant_id = ?1)
"""


class StoredRequest(Struct, frozen=True, kw_only=True):
    """One request."""

    request_id: str
    agent_id: str
    conversation_id: int = 0
    via: str = ""
    """`native` or `a2a`."""
    started_at: int = 0


class Requests(Repository):
    async def store(
        self,
        tenant: int,
        request: str,
        agent: str,
        *,
        via: str,
        conversation: int = 0,
        version: int | None = None,
    ) -> None:
        """Store a request, once. `version` is that of the agent."""
        values = (tenant, request, agent, conversation, via, int(time.time()), version)
        await self._db.change(_ADD, values)

    async def store_from(self, tenant: int, request: str, agent: str, metadata: Mapping[str, Any]) -> None:
        """Store a request by the metadata of its first message."""
        await self.store(
            tenant,
            request,
            agent,
            via=metadata[VIA],
            conversation=metadata.get("x-arbiter.conversation_id", 0),
            version=metadata.get(AGENT_VERSION),
        )

    async def find(self, tenant: int, request: str, agent: str = "") -> StoredRequest | None:
        """A request by its id, of `agent` or of the first agent with that id."""
        query, values = (_AT, (tenant, request, agent)) if agent else (_ONE, (tenant, request))
        return await self._db.find(StoredRequest, query, values)

    async def list(self, tenant: int, limit: int, *, before: str = "") -> Sequence[StoredRequest]:
        """Newest first, those before a request if it is named. Raises `NotFound`."""
        place = 2**62
        if before:
            row = await self._db.look_up(_NUMBER, (tenant, before))
            if row is None:
                raise NotFound(f"there is no request {before[:80]!r}")
            place = row["n"]
        return await self._db.select(StoredRequest, _LIST, (tenant, place, limit))

    async def list_with_version(self, tenant: int, limit: int) -> Sequence[StoredRequest]:
        """Requests that need a stored version of their agent, oldest first."""
        return await self._db.select(StoredRequest, _WITH_VERSION, (tenant, limit))

    @transaction
    async def release_versions(self, db: Transaction, tenant: int, requests: Sequence[StoredRequest]) -> None:
        """Record that requests have ended, and do not need the stored version of their agent any more."""
        await db.change_many(_RELEASE, [(tenant, each.request_id, each.agent_id) for each in requests])

    async def list_before(
        self, before: int, after: int, limit: int
    ) -> Sequence[tuple[int, int, StoredRequest]]:
        """Requests from before a time, oldest first, after number `after`: (number, tenant, request)."""
        rows = await self._db.all(_OLD, (before, after, limit))
        return [(row["n"], row["tenant_id"], read_row(StoredRequest, row)) for row in rows]

    async def delete(self, gone: Sequence[tuple[int, str, str]]) -> None:
        """Delete requests whose task is gone: (tenant, id, agent)."""
        ids = [(tenant, request) for tenant, request, _ in gone]

        async def delete(db: Transaction) -> None:
            await db.change_many(_DELETE, gone)
            await db.change_many(_DELETE_KEY, ids)
            await db.change_many(_SETTLE_MESSAGES, ids)

        await self._db.run(delete)


_DROP_KEYS = "delete from idempotency_keys where at <= ?"
_FIND_KEY = "select request_id from idempotency_keys where tenant_id = ? and key = ?"
_PUT_KEY = """
insert into idempotency_keys (tenant_id, key, request_id, at) values (?, ?, ?, ?)
on conflict (tenant_id, key) do update set request_id = excluded.request_id, at = excluded.at
"""


class IdempotencyKeys(Repository):
    def __init__(
        self, database: Database, *, seconds: float = 86_400, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(database)
        self._seconds, self._clock = seconds, clock

    async def knows(self, tenant: int, key: str) -> bool:
        return await self._db.look_up(_FIND_KEY, (tenant, key)) is not None

    @transaction
    async def claim(self, db: Transaction, tenant: int, key: str, request: str) -> str:
        """The request that has this key: an earlier one, or else `request`, which gets it."""
        now = self._clock()
        await db.change(_DROP_KEYS, (int(now - self._seconds),))
        known = await db.one(_FIND_KEY, (tenant, key))
        if known is not None:
            return str(known["request_id"])
        await db.change(_PUT_KEY, (tenant, key, request, int(now)))
        return request

    @transaction
    async def renew(self, db: Transaction, tenant: int, key: str, gone: str, request: str) -> str:
        """Give a key to `request`, because the request `gone` is deleted. Returns the request that has it now: another hub may have
        given it to another one."""
        known = await db.one(_FIND_KEY, (tenant, key))
        if known is not None and known["request_id"] != gone:
            return str(known["request_id"])
        await db.change(_PUT_KEY, (tenant, key, request, int(self._clock())))
        return request

"""Conversations: the messages of users, request by request, and the answers of agents.

A message is stored before its request starts. The answer is added when the request has ended, by the stream that follows it or by the
next reader of the conversation, so neither a crash nor a disconnected client loses it. At the same time, a message whose request never
started is removed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import QuotaExceeded
from dragoman.hub.store.database import (
    NEWEST,
    MissingReference,
    Place,
    Repository,
    Row,
    Transaction,
    Work,
    transaction,
)
from dragoman.hub.store.policies import check_room, policy_of
from dragoman.server.routes import NotFound

MAX_REPLAYED_MESSAGES = 100
"""Earlier messages in a prompt."""
MAX_CHARACTERS = 8 << 20
"""Characters of the messages that one read returns; at least one message is returned."""

_FIELDS = "id, tenant_id, title, agent_id, agent_def, archived, created_at, updated_at"
_COUNT = "(select count(*) from messages where conversation_id = conversations.id) as message_count"
_ONE = f"select {_FIELDS}, {_COUNT} from conversations where tenant_id = ? and id = ?"
_LIST = f"""
select {_FIELDS}, {_COUNT} from conversations where tenant_id = ?1 and updated_at <= ?2 and (updated_at < ?2 or id < ?3)
order by updated_at desc, id desc limit ?4
"""
_NEW = """
insert into conversations (tenant_id, title, agent_id, agent_def, created_at, updated_at)
values (?, ?, ?, ?, ?, ?) returning id
"""
_CHANGE = """
update conversations set title = coalesce(?, title), archived = coalesce(?, archived), updated_at = ?
where tenant_id = ? and id = ?
"""
_SIZE = """
select count(*) + coalesce(sum(case when role = 'user' and settled = 0 then 1 else 0 end), 0), coalesce(sum(length(content)), 0)
from messages where conversation_id = ?
"""
"""Messages, with the answers that are still to come, and characters."""
_DELETE = "delete from conversations where tenant_id = ? and id = ?"
_TOUCH = "update conversations set updated_at = ? where id = ?"
_ADD_MESSAGE = """
insert into messages
(conversation_id, role, content, input_tokens, output_tokens, created_at, request_id) values (?, ?, ?, ?, ?, ?, ?)
on conflict do nothing
"""
_SETTLE = "update messages set settled = 1 where request_id = ? and role = 'user'"
_REMOVE_QUESTION = """
delete from messages where request_id = ?1 and role = 'user' and created_at < ?3
and not exists (select 1 from requests where requests.tenant_id = ?2 and requests.request_id = ?1)
"""
_UNANSWERED = """
select request_id from messages indexed by messages_unanswered
where conversation_id = ? and role = 'user' and settled = 0 order by id
"""
_UNANSWERED_BEFORE = """
select distinct tenant_id, conversation_id from messages join conversations on conversations.id = conversation_id
where messages.created_at < ? and role = 'user' and settled = 0 limit ?
"""
_MESSAGES = """
select id, conversation_id, role, content, input_tokens, output_tokens, created_at, request_id from (
    select *, sum(length(content)) over (order by id) as characters, row_number() over (order by id) as place
    from (select * from messages where conversation_id = ? and id > ? order by id limit ?) as page
) as counted where characters <= ? or place = 1 order by id
"""
_BEFORE = """
select id, role, content from (
    select *, sum(length(content)) over (order by id desc) as characters, row_number() over (order by id desc) as place
    from (
        select messages.id, role, content from messages join conversations on conversations.id = conversation_id
        where conversation_id = ? and messages.id > summed_up_to
        and messages.id < (select id from messages where request_id = ? and role = 'user')
        order by messages.id desc limit ?
    ) as page
) as counted where characters <= ? or place = 1 order by id
"""
_SUMMARY = "select summary from conversations where id = ?"
_STORE_SUMMARY = "update conversations set summary = ?, summed_up_to = ? where id = ? and summed_up_to < ?"


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: int
    tenant_id: int
    title: str
    agent_id: str
    agent_def: dict[str, Any] | None = None
    """The agent that exists only for this conversation."""
    archived: bool
    created_at: int
    updated_at: int
    message_count: int


class EarlierMessage(Struct, frozen=True, kw_only=True):
    """An earlier message in a prompt."""

    id: int
    role: str
    content: str


class Conversations(Repository):
    @transaction
    async def create(
        self, db: Transaction, tenant: int, *, title: str = "", agent: str = "index", agent_def: Any = None
    ) -> Conversation:
        """Raises `QuotaExceeded`."""
        now = int(time.time())
        text = None if agent_def is None else msgspec.json.encode(agent_def).decode()
        await check_room(db, tenant, "conversations")
        row = await db.one(_NEW, (tenant, title, agent, text, now, now))
        return _conversation(await db.one(_ONE, (tenant, row["id"])))

    async def find(self, tenant: int, id: int) -> Conversation:
        """Raises `NotFound`."""
        row = await self._db.look_up(_ONE, (tenant, id))
        if row is None:
            raise NotFound(f"there is no conversation {id}")
        return _conversation(row)

    async def list(self, tenant: int, *, before: Place = NEWEST, limit: int = 50) -> Sequence[Conversation]:
        """The latest changed first, from a place on."""
        return [_conversation(row) for row in await self._db.all(_LIST, (tenant, *before, limit))]

    async def change(
        self, tenant: int, id: int, *, title: str | None = None, archived: bool | None = None
    ) -> Conversation:
        """None leaves a field as it is. Raises `NotFound`."""
        await self._db.change(_CHANGE, (title, archived, int(time.time()), tenant, id))
        return await self.find(tenant, id)

    async def delete(self, tenant: int, id: int) -> None:
        """With its messages, files and todos. Raises `NotFound`."""
        if not await self._db.change(_DELETE, (tenant, id)):
            raise NotFound(f"there is no conversation {id}")

    # -- messages ----------------------------------------------------------------------------------------------

    async def add_question(self, tenant: int, conversation: int, request: str, text: str) -> None:
        """Store a user's message before its request starts. Raises `NotFound`, and `QuotaExceeded`."""

        async def write(db: Transaction) -> None:
            await self._check_messages(db, tenant, conversation, text)
            await _add_message(db, conversation, "user", text, request)

        await self._write_messages(tenant, conversation, write)

    async def restore_question(self, tenant: int, conversation: int, request: str, text: str) -> None:
        """Store a user's message whose request was accepted, if it is not there. Raises `NotFound`."""
        await self._write_messages(
            tenant, conversation, lambda db: _add_message(db, conversation, "user", text, request)
        )

    async def _write_messages(self, tenant: int, conversation: int, work: Work[None]) -> None:
        """Write messages with the lock of the tenant. Without it, a message could become visible after one with a higher id, and a
        reader that asks for messages after that id would miss it."""
        try:
            await self._db.run(work, tenant=tenant)
        except MissingReference:  # the conversation was deleted
            raise NotFound(f"there is no conversation {conversation}") from None

    async def _check_messages(self, db: Transaction, tenant: int, conversation: int, text: str) -> None:
        policy = await policy_of(db, tenant)
        found = await db.one(_SIZE, (conversation,))
        room = policy.max_conversation_mb << 20
        if policy.max_messages and found[0] >= policy.max_messages:
            why = f"has {found[0]} messages, and may have {policy.max_messages}"
        elif room and found[1] + len(text) > room:
            why = f"has {found[1]} characters, and no room for {len(text)} more: it may have {room}"
        else:
            return
        raise QuotaExceeded(
            f"conversation {conversation} {why}: begin another one", metadata={"reason": "storage_limit"}
        )

    @transaction
    async def remove_question(
        self, db: Transaction, tenant: int, request: str, *, before: int = 2**62
    ) -> None:
        """Remove the message of a request that was refused, or that has not begun although its message was stored `before` a time.

        It stays if the request is stored: the store may have accepted it without this hub getting the answer. (A request is stored, and
        its message restored, when it begins to run.)
        """
        await db.change(_REMOVE_QUESTION, (request, tenant, before))

    async def add_answer(
        self,
        tenant: int,
        conversation: int,
        request: str,
        text: str | None,
        *,
        read: int = 0,
        written: int = 0,
    ) -> None:
        """Store the answer to a request, once; None: it has none. Raises `NotFound`."""

        async def write(db: Transaction) -> None:
            if text is not None:
                await _add_message(db, conversation, "assistant", text, request, read, written)
            await db.change(_SETTLE, (request,))

        await self._write_messages(tenant, conversation, write)

    async def unanswered(self, conversation: int) -> Sequence[str]:
        """Requests whose answer is not stored yet."""
        return [row[0] for row in await self._db.all(_UNANSWERED, (conversation,))]

    async def with_unanswered(self, before: int, limit: int) -> Sequence[tuple[int, int]]:
        """Conversations with unanswered messages from before a time: (tenant, conversation)."""
        rows = await self._db.all(_UNANSWERED_BEFORE, (before, limit))
        return [(row["tenant_id"], row["conversation_id"]) for row in rows]

    async def messages(
        self, conversation: int, *, after: int = 0, limit: int = 200
    ) -> Sequence[dict[str, Any]]:
        """Oldest first, up to `limit` and `MAX_CHARACTERS`."""
        rows = await self._db.all(_MESSAGES, (conversation, after, limit, MAX_CHARACTERS))
        return [dict(row) for row in rows]

    async def before(self, conversation: int, request: str) -> tuple[str, Sequence[EarlierMessage]]:
        """The messages before a request: a summary of old ones, and the rest, oldest first."""

        async def before(db: Transaction) -> tuple[str, Sequence[EarlierMessage]]:
            rows = await db.all(_BEFORE, (conversation, request, MAX_REPLAYED_MESSAGES, MAX_CHARACTERS))
            summary = await db.one(_SUMMARY, (conversation,))
            return summary["summary"] if summary is not None else "", [EarlierMessage(**row) for row in rows]

        return await self._db.read(before)

    async def store_summary(self, conversation: int, summary: str, last: int) -> None:
        """Store a summary of all messages up to `last`."""
        await self._db.change(_STORE_SUMMARY, (summary, last, conversation, last))


async def _add_message(
    db: Transaction, conversation: int, role: str, text: str, request: str, read: int = 0, written: int = 0
) -> None:
    """Add a message, once."""
    now = int(time.time())
    if await db.change(_ADD_MESSAGE, (conversation, role, text, read, written, now, request)):
        await db.change(_TOUCH, (now, conversation))


def _conversation(row: Row) -> Conversation:
    values = dict(row)
    values["archived"] = bool(values["archived"])
    values["agent_def"] = msgspec.json.decode(values["agent_def"]) if values["agent_def"] else None
    return Conversation(**values)

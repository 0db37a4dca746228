"""Restores requests and messages of conversations that are missing in `hub.db`, from the logs of their tasks in `tasks.db`.

SQLite syncs both files at every commit (`synchronous = full`), so after a power cut they agree. They differ if the disk confirms writes
that it has not made, or if `hub.db` comes from an older backup. Answers need no repair: they are read from the log
(`Hub.store_answers`). What agents wrote to memory, files and todos cannot be restored.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from dragoman.engine.protocols import Store, TaskInfo, TaskQuery
from dragoman.errors import TaskNotFound
from dragoman.hub.conversations import events
from dragoman.hub.conversations.message_input import message_text
from dragoman.hub.metadata import VIA
from dragoman.hub.store.conversations import Conversations
from dragoman.hub.store.requests import Requests
from dragoman.hub.store.tenants import Tenants
from dragoman.server.routes import NotFound

log = logging.getLogger(__name__)

MAX_KNOWN = 100
"""The search ends after so many tasks whose request is known: nothing older is missing then."""
_PAGE = 100


async def restore_requests(
    store: Store, tenants: Tenants, requests: Requests, conversations: Conversations
) -> int:
    """Restore what is missing of the newest requests. Returns how many were missing."""
    missing: list[TaskInfo] = []
    known, place = 0, None
    while known < MAX_KNOWN:
        found = await store.index.find(TaskQuery(before=place), limit=_PAGE)
        for info in found.tasks:
            tenant = info.scope.tenant
            if not tenant.isdigit() or await tenants.current(int(tenant)) is None:
                continue
            if await requests.find(int(tenant), info.id, info.scope.agent) is None:
                missing.append(info)
            else:
                known += 1
        if (place := found.next) is None:
            break
    restored = 0
    for info in reversed(missing):  # oldest first: messages of a conversation have an order
        with suppress(TaskNotFound):
            restored += await _restore(info, store, requests, conversations)
    if restored:
        log.warning(
            "%d requests were missing in hub.db; they were restored from the logs of their tasks", restored
        )
    return restored


async def _restore(info: TaskInfo, store: Store, requests: Requests, conversations: Conversations) -> bool:
    snapshot = await store.scope(info.scope).load(info.id)
    if not snapshot.mails:
        return False
    _, first = snapshot.mails[0]
    if VIA not in first.metadata:
        return False  # an agent delegated it: it is not a request of the tenant
    tenant, conversation = int(info.scope.tenant), first.metadata.get("x-arbiter.conversation_id", 0)
    if conversation:
        with suppress(NotFound):  # the conversation is gone
            await conversations.find(tenant, conversation)
            text = message_text(first.message.parts)
            await conversations.restore_question(tenant, conversation, info.id, text)
            if snapshot.terminal:
                await events.store_answer(conversations, conversation, snapshot)
    await requests.store_from(tenant, info.id, info.scope.agent, first.metadata)
    return True

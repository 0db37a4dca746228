"""Deletes what finished long ago, in batches: first it stores answers in their conversations, then it deletes tasks, requests
without a task, and inline agents without a request. A request that has waited for an answer for as long is canceled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dragoman.engine.protocols import Store
from dragoman.engine.push_configs import now
from dragoman.errors import A2AError, keep_going
from dragoman.hub.errors import NotFound
from dragoman.hub.hub import Hub
from dragoman.model.ids import timestamp

log = logging.getLogger(__name__)

BATCH = 500
CHECK_SECONDS = 60.0


class Retention:
    """`seconds`: how long a finished request is kept."""

    def __init__(self, hub: Hub, store: Store, seconds: float, *, clock: Callable[[], float] = now) -> None:
        self._hub, self._store, self._seconds, self._clock = hub, store, seconds, clock
        self._seen = 0
        """The last request that was checked; after the last one it starts again."""
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._working = asyncio.create_task(self._work(), name="dragoman-hub-retention")

    async def stop(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait((self._working,))

    async def delete_batch(self) -> bool:
        """Delete one batch of each. True if there may be more."""
        before = self._clock() - self._seconds
        await self._settle(int(before))
        tasks = await self._store.purge(timestamp(before), limit=BATCH)
        requests = await self._requests(int(before))
        agents = await self._hub.catalogue.delete_unused(int(before), BATCH)
        return BATCH in (tasks, requests, agents)

    async def _settle(self, before: int) -> None:
        for tenant, conversation in await self._hub.conversations.with_unanswered(before, BATCH):
            if (known := await self._hub.tenants.current(tenant)) is not None:
                await self._hub.store_answers(known, conversation)

    async def _requests(self, before: int) -> int:
        """Delete requests without a task. Returns how many were checked."""
        hub = self._hub
        old = await hub.requests.list_before(before, self._seen, BATCH)
        gone = []
        for _, tenant, asked in old:
            try:
                if (known := await hub.tenants.current(tenant)) is not None:
                    snapshot = await hub.snapshot(known, asked)
                    if snapshot.state.interrupted and snapshot.status.timestamp < timestamp(before):
                        await hub.cancel(known, asked.request_id)
            except NotFound:
                gone.append((tenant, asked.request_id, asked.agent_id))
        if gone:
            await hub.requests.delete(gone)
        self._seen = old[-1][0] if len(old) == BATCH else 0
        return len(old)

    async def _work(self) -> None:
        while True:
            more = False
            with keep_going(log, "deleting old requests", A2AError):
                more = await self.delete_batch()
            await asyncio.sleep(0.05 if more else CHECK_SECONDS)

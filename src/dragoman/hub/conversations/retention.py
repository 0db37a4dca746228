"""Deletes what finished long ago, in batches: first it stores answers in their conversations, then it deletes tasks, requests
without a task, and inline agents without a request. A request that has waited for an answer for as long is canceled.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.engine.protocols import Store
from dragoman.engine.push_configs import now
from dragoman.hub.errors import NotFound
from dragoman.hub.hub import Hub
from dragoman.hub.periodic import PeriodicWork
from dragoman.model.ids import timestamp

BATCH = 500
BATCH_PAUSE_SECONDS = 0.05
CHECK_SECONDS = 60.0


class Retention:
    """`seconds`: how long a finished request is kept. `usage_days`: how long sums of tokens and money are. 0: for ever."""

    def __init__(
        self,
        hub: Hub,
        store: Store,
        seconds: float,
        usage_days: float = 0.0,
        *,
        clock: Callable[[], float] = now,
    ) -> None:
        self._hub, self._store, self._seconds, self._clock = hub, store, seconds, clock
        self._usage_days = usage_days
        self._seen = 0
        """The last request that was checked; after the last one it starts again."""
        self.periodic = PeriodicWork("deleting old requests", self._work, retry=CHECK_SECONDS)

    async def delete_batch(self) -> bool:
        """Delete one batch of each. True if there may be more."""
        if self._usage_days:
            await self._hub.spending.delete_before(self._clock() - self._usage_days * 86_400)
        if not self._seconds:
            return False
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

    async def _work(self) -> float:
        return BATCH_PAUSE_SECONDS if await self.delete_batch() else CHECK_SECONDS

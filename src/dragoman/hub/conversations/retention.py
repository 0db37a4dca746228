"""Deletes what finished long ago, in batches: first it stores answers in their conversations, then it deletes tasks, requests
without a task, and inline agents without a request. A request that has waited for an answer for as long is canceled.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.engine.push_configs import steady_time
from dragoman.hub.hub import Hub
from dragoman.hub.periodic import PeriodicWork
from dragoman.model.ids import timestamp
from dragoman.server.routes import NotFound

BATCH_ROWS = 500
BATCH_PAUSE_SECONDS = 0.05
CHECK_SECONDS = 60.0


class Retention:
    """`seconds`: how long finished requests are stored. `usage_days`: how long sums of tokens and money are stored. 0: for ever."""

    def __init__(
        self,
        hub: Hub,
        seconds: float,
        usage_days: float = 0.0,
        *,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        self._hub, self._seconds, self._clock = hub, seconds, clock
        self._usage_days = usage_days
        self._last_checked = 0
        """The last request that was checked; after the last one it starts again."""
        self.periodic = PeriodicWork("deleting old requests", self._delete_batches, retry=CHECK_SECONDS)

    async def delete_batch(self) -> bool:
        """Delete one batch of each. True if there may be more."""
        if self._usage_days:
            await self._hub.spending.delete_before(self._clock() - self._usage_days * 86_400)
        if not self._seconds:
            return False
        before = self._clock() - self._seconds
        await self._store_answers(int(before))
        tasks = await self._hub.store.purge(timestamp(before), limit=BATCH_ROWS)
        requests = await self._delete_requests(int(before))
        agents = await self._hub.catalogue.delete_unused(int(before), BATCH_ROWS)
        return BATCH_ROWS in (tasks, requests, agents)

    async def _store_answers(self, before: int) -> None:
        for tenant, conversation in await self._hub.conversations.with_unanswered(before, BATCH_ROWS):
            if (known := await self._hub.tenants.current(tenant)) is not None:
                await self._hub.store_answers(known, conversation)

    async def _delete_requests(self, before: int) -> int:
        """Delete requests without a task. Returns how many were checked."""
        hub = self._hub
        old = await hub.requests.list_before(before, self._last_checked, BATCH_ROWS)
        gone = []
        for _, tenant, stored in old:
            try:
                if (known := await hub.tenants.current(tenant)) is not None:
                    info = await hub.info(known, stored)
                    if info.state.interrupted and info.updated < timestamp(before):
                        await hub.cancel(known, stored.request_id)
            except NotFound:
                gone.append((tenant, stored.request_id, stored.agent_id))
        if gone:
            await hub.requests.delete(gone)
        self._last_checked = old[-1][0] if len(old) == BATCH_ROWS else 0
        return len(old)

    async def _delete_batches(self) -> float:
        return BATCH_PAUSE_SECONDS if await self.delete_batch() else CHECK_SECONDS

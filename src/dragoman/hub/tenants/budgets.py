"""What a tenant may spend in a day: tokens, and money.

A tenant that has used up its budget of a day starts nothing new, and its running tasks call no model any more, not for delegated agents,
advisors and summaries either, on every hub of the database. Calls that run at that moment end, and count. A budget of money needs
prices: a tenant that has one cannot use a model whose price the hub does not know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from dragoman.errors import A2AError, RateLimited, Unavailable, keep_going
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import Usage
from dragoman.hub.models.prices import Prices
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.spending import COST, TOKENS, Spending, seconds_to_midnight

log = logging.getLogger(__name__)

BUDGET_EXHAUSTED, PRICE_UNKNOWN = "budget_exhausted", "price_unknown"
COUNT_RETRY_SECONDS = 1.0
"""Seconds until usage that could not be stored is stored again."""


class Budgets:
    def __init__(self, spending: Spending, policies: Policies, prices: Prices, metrics: HubMetrics) -> None:
        self._spending, self._policies, self.prices, self._metrics = spending, policies, prices, metrics
        self._counting: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    async def refusal(self, tenant: int) -> tuple[str, str]:
        """Which budget is used up, and a sentence about it; empty if there is some left."""
        policy = await self._policies.of(tenant)
        if not policy.tokens_per_day and not policy.cost_per_day:
            return "", ""
        spent = await self._spending.today(tenant)
        if policy.tokens_per_day and spent.tokens >= policy.tokens_per_day:
            budget, used = TOKENS, f"{spent.tokens} of {policy.tokens_per_day} tokens"
        elif policy.cost_per_day and spent.cost >= policy.cost_per_day:
            budget, used = COST, f"{spent.cost:.2f} of {policy.cost_per_day:.2f} {self.prices.currency}"
        else:
            return "", ""
        why = f"the budget of this tenant for today is used up: {used}. The next day begins at 00:00 UTC"
        return budget, why

    async def check(self, tenant: int) -> None:
        """Raises `RateLimited` if a budget is used up."""
        budget, why = await self.refusal(tenant)
        if budget:
            raise RateLimited(why, metadata={"reason": f"{budget}_budget"}, retry_after=seconds_to_midnight())

    async def lacks_price(self, tenant: int, model: str) -> bool:
        """True if money is limited and the price of a model is not known."""
        return bool((await self._policies.of(tenant)).cost_per_day) and self.prices.find(model) is None

    async def spend(self, tenant: int, model: str, usage: Usage) -> None:
        await self.count(tenant, usage.total, self.prices.cost(model, usage))

    def count_soon(self, tenant: int, tokens: int, cost: float) -> None:
        """`count`, without waiting for it: `flush` does."""
        self._begin(self.count(tenant, tokens, cost))

    async def flush(self) -> None:
        """Wait until everything is stored. What waits for the database is tried once more."""
        self._stopping.set()
        while self._counting:
            await asyncio.wait(self._counting)

    async def count(self, tenant: int, tokens: int, cost: float) -> None:
        """Count what was used. If the database is down, this logs a warning and counts later; the caller does not wait for it."""
        if (tokens or cost) and not await self._count(tenant, tokens, cost):
            self._begin(self._retry_count(tenant, tokens, cost))

    async def _retry_count(self, tenant: int, tokens: int, cost: float) -> None:
        counted = False
        while not counted and not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(COUNT_RETRY_SECONDS):
                    await self._stopping.wait()
            counted = await self._count(tenant, tokens, cost)
        if not counted:
            log.error("%d tokens of tenant %d could not be counted: the database is down", tokens, tenant)

    async def _count(self, tenant: int, tokens: int, cost: float) -> bool:
        """False: the database is down."""
        with keep_going(log, f"counting {tokens} tokens of tenant {tenant}", A2AError):
            try:
                alerts = await self._spending.add(tenant, tokens, cost)
            except Unavailable as error:
                log.warning("counting %d tokens of tenant %d: %s", tokens, tenant, error)
                return False
            for alert in alerts:
                log.warning("tenant %d: %s", tenant, alert.text)
                self._metrics.count(
                    "budget_alerts_total", tenant=str(tenant), budget=alert.budget, percent=str(alert.percent)
                )
        return True

    def _begin(self, counting: Coroutine[Any, Any, None]) -> None:
        work = asyncio.create_task(counting)
        self._counting.add(work)
        work.add_done_callback(self._counting.discard)

"""Budgets of tokens and money per tenant and day.

A tenant that has used up a budget starts nothing new, and what runs for it calls no model: also delegated agents, advisors and
summaries, on every hub of the database. Calls that run at that moment end, and count.

Money needs prices. A hub that limits money calls no model whose price it does not know: it could not count what it spends.
"""

from __future__ import annotations

import logging

from dragoman.errors import A2AError, RateLimited, keep_going
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models.model import Usage
from dragoman.hub.models.offered import Prices
from dragoman.hub.store.policies import Policies
from dragoman.hub.store.spending import COST, TOKENS, Spending, seconds_to_midnight

log = logging.getLogger("dragoman.hub")

EXHAUSTED, NO_PRICE = "budget_exhausted", "price_unknown"


class Budgets:
    def __init__(
        self,
        spending: Spending,
        policies: Policies,
        prices: Prices | None = None,
        metrics: HubMetrics | None = None,
    ) -> None:
        self._spending, self._policies = spending, policies
        self.prices = prices or Prices()
        self._metrics = metrics or HubMetrics()

    async def refusal(self, tenant: int) -> tuple[str, str]:
        """Which budget is used up, and a sentence about it; empty if there is some left."""
        policy = await self._policies.of(tenant)
        if not policy.tokens_per_day and not policy.cost_per_day:
            return "", ""
        spent = await self._spending.today(tenant)
        if policy.tokens_per_day and spent.tokens >= policy.tokens_per_day:
            used = f"{spent.tokens} of {policy.tokens_per_day} tokens"
            return (
                TOKENS,
                f"the budget of this tenant for today is used up: {used}. The next day begins at 00:00 UTC",
            )
        if policy.cost_per_day and spent.cost >= policy.cost_per_day:
            used = f"{spent.cost:.2f} of {policy.cost_per_day:.2f} {self.prices.currency}"
            return (
                COST,
                f"the budget of this tenant for today is used up: {used}. The next day begins at 00:00 UTC",
            )
        return "", ""

    async def check(self, tenant: int) -> None:
        """Raises `RateLimited` if a budget is used up."""
        budget, why = await self.refusal(tenant)
        if budget:
            raise RateLimited(why, metadata={"reason": f"{budget}_budget"}, retry_after=seconds_to_midnight())

    async def lacks_price(self, tenant: int, model: str) -> bool:
        """True if money is limited and the price of a model is not known."""
        return bool((await self._policies.of(tenant)).cost_per_day) and self.prices.of(model) is None

    async def spend(self, tenant: int, model: str, usage: Usage) -> None:
        await self.count(tenant, usage.total, self.prices.cost(model, usage))

    async def count(self, tenant: int, tokens: int, cost: float) -> None:
        """Count what was used. If the database is away, that is logged: the work goes on."""
        if not tokens and not cost:
            return
        with keep_going(log, f"counting {tokens} tokens of tenant {tenant}", A2AError):
            for alert in await self._spending.add(tenant, tokens, cost):
                log.warning("tenant %d: %s", tenant, alert.text)
                self._metrics.count(
                    "budget_alerts_total", tenant=str(tenant), budget=alert.budget, percent=str(alert.percent)
                )

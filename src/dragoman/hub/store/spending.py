"""What counts against the budgets of a tenant: tokens and money of models, by day.

A call of a model is counted when it ends, in one transaction with the alerts that it raises, so that a hub that is killed loses
at most the call that was running, and each alert is raised once, whichever hub of a database counts the call.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from dragoman.hub.store.database import Database, Transaction
from dragoman.hub.store.policies import policy_of

ALERT_PERCENTS = (80, 100)
TOKENS, COST = "tokens", "cost"

_SPEND = """
insert into spending (tenant_id, day, tokens, cost) select ?1, ?2, ?3, ?4 where exists (select 1 from tenants where id = ?1)
on conflict (tenant_id, day) do update set tokens = spending.tokens + excluded.tokens, cost = spending.cost + excluded.cost
returning tokens, cost
"""
_SPENT = "select tokens, cost from spending where tenant_id = ? and day = ?"
_ALERT = """
insert into budget_alerts (tenant_id, day, budget, percent, at) values (?, ?, ?, ?, ?) on conflict do nothing
"""
_AUDIT = "insert into audit (at, actor, action, tenant_id, detail) values (?, 'hub', 'budget.alert', ?, ?)"
_NOTIFY = "insert into notifications (tenant_id, payload, at) values (?, ?, ?)"
_FORGET = ("delete from spending where day < ?", "delete from budget_alerts where day < ?")


class Spent(Struct, frozen=True):
    """What a tenant has used today."""

    tokens: int = 0
    cost: float = 0.0


class BudgetAlert(Struct, frozen=True, kw_only=True):
    tenant_id: int
    day: str
    budget: str
    """`tokens` or `cost`."""
    percent: int
    used: float
    limit: float

    @property
    def text(self) -> str:
        return (
            f"{self.percent} % of the {self.budget} of {self.day} are used: {self.used:g} of {self.limit:g}"
        )


class Spending:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def today(self, tenant: int) -> Spent:
        row = await self._db.look_up(_SPENT, (tenant, _today()))
        return Spent() if row is None else Spent(row["tokens"], round(row["cost"], 9))

    async def add(self, tenant: int, tokens: int, cost: float) -> list[BudgetAlert]:
        """Count tokens and money. Returns the alerts that were raised now."""
        day, now = _today(), int(time.time())

        async def add(db: Transaction) -> list[BudgetAlert]:
            row = await db.one(_SPEND, (tenant, day, tokens, cost))
            if row is None:
                return []  # the tenant is gone
            policy = await policy_of(self._db, db, tenant)
            raised = []
            for budget, used, limit in (
                (TOKENS, row["tokens"], policy.tokens_per_day),
                (COST, row["cost"], policy.cost_per_day),
            ):
                for percent in ALERT_PERCENTS:
                    if limit and used * 100 >= limit * percent:
                        if not await db.change(_ALERT, (tenant, day, budget, percent, now)):
                            continue
                        alert = BudgetAlert(
                            tenant_id=tenant, day=day, budget=budget, percent=percent, used=used, limit=limit
                        )
                        raised.append(alert)
                        await db.change(_AUDIT, (now, tenant, alert.text))
                        payload = {"kind": "budget.alert", **msgspec.structs.asdict(alert)}
                        await db.change(_NOTIFY, (tenant, msgspec.json.encode(payload).decode(), now))
            return raised

        return await self._db.run(add, tenant=tenant)

    async def forget(self, days: int) -> None:
        """Delete the sums of long ago."""
        before = (datetime.now(UTC).date() - timedelta(days=days)).isoformat()

        async def forget(db: Transaction) -> None:
            for statement in _FORGET:
                await db.change(statement, (before,))

        await self._db.run(forget)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def seconds_to_midnight() -> float:
    """Until the next day begins, in UTC."""
    now = datetime.now(UTC)
    tomorrow = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
    return (tomorrow - now).total_seconds()

"""What models cost: tokens and money by tenant and day.

`Spending` counts against the budgets. A call of a model is counted when it ends, in one transaction with the alerts that it raises. So
a hub that is killed loses at most the calls that were running, and each alert is raised once, also if several hubs share the database.

`Usages` has sums by agent and model, for people. They are written as calls end: a process that is killed may lose those of its last
moment. The exact usage of each task is in its log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import Unavailable
from dragoman.hub.store.database import Database, Repository, Transaction, transaction
from dragoman.hub.store.policies import policy_of
from dragoman.hub.store.tokens import write_audit
from dragoman.model.ops import Scope
from dragoman.model.usage import TokenUsage

ALERT_PERCENTS = (80, 100)
TOKENS, COST = "tokens", "cost"

_SPEND = """
insert into spending (tenant_id, day, tokens, cost) select ?1, ?2, ?3, ?4 where exists (select 1 from tenants where id = ?1)
on conflict (tenant_id, day) do update set tokens = spending.tokens + excluded.tokens, cost = spending.cost + excluded.cost
returning tokens, cost
"""
_TODAY = "select tokens, cost from spending where tenant_id = ? and day = ?"
_ALERT = """
insert into budget_alerts (tenant_id, day, budget, percent, at) values (?, ?, ?, ?, ?) on conflict do nothing
"""
_FORGET = tuple(f"delete from {table} where day < ?" for table in ("usage", "spending", "budget_alerts"))
_NOTIFY = "insert into notifications (tenant_id, payload, at) values (?, ?, ?)"


class UsedToday(Struct, frozen=True):
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
        used, limit = (
            f"{amount:.2f}" if self.budget == COST else str(amount) for amount in (self.used, self.limit)
        )
        return f"{self.percent} % of the {self.budget} of {self.day} are used: {used} of {limit}"


class Spending(Repository):
    async def today(self, tenant: int) -> UsedToday:
        row = await self._db.look_up(_TODAY, (tenant, _today()))
        return UsedToday() if row is None else UsedToday(row["tokens"], round(row["cost"], 9))

    @transaction
    async def add(self, db: Transaction, tenant: int, tokens: int, cost: float) -> list[BudgetAlert]:
        """Count tokens and money. Returns the alerts that were raised now."""
        day, now = _today(), int(time.time())
        row = await db.one(_SPEND, (tenant, day, tokens, cost))
        if row is None:
            return []  # the tenant is gone
        policy = await policy_of(db, tenant)
        limits = {TOKENS: policy.tokens_per_day, COST: policy.cost_per_day}
        raised = []
        for budget, percent in product(limits, ALERT_PERCENTS):
            used, limit = row[budget], limits[budget]
            if not limit or used * 100 < limit * percent:
                continue
            if await db.change(_ALERT, (tenant, day, budget, percent, now)):
                alert = BudgetAlert(
                    tenant_id=tenant, day=day, budget=budget, percent=percent, used=used, limit=limit
                )
                raised.append(alert)
                await write_audit(db, "hub", "budget.alert", tenant, alert.text)
                payload = {"kind": "budget.alert", **msgspec.structs.asdict(alert)}
                await db.change(_NOTIFY, (tenant, msgspec.json.encode(payload).decode(), now))
        return raised

    async def delete_before(self, at: float) -> None:
        """Delete sums and alerts of the days before the day of a time."""
        for statement in _FORGET:
            await self._db.change(statement, (datetime.fromtimestamp(at, UTC).date().isoformat(),))


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def seconds_to_midnight() -> float:
    """Until the next day begins, in UTC."""
    now = datetime.now(UTC)
    tomorrow = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
    return (tomorrow - now).total_seconds()


# -- sums for people ----------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

MAX_DAYS = 366

_ADD = """
insert into usage (tenant_id, day, agent_id, model, currency, calls, input_tokens, output_tokens, cached_tokens, cost)
select ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 where exists (select 1 from tenants where id = ?1)
on conflict (tenant_id, day, agent_id, model, currency) do update set calls = usage.calls + excluded.calls,
    input_tokens = usage.input_tokens + excluded.input_tokens, output_tokens = usage.output_tokens + excluded.output_tokens,
    cached_tokens = usage.cached_tokens + excluded.cached_tokens, cost = usage.cost + excluded.cost
"""
_SINCE = """
select tenant_id, day, agent_id as agent, model, currency, calls, input_tokens, output_tokens, cached_tokens, cost from usage
where day > ?1 and (?2 = 0 or tenant_id = ?2) order by day desc, tenant_id, agent_id, model
"""


class DailyUsage(Struct, frozen=True, kw_only=True):
    """What one model was used for by one agent of a tenant on one day."""

    tenant_id: int
    day: str
    agent: str
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float
    currency: str


class Usages:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._waiting: list[tuple[object, ...]] = []
        self._writing: asyncio.Task[None] | None = None

    def add(self, scope: Scope, used: TokenUsage) -> None:
        """Add a call of a model. It is written soon, together with others."""
        if not scope.tenant.isdigit():
            return
        key = (int(scope.tenant), _today(), scope.agent, used.model, used.currency)
        tokens = (used.input_tokens, used.output_tokens, used.cached_tokens)
        self._waiting.append((*key, used.calls, *tokens, used.cost))
        self._begin()

    async def flush(self) -> None:
        """Wait until everything is written, or the database is away."""
        self._begin()
        if self._writing is not None:
            await self._writing

    async def since(self, days: int, tenant: int = 0) -> Sequence[DailyUsage]:
        """Of the last `days`, today included, newest first; of one tenant, or of all."""
        await self.flush()
        before = (datetime.now(UTC).date() - timedelta(days=days)).isoformat()
        found = await self._db.select(DailyUsage, _SINCE, (before, tenant))
        return [replace(each, cost=round(each.cost, 9)) for each in found]

    def _begin(self) -> None:
        if self._waiting and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write(), name="dragoman-hub-usage")

    async def _write(self) -> None:
        while self._waiting:
            rows, self._waiting = self._waiting, []

            async def add(db: Transaction, rows: list[tuple[object, ...]] = rows) -> None:
                await db.change_many(_ADD, rows)

            try:
                await self._db.run(add)
            except Unavailable as error:  # the next call or reader tries again
                self._waiting = rows + self._waiting
                log.warning("the usage of %d model calls could not be stored yet: %s", len(rows), error)
                return

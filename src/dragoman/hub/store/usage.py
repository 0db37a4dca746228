"""What the agents of a hub cost: tokens and money by tenant, day, agent and model.

The exact usage of each task is in its log. These are sums for people, written as calls end: a process that is killed may lose
those of its last moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from dragoman.errors import Unavailable
from dragoman.hub.store.database import Database, Transaction
from dragoman.model.ops import Scope
from dragoman.model.usage import TokenUsage

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
select tenant_id, day, agent_id, model, currency, calls, input_tokens, output_tokens, cached_tokens, cost from usage
where day > ?1 and (?2 = 0 or tenant_id = ?2) order by day desc, tenant_id, agent_id, model
"""


class DayUsage(Struct, frozen=True, kw_only=True):
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
        self._waiting.append(
            (
                int(scope.tenant),
                datetime.now(UTC).date().isoformat(),
                scope.agent,
                used.model,
                used.currency,
                used.calls,
                used.input_tokens,
                used.output_tokens,
                used.cached_tokens,
                used.cost,
            )
        )
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="dragoman-hub-usage")

    async def flush(self) -> None:
        """Wait until everything is written."""
        if self._writing is not None:
            await self._writing

    async def since(self, days: int, tenant: int = 0) -> Sequence[DayUsage]:
        """Of the last `days`, today included, newest first; of one tenant, or of all."""
        await self.flush()
        before = (datetime.now(UTC).date() - timedelta(days=days)).isoformat()
        return [
            DayUsage(
                tenant_id=row["tenant_id"],
                day=row["day"],
                agent=row["agent_id"],
                model=row["model"],
                calls=row["calls"],
                input_tokens=row["input_tokens"],
                output_tokens=row["output_tokens"],
                cached_tokens=row["cached_tokens"],
                cost=round(row["cost"], 9),
                currency=row["currency"],
            )
            for row in await self._db.all(_SINCE, (before, tenant))
        ]

    async def _write(self) -> None:
        while self._waiting:
            rows, self._waiting = self._waiting, []

            async def add(db: Transaction, rows: list[tuple[object, ...]] = rows) -> None:
                await db.change_many(_ADD, rows)

            try:
                await self._db.run(add)
            except Unavailable as error:
                log.warning("the usage of %d model calls could not be added up: %s", len(rows), error)

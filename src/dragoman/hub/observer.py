"""The observer of a hub's engine: it counts, logs and audits what callers do, and counts tokens by tenant and day."""

from __future__ import annotations

import time
from collections.abc import Collection

from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Audit
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.turn import Turn
from dragoman.errors import A2AError
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.store.spending import Usages
from dragoman.hub.tenants.budgets import Budgets
from dragoman.model.ops import Call, SendMessage
from dragoman.model.usage import TokenUsage
from dragoman.observe.instrument import Instrumentation
from dragoman.observe.logs import log_request


class HubObserver(Instrumentation):
    def __init__(
        self, audit: Audit, metrics: HubMetrics, usages: Usages, budgets: Budgets, code: Collection[str]
    ) -> None:
        """`code`: the ids of the agents that are code. What they report counts against the budgets here; models of constitutions
        count as they are called."""
        super().__init__(counts=None, audit=audit)
        self._metrics, self._usages, self._budgets, self._code = metrics, usages, budgets, code

    def count_usage(self, turn: Turn, used: TokenUsage) -> None:
        self._usages.add(turn.scope, used)
        if turn.scope.agent in self._code and turn.scope.tenant.isdigit():
            self._budgets.count_soon(
                int(turn.scope.tenant), used.input_tokens + used.output_tokens, used.cost
            )
        # the metrics are public: tenants choose the names of agents and models, and any number of them
        for kind, count in used.tokens:
            self._metrics.count("tokens_total", count, tenant=turn.scope.tenant, kind=kind)
        if used.cost:
            self._metrics.count("cost_total", used.cost, tenant=turn.scope.tenant, currency=used.currency)

    def settled(self, snapshot: Snapshot) -> None:
        super().settled(snapshot)
        self._metrics.settled(snapshot)

    async def deliver(self, engine: Engine, call: Call, request: SendMessage) -> None:
        outcome, began = "INTERNAL_ERROR", time.perf_counter()
        try:
            await engine.deliver(call, request)
            outcome = "OK"
        except A2AError as error:
            outcome = error.reason
            raise
        finally:
            task = request.message.task_id
            log_request(call, "SendMessage", outcome, time.perf_counter() - began, task)
            self.audit_request(call, "SendMessage", request, task, outcome)

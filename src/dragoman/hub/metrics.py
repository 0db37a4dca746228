"""The metrics of the hub, and the observer that feeds them and the audit log."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Store
from dragoman.engine.records import Snapshot
from dragoman.engine.turn import Turn
from dragoman.errors import A2AError
from dragoman.hub.conversations.events import state_of
from dragoman.hub.metadata import VIA
from dragoman.hub.store.spending import Usages
from dragoman.hub.store.tenants import Tenant
from dragoman.model.ops import Call, Scope, SendMessage
from dragoman.model.usage import TokenUsage
from dragoman.observe.instrument import Instrumentation
from dragoman.observe.logs import log_request

_Labels = tuple[tuple[str, str], ...]
CountUsage = Callable[[Scope, TokenUsage], None]

_HELP = {
    "requests_started_total": "Requests that were admitted.",
    "requests_completed_total": "Requests that ended, by outcome.",
    "requests_duration_ms_sum": "Total duration of ended requests in milliseconds.",
    "rate_limited_total": "Requests refused by a tenant's limits.",
    "idempotency_replay_total": "Requests answered with an earlier request of the same key.",
    "idempotency_miss_total": "Requests with a new idempotency key.",
    "provider_calls_total": "Model calls.",
    "provider_retries_total": "Model calls that were retried.",
    "provider_failures_total": "Model calls that failed.",
    "provider_429_total": "Model calls that the provider rate-limited.",
    "provider_5xx_total": "Model calls that failed at the provider or on the network.",
    "provider_circuit_open_total": "Model calls refused by an open circuit.",
    "tokens_total": "Tokens that models used: input, output, cached (of the input), reasoning (of the output).",
    "cost_total": "Money that agents reported.",
    "budget_alerts_total": "Alerts that a share of a tenant's budget of a day is used.",
    "sandbox_exec_total": "Commands run in the sandbox.",
    "sandbox_exec_ms_sum": "Total duration of commands in milliseconds.",
    "sandbox_exec_timeout_total": "Commands killed by the time limit.",
    "sandbox_rollback_total": "Commands rolled back because they exceeded the disk quota.",
    "sandbox_container_started_total": "Containers started.",
    "sandbox_container_reaped_total": "Idle containers removed.",
    "sandbox_containers_running": "Running containers.",
    "in_flight": "Running requests.",
}


class HubMetrics:
    def __init__(self) -> None:
        self._values: dict[tuple[str, _Labels], float] = defaultdict(float)

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        self._values[name, tuple(sorted(labels.items()))] += by

    @contextmanager
    def request(self, tenant: Tenant, route: str) -> Iterator[None]:
        """Count a call that is answered at once."""
        self.started(tenant.key, route)
        began, ok = time.time(), False
        try:
            yield
            ok = True
        finally:
            self.ended(tenant.key, route, ok, time.time() - began)

    def started(self, tenant: str, route: str) -> None:
        self.count("requests_started_total", tenant=tenant, route=route)

    def ended(self, tenant: str, route: str, ok: bool, seconds: float = 0.0) -> None:
        self.count("requests_completed_total", tenant=tenant, route=route, ok=str(ok).lower())
        self.count("requests_duration_ms_sum", seconds * 1000, tenant=tenant, route=route)

    # -- `Observer` of the engine --------------------------------------------------------------

    def settled(self, snapshot: Snapshot) -> None:
        """Count a task that has ended, if it is a request from outside."""
        first = snapshot.mails[0][1]
        if snapshot.terminal and (via := first.metadata.get(VIA)):
            began = datetime.fromisoformat(first.at).timestamp()
            self.ended(snapshot.scope.tenant, via, state_of(snapshot) == "completed", time.time() - began)

    def limited(self, tenant: Tenant, reason: str) -> None:
        self.count("rate_limited_total", tenant=tenant.key, reason=reason)

    def provider(self, provider: str, what: str) -> None:
        self.count(f"provider_{what}_total", provider=provider or "default")

    def sandbox(self, what: str, by: float) -> None:
        gauge = what == "containers_running" or what.endswith("_ms")
        self.count(f"sandbox_{what}" + ("_sum" if what.endswith("_ms") else "" if gauge else "_total"), by)

    def text(self, in_flight: Mapping[str, int]) -> bytes:
        values = dict(self._values)
        values |= {("in_flight", (("tenant", tenant),)): float(n) for tenant, n in in_flight.items()}
        lines: list[str] = []
        for name, about in _HELP.items():
            kind = "counter" if name.endswith(("_total", "_sum")) else "gauge"
            full = f"dragoman_hub_{name}"
            lines += [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
            for (each, labels), value in sorted(values.items()):
                if each == name:
                    label_text = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
                    lines.append(f"{full}{{{label_text}}} {value:g}" if label_text else f"{full} {value:g}")
        return ("\n".join(lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class HubObserver(Instrumentation):
    """An `Observer` of the engine. It counts, logs and audits what callers do, and counts tokens by tenant and day."""

    def __init__(self, store: Store, metrics: HubMetrics, usages: Usages, count: CountUsage) -> None:
        """`count` gets what each turn used, when it ends."""
        super().__init__(counts=None, audit=store.audit)
        self._metrics, self._usages, self._count = metrics, usages, count

    def count_usage(self, turn: Turn, used: TokenUsage) -> None:
        self._usages.add(turn.scope, used)
        self._count(turn.scope, used)
        about = {"tenant": turn.scope.tenant, "agent": turn.scope.agent, "model": used.model}
        for kind, count in used.tokens:
            self._metrics.count("tokens_total", count, **about, kind=kind)
        if used.cost:
            self._metrics.count("cost_total", used.cost, **about, currency=used.currency)

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

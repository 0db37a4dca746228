"""The metrics of the hub."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from dragoman.engine.snapshot import Snapshot
from dragoman.hub.conversations.events import state_of
from dragoman.hub.metadata import VIA
from dragoman.hub.store.tenants import Tenant

_Labels = tuple[tuple[str, str], ...]

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
    "cost_total": "Money for models.",
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
    def count_call(self, tenant: Tenant, route: str) -> Iterator[None]:
        """Count a call that starts no task, and its duration."""
        self.count_start(tenant.key, route)
        began, ok = time.time(), False
        try:
            yield
            ok = True
        finally:
            self.count_end(tenant.key, route, ok, time.time() - began)

    def count_start(self, tenant: str, route: str) -> None:
        self.count("requests_started_total", tenant=tenant, route=route)

    def count_end(self, tenant: str, route: str, ok: bool, seconds: float = 0.0) -> None:
        self.count("requests_completed_total", tenant=tenant, route=route, ok=str(ok).lower())
        self.count("requests_duration_ms_sum", seconds * 1000, tenant=tenant, route=route)

    # -- `Observer` of the engine --------------------------------------------------------------

    def settled(self, snapshot: Snapshot) -> None:
        """Count a task that has ended, if it is a request from outside."""
        first = snapshot.mails[0][1]
        if snapshot.terminal and (via := first.metadata.get(VIA)):
            began = datetime.fromisoformat(first.at).timestamp()
            self.count_end(snapshot.scope.tenant, via, state_of(snapshot) == "completed", time.time() - began)

    def count_refusal(self, tenant: Tenant, reason: str) -> None:
        self.count("rate_limited_total", tenant=tenant.key, reason=reason)

    def count_provider(self, provider: str, what: str) -> None:
        self.count(f"provider_{what}_total", provider=provider or "default")

    def count_sandbox(self, what: str, by: float) -> None:
        if what.endswith("_ms"):
            what += "_sum"
        elif what != "containers_running":
            what += "_total"
        self.count(f"sandbox_{what}", by)

    def render(self, in_flight: Mapping[str, int]) -> bytes:
        values = dict(self._values)
        values |= {("in_flight", (("tenant", tenant),)): float(n) for tenant, n in in_flight.items()}
        samples: dict[str, list[str]] = {}
        for (name, labels), value in sorted(values.items()):
            pairs = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
            number = repr(value).removesuffix(".0")
            sample = f"dragoman_hub_{name}{{{pairs}}} {number}" if pairs else f"dragoman_hub_{name} {number}"
            samples.setdefault(name, []).append(sample)
        lines: list[str] = []
        for name, about in _HELP.items():
            kind = "counter" if name.endswith(("_total", "_sum")) else "gauge"
            lines.append(f"# HELP dragoman_hub_{name} {about}")
            lines.append(f"# TYPE dragoman_hub_{name} {kind}")
            lines += samples.get(name, [])
        return ("\n".join(lines) + "\n").encode()


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

"""Numbers for Prometheus. Each application has a registry of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman.engine.log import Snapshot

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 3600)


class Metrics:
    CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "dragoman_requests",
            "Operations, by how they ended: OK, or the reason of the error",
            ("agent", "operation", "dialect", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "dragoman_request_seconds",
            "How long unary operations took",
            ("agent", "operation"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._streams = Gauge("dragoman_open_streams", "Streams being read", ("agent",), registry=registry)
        self._settled = Counter(
            "dragoman_tasks", "Tasks that came to rest, by state", ("agent", "state"), registry=registry
        )
        self._task_seconds = Histogram(
            "dragoman_task_seconds",
            "From a task's first message to its end",
            ("agent", "state"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._running = Gauge("dragoman_running_turns", "Turns running here", ("agent",), registry=registry)
        self._waiting = Gauge(
            "dragoman_waiting_tasks", "Tasks with work that nobody has taken up", registry=registry
        )
        self._refused = Counter(
            "dragoman_refused", "Callers that were not let in", ("agent", "reason"), registry=registry
        )
        self._commits = Histogram(
            "dragoman_commit_seconds",
            "How long the store's transactions took",
            buckets=_SECONDS,
            registry=registry,
        )

        self._known: dict[tuple[str, ...], Any] = {}
        """Series by what was asked for: looking one up is most of the cost of counting."""

    def _of(self, family: Any, *labels: str) -> Any:
        key = (family._name, *labels)
        series = self._known.get(key)
        if series is None:
            series = self._known[key] = family.labels(*labels)
        return series

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def answered(self, agent: str, operation: str, dialect: str, outcome: str, seconds: float | None) -> None:
        self._of(self._requests, agent, operation, dialect, outcome).inc()
        if seconds is not None:
            self._of(self._seconds, agent, operation).observe(seconds)

    def stream(self, agent: str, change: int) -> None:
        self._of(self._streams, agent).inc(change)

    def running(self, agent: str, change: int) -> None:
        self._of(self._running, agent).inc(change)

    def settled(self, snapshot: Snapshot) -> None:
        if snapshot.hidden:
            return
        agent, state = snapshot.scope.agent, snapshot.state.word
        self._of(self._settled, agent, state).inc()
        if snapshot.terminal and snapshot.mails and (since := _epoch(snapshot.mails[0][1].at)):
            self._of(self._task_seconds, agent, state).observe(max(0.0, time.time() - since))

    def refused(self, agent: str, reason: str) -> None:
        self._of(self._refused, agent, reason).inc()

    def pushes(self, outcomes: Mapping[str, int]) -> None:
        """Read the courier's own count at each scrape."""
        self.registry.register(_Outcomes(outcomes))

    def committed(self, seconds: float) -> None:
        self._commits.observe(seconds)

    def waiting(self, count: Callable[[], float]) -> None:
        """Ask `count` at each scrape."""
        self._waiting.set_function(count)


class _Outcomes(Collector):
    def __init__(self, outcomes: Mapping[str, int]) -> None:
        self._outcomes = outcomes

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "dragoman_push", "Notifications, by what became of them", labels=["outcome"]
        )
        for outcome, count in self._outcomes.items():
            family.add_metric([outcome], count)
        yield family


def _epoch(stamp: str) -> float:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

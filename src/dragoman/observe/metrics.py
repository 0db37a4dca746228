"""Numbers for Prometheus. Each application has a registry of its own.

What happens at every call is counted in plain dictionaries, on the loop's thread, and put into words at a scrape:
a counter of the client library takes a lock and a dozen calls, many thousand times between two scrapes.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dragoman.engine.log import Snapshot

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)

_Counts = defaultdict[tuple[str, ...], int]


class Metrics(Collector):
    def __init__(self) -> None:
        self._requests: _Counts = defaultdict(int)
        self._seconds: defaultdict[tuple[str, ...], _Times] = defaultdict(_Times)
        self._streams: _Counts = defaultdict(int)
        self._settled: _Counts = defaultdict(int)
        self._task_seconds: defaultdict[tuple[str, ...], _Times] = defaultdict(_Times)
        self._running: _Counts = defaultdict(int)
        self._refused: _Counts = defaultdict(int)
        self._commits = _Times()
        self._pushes: Mapping[str, int] = {}
        self._waiting: Callable[[], float] | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def answered(self, agent: str, operation: str, dialect: str, outcome: str, seconds: float | None) -> None:
        self._requests[agent, operation, dialect, outcome] += 1
        if seconds is not None:
            self._seconds[agent, operation].add(seconds)

    def stream(self, agent: str, change: int) -> None:
        self._streams[(agent,)] += change

    def running(self, agent: str, change: int) -> None:
        self._running[(agent,)] += change

    def settled(self, snapshot: Snapshot) -> None:
        if snapshot.hidden:
            return
        agent, state = snapshot.scope.agent, snapshot.state.word
        self._settled[agent, state] += 1
        if snapshot.terminal and snapshot.mails and (since := _epoch(snapshot.mails[0][1].at)):
            self._task_seconds[agent, state].add(max(0.0, time.time() - since))

    def refused(self, agent: str, reason: str) -> None:
        self._refused[agent, reason] += 1

    def pushes(self, outcomes: Mapping[str, int]) -> None:
        """Read the courier's own count at each scrape."""
        self._pushes = outcomes

    def committed(self, seconds: float) -> None:
        self._commits.add(seconds)

    def waiting(self, count: Callable[[], float]) -> None:
        """Ask `count` at each scrape."""
        self._waiting = count

    def collect(self) -> Iterable[Metric]:
        yield _counter(
            "dragoman_requests",
            "Operations, by how they ended: OK, or the reason of the error",
            ("agent", "operation", "dialect", "outcome"),
            self._requests,
        )
        yield _times(
            "dragoman_request_seconds",
            "How long unary operations took",
            ("agent", "operation"),
            self._seconds,
        )
        yield _gauge("dragoman_open_streams", "Streams being read", ("agent",), self._streams)
        yield _counter(
            "dragoman_tasks", "Tasks that came to rest, by state", ("agent", "state"), self._settled
        )
        yield _times(
            "dragoman_task_seconds",
            "From a task's first message to its end",
            ("agent", "state"),
            self._task_seconds,
        )
        yield _gauge("dragoman_running_turns", "Turns running here", ("agent",), self._running)
        if self._waiting is not None:
            yield GaugeMetricFamily(
                "dragoman_waiting_tasks", "Tasks with work that nobody has taken up", value=self._waiting()
            )
        yield _counter("dragoman_refused", "Callers that were not let in", ("agent", "reason"), self._refused)
        yield _times(
            "dragoman_commit_seconds", "How long the store's transactions took", (), {(): self._commits}
        )
        pushes: dict[tuple[str, ...], int] = {(outcome,): n for outcome, n in self._pushes.items()}
        yield _counter("dragoman_push", "Notifications, by what became of them", ("outcome",), pushes)


class _Times:
    """How often something took how long."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(_SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds


def _counter(name: str, about: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], int]) -> Metric:
    family = CounterMetricFamily(name, about, labels=labels)
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _gauge(name: str, about: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], int]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _times(name: str, about: str, labels: tuple[str, ...], times: Mapping[tuple[str, ...], _Times]) -> Metric:
    family = HistogramMetricFamily(name, about, labels=labels)
    bounds = [*map(str, _SECONDS), "+Inf"]
    for key, taken in times.items():
        family.add_metric(key, list(zip(bounds, accumulate(taken.buckets), strict=True)), taken.total)
    return family


def _epoch(stamp: str) -> float:
    """Of one of our own timestamps; 0 for anything else."""
    try:
        return _second(stamp[:19]) + int(stamp[20:23]) / 1000
    except ValueError:
        return 0.0


@lru_cache(64)
def _second(moment: str) -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()

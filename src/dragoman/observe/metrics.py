"""Metrics for Prometheus. Each application has a registry of its own.

Every call adds to plain dictionaries, on the loop's thread. They become Prometheus's metrics at a scrape, because a counter of
the client library takes a lock and a dozen calls each time.

Workers share their counts ten times a second (`SharedReports`), so any of them can answer a scrape for all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import Struct, field
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dragoman.engine.records import Snapshot
from dragoman.errors import keep_going
from dragoman.model.usage import TokenUsage
from dragoman.observe.shared_memory import SharedReports

logger = logging.getLogger("dragoman.metrics")

_BUCKET_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)

_Key = tuple[str, ...]
_SHARE_SECONDS = 0.1
"""Between two reports to the other workers."""


class Histogram(Struct):
    """How often something took how long, in buckets."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(_BUCKET_SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_BUCKET_SECONDS, seconds)] += 1
        self.total += seconds

    def __add__(self, other: Histogram) -> Histogram:
        both = zip(self.buckets, other.buckets, strict=True)
        return Histogram([ours + theirs for ours, theirs in both], self.total + other.total)


class Counts(Struct):
    """What one worker counts. `streams` and `running` are gauges: they end with the worker."""

    requests: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[_Key, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    settled: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    task_seconds: dict[_Key, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    refused: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    commits: dict[_Key, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    pushes: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    tokens: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    cost: dict[_Key, float] = field(default_factory=lambda: defaultdict(float))
    upstream_calls: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    upstream_seconds: dict[_Key, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    streams: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    running: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))

    def count_request(
        self, agent: str, operation: str, dialect: str, outcome: str, seconds: float | None
    ) -> None:
        self.requests[agent, operation, dialect, outcome] += 1
        if seconds is not None:
            self.seconds[agent, operation].add(seconds)

    def count_settled(self, snapshot: Snapshot) -> None:
        status, mails = snapshot.status, snapshot.mails
        agent, state = snapshot.scope.agent, status.state.word
        self.settled[agent, state] += 1
        if status.state.terminal and mails and (since := _epoch(mails[0][1].at)):
            self.task_seconds[agent, state].add(max(0.0, time.time() - since))

    def count_usage(self, agent: str, used: TokenUsage) -> None:
        for kind, count in used.tokens:
            self.tokens[agent, used.model, kind] += count
        if used.cost:
            self.cost[agent, used.model, used.currency] += used.cost

    def plus(self, other: Counts) -> Counts:
        out = Counts()
        for each in (self, other):
            for name in Counts.__struct_fields__:
                sums: Any = getattr(out, name)
                for key, value in getattr(each, name).items():
                    sums[key] = sums[key] + value
        return out


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Counts).decode


class Metrics(Collector):
    """`reports`: shared by the workers of a server, which are counted together."""

    def __init__(self, reports: SharedReports | None = None) -> None:
        self._reports = reports
        self._before = Counts()
        """The counts of the killed worker whose place this one took."""
        if reports is not None and (report := reports.read_own()):
            self._before = _decode(report)
            self._before.streams.clear()
            self._before.running.clear()
        self.counts = Counts()
        """What this worker counts. Whoever counts adds to it directly."""
        self._outcomes: Mapping[str, int] = {}
        self._waiting: Callable[[], float] | None = None
        self._upstreams: dict[str, Callable[[], Any]] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    async def share(self) -> None:
        """Report the counts to the other workers, periodically."""
        while self._reports is not None:
            pause = 1.0
            with keep_going(logger, "sharing metrics with the other workers"):
                self._report()
                pause = _SHARE_SECONDS
            await asyncio.sleep(pause)

    def _report(self) -> Counts:
        """Write the counts of this worker for the others, and return them."""
        self.counts.pushes.update({(outcome,): n for outcome, n in self._outcomes.items()})
        counts = self._before.plus(self.counts)
        if self._reports is not None:
            self._reports.write(_encode(counts))
        return counts

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def watch_pushes(self, outcomes: Mapping[str, int]) -> None:
        """Read `outcomes`, the count of the push sender, at each scrape."""
        self._outcomes = outcomes

    def watch_waiting(self, count: Callable[[], float]) -> None:
        """Call `count` at each scrape."""
        self._waiting = count

    def watch_upstream(self, route: str, health: Callable[[], Any]) -> None:
        """Call `health` (`bridge.upstream.Upstream.health`) at each scrape. This worker's own view is shown."""
        self._upstreams[route] = health

    def collect(self) -> Iterable[Metric]:
        counts = self._report()
        for report in self._reports.read_others() if self._reports is not None else ():
            counts = counts.plus(_decode(report))
        yield _counter(
            "dragoman_requests",
            "Operations, by how they ended: OK, or the reason of the error",
            ("agent", "operation", "dialect", "outcome"),
            counts.requests,
        )
        yield _histogram(
            "dragoman_request_seconds",
            "How long unary operations took",
            ("agent", "operation"),
            counts.seconds,
        )
        yield _gauge("dragoman_open_streams", "Streams being read", ("agent",), counts.streams)
        yield _counter(
            "dragoman_tasks", "Tasks that came to rest, by state", ("agent", "state"), counts.settled
        )
        yield _histogram(
            "dragoman_task_seconds",
            "From a task's first message to its end",
            ("agent", "state"),
            counts.task_seconds,
        )
        yield _gauge("dragoman_running_turns", "Turns running here", ("agent",), counts.running)
        if self._waiting is not None:
            yield GaugeMetricFamily(
                "dragoman_waiting_tasks", "Tasks with work that nobody has taken up", value=self._waiting()
            )
        yield _counter(
            "dragoman_refused", "Callers that were not let in", ("agent", "reason"), counts.refused
        )
        yield _histogram(
            "dragoman_commit_seconds", "How long the store's transactions took", (), counts.commits
        )
        yield _counter(
            "dragoman_tokens",
            "Tokens that agents reported: input, output, cached (of the input), reasoning (of the output)",
            ("agent", "model", "kind"),
            counts.tokens,
        )
        yield _counter(
            "dragoman_cost", "Money that agents reported", ("agent", "model", "currency"), counts.cost
        )
        if self._upstreams:
            yield from self._collect_upstreams(counts)
        yield _counter("dragoman_push", "Notifications, by what became of them", ("outcome",), counts.pushes)

    def _collect_upstreams(self, counts: Counts) -> Iterable[Metric]:
        yield _counter(
            "dragoman_upstream_calls",
            "Calls of agents behind a bridge, by how they ended; without an upstream if none was called",
            ("route", "upstream", "operation", "outcome"),
            counts.upstream_calls,
        )
        yield _histogram(
            "dragoman_upstream_seconds",
            "How long calls of agents behind a bridge took, streams to their end",
            ("route", "upstream", "operation"),
            counts.upstream_seconds,
        )
        known = {route: health() for route, health in self._upstreams.items()}
        servers = [(route, server) for route, health in known.items() for server in health.servers]
        yield _gauge(
            "dragoman_upstream_up",
            "1 if the last call of a server behind a bridge succeeded, 0 if it failed",
            ("route", "upstream"),
            {
                (route, each.host): int(each.state == "up")
                for route, each in servers
                if each.state != "unknown"
            },
        )
        yield _gauge(
            "dragoman_upstream_breaker_open",
            "1 if a server behind a bridge is not called, because it failed too often",
            ("route", "upstream"),
            {(route, each.host): int(each.breaker == "open") for route, each in servers},
        )
        for name, about, member in (
            ("dragoman_upstream_active", "Calls of agents behind a bridge that are under way", "active"),
            ("dragoman_upstream_waiting", "Calls that wait for others to end", "waiting"),
        ):
            values: dict[_Key, int] = {
                (route,): int(getattr(health, member)) for route, health in known.items()
            }
            yield _gauge(name, about, ("route",), values)


def _counter(name: str, about: str, labels: tuple[str, ...], counts: Mapping[_Key, float]) -> Metric:
    family = CounterMetricFamily(name, about, labels=labels)
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _gauge(name: str, about: str, labels: tuple[str, ...], counts: Mapping[_Key, int]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _histogram(name: str, about: str, labels: tuple[str, ...], times: Mapping[_Key, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, about, labels=labels)
    bounds = [*map(str, _BUCKET_SECONDS), "+Inf"]
    for key, taken in times.items():
        family.add_metric(key, list(zip(bounds, accumulate(taken.buckets), strict=True)), taken.total)
    return family


def _epoch(stamp: str) -> float:
    """Parse one of our own timestamps. Returns 0 for anything else."""
    try:
        return _second(stamp[:19]) + int(stamp[20:23]) / 1000
    except ValueError:
        return 0.0


@lru_cache(64)
def _second(moment: str) -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()

"""Metrics for Prometheus: what `instrument.Counts` has counted. Each application has a registry of its own.

Workers share their counts ten times a second (`SharedReports`), so any of them can answer a scrape for all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dragoman.errors import keep_going
from dragoman.observe.instrument import BUCKET_SECONDS, Counts, Histogram, Key
from dragoman.observe.shared_memory import SharedReports

logger = logging.getLogger("dragoman.metrics")

_SHARE_SECONDS = 0.1
"""Between two reports to the other workers."""


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
        for family, name, about, labels, member in _METRICS:
            yield _fill(family(name, about, labels=labels), getattr(counts, member))
        if self._waiting is not None:
            yield GaugeMetricFamily(
                "dragoman_waiting_tasks", "Tasks with work that nobody has taken up", value=self._waiting()
            )
        if self._upstreams:
            yield from self._collect_upstreams(counts)

    def _collect_upstreams(self, counts: Counts) -> Iterable[Metric]:
        for family, name, about, labels, member in _UPSTREAM_METRICS:
            yield _fill(family(name, about, labels=labels), getattr(counts, member))
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
            values: dict[Key, int] = {
                (route,): int(getattr(health, member)) for route, health in known.items()
            }
            yield _gauge(name, about, ("route",), values)


def _gauge(name: str, about: str, labels: tuple[str, ...], counts: Mapping[Key, int]) -> Metric:
    return _fill(GaugeMetricFamily(name, about, labels=labels), counts)


def _fill(family: Any, counts: Mapping[Key, Any]) -> Metric:
    for key, count in counts.items():
        if isinstance(count, Histogram):
            buckets = zip(_BOUNDS, accumulate(count.buckets), strict=True)
            family.add_metric(key, list(buckets), count.total)
        else:
            family.add_metric(key, count)
    filled: Metric = family
    return filled


_BOUNDS = [*map(str, BUCKET_SECONDS), "+Inf"]
_COUNTER, _GAUGE, _HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
_Rows = tuple[tuple[Callable[..., Metric], str, str, tuple[str, ...], str], ...]
_TOKENS = "Tokens that agents reported: input, output, cached (of the input), reasoning (of the output)"
_CALLS = "Calls of agents behind a bridge, by how they ended; without an upstream if none was called"

_METRICS: _Rows = (
    (
        _COUNTER,
        "dragoman_requests",
        "Operations, by how they ended: OK, or the reason of the error",
        ("agent", "operation", "dialect", "outcome"),
        "requests",
    ),
    (
        _HISTOGRAM,
        "dragoman_request_seconds",
        "How long unary operations took",
        ("agent", "operation"),
        "seconds",
    ),
    (_GAUGE, "dragoman_open_streams", "Streams being read", ("agent",), "streams"),
    (_COUNTER, "dragoman_tasks", "Tasks that came to rest, by state", ("agent", "state"), "settled"),
    (
        _HISTOGRAM,
        "dragoman_task_seconds",
        "From a task's first message to its end",
        ("agent", "state"),
        "task_seconds",
    ),
    (_GAUGE, "dragoman_running_turns", "Turns running here", ("agent",), "running"),
    (_COUNTER, "dragoman_refused", "Callers that were not let in", ("agent", "reason"), "refused"),
    (_HISTOGRAM, "dragoman_commit_seconds", "How long the store's transactions took", (), "commits"),
    (_COUNTER, "dragoman_tokens", _TOKENS, ("agent", "model", "kind"), "tokens"),
    (_COUNTER, "dragoman_cost", "Money that agents reported", ("agent", "model", "currency"), "cost"),
    (_COUNTER, "dragoman_push", "Notifications, by what became of them", ("outcome",), "pushes"),
)
"""The kind of a metric, its name, what it is, its labels, and the member of `Counts`."""
_UPSTREAM_METRICS: _Rows = (
    (
        _COUNTER,
        "dragoman_upstream_calls",
        _CALLS,
        ("route", "upstream", "operation", "outcome"),
        "upstream_calls",
    ),
    (
        _HISTOGRAM,
        "dragoman_upstream_seconds",
        "How long calls of agents behind a bridge took, streams to their end",
        ("route", "upstream", "operation"),
        "upstream_seconds",
    ),
)

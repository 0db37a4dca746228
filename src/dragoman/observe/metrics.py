"""Numbers for Prometheus. Each application has a registry of its own.

What happens at every call is counted in plain dictionaries, on the loop's thread, and put into words at a scrape:
a counter of the client library takes a lock and a dozen calls, many thousand times between two scrapes.

Workers tell each other their numbers on a board, ten times a second, so that it does not matter which of them is asked.
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
from dragoman.observe.board import Board

logger = logging.getLogger("dragoman.metrics")

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)

_Key = tuple[str, ...]
_EVERY = 0.1
"""Seconds between two looks at the others' numbers."""


class Times(Struct):
    """How often something took how long."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(_SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds

    def __add__(self, other: Times) -> Times:
        both = zip(self.buckets, other.buckets, strict=True)
        return Times([ours + theirs for ours, theirs in both], self.total + other.total)


class Numbers(Struct):
    """What one worker has counted. What is happening now comes last: it ends with the worker."""

    requests: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[_Key, Times] = field(default_factory=lambda: defaultdict(Times))
    settled: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    task_seconds: dict[_Key, Times] = field(default_factory=lambda: defaultdict(Times))
    refused: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    commits: dict[_Key, Times] = field(default_factory=lambda: defaultdict(Times))
    pushes: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    streams: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    running: dict[_Key, int] = field(default_factory=lambda: defaultdict(int))

    def and_those(self, other: Numbers) -> Numbers:
        out = Numbers()
        for each in (self, other):
            for name in Numbers.__struct_fields__:
                sums: Any = getattr(out, name)
                for key, value in getattr(each, name).items():
                    sums[key] = sums[key] + value
        return out


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Numbers).decode


class Metrics(Collector):
    """`board`: of the workers of a server, who are counted together."""

    def __init__(self, board: Board | None = None) -> None:
        self._board = board
        self._before = Numbers()
        """What the worker had counted whose place this one has taken."""
        if board is not None and (words := board.mine()):
            self._before = _decode(words)
            self._before.streams.clear()
            self._before.running.clear()
        self._mine = Numbers()
        self._outcomes: Mapping[str, int] = {}
        self._waiting: Callable[[], float] | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)

    async def share(self) -> None:
        """Tell the other workers what is counted here, again and again."""
        while self._board is not None:
            pause = 1.0
            with keep_going(logger, "sharing numbers with the other workers"):
                self._told()
                pause = _EVERY
            await asyncio.sleep(pause)

    def _told(self) -> Numbers:
        """What this worker has counted, which the others know from now on."""
        self._mine.pushes.update({(outcome,): n for outcome, n in self._outcomes.items()})
        numbers = self._before.and_those(self._mine)
        if self._board is not None:
            self._board.write(_encode(numbers))
        return numbers

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def answered(self, agent: str, operation: str, dialect: str, outcome: str, seconds: float | None) -> None:
        self._mine.requests[agent, operation, dialect, outcome] += 1
        if seconds is not None:
            self._mine.seconds[agent, operation].add(seconds)

    def stream(self, agent: str, change: int) -> None:
        self._mine.streams[(agent,)] += change

    def running(self, agent: str, change: int) -> None:
        self._mine.running[(agent,)] += change

    def settled(self, snapshot: Snapshot) -> None:
        if snapshot.hidden:
            return
        agent, state = snapshot.scope.agent, snapshot.state.word
        self._mine.settled[agent, state] += 1
        if snapshot.terminal and snapshot.mails and (since := _epoch(snapshot.mails[0][1].at)):
            self._mine.task_seconds[agent, state].add(max(0.0, time.time() - since))

    def refused(self, agent: str, reason: str) -> None:
        self._mine.refused[agent, reason] += 1

    def pushes(self, outcomes: Mapping[str, int]) -> None:
        """Read the courier's own count at each scrape."""
        self._outcomes = outcomes

    def committed(self, seconds: float) -> None:
        self._mine.commits[()].add(seconds)

    def waiting(self, count: Callable[[], float]) -> None:
        """Ask `count` at each scrape."""
        self._waiting = count

    def collect(self) -> Iterable[Metric]:
        numbers = self._told()
        for words in self._board.others() if self._board is not None else ():
            numbers = numbers.and_those(_decode(words))
        yield _counter(
            "dragoman_requests",
            "Operations, by how they ended: OK, or the reason of the error",
            ("agent", "operation", "dialect", "outcome"),
            numbers.requests,
        )
        yield _times(
            "dragoman_request_seconds",
            "How long unary operations took",
            ("agent", "operation"),
            numbers.seconds,
        )
        yield _gauge("dragoman_open_streams", "Streams being read", ("agent",), numbers.streams)
        yield _counter(
            "dragoman_tasks", "Tasks that came to rest, by state", ("agent", "state"), numbers.settled
        )
        yield _times(
            "dragoman_task_seconds",
            "From a task's first message to its end",
            ("agent", "state"),
            numbers.task_seconds,
        )
        yield _gauge("dragoman_running_turns", "Turns running here", ("agent",), numbers.running)
        if self._waiting is not None:
            yield GaugeMetricFamily(
                "dragoman_waiting_tasks", "Tasks with work that nobody has taken up", value=self._waiting()
            )
        yield _counter(
            "dragoman_refused", "Callers that were not let in", ("agent", "reason"), numbers.refused
        )
        yield _times("dragoman_commit_seconds", "How long the store's transactions took", (), numbers.commits)
        yield _counter("dragoman_push", "Notifications, by what became of them", ("outcome",), numbers.pushes)


def _counter(name: str, about: str, labels: tuple[str, ...], counts: Mapping[_Key, int]) -> Metric:
    family = CounterMetricFamily(name, about, labels=labels)
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _gauge(name: str, about: str, labels: tuple[str, ...], counts: Mapping[_Key, int]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _times(name: str, about: str, labels: tuple[str, ...], times: Mapping[_Key, Times]) -> Metric:
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

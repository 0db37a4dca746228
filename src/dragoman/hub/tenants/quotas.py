"""How much a tenant may do: so much at once, and so often a minute. And what is running for it right now.

What counts is work that a tenant asked for, not what its agents ask of one another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from dragoman.errors import RateLimited
from dragoman.hub.tenants.tenants import Tenant

Key = tuple[str, str]
"""An agent and a task. Callers of A2A 0.1 choose the ids of tasks, so that two agents may have the same one."""
SOON = 1.0
"""Seconds after which somebody who has too much running may try again."""


class Running(Struct):
    """A task of a tenant, and whether the tenant itself asked for it."""

    asked: bool
    generation: int
    """The tenant's, when it began: it stops when the tenant has another."""
    begun: bool = False
    conversation: int = 0
    via: str = ""
    at: int = field(default_factory=lambda: int(time.time()))


class Bucket(Struct):
    """A token bucket: `left` fills up again as time passes."""

    left: float
    at: float


class Quotas:
    """0 means: as much as it likes."""

    def __init__(self, *, max_running: int = 0, per_minute: int = 0, burst: int = 0) -> None:
        self.max_running, self.per_minute, self.burst = max_running, per_minute, burst
        self._running: dict[str, dict[Key, Running]] = {}
        self._buckets: dict[int, Bucket] = {}

    # -- how often ---------------------------------------------------------------------------------------------

    def spend(self, tenant: Tenant) -> None:
        """One request. Raises `RateLimited`."""
        rate = self.per_minute if tenant.per_minute is None else tenant.per_minute
        if not rate:
            return
        room = float(self.burst or rate)
        now = time.monotonic()
        bucket = self._buckets.setdefault(tenant.id, Bucket(room, now))
        bucket.left = min(room, bucket.left + (now - bucket.at) * rate / 60)
        bucket.at = now
        if bucket.left < 1:
            raise RateLimited(
                "too many requests; try again later",
                metadata={"reason": "rate_limit"},
                retry_after=(1 - bucket.left) * 60 / rate,
            )
        bucket.left -= 1

    # -- how much ----------------------------------------------------------------------------------------------

    def reserve(self, tenant: Tenant, agent: str, task: str, *, conversation: int = 0, via: str = "") -> None:
        """Room for one more task. Raises `RateLimited`."""
        most = self.max_running if tenant.max_running is None else tenant.max_running
        running = self._running.setdefault(tenant.key, {})
        if most and sum(each.asked for each in running.values()) >= most:
            raise RateLimited(
                f"{most} requests are running already; try again when one has ended",
                metadata={"reason": "concurrent_request_limit"},
                retry_after=SOON,
            )
        running[agent, task] = Running(True, tenant.generation, conversation=conversation, via=via)

    def forgo(self, tenant: str, agent: str, task: str) -> None:
        """Give back room that no task came to need."""
        entry = self._running.get(tenant, {}).get((agent, task))
        if entry is not None and not entry.begun:
            self._drop(tenant, (agent, task))

    @contextmanager
    def running(self, tenant: Tenant, agent: str, task: str, *, asked: bool) -> Iterator[None]:
        new = Running(asked, tenant.generation)
        entry = self._running.setdefault(tenant.key, {}).setdefault((agent, task), new)
        entry.begun, entry.generation = True, tenant.generation
        try:
            yield
        finally:
            self._drop(tenant.key, (agent, task))

    def of(self, tenant: str) -> dict[Key, Running]:
        """What is running for a tenant, by agent and task."""
        return dict(self._running.get(tenant, {}))

    def counts(self) -> dict[str, int]:
        return {tenant: sum(each.asked for each in tasks.values()) for tenant, tasks in self._running.items()}

    def _drop(self, tenant: str, key: Key) -> None:
        tasks = self._running.get(tenant, {})
        tasks.pop(key, None)
        if not tasks:
            self._running.pop(tenant, None)

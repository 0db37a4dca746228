"""Limits of a tenant: how many messages a minute, how many requests at a time, and how many bytes of requests it may store.

They count work that a tenant asked for, not what its agents ask of one another.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from dragoman.errors import QuotaExceeded, RateLimited, StoreUnavailable
from dragoman.hub.store.tenants import Tenant
from dragoman.observe.limit import LocalQuota
from dragoman.observe.shared_memory import CallerUsage
from dragoman.observe.shared_quota import SharedQuota

Key = tuple[str, str]
"""An agent and a task. Callers of A2A 0.1 choose task ids, so two agents may have the same one."""
STARTING_CHECK_SECONDS = 2.0
"""Seconds between two checks whether a task that has a slot and does not run is still about to start here."""
OPEN_REQUEST_LIMIT = "open_request_limit"
RETRY_SECONDS = 1.0
"""`Retry-After` of a caller that has too many requests running."""


class RunningTask(Struct):
    """A running task of a tenant. `asked`: the tenant itself started it, not one of its agents."""

    asked: bool
    generation: int | None
    """The number of the token that the task started with; the task stops when that is revoked."""
    started: bool = False
    conversation: int = 0
    via: str = ""
    at: int = field(default_factory=lambda: int(time.time()))
    slot: Any = None
    """The key by which its slot is counted; None: there was no limit."""
    starting: bool = False
    """It has a slot and does not run yet, but is about to."""


class TokenBucket(Struct):
    left: float
    at: float
    """When `left` was computed."""


class Quotas:
    """Limits of requests per tenant; 0: no limit. `shared` counts over all hubs of a store; without it, this hub counts alone."""

    def __init__(
        self, *, max_running: int = 0, per_minute: int = 0, burst: int = 0, shared: SharedQuota | None = None
    ) -> None:
        self.max_running, self.per_minute, self.burst = max_running, per_minute, burst
        self._shared = shared
        self._counter: Any = shared or LocalQuota(CallerUsage())
        self._buckets: dict[tuple[str, int], TokenBucket] = {}
        """The rates, if this hub counts alone. `LocalQuota` would not forget a higher rate when the operator lowers it."""
        self._running: dict[str, dict[Key, RunningTask]] = {}
        self._open: Counter[int] = Counter()
        """By tenant: the requests that this hub is answering."""
        self.runs_here: Callable[[str, str, str], bool] = lambda tenant, agent, task: False
        """Whether the task of a tenant and an agent runs here, or is about to."""

    # -- rate --------------------------------------------------------------------------------------------------

    async def take_token(self, tenant: Tenant) -> None:
        """Count one request. Raises `RateLimited`."""
        rate = self.per_minute if tenant.per_minute is None else tenant.per_minute
        if (wait := await self._take("hub rate", tenant, rate, self.burst or rate)) > 0:
            raise _rate_limited(wait)

    async def take_read(self, tenant: Tenant, per_minute: int) -> None:
        """Count one request that starts nothing. Raises `RateLimited`."""
        if (wait := await self._take("hub reads", tenant, per_minute, per_minute)) > 0:
            raise _rate_limited(wait, "read_limit")

    async def _take(self, what: str, tenant: Tenant, per_minute: int, burst: int) -> float:
        """Count one operation. Returns 0, or the seconds until it may begin."""
        if not per_minute:
            return 0.0
        if self._shared is not None:
            return await self._shared.take(self._shared.key(what, tenant.key), per_minute / 60, burst)
        now = time.monotonic()
        bucket = self._buckets.setdefault((what, tenant.id), TokenBucket(burst, now))
        bucket.left = min(burst, bucket.left + (now - bucket.at) * per_minute / 60)
        bucket.at = now
        if bucket.left < 1:
            return (1 - bucket.left) * 60 / per_minute
        bucket.left -= 1
        return 0.0

    def open(self, tenant: Tenant, most: int) -> Callable[[], None]:
        """Count a request until the returned function is called. Raises `RateLimited`."""
        if most and self._open[tenant.id] >= most:
            raise RateLimited(
                f"{most} requests of this tenant are open already; try again when one of them, such as a stream, has ended",
                metadata={"reason": OPEN_REQUEST_LIMIT},
                retry_after=RETRY_SECONDS,
            )
        self._open[tenant.id] += 1

        def close() -> None:
            self._open[tenant.id] -= 1
            if not self._open[tenant.id]:
                del self._open[tenant.id]

        return close

    # -- concurrency ----------------------------------------------------------------------------------------------

    async def reserve(
        self, tenant: Tenant, agent: str, task: str, *, conversation: int = 0, via: str = ""
    ) -> None:
        """Reserve a slot for a task. Raises `RateLimited`."""
        slot, most = None, self._max_running(tenant)
        if most:
            slot = self._slot(tenant)
            for each in self.running_tasks(tenant.key).values():
                self._count(each, slot, most)  # tasks that started when the tenant had no limit
            if not await self._counter.enter(slot, most):
                raise RateLimited(
                    f"{most} requests are running already; try again when one has ended",
                    metadata={"reason": "concurrent_request_limit"},
                    retry_after=RETRY_SECONDS,
                )
        self._remove(tenant.key, (agent, task))
        entry = RunningTask(True, tenant.generation, conversation=conversation, via=via, slot=slot)
        self._running.setdefault(tenant.key, {})[agent, task] = entry

    def release(self, tenant: str, agent: str, task: str) -> None:
        """Free the slot of a task that did not start. If it is about to start, it keeps the slot: otherwise another task could get the slot,
        and one too many would run."""
        entry = self._running.get(tenant, {}).get((agent, task))
        if entry is None or entry.started or entry.starting:
            return
        if self.runs_here(tenant, agent, task):
            self.keep_slot(tenant, agent, task)
        else:
            self._remove(tenant, (agent, task))

    def keep_slot(self, tenant: str, agent: str, task: str) -> None:
        """Keep the slot of a task that is about to start here, for example again after an outage of the database."""
        entry = self._running.get(tenant, {}).get((agent, task))
        if entry is not None:
            entry.started = False
            if not entry.starting:
                entry.starting = True
                self._check_later(tenant, agent, task, entry)

    def _check_later(self, tenant: str, agent: str, task: str, entry: RunningTask) -> None:
        """Check until the task starts. If it will not start here any more (it was canceled, or another hub has it), free its slot."""

        def check() -> None:
            if self._running.get(tenant, {}).get((agent, task)) is not entry:
                return
            if entry.started:
                entry.starting = False
            elif self.runs_here(tenant, agent, task):
                self._check_later(tenant, agent, task, entry)
            else:
                self._remove(tenant, (agent, task))

        asyncio.get_running_loop().call_later(STARTING_CHECK_SECONDS, check)

    @contextmanager
    def running(self, tenant: Tenant, agent: str, task: str, *, asked: bool) -> Iterator[None]:
        """Count a task while it runs, in the slot that was reserved for it."""
        known = self._running.setdefault(tenant.key, {})
        if (entry := known.get((agent, task))) is None:
            entry = known[agent, task] = RunningTask(asked, tenant.generation)
            if most := self._max_running(tenant):  # a hub died, and the task continues here
                self._count(entry, self._slot(tenant), most)
        entry.started, entry.generation, away = True, tenant.generation, False
        try:
            yield
        except StoreUnavailable:
            away = True
            raise
        finally:
            if away:
                self.keep_slot(tenant.key, agent, task)
            else:
                self._remove(tenant.key, (agent, task))

    def running_tasks(self, tenant: str) -> dict[Key, RunningTask]:
        """The running tasks of a tenant, by agent and task."""
        return dict(self._running.get(tenant, {}))

    def counts(self) -> dict[str, int]:
        return {tenant: sum(each.asked for each in tasks.values()) for tenant, tasks in self._running.items()}

    def _slot(self, tenant: Tenant) -> Any:
        return self._counter.key("hub slots", tenant.key)

    def _count(self, entry: RunningTask, slot: Any, most: int) -> None:
        """Count a task that runs, if it is not counted yet."""
        if entry.asked and entry.slot is None:
            entry.slot = slot
            self._counter.enter_anyway(slot, most)

    def _max_running(self, tenant: Tenant) -> int:
        return self.max_running if tenant.max_running is None else tenant.max_running

    def _remove(self, tenant: str, key: Key) -> None:
        tasks = self._running.get(tenant, {})
        entry = tasks.pop(key, None)
        if entry is not None and entry.slot is not None:
            self._counter.leave(entry.slot)
        if not tasks:
            self._running.pop(tenant, None)


def _rate_limited(seconds: float, reason: str = "rate_limit") -> RateLimited:
    return RateLimited("too many requests; try again later", metadata={"reason": reason}, retry_after=seconds)


_MB = 1 << 20
_MEASURE_BYTES = 8 * _MB
"""Bytes that this hub adds before it asks the store again, if an eighth of the room that is left is not less."""
_MEASURE_PART = 8
_MEASURE_SECONDS = 5.0


class RequestRoom:
    """Checks how many bytes the logs of a tenant's requests have. Only the task store knows that.

    It asks the store after some seconds, or when this hub has added 8 MB, or an eighth of the room that is left, because other hubs add, too.
    In between, it adds the messages of this hub to the last answer.
    """

    def __init__(self, size: Callable[[str], Awaitable[int]]) -> None:
        self._size = size
        self._measured: dict[str, tuple[float, int, int]] = {}
        """By tenant: when the store was asked, its answer, and the bytes that were added since."""

    async def take(self, tenant: str, more: int, limit_mb: int) -> None:
        """Count a message of `more` bytes. Raises `QuotaExceeded` if the tenant would have more than `limit_mb` MB. 0: no limit."""
        if not limit_mb:
            return
        limit = limit_mb * _MB
        at, used, added = self._measured.get(tenant, (0.0, 0, _MEASURE_BYTES))
        fits = used + added + more <= limit
        outdated = added + more > min(_MEASURE_BYTES, (limit - used) // _MEASURE_PART) if fits else added > 0
        if outdated or time.monotonic() - at > _MEASURE_SECONDS:
            at, used, added = time.monotonic(), await self._size(tenant), 0
        fits = used + added + more <= limit
        self._measured[tenant] = at, used, added + more if fits else added
        if not fits:
            raise QuotaExceeded(
                f"this tenant stores {(used + added) / _MB:.1f} MB of requests, and may store {limit_mb}: delete some first "
                "(DELETE /v1/requests/{id}), or the operator raises the limit (max_request_mb)",
                metadata={"reason": "storage_limit"},
            )

    def forget(self, tenant: str) -> None:
        """Ask the store again at the next message, because the tenant has deleted something."""
        self._measured.pop(tenant, None)

"""Quotas of callers and agents: rate, concurrency, unfinished tasks.

A caller is the scope's tenant and owner. A request over a limit raises `RateLimited` with the seconds to wait. The limit of
all turns together is the engine's (`engine/runner.py`). Who counts: the workers of one server in shared memory
(`shared_memory.py`), or all nodes of a store in the store (`shared_quota.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dragoman.engine.protocols import Store
from dragoman.errors import RateLimited, TaskNotFound
from dragoman.model.ops import (
    Batch,
    Call,
    GetTask,
    Request,
    Scope,
    SendMessage,
    Service,
    SubscribeToTask,
)
from dragoman.observe.shared_memory import CallerUsage
from dragoman.observe.shared_quota import SharedQuota


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of callers and agents. None: no limit."""

    rate: float | None = None
    """Operations per second and caller; `burst` at once."""
    burst: int = 20
    concurrency: int | None = None
    """Operations of one caller at a time, streams included."""
    open_tasks: int | None = None
    """Unfinished tasks of one caller with one agent."""
    agent_rate: float | None = None
    agent_burst: int = 100
    agent_concurrency: int | None = None
    queue: int | None = None
    """Turns that may run or wait on this server before new messages are refused. None: as many as can run (`max_running` for
    each worker), so that none waits."""
    shared: bool | None = None
    """Count over all nodes of the store together. None: if nodes of several machines can use it (PostgreSQL)."""

    @property
    def limits_callers(self) -> bool:
        """True if there is any limit but that of the queue, which is the engine's."""
        limits = (self.rate, self.concurrency, self.open_tasks, self.agent_rate, self.agent_concurrency)
        return any(limit is not None for limit in limits)


def open_shared_quota(quota: Quota, store: Store) -> SharedQuota | None:
    """What counts over all nodes of `store`; None if this server counts alone."""
    wanted = store.quotas.spans_machines if quota.shared is None else quota.shared
    return SharedQuota(store.quotas) if wanted and quota.limits_callers else None


class LocalQuota:
    """Counts like `SharedQuota`, but for this server alone: its workers count in shared memory."""

    def __init__(self, usage: CallerUsage) -> None:
        self._usage = usage
        self.leave = usage.leave

    def key(self, *parts: str) -> int:
        return self._usage.slot(parts)

    async def take(self, key: int, rate: float, burst: int) -> float:
        return self._usage.take(key, rate, burst)

    async def enter(self, key: int, limit: int) -> bool:
        if self._usage.active(key) >= limit:
            return False
        self._usage.enter(key)
        return True

    def enter_anyway(self, key: int, limit: int) -> None:
        self._usage.enter(key)


class LimitedService:
    """A `Service` that enforces `quota`. `unfinished` counts the unfinished tasks of a scope."""

    def __init__(
        self,
        service: Service,
        quota: Quota,
        *,
        unfinished: Callable[[Scope], Awaitable[int]],
        usage: CallerUsage | None = None,
        shared: SharedQuota | None = None,
        agent: str = "",
    ) -> None:
        """`agent`: the limits of callers are for this agent only. Its callers are counted by themselves."""
        self._own = (agent,) if agent else ()
        self._service, self._quota = service, quota
        self._unfinished = unfinished
        self._counter: Any = shared or LocalQuota(usage or CallerUsage())

    async def call(self, call: Call, request: Request) -> Any:
        async with self._admitted(call, request):
            return await self._service.call(call, request)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        async with (
            self._admitted(call, request),
            aclosing(self._service.stream(call, request)) as batches,  # type: ignore[type-var]
        ):
            async for batch in batches:
                yield batch

    @asynccontextmanager
    async def _admitted(self, call: Call, request: Request) -> AsyncIterator[None]:
        """Count an operation while it runs. Raises `RateLimited` or `Unavailable`."""
        entered: list[Any] = []
        try:
            await self._admit(call.scope, entered)
            if isinstance(request, SendMessage):
                await self._reserve_task(call, request, entered)
            yield
        finally:
            for key in entered:
                self._counter.leave(key)

    async def _admit(self, scope: Scope, entered: list[Any]) -> None:
        quota, counter = self._quota, self._counter
        for whose, name, rate, burst, concurrency in (
            ("caller", scope.owner, quota.rate, quota.burst, quota.concurrency),
            ("agent", scope.agent, quota.agent_rate, quota.agent_burst, quota.agent_concurrency),
        ):
            if concurrency is not None:
                key = counter.key("slots", whose, scope.tenant, name, *self._own)
                if not await counter.enter(key, concurrency):
                    raise RateLimited(
                        f"this {whose} already has {concurrency} operations under way", retry_after=1
                    )
                entered.append(key)
            if rate is not None:
                key = counter.key("rate", whose, scope.tenant, name, *self._own)
                if (wait := await counter.take(key, rate, burst)) > 0:
                    raise RateLimited(
                        f"this {whose} has too many requests", retry_after=max(1.0, round(wait, 1))
                    )

    async def _reserve_task(self, call: Call, request: SendMessage, entered: list[Any]) -> None:
        """Reserve one of the unfinished tasks, if the message creates one."""
        limit, scope = self._quota.open_tasks, call.scope
        if limit is None or not await self._creates_task(call, request):
            return
        opened = await self._unfinished(scope)
        # Some of the requests under way have created their task and some have not: there are at least as many as either.
        key = self._counter.key("creating", scope.tenant, scope.agent, scope.owner)
        if opened >= limit or not await self._counter.enter(key, limit):
            raise RateLimited(
                f"you have {max(opened, limit)} unfinished tasks here, and {limit} are allowed", retry_after=5
            )
        entered.append(key)

    async def _creates_task(self, call: Call, request: SendMessage) -> bool:
        """True if the message creates a task. In the oldest versions callers choose the task's id, so we have to look."""
        id = request.message.task_id
        if not id or not call.names_tasks:
            return not id
        try:
            await self._service.call(call, GetTask(id=id, history_length=0))
        except TaskNotFound:
            return True
        return False

"""Quotas of callers and agents: rate, concurrency, unfinished tasks.

A caller is the scope's tenant and owner. A request over a limit raises `RateLimited` with the seconds to wait. The limit of
all turns together is the engine's (`engine/runner.py`). Who counts: the workers of one server in shared memory
(`shared_memory.py`), or all nodes of a store in the store (`shared_quota.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
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
        self._usage = usage or CallerUsage()
        self._shared = shared

    async def call(self, call: Call, request: Request) -> Any:
        if self._shared is not None:
            return await self._call_shared(self._shared, call, request)
        slots = self._admit(call)
        try:
            async with self._reserve_task(call, request):
                return await self._service.call(call, request)
        finally:
            self._leave(slots)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        async with AsyncExitStack() as entered:
            if self._shared is not None:
                await self._admit_shared(self._shared, entered, call)
            else:
                entered.callback(self._leave, self._admit(call))
            await entered.enter_async_context(self._reserve_task(call, request))
            batches: Any = await entered.enter_async_context(aclosing(self._service.stream(call, request)))
            async for batch in batches:
                yield batch

    async def _call_shared(self, shared: SharedQuota, call: Call, request: Request) -> Any:
        async with AsyncExitStack() as entered:
            await self._admit_shared(shared, entered, call)
            async with self._reserve_task(call, request):
                return await self._service.call(call, request)

    async def _admit_shared(self, shared: SharedQuota, entered: AsyncExitStack, call: Call) -> None:
        """Raise `RateLimited` or `Unavailable`, or count the operation until `entered` ends."""
        quota, scope = self._quota, call.scope
        for whose, name, rate, burst, concurrency in (
            ("caller", scope.owner, quota.rate, quota.burst, quota.concurrency),
            ("agent", scope.agent, quota.agent_rate, quota.agent_burst, quota.agent_concurrency),
        ):
            if concurrency is not None:
                key = shared.key("slots", whose, scope.tenant, name, *self._own)
                if not await shared.enter(key, concurrency):
                    raise RateLimited(
                        f"this {whose} already has {concurrency} operations under way", retry_after=1
                    )
                entered.callback(shared.leave, key)
            if rate is not None:
                key = shared.key("rate", whose, scope.tenant, name, *self._own)
                if (wait := await shared.take(key, rate, burst)) > 0:
                    raise _too_many(whose, wait)

    def _admit(self, call: Call) -> tuple[int, ...]:
        """Raise `RateLimited`, or return the slots that the operation occupies until `_leave`."""
        quota, scope, usage = self._quota, call.scope, self._usage
        caller = usage.slot(("caller", scope.tenant, scope.owner, *self._own))
        agent = usage.slot(("agent", scope.tenant, scope.agent))
        _check(usage, caller, quota.rate, quota.burst, quota.concurrency, "caller")
        _check(usage, agent, quota.agent_rate, quota.agent_burst, quota.agent_concurrency, "agent")
        usage.enter(caller)
        usage.enter(agent)
        return caller, agent

    def _leave(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._usage.leave(slot)

    @asynccontextmanager
    async def _reserve_task(self, call: Call, request: Request) -> AsyncIterator[None]:
        """Reserve one of the unfinished tasks, if the request creates one."""
        limit = self._quota.open_tasks
        if (
            limit is None
            or not isinstance(request, SendMessage)
            or not await self._creates_task(call, request)
        ):
            yield
            return
        opened = await self._unfinished(call.scope)
        # Some of the requests under way have created their task and some have not: there are at least as many as either.
        if self._shared is not None:
            key = self._shared.key("creating", *_names(call.scope))
            if opened >= limit or not await self._shared.enter(key, limit):
                raise _too_many_tasks(max(opened, limit), limit)
            try:
                yield
            finally:
                self._shared.leave(key)
            return
        creating = self._usage.slot(("creating", call.scope))
        if (opened := max(opened, self._usage.active(creating))) >= limit:
            raise _too_many_tasks(opened, limit)
        self._usage.enter(creating)
        try:
            yield
        finally:
            self._usage.leave(creating)

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


def _check(
    usage: CallerUsage, slot: int, rate: float | None, burst: int, concurrency: int | None, whose: str
) -> None:
    if concurrency is not None and (active := usage.active(slot)) >= concurrency:
        raise RateLimited(f"this {whose} already has {active} operations under way", retry_after=1)
    if rate is not None and (wait := usage.take(slot, rate, burst)) > 0:
        raise _too_many(whose, wait)


def _names(scope: Scope) -> tuple[str, str, str]:
    return scope.tenant, scope.agent, scope.owner


def _too_many_tasks(opened: int, limit: int) -> RateLimited:
    return RateLimited(f"you have {opened} unfinished tasks here, and {limit} are allowed", retry_after=5)


def _too_many(whose: str, wait: float) -> RateLimited:
    return RateLimited(f"this {whose} has too many requests", retry_after=max(1.0, round(wait, 1)))

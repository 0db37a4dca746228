"""A `Service` that says when it is enough: rates, concurrency, open tasks, and a queue that is not endless.

Limits are per caller (the scope's tenant and owner) and per agent. Whoever is over one hears `RateLimited` and when to come
back; when the whole house is full, new work is turned away with `Unavailable` and what is there is kept.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dragoman.errors import RateLimited, TaskNotFound, Unavailable
from dragoman.model.ops import (
    Batch,
    Call,
    GetTask,
    ListTasks,
    Request,
    Scope,
    SendMessage,
    Service,
    SubscribeToTask,
)
from dragoman.model.task import TaskState

_KNOWN = 10_000
"""How many callers are remembered; the ones longest silent are forgotten first."""

_OPEN = (TaskState.SUBMITTED, TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What is enough. None: no limit."""

    rate: float | None = None
    """Operations per second and caller; `burst` at once."""
    burst: int = 20
    concurrency: int | None = None
    """Operations of one caller under way, streams included."""
    open_tasks: int | None = None
    """Unfinished tasks of one caller with one agent."""
    agent_rate: float | None = None
    agent_burst: int = 100
    agent_concurrency: int | None = None
    queue: int | None = 100_000
    """Turns running or waiting in this process before new work is turned away."""

    @property
    def counts(self) -> bool:
        """Whether callers and agents have to be told apart at all."""
        limits = (self.rate, self.concurrency, self.agent_rate, self.agent_concurrency)
        return any(limit is not None for limit in limits)


class _Bucket:
    """A token bucket, and how many operations are under way."""

    __slots__ = ("tokens", "at", "busy")

    def __init__(self, burst: int) -> None:
        self.tokens, self.at, self.busy = float(burst), time.monotonic(), 0

    def take(self, rate: float, burst: int) -> float:
        """0 if there was a token; otherwise the seconds until there is one."""
        now = time.monotonic()
        self.tokens = min(float(burst), self.tokens + (now - self.at) * rate)
        self.at = now
        if self.tokens >= 1:
            self.tokens -= 1
            return 0.0
        return (1 - self.tokens) / rate


class Limited:
    """`service`, within `quota`. `queued` counts the turns running or waiting."""

    def __init__(self, service: Service, quota: Quota, *, queued: Callable[[], int]) -> None:
        self._service, self._quota, self._queued = service, quota, queued
        self._counts = quota.counts
        self._callers: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._agents: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._beginning: Counter[Scope] = Counter()

    def call(self, call: Call, request: Request) -> Coroutine[Any, Any, Any]:
        if self._counts or self._quota.open_tasks is not None:
            return self._call(call, request)
        self._admit(call, request)
        return self._service.call(call, request)

    async def _call(self, call: Call, request: Request) -> Any:
        buckets = self._admit(call, request)
        try:
            async with self._room(call, request):
                return await self._service.call(call, request)
        finally:
            _leave(buckets)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        buckets = self._admit(call, request)
        try:
            async with (
                self._room(call, request),
                aclosing(self._service.stream(call, request)) as batches,  # type: ignore[type-var]
            ):
                async for batch in batches:
                    yield batch
        finally:
            _leave(buckets)

    def _admit(self, call: Call, request: Request) -> tuple[_Bucket, ...]:
        """What the operation counts against while it is under way."""
        quota, scope = self._quota, call.scope
        if isinstance(request, SendMessage) and quota.queue is not None and self._queued() >= quota.queue:
            raise Unavailable("too much to do: try again in a moment", retry_after=1)
        if not self._counts:
            return ()
        caller = _of(self._callers, (scope.tenant, scope.owner), quota.burst)
        agent = _of(self._agents, (scope.tenant, scope.agent), quota.agent_burst)
        _pass(caller, quota.rate, quota.burst, quota.concurrency, "you are doing", "you ask")
        _pass(
            agent,
            quota.agent_rate,
            quota.agent_burst,
            quota.agent_concurrency,
            "this agent is doing",
            "this agent is asked",
        )
        caller.busy += 1
        agent.busy += 1
        return caller, agent

    @asynccontextmanager
    async def _room(self, call: Call, request: Request) -> AsyncIterator[None]:
        """Room for one more unfinished task, if the request begins one."""
        limit = self._quota.open_tasks
        if limit is None or not isinstance(request, SendMessage) or not await self._begins(call, request):
            yield
            return
        opened = 0
        for state in _OPEN:
            page = await self._service.call(call, ListTasks(status=state, page_size=1, history_length=0))
            opened += page.total_size
        # Of those on their way, some are tasks by now and some are not yet: there are at least as many as either.
        opened = max(opened, self._beginning[call.scope])
        if opened >= limit:
            raise RateLimited(
                f"you have {opened} unfinished tasks here, and {limit} are allowed", retry_after=5
            )
        self._beginning[call.scope] += 1
        try:
            yield
        finally:
            self._beginning[call.scope] -= 1
            self._beginning += Counter()  # without those that are at zero

    async def _begins(self, call: Call, request: SendMessage) -> bool:
        """Whether it begins a task. In the oldest versions, its name alone does not say so: callers choose it."""
        id = request.message.task_id
        if not id or not call.names_tasks:
            return not id
        try:
            await self._service.call(call, GetTask(id=id, history_length=0))
        except TaskNotFound:
            return True
        return False


def _leave(buckets: tuple[_Bucket, ...]) -> None:
    for bucket in buckets:
        bucket.busy -= 1


def _of(buckets: OrderedDict[tuple[str, str], _Bucket], key: tuple[str, str], burst: int) -> _Bucket:
    bucket = buckets.get(key)
    if bucket is None:
        bucket = buckets[key] = _Bucket(burst)
        if len(buckets) > _KNOWN:
            for old, idle in buckets.items():
                if not idle.busy:
                    del buckets[old]
                    break
    else:
        buckets.move_to_end(key)
    return bucket


def _pass(
    bucket: _Bucket, rate: float | None, burst: int, concurrency: int | None, does: str, asks: str
) -> None:
    if concurrency is not None and bucket.busy >= concurrency:
        raise RateLimited(f"{does} {bucket.busy} things at once already", retry_after=1)
    if rate is not None and (wait := bucket.take(rate, burst)) > 0:
        raise RateLimited(f"{asks} too often", retry_after=max(1.0, round(wait, 1)))

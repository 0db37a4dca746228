"""A `Service` that says when it is enough: rates, concurrency, open tasks.

Limits are per caller (the scope's tenant and owner) and per agent. Whoever is over one hears `RateLimited` and when to come
back. How much all callers together may have at work is for the engine to say (`engine/load.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

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
from dragoman.observe.tally import Tally


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
    queue: int | None = None
    """Turns running or waiting on this server before new work is turned away; None: as many as can run (`max_running` for
    each worker), so that none waits."""

    @property
    def counts(self) -> bool:
        """Whether callers and agents have to be told apart at all."""
        limits = (self.rate, self.concurrency, self.agent_rate, self.agent_concurrency)
        return any(limit is not None for limit in limits)


class Limited:
    """`service`, within `quota`. `unfinished` counts the open tasks of a scope, `tally` what callers and agents use."""

    def __init__(
        self,
        service: Service,
        quota: Quota,
        *,
        unfinished: Callable[[Scope], Awaitable[int]],
        tally: Tally | None = None,
    ) -> None:
        self._service, self._quota = service, quota
        self._unfinished = unfinished
        self._counts = quota.counts
        self._tally = tally or Tally()

    def call(self, call: Call, request: Request) -> Coroutine[Any, Any, Any]:
        if self._counts or self._quota.open_tasks is not None:
            return self._call(call, request)
        self._admit(call, request)
        return self._service.call(call, request)

    async def _call(self, call: Call, request: Request) -> Any:
        slots = self._admit(call, request)
        try:
            async with self._room(call, request):
                return await self._service.call(call, request)
        finally:
            self._leave(slots)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        slots = self._admit(call, request)
        try:
            async with (
                self._room(call, request),
                aclosing(self._service.stream(call, request)) as batches,  # type: ignore[type-var]
            ):
                async for batch in batches:
                    yield batch
        finally:
            self._leave(slots)

    def _admit(self, call: Call, request: Request) -> tuple[int, ...]:
        """What the operation counts against while it is under way."""
        quota, scope, tally = self._quota, call.scope, self._tally
        if not self._counts:
            return ()
        caller = tally.slot(("caller", scope.tenant, scope.owner))
        agent = tally.slot(("agent", scope.tenant, scope.agent))
        _pass(tally, caller, quota.rate, quota.burst, quota.concurrency, "you are doing", "you ask")
        _pass(
            tally,
            agent,
            quota.agent_rate,
            quota.agent_burst,
            quota.agent_concurrency,
            "this agent is doing",
            "this agent is asked",
        )
        tally.enter(caller)
        tally.enter(agent)
        return caller, agent

    def _leave(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._tally.leave(slot)

    @asynccontextmanager
    async def _room(self, call: Call, request: Request) -> AsyncIterator[None]:
        """Room for one more unfinished task, if the request begins one."""
        limit = self._quota.open_tasks
        if limit is None or not isinstance(request, SendMessage) or not await self._begins(call, request):
            yield
            return
        opened = await self._unfinished(call.scope)
        # Of those on their way, some are tasks by now and some are not yet: there are at least as many as either.
        beginning = self._tally.slot(("beginning", call.scope))
        opened = max(opened, self._tally.busy(beginning))
        if opened >= limit:
            raise RateLimited(
                f"you have {opened} unfinished tasks here, and {limit} are allowed", retry_after=5
            )
        self._tally.enter(beginning)
        try:
            yield
        finally:
            self._tally.leave(beginning)

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


def _pass(
    tally: Tally, slot: int, rate: float | None, burst: int, concurrency: int | None, does: str, asks: str
) -> None:
    if concurrency is not None and (busy := tally.busy(slot)) >= concurrency:
        raise RateLimited(f"{does} {busy} things at once already", retry_after=1)
    if rate is not None and (wait := tally.take(slot, rate, burst)) > 0:
        raise RateLimited(f"{asks} too often", retry_after=max(1.0, round(wait, 1)))

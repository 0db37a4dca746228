"""When to try again, how long to wait before, and calls that do so.

A request may be repeated when the peer cannot have acted on it (it never arrived, or was turned away), when acting on
it twice changes nothing, or when the peer recognizes a repeated `Idempotency-Key`. Everything else is reported, because
running work twice is worse than an error. `resumable_stream.py` does the same for streams.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dragoman.client.transport.transport import FINAL_ERRORS, NotSent
from dragoman.dialects.dialect import Dialect
from dragoman.errors import A2AError, RateLimited, TaskNotCancelable, Unavailable, Unreachable
from dragoman.model.ids import new_id
from dragoman.model.ops import (
    Call,
    CancelTask,
    CreatePushConfig,
    ExtensionCall,
    GetTask,
    Request,
    SendMessage,
    Service,
)
from dragoman.model.task import Task, TaskState


class Policy(Struct, frozen=True, kw_only=True):
    """How often and how long a client tries again."""

    attempts: int = 4
    """How often a call is tried in all."""
    patience: float = 60.0
    """How long, in seconds without news, a client asks for a task that it knows before it gives up. Also the longest
    `Retry-After` that it waits for, unless there is a timeout."""
    shortest: float = 0.2
    """The first wait between attempts, in seconds. Each wait doubles."""
    longest: float = 5.0
    """The longest wait between attempts, in seconds."""
    silence: float = 60.0
    """After so many seconds without even a keep-alive, a stream counts as dead and is opened again."""
    stalled: float = 0.0
    """After so many seconds without news, a task whose stream was lost, and on which nobody seems to work, raises `Stalled`.
    `ResumableStream` says when that is. 0: never."""


def is_transient(error: A2AError) -> bool:
    """True if the error may go away by itself."""
    return isinstance(error, Unreachable | Unavailable | RateLimited) and not isinstance(error, FINAL_ERRORS)


def can_repeat(error: A2AError, request: Request, *, deduplicates: bool) -> bool:
    """True if sending `request` again after `error` is safe. `deduplicates`: the peer knows repeated keys."""
    if not is_transient(error):
        return False
    turned_away = isinstance(error, RateLimited) or (
        isinstance(error, Unavailable) and error.retry_after is not None
    )
    if isinstance(error, NotSent) or turned_away or deduplicates:
        return True
    if isinstance(request, CreatePushConfig):
        return bool(request.config.id)
    return not isinstance(request, SendMessage | ExtensionCall)


def seconds_before_retry(policy: Policy, attempt: int, error: A2AError) -> float:
    """What the peer asked for, or a random part of a growing interval."""
    interval = min(policy.longest, policy.shortest * 2 ** min(attempt - 1, 16))
    jittered: float = interval * random.uniform(0.5, 1.0)
    return jittered if error.retry_after is None else max(error.retry_after, jittered / 4)


async def pause(policy: Policy, attempt: int, error: A2AError, deadline: float | None) -> None:
    """Wait before the next attempt. Raises `error` now if there is no time for one."""
    seconds = seconds_before_retry(policy, attempt, error)
    if deadline is not None:
        too_long = time.time() + seconds >= deadline
    else:
        too_long = error.retry_after is not None and seconds > policy.patience
    if too_long:
        raise error
    await asyncio.sleep(seconds)


class Peer(Service, Protocol):
    """A service over one binding, and what is known of the agent behind it."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def is_dragoman(self) -> bool:
        """A Dragoman server: it continues a stream after an event, and recognizes a repeated `Idempotency-Key`."""
        ...


class RetryingCalls:
    """Unary operations of a peer, tried again where that is safe."""

    def __init__(self, peer: Peer, policy: Policy) -> None:
        self.peer, self.policy = peer, policy
        self._probed = False
        """We have asked whether the peer is a Dragoman server."""

    async def call(self, call: Call, request: Request, *, patient: bool = False) -> Any:
        """The result of `request`.

        `patient`: the request is about a task that goes on, and its server may be away for a while. A message that has
        arrived is such a request, too.
        """
        attempt, since = 0, time.monotonic()
        while True:
            began = time.monotonic()
            try:
                return await self.peer.call(call, request)
            except A2AError as error:
                if attempt and isinstance(request, CancelTask) and isinstance(error, TaskNotCancelable):
                    return await self._canceled_task(call, request, error)
                if time.monotonic() - began >= self.policy.longest:
                    attempt, since = 0, time.monotonic()
                attempt += 1
                patient = patient or (isinstance(request, SendMessage) and type(error) is Unreachable)
                waits = patient and time.monotonic() - since < self.policy.patience
                exhausted = attempt >= self.policy.attempts and not waits
                if exhausted or not await self.may_repeat(call, request, error):
                    if (started := await self.find_started_task(call, request, error)) is not None:
                        return started
                    raise
                await pause(self.policy, attempt, error, call.deadline)

    async def may_repeat(self, call: Call, request: Request, error: A2AError) -> bool:
        """True if sending `request` again is safe. Probes a server that has not answered yet."""
        if can_repeat(error, request, deduplicates=self.peer.is_dragoman):
            return True
        if self._probed or not is_transient(error):
            return False
        for attempt in range(1, self.policy.attempts):
            probe = GetTask(id=new_id(), tenant=request.tenant)
            try:
                await self.peer.call(replace(call, idempotency_key=""), probe)
            except A2AError as answer:
                if is_transient(answer):  # it is not back yet
                    await pause(self.policy, attempt, answer, call.deadline)
                    continue
            self._probed = True
            return self.peer.is_dragoman
        return False

    async def find_started_task(self, call: Call, request: Request, error: A2AError) -> Task | None:
        """The task of a send whose answer was lost, if we know its id: in the oldest versions we choose it."""
        if not isinstance(request, SendMessage) or request.message.task_id or not is_transient(error):
            return None
        if not self.peer.dialect.names_tasks or isinstance(error, NotSent):
            return None
        try:
            asked = GetTask(id=call.idempotency_key, tenant=request.tenant)
            task: Task = await self.call(call, asked, patient=True)
        except A2AError:
            return None
        return task

    async def _canceled_task(self, call: Call, request: CancelTask, error: TaskNotCancelable) -> Task:
        """The peer refused a repeated cancel. Returns the task if the first cancel worked."""
        task: Task = await self.call(call, GetTask(id=request.id, tenant=request.tenant))
        if task.state is not TaskState.CANCELED:
            raise error
        return task

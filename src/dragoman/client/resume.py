"""A `Service` that lasts: it repeats what is safe to repeat, and its streams go on after a broken connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

from msgspec.structs import replace

from dragoman.client.reading import Reading
from dragoman.client.retry import Policy, pause, repeatable, transient
from dragoman.client.transport.transport import NotSent
from dragoman.dialects.dialect import Dialect
from dragoman.errors import A2AError, TaskNotCancelable, Unreachable
from dragoman.model.content import Message
from dragoman.model.fold import Fold
from dragoman.model.ids import new_id
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
    CreatePushConfig,
    GetTask,
    Request,
    SendMessage,
    Service,
    SubscribeToTask,
)
from dragoman.model.task import Task, TaskState

_GRACE = 1.0
_ALWAYS_WAIT = ("0.1", "draft", "arbiter")
"""Versions in which a send cannot ask to be answered at once."""


class Peer(Service, Protocol):
    """A service as a binding provides it, and what is known of the agent behind it."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def ours(self) -> bool:
        """A Dragoman server: it continues a stream after an event, and knows a repeated `Idempotency-Key`."""
        ...


class Lasting:
    """A `Service` on top of a binding's. `streams` is what the card says."""

    def __init__(self, peer: Peer, policy: Policy | None = None, *, streams: bool = True) -> None:
        self.peer = peer
        self.policy = policy or Policy()
        self.streams = streams
        self._readings: set[Reading] = set()
        self._introduced = False
        """We know whether the peer is one of ours."""

    async def call(self, call: Call, request: Request) -> Any:
        if isinstance(request, SendMessage):
            call = _keyed(call)
            if (
                request.configuration.return_immediately
                and self.streams
                and self.peer.dialect.name in _ALWAYS_WAIT
            ):
                return await self._sent(call, request)
        if (
            isinstance(request, CreatePushConfig)
            and not request.config.id
            and self.peer.dialect.names_configs
        ):
            request = replace(request, config=replace(request.config, id=new_id()))
        return await self.repeated(call, request)

    async def repeated(self, call: Call, request: Request, *, patient: bool = False) -> Any:
        """A unary operation, tried again where that is safe.

        `patient`: it is about a task that goes on, whose server may be away for a while. So is a message that has arrived.
        """
        attempt, since = 0, time.monotonic()
        while True:
            began = time.monotonic()
            try:
                result = await self.peer.call(call, request)
                if isinstance(request, CancelTask) and self._readings and not self.peer.ours:
                    self._nudge(request.id)
                return result
            except A2AError as error:
                if attempt and isinstance(request, CancelTask) and isinstance(error, TaskNotCancelable):
                    return await self._canceled(call, request, error)
                if time.monotonic() - began >= self.policy.longest:
                    attempt, since = 0, time.monotonic()
                attempt += 1
                patient = patient or (isinstance(request, SendMessage) and type(error) is Unreachable)
                waits = patient and time.monotonic() - since < self.policy.patience
                tired = attempt >= self.policy.attempts and not waits
                if tired or not await self.may_repeat(call, request, error):
                    if (begun := await self.begun(call, request, error)) is not None:
                        return begun
                    raise
                await pause(self.policy, attempt, error, call.deadline)

    async def _sent(self, call: Call, request: SendMessage) -> Task | Message:
        """Send, and do not wait for the end: the first event says that the agent has the message."""
        fold = Fold()
        async with aclosing(self.stream(call, request)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                for response in batch:
                    fold.apply(response.event)
                break
        first = fold.message or fold.task
        if first is None:
            raise Unreachable("the stream ended without an event")
        return first

    async def may_repeat(self, call: Call, request: Request, error: A2AError) -> bool:
        """Whether sending `request` again is safe. A server that was not heard yet is asked whether it is one of ours."""
        if repeatable(error, request, deduplicates=self.peer.ours):
            return True
        if self._introduced or not transient(error):
            return False
        for attempt in range(1, self.policy.attempts):
            probe = GetTask(id=new_id(), tenant=request.tenant)
            try:
                await self.peer.call(replace(call, idempotency_key=""), probe)
            except A2AError as answer:
                if transient(answer):  # it is not back yet
                    await pause(self.policy, attempt, answer, call.deadline)
                    continue
            self._introduced = True
            return self.peer.ours
        return False

    async def begun(self, call: Call, request: Request, error: A2AError) -> Task | None:
        """The task of a send whose answer was lost, where that can be told: in the oldest versions we choose its name."""
        if not isinstance(request, SendMessage) or request.message.task_id or not transient(error):
            return None
        if not self.peer.dialect.names_tasks or isinstance(error, NotSent):
            return None
        try:
            asked = GetTask(id=call.idempotency_key, tenant=request.tenant)
            task: Task = await self.repeated(call, asked, patient=True)
        except A2AError:
            return None
        return task

    async def _canceled(self, call: Call, request: CancelTask, error: TaskNotCancelable) -> Task:
        """A repeated cancel was refused: because the first one worked?"""
        task: Task = await self.call(call, GetTask(id=request.id, tenant=request.tenant))
        if task.state is not TaskState.CANCELED:
            raise error
        return task

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        reading = Reading(self, _keyed(call) if isinstance(request, SendMessage) else call, request)
        self._readings.add(reading)
        try:
            async with aclosing(reading.run()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self._readings.discard(reading)

    def _nudge(self, task: str) -> None:
        """Some servers leave the streams of a canceled task open. Those that are still read in a while look for themselves."""
        for reading in self._readings:
            if reading.task_id == task:
                asyncio.get_running_loop().call_later(_GRACE, reading.nudge)


def _keyed(call: Call) -> Call:
    return call if call.idempotency_key else replace(call, idempotency_key=new_id())

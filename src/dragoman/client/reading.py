"""One stream, across all the connections it takes: the ladder.

Read the stream; if it breaks, subscribe to the task; if the agent does not offer that, ask for the task now and then. On
one of our own servers a subscription continues after the last event (`Last-Event-ID`). Anywhere else the agent's picture
of the task is compared with what was heard. Each event is passed on once, whatever happened in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from dragoman.client.heard import Heard
from dragoman.client.replay import Replay, missed
from dragoman.client.retry import pause, transient
from dragoman.errors import (
    A2AError,
    Forbidden,
    MethodNotFound,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model.fold import Fold
from dragoman.model.ops import Batch, Call, GetTask, SendMessage, StreamResponse, SubscribeToTask
from dragoman.model.task import TERMINAL, ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

if TYPE_CHECKING:
    from dragoman.client.resume import Lasting

_NOT_OFFERED = (UnsupportedOperation, MethodNotFound)
_GRACE = 1.0
"""How long a stream may stay open after the end of its task, or after the question that we were sent."""


class Reading:
    """A stream that is being read."""

    def __init__(self, service: Lasting, call: Call, request: SendMessage | SubscribeToTask) -> None:
        self._service = service
        self._peer = service.peer
        self._policy = service.policy
        self._call = call
        self._request = request
        self._sends = isinstance(request, SendMessage)
        self._repeats = service.peer.dialect.name == "arbiter"
        """A subscription tells everything again, from the first event."""
        self._events = Heard(request.id if isinstance(request, SubscribeToTask) else "")
        self._heard: deque[TaskStatus] = deque(maxlen=1000)
        self._after = call.after
        self._asked = False
        """The agent asked for input in this stream (and not only before it)."""
        self._ended = False
        """The last thing that was heard of the task was its end."""
        self._news = False
        """Something was heard on the present connection."""
        self._wait: asyncio.Timeout | None = None
        self._nudged = False

    @property
    def task_id(self) -> str:
        return self._fold.task_id

    @property
    def _fold(self) -> Fold:
        """What we know of the task."""
        return self._events.fold

    def nudge(self) -> None:
        """Stop waiting for the peer to speak; ask it."""
        self._nudged = True
        if self._wait is not None:
            self._wait.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> AsyncGenerator[Batch]:
        request = self._request
        rung = self._send_and_poll if self._sends and not self._service.streams else None
        failures, lost_at = 0, time.monotonic()
        while rung is None:
            self._news = False
            error: A2AError | None = None
            try:
                async with aclosing(self._connected(request)) as batches:
                    async for batch in batches:
                        yield batch
            except A2AError as raised:
                error = raised
            if self._done(clean=error is None):
                return
            if self._news:
                failures, lost_at = 0, time.monotonic()
            failures += 1
            rung = self._rung_below(request, error, failures)
            if rung is None:
                error = error or Unreachable("the stream ended before the task did")
                if not self._fold.task_id and (begun := await self._lost(failures, error)) is not None:
                    self._fold.task_id = begun.id
                if self._fold.task_id:
                    request = SubscribeToTask(id=self._fold.task_id, tenant=self._request.tenant)
                    if time.monotonic() - lost_at > self._policy.patience:
                        raise error
                await pause(self._policy, failures, error, self._call.deadline)
        async with aclosing(rung()) as batches:
            async for batch in batches:
                yield batch

    async def _lost(self, failures: int, error: A2AError) -> Task | None:
        """The stream broke before its task had a name. None if it may be begun again; raises `error` if it must not."""
        if failures < self._policy.attempts and await self._service.may_repeat(
            self._call, self._request, error
        ):
            return None
        begun = await self._service.begun(self._call, self._request, error)
        if begun is None:
            raise error
        return begun

    def _rung_below(
        self, request: SendMessage | SubscribeToTask, error: A2AError | None, failures: int
    ) -> Callable[[], AsyncGenerator[Batch]] | None:
        """Where to go on when streaming does not help; None while it may. Raises what nothing helps against."""
        if self._nudged and self._fold.task_id:
            return self._poll
        if error is None:
            return self._poll if failures > 2 else None  # it lets us subscribe, and says nothing
        if transient(error):
            fails = isinstance(error, Unavailable) and failures >= self._policy.attempts
            return self._poll if fails and self._fold.task_id and not self._peer.ours else None
        if isinstance(error, _NOT_OFFERED):
            return self._poll if self._fold.task_id else self._send_and_poll
        if isinstance(request, SubscribeToTask) and not isinstance(error, Unauthenticated | Forbidden):
            return self._poll  # it cannot be followed, perhaps because it is finished
        raise error

    def _done(self, *, clean: bool) -> bool:
        if self._ended:
            return True
        fold = self._fold
        if not fold.state.interrupted:
            return False
        if self._sends and fold.state is TaskState.INPUT_REQUIRED and (clean or self._asked):
            return True
        return clean and not (self._peer.ours and not self._peer.dialect.ends_on_interrupt)

    async def _connected(self, request: SendMessage | SubscribeToTask) -> AsyncGenerator[Batch]:
        """One connection. What it repeats is left out."""
        again = request is not self._request
        numbered = self._peer.ours and self._peer.dialect.resumable and bool(self._after)
        call = replace(self._call, after=self._after) if numbered and again else self._call
        replay = Replay(self._fold, self._heard, repeats=self._repeats) if again else None
        batches = cast(AsyncGenerator[Batch], self._peer.stream(call, request))
        async with aclosing(batches):
            while (batch := await self._next(batches)) is not None:
                if replay is None:
                    self._news = True
                    self._hear_all(batch)
                    yield batch
                    continue
                out: list[StreamResponse] = []
                for response in batch:
                    for event in await self._new(response, replay, numbered):
                        out.append(StreamResponse(event, response.seq))
                        self._hear(out[-1])
                    if self._peer.ours and response.seq:
                        self._after = response.seq
                    if self._ended:
                        break
                if out:
                    self._news = True
                    yield out
                if self._ended or (self._sends and self._asked):
                    return

    async def _next(self, batches: AsyncIterator[Batch]) -> Batch | None:
        all_said = self._ended or (self._sends and self._asked)
        try:
            async with asyncio.timeout(_GRACE if all_said else None) as self._wait:
                return await anext(batches, None)
        except TimeoutError as error:
            if all_said:  # though the peer does not hang up
                return None
            raise Unreachable("the stream went on after its task was canceled") from error
        finally:
            self._wait = None

    def _hear_all(self, batch: Batch) -> None:
        """`_hear` each; most are chunks of artifacts, and only the last number counts."""
        add = self._events.add
        for response in batch:
            if type(response.event) is ArtifactUpdate:
                add(response.event)
            else:
                self._hear(response)
        self._after = next((response.seq for response in reversed(batch) if response.seq), self._after)

    def _hear(self, response: StreamResponse) -> None:
        event = response.event
        self._events.add(event)
        if response.seq:
            self._after = response.seq
        if type(event) is ArtifactUpdate:
            return
        if isinstance(event, StatusUpdate):
            self._heard.append(event.status)
            self._asked = event.status.state is TaskState.INPUT_REQUIRED
            self._ended = event.status.state in TERMINAL
        else:
            self._ended = not isinstance(event, Task) or event.status.state in TERMINAL

    async def _new(self, response: StreamResponse, replay: Replay, numbered: bool) -> list[Event]:
        """What of an event is news. `replay` looks at the fold, which is not added up until somebody asks for it."""
        event, _ = response.event, self._fold
        if numbered and not isinstance(event, Task):
            return [event] if not response.seq or response.seq > (self._after or 0) else []
        if self._repeats or replay.follows(event):
            return replay.read(event)
        return replay.catch_up(event, await self._task())

    async def _task(self) -> Task:
        asked = GetTask(id=self._fold.task_id, tenant=self._request.tenant)
        task: Task = await self._service.repeated(self._call, asked, patient=True)
        return task

    async def _poll(self) -> AsyncGenerator[Batch]:
        interval = self._policy.shortest
        while True:
            task = await self._task()
            known = self._fold.status is not None
            news = [StreamResponse(event) for event in (missed(self._fold, task) if known else [task])]
            if news:
                for response in news:
                    self._hear(response)
                yield news
                interval = self._policy.shortest
            if self._fold.over:
                return
            await asyncio.sleep(interval)
            interval = min(self._policy.longest, interval * 1.5)

    async def _send_and_poll(self) -> AsyncGenerator[Batch]:
        request = self._request
        assert isinstance(request, SendMessage)
        soon = replace(request.configuration, return_immediately=True)
        sent = await self._service.repeated(self._call, replace(request, configuration=soon))
        response = StreamResponse(sent)
        self._hear(response)
        yield [response]
        if not self._fold.over:
            async with aclosing(self._poll()) as batches:
                async for batch in batches:
                    yield batch

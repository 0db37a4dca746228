"""A `Service` that retries calls and resumes streams.

A stream is read across all the connections that it takes. If a connection breaks, the client subscribes to the task. If
the agent does not offer that, the client polls the task. A Dragoman server continues a subscription after the last event
(`Last-Event-ID`). With other servers the peer's current task is compared with what was received (`deduplicate.py`). Each
event is passed on once.

A task may be called working for ever, though nobody works on it. `Policy.stalled` limits how long that is believed. It is only
doubted if the stream in which the task was followed is lost, and one of these holds:

* The card offers streams, and the agent refuses a subscription to the task, or ends it before the task ends.
* The card is of 0.2. The usual server of that version, a2a-sdk 0.2, stops a task whose stream is lost. It takes a subscription then,
  and sends keep-alives only.

Any news of the task begins the time again. A subscription that stays open in any other version is never doubted, and neither is
an agent that does not stream, nor a Dragoman server.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any, cast

from msgspec.structs import replace

from dragoman.client.answers import AnotherTask
from dragoman.client.deduplicate import ReplayFilter, missed_events
from dragoman.client.retry import Peer, Policy, RetryingCalls, is_transient, pause
from dragoman.errors import (
    A2AError,
    Forbidden,
    MethodNotFound,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model.content import Message
from dragoman.model.fold import Fold, LazyFold
from dragoman.model.ids import new_id
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
    CreatePushConfig,
    GetTask,
    Request,
    ResumeTask,
    SendMessage,
    StreamResponse,
    SubscribeToTask,
)
from dragoman.model.task import TERMINAL, ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

_NOT_OFFERED = (UnsupportedOperation, MethodNotFound)
_FINAL = (Unauthenticated, Forbidden, AnotherTask)
"""Errors of a subscription after which the task is not polled either."""
_CLOSE_SECONDS = 1.0
"""How long a stream may stay open after its last event."""
_QUIET_SECONDS = 15.0
"""After so long without an event, an agent that may leave the streams of ended tasks open is asked whether the task has ended."""
MAX_REMEMBERED_BYTES = 64 << 20
"""How much of a stream is remembered, to compare it with the peer's task after a broken connection. A longer stream of a peer
that does not number its events is not resumed."""
_MAX_STATUSES = 1000
"""How many received statuses are compared with a stream that starts again."""


class Stalled(A2AError):
    """The agent calls a task working, and nobody seems to work on it."""


class RetryingService:
    """A `Service` on top of a peer's. `streams`: the card offers streaming. `stops_unread`: the agent may have stopped a task
    whose stream was lost, and not say so."""

    def __init__(
        self,
        peer: Peer,
        policy: Policy | None = None,
        *,
        streams: bool = True,
        stops_unread: bool = False,
    ) -> None:
        self.peer = peer
        self.policy = policy or Policy()
        self.streams, self.stops_unread = streams, stops_unread
        self._calls = RetryingCalls(peer, self.policy)
        self.open_streams: set[ResumableStream] = set()
        """Streams that are being read. Services of the same agent may share it: a cancel through one ends streams of all."""

    async def call(self, call: Call, request: Request, *, patient: bool = False) -> Any:
        """The result of `request`. `patient` as for `RetryingCalls.call`."""
        dialect = self.peer.dialect
        if isinstance(request, SendMessage):
            call = _with_key(call)
            if request.configuration.return_immediately and self.streams and dialect.always_waits:
                return await self._send_without_waiting(call, request)
        if isinstance(request, CreatePushConfig) and not request.config.id and dialect.names_configs:
            request = replace(request, config=replace(request.config, id=new_id()))
        result = await self._calls.call(call, request, patient=patient)
        if isinstance(request, CancelTask) and self.open_streams and not self.peer.is_dragoman:
            self._poll_soon(request.id, result)
        return result

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        call = _with_key(call) if isinstance(request, SendMessage) else call
        stream = ResumableStream(
            self._calls, call, request, streams=self.streams, stops_unread=self.stops_unread
        )
        self.open_streams.add(stream)
        try:
            async with aclosing(stream.read()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self.open_streams.discard(stream)
            stream.close()

    async def _send_without_waiting(self, call: Call, request: SendMessage) -> Task | Message:
        """Open a stream and return at its first event: the agent has the message then."""
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

    def _poll_soon(self, task: str, answer: Any) -> None:
        """Some servers leave the streams of a canceled task open. Streams that are still open in a while poll instead."""
        canceled = answer if isinstance(answer, Task) and answer.id == task else None
        for stream in self.open_streams:
            if stream.task_id == task:
                asyncio.get_running_loop().call_later(_CLOSE_SECONDS, stream.stop_waiting, canceled)


class ResumableStream:
    """One stream that is being read."""

    def __init__(
        self,
        calls: RetryingCalls,
        call: Call,
        request: SendMessage | SubscribeToTask,
        *,
        streams: bool,
        stops_unread: bool = False,
    ) -> None:
        self._calls = calls
        self._peer = calls.peer
        self._policy = calls.policy
        self._call = call
        self._request = request
        self._sends = isinstance(request, SendMessage)
        self._streams = streams
        self._events = LazyFold(request.id if isinstance(request, SubscribeToTask) else "")
        if isinstance(request, ResumeTask):
            self._events.add(request.known)
        self._statuses: deque[TaskStatus] = deque(maxlen=_MAX_STATUSES)
        self._after = call.after
        self._asked = False
        """The agent asked for input in this stream, not only before it."""
        self._ended = False
        """The last event was the end of the task."""
        self._progress = False
        """The present connection has sent something new."""
        self._remembered = 0
        """Bytes of artifacts that are remembered."""
        self._forgot = False
        """There were too many of them."""
        self._wait: asyncio.Timeout | None = None
        self._polls = False
        self._known_end: Task | None = None
        """The task when it had ended, as the peer said outside of the stream: as the answer to a cancel, or asked for it."""
        self._heard = 0.0
        """When something came last."""
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._stops_unread = stops_unread
        self._lost = isinstance(request, ResumeTask)
        """The stream in which the task was followed is lost."""
        self._refused = False
        """The peer does not let us subscribe to the task."""
        self._seen: Task | None = None
        """The task as the peer showed it last, since nobody may be working on it."""
        self._news_at = 0.0
        """When that changed."""
        self._stalled = False

    @property
    def task_id(self) -> str:
        return self._fold.task_id

    @property
    def _fold(self) -> Fold:
        return self._events.fold

    def stop_waiting(self, said: Task | None = None) -> None:
        """Stop waiting for the peer to send something, and poll the task. `said`: what the peer said about it."""
        self._polls = True
        if said is not None and said.state.terminal:
            self._known_end = said
        if self._wait is not None:
            self._wait.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def _watch(self) -> None:
        """Some servers leave streams open after a cancel, which may have come from anywhere: ask when nothing comes."""
        if self._peer.is_dragoman:
            return
        loop = asyncio.get_running_loop()
        quiet, limit = loop.time() - self._heard, self._quiet_seconds
        if quiet < limit or self._wait is None:
            self._timer = loop.call_later(max(min(_CLOSE_SECONDS, limit), limit - quiet), self._watch)
        else:
            self._asking = loop.create_task(self._ask_whether_it_ended())

    @property
    def _quiet_seconds(self) -> float:
        return min(_QUIET_SECONDS, self._policy.stalled) if self._may_have_stalled else _QUIET_SECONDS

    @property
    def _may_have_stalled(self) -> bool:
        """Perhaps nobody works on the task any more, whatever the peer calls it."""
        signs = self._refused or (self._lost and self._stops_unread)
        return signs and self._streams and self._policy.stalled > 0 and not self._peer.is_dragoman

    async def _ask_whether_it_ended(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(A2AError):
            before = self._heard
            request = GetTask(id=self._fold.task_id, tenant=self._request.tenant)
            task: Task | None = await self._calls.call(self._call, request) if self._fold.task_id else None
            if task is not None and task.state.terminal:
                await asyncio.sleep(_CLOSE_SECONDS)  # its last events may be on their way
                if self._heard == before and self._wait is not None:
                    self.stop_waiting(task)
                    return
            if task is not None and self._heard == before and self._has_stalled(task):
                self._stalled = True
                self.stop_waiting()
                return
        self._heard = loop.time()
        self._timer = loop.call_later(self._quiet_seconds, self._watch)

    def _has_stalled(self, task: Task) -> bool:
        """True if nothing is new in a task for so long that nobody can be working on it. `task`: as it is now."""
        now = asyncio.get_running_loop().time()
        if not self._may_have_stalled or task.state.settled or task != self._seen:
            self._seen, self._news_at = task, now
            return False
        return now - self._news_at >= self._policy.stalled

    async def read(self) -> AsyncGenerator[Batch]:
        self._heard = asyncio.get_running_loop().time()
        self._watch()
        request = self._request
        if isinstance(request, ResumeTask):
            request = SubscribeToTask(id=request.id, tenant=request.tenant)
        fallback = self._send_and_poll if self._sends and not self._streams else None
        failures, lost_at = 0, time.monotonic()
        while fallback is None:
            self._progress = False
            error: A2AError | None = None
            try:
                async with aclosing(self._read_connection(request)) as batches:
                    async for batch in batches:
                        yield batch
            except A2AError as raised:
                error = raised
            if self._is_done(clean=error is None):
                return
            if self._stalled:
                raise _stalled_for(self._policy)
            self._lost = True
            if self._forgot:
                raise error or Unreachable("the stream ended before the task did")
            if self._progress:
                failures, lost_at = 0, time.monotonic()
            failures += 1
            fallback = self._choose_fallback(request, error, failures)
            if fallback is None:
                error = error or Unreachable("the stream ended before the task did")
                if not self._fold.task_id and (started := await self._find_task(failures, error)) is not None:
                    self._fold.task_id = started.id
                if self._fold.task_id:
                    request = SubscribeToTask(id=self._fold.task_id, tenant=self._request.tenant)
                    if time.monotonic() - lost_at > self._policy.patience:
                        raise error
                await pause(self._policy, failures, error, self._call.deadline)
        async with aclosing(fallback()) as batches:
            async for batch in batches:
                yield batch

    async def _find_task(self, failures: int, error: A2AError) -> Task | None:
        """The stream broke before we knew its task. None if it may be started again; raises `error` if it must not."""
        if failures < self._policy.attempts and await self._calls.may_repeat(
            self._call, self._request, error
        ):
            return None
        started = await self._calls.find_started_task(self._call, self._request, error)
        if started is None:
            raise error
        return started

    def _choose_fallback(
        self, request: SendMessage | SubscribeToTask, error: A2AError | None, failures: int
    ) -> Callable[[], AsyncGenerator[Batch]] | None:
        """How to continue without a stream. None while a stream may still work. Raises an error that is final."""
        if self._polls and self._fold.task_id:
            return self._poll
        if error is None:
            if failures <= 2:
                return None
            self._refused = True  # the peer accepts subscriptions, and sends nothing
            return self._poll
        if is_transient(error):
            fails = isinstance(error, Unavailable) and failures >= self._policy.attempts
            return self._poll if fails and self._fold.task_id and not self._peer.is_dragoman else None
        if isinstance(error, _NOT_OFFERED):
            return self._poll if self._fold.task_id else self._send_and_poll
        if isinstance(request, SubscribeToTask) and not isinstance(error, _FINAL):
            self._refused = True
            return self._poll  # it cannot be subscribed to, perhaps because it is finished
        raise error

    def _is_done(self, *, clean: bool) -> bool:
        if self._ended:
            return True
        fold = self._fold
        if not fold.state.interrupted:
            return False
        if self._sends and fold.state is TaskState.INPUT_REQUIRED and (clean or self._asked):
            return True
        return clean and not (self._peer.is_dragoman and not self._peer.dialect.ends_on_interrupt)

    async def _read_connection(self, request: SendMessage | SubscribeToTask) -> AsyncGenerator[Batch]:
        """The events of one connection, without those that were received before."""
        again = request is not self._request
        dialect = self._peer.dialect
        numbered = self._peer.is_dragoman and dialect.resumable and bool(self._after)
        call = replace(self._call, after=self._after) if numbered and again else self._call
        replay = (
            ReplayFilter(self._fold, self._statuses, repeats=dialect.subscription_repeats) if again else None
        )
        batches = cast(AsyncGenerator[Batch], self._peer.stream(call, request))
        async with aclosing(batches):
            while (batch := await self._next(batches)) is not None:
                if replay is None:
                    self._progress = True
                    self._add_all(batch)
                    yield batch
                    continue
                out: list[StreamResponse] = []
                for response in batch:
                    for event in await self._new_events(response, replay, numbered):
                        out.append(StreamResponse(event, response.seq))
                        self._add(out[-1])
                    if self._peer.is_dragoman and response.seq:
                        self._after = response.seq
                    if self._ended:
                        break
                if out:
                    self._progress = True
                    yield out
                if self._ended or (self._sends and self._asked):
                    return

    async def _next(self, batches: AsyncIterator[Batch]) -> Batch | None:
        complete = self._ended or (self._sends and self._asked)
        if self._polls and not complete:  # `stop_waiting` was called while nobody waited
            raise Unreachable("the stream went on after the end of its task")
        try:
            async with asyncio.timeout(_CLOSE_SECONDS if complete else None) as self._wait:
                return await anext(batches, None)
        except TimeoutError as error:
            if complete:  # though the peer does not close the stream
                return None
            raise Unreachable("the stream went on after the end of its task") from error
        finally:
            self._wait = None
            self._heard = asyncio.get_running_loop().time()

    def _add_all(self, batch: Batch) -> None:
        """`_add` each. Most events are chunks of artifacts, and only the last number counts."""
        numbered = self._peer.is_dragoman and self._peer.dialect.resumable
        for response in batch:
            if type(response.event) is ArtifactUpdate:
                if not (numbered and response.seq):
                    self._remember(response.event)
            else:
                self._add(response)
        self._after = next((response.seq for response in reversed(batch) if response.seq), self._after)

    def _add(self, response: StreamResponse) -> None:
        event = response.event
        if response.seq:
            self._after = response.seq
        if type(event) is ArtifactUpdate:
            self._remember(event)
            return
        self._events.add(event)
        if isinstance(event, StatusUpdate):
            self._statuses.append(event.status)
            self._asked = event.status.state is TaskState.INPUT_REQUIRED
            ended = event.status.state in TERMINAL
        else:
            ended = not isinstance(event, Task) or event.status.state in TERMINAL
        self._ended = self._ended or ended  # whatever comes after that: a finished task never changes

    def _remember(self, event: ArtifactUpdate) -> None:
        """Keep a chunk for a comparison. After a number we only need that (`_add_all`)."""
        if self._forgot:
            return
        for part in event.artifact.parts:
            content = part.text if part.text is not None else part.raw
            self._remembered += 64 + len(content) if content is not None else 1024
        if self._remembered <= MAX_REMEMBERED_BYTES:
            self._events.add(event)
            return
        self._forgot = True
        self._fold.artifacts.clear()

    async def _new_events(
        self, response: StreamResponse, replay: ReplayFilter, numbered: bool
    ) -> list[Event]:
        event, _ = response.event, self._fold  # `replay` holds the fold: bring it up to date first
        if numbered and not isinstance(event, Task):
            return [event] if not response.seq or response.seq > (self._after or 0) else []
        if self._peer.dialect.subscription_repeats or replay.is_continuous(event):
            return replay.read(event)
        return replay.catch_up(event, await self._get_task())

    async def _get_task(self) -> Task:
        request = GetTask(id=self._fold.task_id, tenant=self._request.tenant)
        task: Task = await self._calls.call(self._call, request, patient=True)
        return task

    async def _poll(self) -> AsyncGenerator[Batch]:
        interval = self._policy.shortest
        while True:
            task = await self._get_task()
            if self._known_end is not None and not task.state.terminal:
                # On some servers a late update undoes a cancel. Nobody works on the task, and it would never end.
                task = self._known_end
            known = self._fold.status is not None
            news = [StreamResponse(event) for event in (missed_events(self._fold, task) if known else [task])]
            if news:
                for response in news:
                    self._add(response)
                yield news
                interval = self._policy.shortest
            if self._fold.settled and not self._awaits_authorization():
                return
            if self._has_stalled(task):
                raise _stalled_for(self._policy)
            await asyncio.sleep(interval)
            interval = min(self._policy.longest, interval * 1.5)

    def _awaits_authorization(self) -> bool:
        """True if a subscription to the task would stay open, though the task is interrupted."""
        waits = self._fold.state is TaskState.AUTH_REQUIRED and not self._sends
        return waits and not self._peer.dialect.ends_on_interrupt

    async def _send_and_poll(self) -> AsyncGenerator[Batch]:
        request = self._request
        assert isinstance(request, SendMessage)
        configuration = replace(request.configuration, return_immediately=True)
        sent = await self._calls.call(self._call, replace(request, configuration=configuration))
        response = StreamResponse(sent)
        self._add(response)
        yield [response]
        if not self._fold.settled:
            async with aclosing(self._poll()) as batches:
                async for batch in batches:
                    yield batch


def _stalled_for(policy: Policy) -> Stalled:
    return Stalled(f"the agent calls the task working, and nothing came of it for {policy.stalled:g} s")


def _with_key(call: Call) -> Call:
    return call if call.idempotency_key else replace(call, idempotency_key=new_id())

"""A `Service` that is watched: every operation is counted, traced, named in the log, and, if it changes anything, audited.

The same object watches the runner (`engine.seams.Observer`) and the door (failed authentications).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, Protocol

from msgspec.structs import replace

from dragoman.engine.protocols import Audit, AuditEntry
from dragoman.engine.records import Snapshot
from dragoman.engine.turn import Turn
from dragoman.errors import A2AError
from dragoman.model.content import Message
from dragoman.model.ids import timestamp
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
    CreatePushConfig,
    DeletePushConfig,
    GetOrigin,
    Principal,
    Request,
    SendMessage,
    Service,
    SubscribeToTask,
)
from dragoman.model.task import Task
from dragoman.observe.logs import ABOUT
from dragoman.observe.metrics import Metrics
from dragoman.observe.request_log import log_refusal, log_request, log_task

LEFT = "LEFT"
"""How an operation ended whose caller did not wait for its end."""
_LONGEST = 256
"""Of a task's name, when somebody else has chosen it."""
_CHANGES = (SendMessage, CancelTask, CreatePushConfig, DeletePushConfig)


class Tracer(Protocol):
    """Makes spans. `request` and `turn` give the trace context to pass on."""

    def request(self, call: Call, operation: str) -> AbstractContextManager[dict[str, str]]: ...

    def turn(self, turn: Turn) -> AbstractContextManager[dict[str, str]]: ...

    def close(self) -> None:
        """Nothing more comes. It may take a moment."""
        ...


class Watch:
    """What watches one application."""

    def __init__(self, *, metrics: Metrics | None, audit: Audit | None, tracer: Tracer | None = None) -> None:
        self.metrics, self.audit, self.tracer = metrics, audit, tracer

    def service(self, service: Service) -> Service:
        return _Watched(service, self)

    # -- the runner (`Observer`) -------------------------------------------------------------------------------

    def turn(self, turn: Turn) -> _WatchedTurn:
        return _WatchedTurn(self, turn)

    def settled(self, snapshot: Snapshot) -> None:
        log_task(snapshot)
        if self.metrics is not None:
            self.metrics.settled(snapshot)

    # -- what is done ------------------------------------------------------------------------------------------

    def note(self, call: Call, operation: str, request: Request | None, task: str, outcome: str) -> None:
        if self.audit is None or not isinstance(request, _CHANGES):
            return
        self.audit.record(
            AuditEntry(
                at=timestamp(),
                tenant=call.scope.tenant,
                agent=call.scope.agent,
                principal=call.principal.id,
                operation=operation,
                task=task,
                outcome=outcome,
                dialect=call.dialect,
                trace=_trace_id(call.trace),
            )
        )

    def resumed(self, turn: Turn) -> None:
        """A turn begins again, because the process that took it on is gone."""
        if self.audit is not None:
            self.audit.record(
                AuditEntry(
                    at=timestamp(),
                    tenant=turn.scope.tenant,
                    agent=turn.scope.agent,
                    principal=turn.principal,
                    operation="resume",
                    task=turn.task_id,
                    outcome="OK",
                    dialect=turn.mail.origin,
                    trace=_trace_id(turn.trace),
                )
            )

    def refused(self, agent: str, error: A2AError) -> None:
        """Somebody was not let in."""
        log_refusal(agent, error.reason)
        if self.metrics is not None:
            self.metrics.refused(agent, error.reason)
        if self.audit is not None:
            self.audit.record(
                AuditEntry(at=timestamp(), agent=agent, operation="authenticate", outcome=error.reason)
            )


class _WatchedTurn:
    """Around one run of an agent's function."""

    __slots__ = ("_before", "_span", "_turn", "_watch")

    def __init__(self, watch: Watch, turn: Turn) -> None:
        self._watch, self._turn = watch, turn

    def __enter__(self) -> None:
        watch, turn = self._watch, self._turn
        if watch.tracer is not None:
            self._span = watch.tracer.turn(turn)
            turn.trace = self._span.__enter__()
        self._before = ABOUT.set(self._about)
        asked = self._before.old_value
        if isinstance(asked, _Asked):  # we run where the message came in, and in the context of its call
            asked.note(turn.task_id, "OK")
        if turn.attempt > 1:
            watch.resumed(turn)
        if watch.metrics is not None:
            watch.metrics.running(turn.scope.agent, 1)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._watch.metrics is not None:
            self._watch.metrics.running(self._turn.scope.agent, -1)
        if error is None:  # what an agent raises is logged after this, and in a context of the task's own
            ABOUT.reset(self._before)
        if self._watch.tracer is not None:
            self._span.__exit__(kind, error, traceback)

    def _about(self) -> Mapping[str, str]:
        turn, scope = self._turn, self._turn.scope
        return {
            "task": turn.task_id,
            "context": turn.context_id,
            "agent": scope.agent,
            "tenant": scope.tenant,
            "principal": turn.principal,
            "trace": _trace_id(turn.trace),
        }


class _Asked:
    """A call that is under way: says what lines of the log are about, and is noted once.

    What is sent is noted when its turn begins, before anything of that is on disk: a server that is killed leaves no
    change of a task behind that nobody asked for. Everything else is noted when it ends.
    """

    __slots__ = ("_call", "_noted", "_request", "_watch")

    def __init__(self, watch: Watch, call: Call, request: Request) -> None:
        self._watch, self._call, self._request, self._noted = watch, call, request, False

    def __call__(self) -> Mapping[str, str]:
        call, scope = self._call, self._call.scope
        return {
            "agent": scope.agent,
            "tenant": scope.tenant,
            "principal": call.principal.id,
            "trace": _trace_id(call.trace),
        }

    def note(self, task: str, outcome: str) -> None:
        if not self._noted:
            self._noted = True
            request = self._request
            self._watch.note(self._call, type(request).__name__, request, task or _named(request), outcome)


class _Watched:
    def __init__(self, service: Service, watch: Watch) -> None:
        self._service, self._watch = service, watch

    def call(self, call: Call, request: Request) -> Coroutine[Any, Any, Any]:
        if isinstance(request, GetOrigin):
            return self._service.call(call, request)
        return self._call(call, request) if self._watch.tracer is None else self._traced(call, request)

    async def _traced(self, call: Call, request: Request) -> Any:
        assert self._watch.tracer is not None
        with self._watch.tracer.request(call, type(request).__name__) as trace:
            return await self._call(replace(call, trace=trace), request)

    async def _call(self, call: Call, request: Request) -> Any:
        began, outcome, task, state = time.perf_counter(), "INTERNAL_ERROR", "", ""
        asked = _Asked(self._watch, call, request)
        before = ABOUT.set(asked)
        try:
            result = await self._service.call(call, request)
            outcome, task = "OK", _task_of(result)
            if isinstance(result, Task):
                state = result.state.word
            return result
        except A2AError as error:
            outcome = error.reason
            raise
        except asyncio.CancelledError:
            outcome = LEFT
            raise
        finally:
            metrics, seconds = self._watch.metrics, time.perf_counter() - began
            log_request(
                call,
                type(request).__name__,
                state or outcome,
                seconds,
                task or _named(request),
                _trace_id(call.trace),
            )
            if metrics is not None:
                metrics.answered(call.scope.agent, type(request).__name__, call.dialect, outcome, seconds)
            asked.note(task, outcome)
            ABOUT.reset(before)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        operation = "SubscribeToTask" if isinstance(request, SubscribeToTask) else "SendStreamingMessage"
        metrics, agent, outcome, noted = self._watch.metrics, call.scope.agent, "INTERNAL_ERROR", False
        began, task, left, state = time.perf_counter(), _named(request), False, ""
        if metrics is not None:
            metrics.stream(agent, 1)
        tracer = self._watch.tracer
        # The span is not made current here: a generator's context is its caller's, and would leak.
        span = tracer.request(call, operation) if tracer is not None else nullcontext(call.trace)
        with span as trace:
            call = replace(call, trace=trace)
            try:
                async with aclosing(self._service.stream(call, request)) as batches:  # type: ignore[type-var]
                    async for batch in batches:
                        if not noted and batch:  # what was sent is taken; a stream may go on for days
                            noted, task = True, _task_of(batch[0].event)
                            self._watch.note(call, operation, request, task, "OK")
                        if batch and (status := getattr(batch[-1].event, "status", None)) is not None:
                            state = status.state.word if status.state.over else ""
                        yield batch
                outcome = "OK"
            except A2AError as error:
                outcome = error.reason
                raise
            except (GeneratorExit, asyncio.CancelledError):
                outcome, left = "OK", True  # the reader left; that is its right
                raise
            finally:
                seconds = time.perf_counter() - began
                ended = state or (LEFT if left else outcome)  # readers leave when they have heard the end
                log_request(call, operation, ended, seconds, task, _trace_id(call.trace))
                if metrics is not None:
                    metrics.stream(agent, -1)
                    metrics.answered(agent, operation, call.dialect, outcome, None)
                if not noted:
                    self._watch.note(call, operation, request, _named(request), outcome)


class WatchedDoor:
    """An `Authenticator` whose refusals are seen."""

    def __init__(self, door: Any, agent: str, watch: Watch) -> None:
        self._agent, self._watch = agent, watch
        self.unwatched = door
        """Whose refusals nobody sees."""
        self.challenge: str = door.challenge

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        try:
            principal: Principal = await self.unwatched.authenticate(
                headers, query=query, certificate=certificate
            )
            return principal
        except A2AError as error:
            self._watch.refused(self._agent, error)
            raise


def _task_of(result: Any) -> str:
    if isinstance(result, Task):
        return result.id
    return getattr(result, "task_id", "") if not isinstance(result, Message) else result.task_id


def _named(request: Request) -> str:
    """The task that a request speaks of, as far as it could be one of ours."""
    if isinstance(request, SendMessage):
        named = request.message.task_id
    elif isinstance(request, CreatePushConfig):
        named = request.config.task_id
    else:
        named = getattr(request, "task_id", "") or getattr(request, "id", "")
    return named[:_LONGEST]


def _trace_id(trace: Mapping[str, str]) -> str:
    if not trace:
        return ""
    pieces = trace.get("traceparent", "").split("-")
    return pieces[1] if len(pieces) >= 4 else ""  # later versions may say more

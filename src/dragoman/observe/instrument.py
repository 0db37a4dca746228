"""Counts, traces, logs and audits what happens: every operation, every turn, every failed authentication.

`Instrumentation` belongs to one application. It wraps the service (`InstrumentedService`) and the authenticators
(`InstrumentedAuth`), and observes the runner (`engine.protocols.Observer`).
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
from dragoman.engine.turn import Turn, record_of
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
from dragoman.model.usage import TokenUsage
from dragoman.observe.logs import LOG_FIELDS, log_refusal, log_request, log_task
from dragoman.observe.metrics import Metrics

LEFT = "LEFT"
"""The outcome of an operation whose caller did not wait for the end."""
_MAX_TASK_ID_CHARACTERS = 256
"""Of a task id that a caller chose, in logs and audit entries."""
_AUDITED = (SendMessage, CancelTask, CreatePushConfig, DeletePushConfig)


class Tracer(Protocol):
    """Makes spans. `request` and `turn` return the trace context to pass on."""

    def request(self, call: Call, operation: str) -> AbstractContextManager[dict[str, str]]: ...

    def turn(self, turn: Turn) -> AbstractContextManager[dict[str, str]]: ...

    def close(self) -> None:
        """Send the spans that are left. This may block."""
        ...


class Instrumentation:
    """The metrics, audit and tracer of one application. Any of them may be missing."""

    def __init__(self, *, metrics: Metrics | None, audit: Audit | None, tracer: Tracer | None = None) -> None:
        self.metrics, self.audit, self.tracer = metrics, audit, tracer

    # -- the runner (`Observer`) -------------------------------------------------------------------------------

    def turn(self, turn: Turn) -> _InstrumentedTurn:
        return _InstrumentedTurn(self, turn)

    def settled(self, snapshot: Snapshot) -> None:
        log_task(snapshot)
        if self.metrics is not None:
            self.metrics.count_settled(snapshot)

    def count_usage(self, turn: Turn, used: TokenUsage) -> None:
        if self.metrics is not None:
            self.metrics.count_usage(turn.scope.agent, used)

    # -- audit -------------------------------------------------------------------------------------------------

    def audit_request(self, call: Call, operation: str, request: Request, task: str, outcome: str) -> None:
        """Write an audit entry if the request changes something."""
        if self.audit is None or not isinstance(request, _AUDITED):
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

    def audit_resume(self, turn: Turn) -> None:
        """Write that a turn runs again because the process that ran it is gone."""
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

    def record_refusal(self, agent: str, error: A2AError, path: str = "") -> None:
        """Log, count and audit a failed authentication. A caller chose the path, so only the log has it."""
        log_refusal(agent, error.reason, path)
        if self.metrics is not None:
            self.metrics.count_refused(agent, error.reason)
        if self.audit is not None:
            self.audit.record(
                AuditEntry(at=timestamp(), agent=agent, operation="authenticate", outcome=error.reason)
            )


class _InstrumentedTurn:
    """Surrounds one run of an agent's function."""

    __slots__ = ("_before", "_instruments", "_span", "_turn")

    def __init__(self, instruments: Instrumentation, turn: Turn) -> None:
        self._instruments, self._turn = instruments, turn

    def __enter__(self) -> None:
        instruments, turn = self._instruments, self._turn
        if instruments.tracer is not None:
            self._span = instruments.tracer.turn(turn)
            turn.trace = self._span.__enter__()
        self._before = LOG_FIELDS.set(self._log_fields)
        request = self._before.old_value
        if isinstance(
            request, _RequestContext
        ):  # the turn runs in the context of the call that sent the message
            request.audit(turn.task_id, "OK")
        if turn.attempt > 1:
            instruments.audit_resume(turn)
        if instruments.metrics is not None:
            instruments.metrics.count_running(turn.scope.agent, 1)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._instruments.metrics is not None:
            self._instruments.metrics.count_running(self._turn.scope.agent, -1)
        for used in record_of(self._turn).used_now or ():
            self._instruments.count_usage(self._turn, used)
        if error is None:  # the runner logs an agent's error after this, and its line needs our fields
            LOG_FIELDS.reset(self._before)
        if self._instruments.tracer is not None:
            self._span.__exit__(kind, error, traceback)

    def _log_fields(self) -> Mapping[str, str]:
        turn, scope = self._turn, self._turn.scope
        return {
            "task": turn.task_id,
            "context": turn.context_id,
            "agent": scope.agent,
            "tenant": scope.tenant,
            "principal": turn.principal,
            "trace": _trace_id(turn.trace),
        }


class _RequestContext:
    """A request under way: gives log lines their fields, and is audited once.

    A sent message is audited when its turn starts, before the turn writes anything. So a server that is killed never leaves a
    changed task without an audit entry. Every other request is audited when it ends.
    """

    __slots__ = ("_audited", "_call", "_instruments", "_request")

    def __init__(self, instruments: Instrumentation, call: Call, request: Request) -> None:
        self._instruments, self._call, self._request, self._audited = instruments, call, request, False

    def __call__(self) -> Mapping[str, str]:
        call, scope = self._call, self._call.scope
        return {
            "agent": scope.agent,
            "tenant": scope.tenant,
            "principal": call.principal.id,
            "trace": _trace_id(call.trace),
        }

    def audit(self, task: str, outcome: str) -> None:
        if not self._audited:
            self._audited = True
            request, task = self._request, task or _task_named_by(self._request)
            self._instruments.audit_request(self._call, type(request).__name__, request, task, outcome)


class InstrumentedService:
    """A `Service` whose operations are counted, traced, logged and audited."""

    def __init__(self, service: Service, instruments: Instrumentation) -> None:
        self._service, self._instruments = service, instruments

    def call(self, call: Call, request: Request) -> Coroutine[Any, Any, Any]:
        if isinstance(request, GetOrigin):
            return self._service.call(call, request)
        return self._call(call, request) if self._instruments.tracer is None else self._traced(call, request)

    async def _traced(self, call: Call, request: Request) -> Any:
        assert self._instruments.tracer is not None
        with self._instruments.tracer.request(call, type(request).__name__) as trace:
            return await self._call(replace(call, trace=trace), request)

    async def _call(self, call: Call, request: Request) -> Any:
        began, outcome, task, state = time.perf_counter(), "INTERNAL_ERROR", "", ""
        context = _RequestContext(self._instruments, call, request)
        before = LOG_FIELDS.set(context)
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
            metrics, seconds = self._instruments.metrics, time.perf_counter() - began
            operation, named = type(request).__name__, task or _task_named_by(request)
            log_request(call, operation, state or outcome, seconds, named, _trace_id(call.trace))
            if metrics is not None:
                metrics.count_request(call.scope.agent, operation, call.dialect, outcome, seconds)
            context.audit(task, outcome)
            LOG_FIELDS.reset(before)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        operation = "SubscribeToTask" if isinstance(request, SubscribeToTask) else "SendStreamingMessage"
        metrics, agent, outcome, audited = (
            self._instruments.metrics,
            call.scope.agent,
            "INTERNAL_ERROR",
            False,
        )
        began, task, left, state = time.perf_counter(), _task_named_by(request), False, ""
        if metrics is not None:
            metrics.count_streams(agent, 1)
        tracer = self._instruments.tracer
        # The span is not made current here: a generator's context is its caller's, and would leak.
        span = tracer.request(call, operation) if tracer is not None else nullcontext(call.trace)
        with span as trace:
            call = replace(call, trace=trace)
            try:
                async with aclosing(self._service.stream(call, request)) as batches:  # type: ignore[type-var]
                    async for batch in batches:
                        if not audited and batch:  # the message is accepted; the stream may go on for days
                            audited, task = True, _task_of(batch[0].event)
                            self._instruments.audit_request(call, operation, request, task, "OK")
                        if batch and (status := getattr(batch[-1].event, "status", None)) is not None:
                            state = status.state.word if status.state.over else ""
                        yield batch
                outcome = "OK"
            except A2AError as error:
                outcome = error.reason
                raise
            except (GeneratorExit, asyncio.CancelledError):
                outcome, left = "OK", True  # a reader may leave at any time
                raise
            finally:
                seconds = time.perf_counter() - began
                ended = state or (
                    LEFT if left else outcome
                )  # a reader leaves when it has read the last event
                log_request(call, operation, ended, seconds, task, _trace_id(call.trace))
                if metrics is not None:
                    metrics.count_streams(agent, -1)
                    metrics.count_request(agent, operation, call.dialect, outcome, None)
                if not audited:
                    self._instruments.audit_request(
                        call, operation, request, _task_named_by(request), outcome
                    )


class InstrumentedAuth:
    """An `Authenticator` whose refusals are logged, counted and audited."""

    def __init__(self, inner: Any, agent: str, instruments: Instrumentation) -> None:
        self._agent, self._instruments = agent, instruments
        self.inner = inner
        """The authenticator itself, whose refusals nobody records."""
        self.challenge: str = inner.challenge

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        try:
            principal: Principal = await self.inner.authenticate(
                headers, query=query, certificate=certificate
            )
            return principal
        except A2AError as error:
            self._instruments.record_refusal(self._agent, error)
            raise


def _task_of(result: Any) -> str:
    if isinstance(result, Task):
        return result.id
    return getattr(result, "task_id", "") if not isinstance(result, Message) else result.task_id


def _task_named_by(request: Request) -> str:
    """The task id in a request. A caller chose it, so it may be long."""
    if isinstance(request, SendMessage):
        id = request.message.task_id
    elif isinstance(request, CreatePushConfig):
        id = request.config.task_id
    else:
        id = getattr(request, "task_id", "") or getattr(request, "id", "")
    return id[:_MAX_TASK_ID_CHARACTERS]


def _trace_id(trace: Mapping[str, str]) -> str:
    if not trace:
        return ""
    pieces = trace.get("traceparent", "").split("-")
    return pieces[1] if len(pieces) >= 4 else ""  # later versions may have more fields

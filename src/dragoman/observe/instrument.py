"""Counts, traces, logs and audits what happens: every operation, every turn, every failed authentication.

`Instrumentation` belongs to one application. It wraps the service (`InstrumentedService`) and the authenticators
(`InstrumentedAuth`), and observes the runner (`engine.program.Observer`).
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from contextvars import Token
from datetime import datetime
from functools import partial
from logging import INFO
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.engine.protocols import Audit, AuditEntry
from dragoman.engine.snapshot import Snapshot
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
    PushConfig,
    Request,
    SendMessage,
    Service,
    SubscribeToTask,
)
from dragoman.model.task import Task
from dragoman.model.usage import TokenUsage
from dragoman.observe.logs import LOG_FIELDS, log_refusal, log_request, log_task, requests_logger

LEFT = "LEFT"
"""The outcome of an operation whose caller did not wait for the end."""
_MAX_TASK_ID_CHARACTERS = 256
"""Of a task id that a caller chose, in logs and audit entries."""
MAX_REFUSALS_PER_MINUTE = 60
"""Failed authentications of one agent and reason that are written to the audit log one by one."""
AUDITED = (SendMessage, CancelTask, CreatePushConfig, DeletePushConfig)


BUCKET_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)
"""Where the buckets of histograms end."""

Key = tuple[str, ...]
"""The labels of a metric."""


class Histogram(Struct):
    """How often something took how long, in buckets."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self.total += seconds

    def __add__(self, other: Histogram) -> Histogram:
        both = zip(self.buckets, other.buckets, strict=True)
        return Histogram([ours + theirs for ours, theirs in both], self.total + other.total)


class Counts(Struct):
    """What one worker counts. `streams` and `running` are gauges: they end with the worker.

    Every call adds to plain dictionaries, on the loop's thread. They become Prometheus's metrics at a scrape (`metrics.py`),
    because a counter of the client library takes a lock and a dozen calls each time.
    """

    requests: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[Key, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    settled: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    task_seconds: dict[Key, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    refused: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    commits: dict[Key, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    pushes: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    tokens: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    cost: dict[Key, float] = field(default_factory=lambda: defaultdict(float))
    upstream_calls: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    upstream_seconds: dict[Key, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    streams: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    running: dict[Key, int] = field(default_factory=lambda: defaultdict(int))

    def count_usage(self, agent: str, used: TokenUsage) -> None:
        for kind, count in used.tokens:
            self.tokens[agent, used.model, kind] += count
        if used.cost:
            self.cost[agent, used.model, used.currency] += used.cost

    def plus(self, other: Counts) -> Counts:
        out = Counts()
        for each in (self, other):
            for name in Counts.__struct_fields__:
                sums: Any = getattr(out, name)
                for key, value in getattr(each, name).items():
                    sums[key] = sums[key] + value
        return out


class Tracer(Protocol):
    """Makes spans. `request` and `turn` return the trace context to pass on."""

    def request(self, call: Call, operation: str) -> AbstractContextManager[dict[str, str]]: ...

    def turn(self, turn: Turn) -> AbstractContextManager[dict[str, str]]: ...

    def upstream(
        self, call: Call, route: str, upstream: str, operation: str
    ) -> AbstractContextManager[dict[str, str]]: ...

    def close(self) -> None:
        """Send the spans that are left. This may block."""
        ...


class Instrumentation:
    """The counts, audit and tracer of one application. Any of them may be missing."""

    def __init__(self, *, counts: Counts | None, audit: Audit | None, tracer: Tracer | None = None) -> None:
        self.counts, self.audit, self.tracer = counts, audit, tracer
        self.turn = partial(_InstrumentedTurn, self)
        self._refusals = RefusalAudit(audit) if audit is not None else None

    def close(self) -> None:
        if self._refusals is not None:
            self._refusals.close()

    # -- the runner (`Observer`) -------------------------------------------------------------------------------

    def settled(self, snapshot: Snapshot) -> None:
        if snapshot.hidden:
            return
        if requests_logger.isEnabledFor(INFO):
            log_task(snapshot)
        if (counts := self.counts) is not None:
            status, mails, agent = snapshot.status, snapshot.mails, snapshot.scope.agent
            counts.settled[agent, status.state.word] += 1
            if status.state.terminal and mails and (at := mails[0][1].at):
                seconds = time.time() - datetime.fromisoformat(at).timestamp()
                counts.task_seconds[agent, status.state.word].add(max(0.0, seconds))

    def count_usage(self, turn: Turn, used: TokenUsage) -> None:
        if self.counts is not None:
            self.counts.count_usage(turn.scope.agent, used)

    # -- audit -------------------------------------------------------------------------------------------------

    def audit_request(
        self, call: Call, operation: str, request: Request | None, task: str, outcome: str, agent: str = ""
    ) -> None:
        """Write an audit entry if the request changes something. None: what happened was no request."""
        if self.audit is None or not (request is None or isinstance(request, AUDITED)):
            return
        self.audit.record(
            AuditEntry(
                at=timestamp(),
                tenant=call.scope.tenant,
                agent=agent or call.scope.agent,
                principal=call.principal.id,
                operation=operation,
                task=task,
                outcome=outcome,
                dialect=call.dialect,
                trace=_trace_id(call.trace) if call.trace else "",
            )
        )

    def audit_resume(self, turn: Turn) -> None:
        """Write that a turn runs again because the process that ran it is gone."""
        call = Call(
            scope=turn.scope,
            principal=Principal(id=turn.principal),
            dialect=turn.mail.origin,
            trace=turn.trace,
        )
        self.audit_request(call, "resume", None, turn.task_id, "OK")

    def record_refusal(self, agent: str, error: A2AError, path: str = "") -> None:
        """Log, count and audit a failed authentication. A caller chose the path, so only the log has it."""
        log_refusal(agent, error.reason, path)
        if self.counts is not None:
            self.counts.refused[agent, error.reason] += 1
        if self._refusals is not None:
            self._refusals.record(agent, error.reason)


class InstrumentedUpstream:
    """Observes what a bridge sends to the agent behind a route (`bridge.upstream.UpstreamObserver`)."""

    def __init__(self, instruments: Instrumentation, route: str) -> None:
        self._instruments, self._route = instruments, route

    def begin(self, upstream: str, call: Call, operation: str, request: Request) -> _UpstreamCall:
        return _UpstreamCall(self._instruments, self._route, upstream, call, operation, request)

    def refuse(self, call: Call, operation: str, reason: str) -> None:
        if self._instruments.counts is not None:
            self._instruments.counts.upstream_calls[self._route, "", operation, reason] += 1


class _UpstreamCall:
    """One call of the agent behind a route."""

    __slots__ = ("_about", "_began", "_instruments", "_request", "_span", "call")

    def __init__(
        self,
        instruments: Instrumentation,
        route: str,
        upstream: str,
        call: Call,
        operation: str,
        request: Request,
    ) -> None:
        self._instruments, self._request, self._began = instruments, request, time.monotonic()
        self._about = route, upstream, operation
        self._span: AbstractContextManager[dict[str, str]] | None = None
        self.call = call
        if instruments.tracer is not None:
            self._span = instruments.tracer.upstream(call, *self._about)
            self.call = replace(call, trace=self._span.__enter__())

    def end(self, outcome: str) -> None:
        seconds, instruments = time.monotonic() - self._began, self._instruments
        route, upstream, operation = self._about
        if self._span is not None:
            failed = None if outcome in ("OK", LEFT) else _Failed(outcome)
            with suppress(_Failed):
                self._span.__exit__(_Failed if failed else None, failed, None)
        if instruments.counts is not None:
            instruments.counts.upstream_calls[route, upstream, operation, outcome] += 1
            instruments.counts.upstream_seconds[route, upstream, operation].add(seconds)
        task = str(getattr(self._request, "id", ""))[:_MAX_TASK_ID_CHARACTERS]
        result = f"{outcome}, {upstream}, {seconds:.3f} s"
        instruments.audit_request(self.call, f"upstream/{operation}", self._request, task, result, route)


class _Failed(A2AError):
    """Ends a span with the reason of an error that has been raised elsewhere."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RefusalAudit:
    """Writes failed authentications to the audit log, and does not let strangers fill the disk with them.

    The first `most` of each agent and reason in `seconds` are written one by one. The rest becomes one entry with their number.
    """

    def __init__(self, audit: Audit, *, most: int = MAX_REFUSALS_PER_MINUTE, seconds: float = 60.0) -> None:
        self._audit, self._most, self._seconds = audit, most, seconds
        self._count: Counter[tuple[str, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def record(self, agent: str, reason: str) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.close)
        self._count[agent, reason] += 1
        if self._count[agent, reason] <= self._most:
            self._write(agent, reason)

    def close(self) -> None:
        """Write how many more there were, and start a new count."""
        if self._timer is not None:
            self._timer.cancel()
        counted, self._count, self._timer = self._count, Counter(), None
        for (agent, reason), count in counted.items():
            if count > self._most:
                self._write(agent, f"{reason}, {count - self._most} more")

    def _write(self, agent: str, outcome: str) -> None:
        entry = AuditEntry(at=timestamp(), agent=agent, operation="authenticate", outcome=outcome)
        self._audit.record(entry)


class _InstrumentedTurn(Struct):
    """Surrounds one run of an agent's function."""

    instruments: Instrumentation
    turn: Turn
    before: Token[Callable[[], Mapping[str, str]] | None] | None = None
    span: AbstractContextManager[dict[str, str]] | None = None

    def __enter__(self) -> None:
        instruments, turn = self.instruments, self.turn
        if instruments.tracer is not None:
            self.span = instruments.tracer.turn(turn)
            turn.trace = self.span.__enter__()
        self.before = LOG_FIELDS.set(self._log_fields)
        request = self.before.old_value
        # The turn may run in the context of the call that sent the message.
        if isinstance(request, _RequestContext):
            request.audit(turn.task_id, "OK")
        if turn.attempt > 1:
            instruments.audit_resume(turn)
        if instruments.counts is not None:
            instruments.counts.running[(turn.scope.agent,)] += 1

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        instruments, turn = self.instruments, self.turn
        if instruments.counts is not None:
            instruments.counts.running[(turn.scope.agent,)] -= 1
        for used in record_of(turn).used_now or ():
            instruments.count_usage(turn, used)
        if error is None and self.before is not None:
            # Otherwise the runner logs the agent's error after this, and its line needs our fields.
            LOG_FIELDS.reset(self.before)
        if self.span is not None:
            self.span.__exit__(kind, error, traceback)

    def _log_fields(self) -> Mapping[str, str]:
        turn, scope = self.turn, self.turn.scope
        return {
            "task": turn.task_id,
            "context": turn.context_id,
            "agent": scope.agent,
            "tenant": scope.tenant,
            "principal": turn.principal,
            "trace": _trace_id(turn.trace),
        }


class _RequestContext(Struct):
    """A request under way: gives log lines their fields, and is audited once.

    A sent message is audited when its turn starts, before the turn writes anything. So a server that is killed never leaves a
    changed task without an audit entry. Every other request is audited when it ends.
    """

    instruments: Instrumentation
    call: Call
    request: Request
    audited: bool = False

    def __call__(self) -> Mapping[str, str]:
        call, scope = self.call, self.call.scope
        return {
            "agent": scope.agent,
            "tenant": scope.tenant,
            "principal": call.principal.id,
            "trace": _trace_id(call.trace),
        }

    def audit(self, task: str, outcome: str) -> None:
        """Write an audit entry, unless there is one."""
        if not self.audited:
            self.audited = True
            request, task = self.request, task or _task_named_by(self.request)
            self.instruments.audit_request(self.call, type(request).__name__, request, task, outcome)


class InstrumentedService:
    """A `Service` whose operations are counted, traced, logged and audited."""

    def __init__(self, service: Service, instruments: Instrumentation) -> None:
        self._service, self._instruments = service, instruments

    async def call(self, call: Call, request: Request, *, traced: bool = False) -> Any:
        if isinstance(request, GetOrigin):
            return await self._service.call(call, request)
        if self._instruments.tracer is not None and not traced:
            with self._instruments.tracer.request(call, type(request).__name__) as trace:
                return await self.call(replace(call, trace=trace), request, traced=True)
        began, outcome, task, state = time.perf_counter(), "INTERNAL_ERROR", "", ""
        context = _RequestContext(self._instruments, call, request)
        before = LOG_FIELDS.set(context)
        try:
            result = await self._service.call(call, request)
            outcome = "OK"
            if isinstance(result, Task):
                task, state = result.id, result.status.state.word
            elif isinstance(result, Message | PushConfig):
                task = result.task_id
            return result
        except A2AError as error:
            outcome = error.reason
            raise
        except asyncio.CancelledError:
            outcome = LEFT
            raise
        finally:
            operation, seconds = type(request).__name__, time.perf_counter() - began
            if requests_logger.isEnabledFor(INFO):
                named = task or _task_named_by(request)
                log_request(call, operation, state or outcome, seconds, named, _trace_id(call.trace))
            if self._instruments.counts is not None:
                counts, agent = self._instruments.counts, call.scope.agent
                counts.requests[agent, operation, call.dialect, outcome] += 1
                counts.seconds[agent, operation].add(seconds)
            if isinstance(request, AUDITED):
                context.audit(task, outcome)
            LOG_FIELDS.reset(before)

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        operation = "SubscribeToTask" if isinstance(request, SubscribeToTask) else "SendStreamingMessage"
        counts, agent, outcome, audited = self._instruments.counts, call.scope.agent, "INTERNAL_ERROR", False
        began, task, left, state = time.perf_counter(), "", False, ""
        if counts is not None:
            counts.streams[(agent,)] += 1
        tracer = self._instruments.tracer
        # The span is not made current here: a generator's context is its caller's, and would leak.
        span = tracer.request(call, operation) if tracer is not None else nullcontext(call.trace)
        with span as trace:
            call = replace(call, trace=trace)
            try:
                async with aclosing(self._service.stream(call, request)) as batches:  # type: ignore[type-var]
                    async for batch in batches:
                        if not audited and batch:  # the message is accepted; the stream may go on for days
                            audited, first = True, batch[0].event
                            task = first.id if isinstance(first, Task) else first.task_id
                            self._instruments.audit_request(call, operation, request, task, "OK")
                        if batch and (status := getattr(batch[-1].event, "status", None)) is not None:
                            state = status.state.word if status.state.settled else ""
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
                # A reader also leaves when it has read the last event.
                ended = state or (LEFT if left else outcome)
                if requests_logger.isEnabledFor(INFO):
                    named = task or _task_named_by(request)
                    log_request(call, operation, ended, seconds, named, _trace_id(call.trace))
                if counts is not None:
                    counts.streams[(agent,)] -= 1
                    counts.requests[agent, operation, call.dialect, outcome] += 1
                if not audited:
                    named = _task_named_by(request)
                    self._instruments.audit_request(call, operation, request, named, outcome)


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

"""Spans for OpenTelemetry (the extra `otel`): one trace from the first client through every agent to the webhook.

A request's span continues the caller's trace. A turn's span continues the request's, through the log, so also after a restart.
Calls of a turn continue the turn's. Names of attributes follow OpenTelemetry's draft conventions for agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dragoman.engine.turn import Turn
from dragoman.errors import A2AError
from dragoman.model.ops import Call

_PROPAGATOR = TraceContextTextMapPropagator()
_EXPORTERS = "opentelemetry_traces_exporter"
_FLUSH_MILLISECONDS = 5000

_Span = AbstractContextManager[dict[str, str]]
"""Gives the trace context to pass on."""


def tracer_from_environment(environment: Mapping[str, str]) -> OpenTelemetry:
    """Make a tracer from OpenTelemetry's own environment variables. Raises `ValueError` for an unknown exporter.

    `OTEL_TRACES_EXPORTER` defaults to `otlp`, which uses `OTEL_EXPORTER_OTLP_ENDPOINT`. If the process has a provider already
    (`opentelemetry-instrument` makes one), the tracer uses that one.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return OpenTelemetry()
    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": "dragoman"}))
    for name in (environment.get("OTEL_TRACES_EXPORTER") or "otlp").split(","):
        if name.strip() == "none":
            continue
        found = [*entry_points(group=_EXPORTERS, name=name.strip())]
        if not found:
            raise ValueError(
                f"there is no exporter {name.strip()!r}: pip install opentelemetry-exporter-otlp, or set "
                "OTEL_TRACES_EXPORTER=console"
            )
        provider.add_span_processor(BatchSpanProcessor(found[0].load()()))
    trace.set_tracer_provider(provider)
    return OpenTelemetry(provider)


class OpenTelemetry:
    """A `Tracer`. Without a provider it uses the process's own (`opentelemetry.trace.set_tracer_provider`)."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._provider = provider or trace.get_tracer_provider()
        self._tracer = trace.get_tracer("dragoman", tracer_provider=provider)

    def close(self) -> None:
        """Send the spans that are left."""
        if isinstance(self._provider, TracerProvider):
            self._provider.force_flush(_FLUSH_MILLISECONDS)

    def request(self, call: Call, operation: str) -> _Span:
        attributes = {
            "rpc.system": "a2a",
            "rpc.method": operation,
            "a2a.version": call.dialect,
            "gen_ai.agent.id": call.scope.agent,
            "a2a.tenant": call.scope.tenant,
            "enduser.id": call.principal.id,
        }
        return self._span(f"a2a {operation}", SpanKind.SERVER, call.trace, attributes)

    def turn(self, turn: Turn) -> _Span:
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.id": turn.scope.agent,
            "a2a.task.id": turn.task_id,
            "gen_ai.conversation.id": turn.context_id,
            "a2a.turn": turn.n,
            "a2a.attempt": turn.attempt,
        }
        return self._span(f"invoke_agent {turn.scope.agent}", SpanKind.INTERNAL, turn.mail.trace, attributes)

    def upstream(self, call: Call, route: str, upstream: str, operation: str) -> _Span:
        attributes = {
            "rpc.system": "a2a",
            "rpc.method": operation,
            "gen_ai.agent.id": route,
            "server.address": upstream.rpartition(":")[0] or upstream,
            "server.port": upstream.rpartition(":")[2] if ":" in upstream else "",
        }
        return self._span(f"a2a {operation}", SpanKind.CLIENT, call.trace, attributes)

    @contextmanager
    def _span(
        self, name: str, kind: SpanKind, parent: dict[str, str], attributes: Mapping[str, str | int]
    ) -> Iterator[dict[str, str]]:
        known = {key: value for key, value in attributes.items() if value != ""}
        span = self._tracer.start_span(name, context=_PROPAGATOR.extract(parent), kind=kind, attributes=known)
        context: dict[str, str] = {}
        _PROPAGATOR.inject(context, context=trace.set_span_in_context(span))
        try:
            yield context or parent
        except A2AError as error:
            _fail(span, error.reason)
            raise
        except Exception:
            _fail(span, "INTERNAL_ERROR")
            raise
        finally:
            span.end()


def _fail(span: Span, reason: str) -> None:
    span.set_attribute("error.type", reason)
    span.set_status(Status(StatusCode.ERROR, reason))

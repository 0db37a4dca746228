"""What an operator sees of the calls that a bridge makes."""

from __future__ import annotations

import re
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from dragoman.client import connect
from dragoman.errors import A2AError
from dragoman.observe.otel import OpenTelemetry
from dragoman.stores import open_store
from tests import raw
from tests.bridge.bridging import Crew, bridged, crew_app
from tests.ports import free_port

LINE = re.compile(r"^(dragoman_upstream_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


async def get(url: str, path: str) -> tuple[int, str]:
    async with raw.post(f"{url}{path}", b"", {}, method="GET") as response:
        return response.status, (await raw.read(response)).decode()


async def measured(url: str) -> dict[tuple[str, str], float]:
    _, text = await get(url, "/metrics")
    return {(name, labels): float(value) for name, labels, value in LINE.findall(text)}


async def test_calls_of_the_agent_are_counted_traced_and_audited(tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    store = f"sqlite:///{tmp_path / 'bridge.db'}"
    server = {"tracer": OpenTelemetry(provider)}
    crew = Crew()
    async with bridged(crew_app(crew), store=store, server=server) as (url, bridge):
        (route,) = bridge.routes
        host = route.settings.url.removeprefix("http://")
        async with connect(url, agents={}) as client:
            assert (await client("hello")).text == "HELLO"
        found = await measured(url)
    about = f'operation="SendStreamingMessage",outcome="OK",route="{route.name}",upstream="{host}"'
    assert found["dragoman_upstream_calls_total", about] == 1
    timed = f'operation="SendStreamingMessage",route="{route.name}",upstream="{host}"'
    assert found["dragoman_upstream_seconds_count", timed] == 1
    assert found["dragoman_upstream_up", f'route="{route.name}",upstream="{host}"'] == 1
    assert found["dragoman_upstream_active", f'route="{route.name}"'] == 0
    spans = {span.name: span for span in exporter.get_finished_spans() if span.kind is SpanKind.CLIENT}
    span = spans["a2a SendStreamingMessage"]
    assert span.attributes is not None and span.attributes["server.address"] == host.partition(":")[0]
    (turn,) = [each for each in exporter.get_finished_spans() if each.name.startswith("invoke_agent")]
    assert span.parent is not None and span.parent.span_id == turn.context.span_id
    opened = open_store(store)
    await opened.open()
    entries = await opened.audit.entries(operation="upstream/SendStreamingMessage")
    await opened.close()
    (entry,) = entries
    assert entry.agent == route.name and entry.outcome.startswith(f"OK, {host}, ")


async def test_an_agent_that_is_away_is_in_the_metrics_and_does_not_make_the_bridge_unready() -> None:
    away = f"127.0.0.1:{free_port()}"
    async with bridged(f"http://{away}", mode="pass", retries=0) as (url, bridge):
        (route,) = bridge.routes
        for _ in range(6):
            try:
                await raw.call(url, "GetTask", {"id": "none"})
            except (raw.Refused, A2AError):
                pass
        assert (await get(url, "/readyz"))[0] == 200
        found = await measured(url)
    where = f'route="{route.name}",upstream="{away}"'
    assert found["dragoman_upstream_up", where] == 0
    assert found["dragoman_upstream_breaker_open", where] == 1
    assert found[
        "dragoman_upstream_calls_total",
        f'operation="GetTask",outcome="UNAVAILABLE",route="{route.name}",upstream=""',
    ]

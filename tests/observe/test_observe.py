"""Numbers, traces, limits, audit and logs, on the whole server in process."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman import Agent, Turn, connect, errors
from dragoman.client.retry import Policy
from dragoman.client.transport.network import HttpTransport
from dragoman.model.ops import PushConfig
from dragoman.observe.limit import Quota
from dragoman.observe.logs import LOG_FIELDS, JsonLines, redact
from dragoman.observe.otel import OpenTelemetry
from dragoman.push.options import PushOptions
from dragoman.server.application import application
from dragoman.server.runtime import running
from dragoman.stores import open_store
from tests import raw
from tests.push.webhook import Notification, Receiver
from tests.requirements import requirement

QUICK = PushOptions(allow_private=True, http=True, pause=0.01, longest_pause=0.05)


async def get(url: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    transport = HttpTransport()
    try:
        response = await transport.request("GET", url + path, headers or {})
        return response.status, (await response.read()).decode()
    finally:
        await transport.close()


def completed(webhook: Receiver) -> bool:
    return any(b"COMPLETED" in received.body for received in webhook.notifications)


def echo() -> Agent:
    agent = Agent("Echo")

    @agent.skill
    async def echo(text: str) -> str:
        if text == "boom":
            raise RuntimeError("boom")
        return text

    return agent


def value(text: str, name: str, **labels: str) -> float:
    found = 0.0
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")):
            has = dict(re.findall(r'(\w+)="([^"]*)"', line))
            if all(has.get(key) == want for key, want in labels.items()):
                found += float(line.rsplit(" ", 1)[1])
    return found


async def test_a_scrape_after_a_known_load_gives_the_known_numbers(tmp_path) -> None:
    app = application(echo(), store=f"sqlite:///{tmp_path}/t.db")
    async with running(app) as url:
        async with connect(url) as agent:
            for _ in range(3):
                await agent.send("hello")
            await agent.send("boom")
            async for _ in agent.stream("hello"):
                pass
            with pytest.raises(errors.TaskNotFound):
                await agent.get("nope")
        status, text = await get(url, "/metrics")
    assert status == 200
    assert value(text, "dragoman_requests_total", operation="SendMessage", outcome="OK") == 4
    assert value(text, "dragoman_requests_total", operation="SendStreamingMessage", outcome="OK") == 1
    assert value(text, "dragoman_requests_total", operation="GetTask", outcome="TASK_NOT_FOUND") == 1
    assert value(text, "dragoman_tasks_total", agent="echo", state="completed") == 4
    assert value(text, "dragoman_tasks_total", agent="echo", state="failed") == 1
    assert value(text, "dragoman_task_seconds_count", agent="echo", state="completed") == 4
    assert value(text, "dragoman_open_streams", agent="echo") == 0
    assert value(text, "dragoman_running_turns", agent="echo") == 0
    assert value(text, "dragoman_waiting_tasks") == 0
    assert value(text, "dragoman_commit_seconds_count") > 0


async def test_tokens_and_money_that_agents_report_are_counted() -> None:
    agent = Agent("Model")

    @agent.skill
    async def answer(turn: Turn) -> str:
        turn.usage("small", input_tokens=7, output_tokens=2, cost=0.25, currency="EUR")
        return "done"

    async with running(application(agent, store="memory:")) as url:
        async with connect(url) as client:
            for _ in range(2):
                assert (await client("go")).usage is not None
        _, text = await get(url, "/metrics")
    assert value(text, "dragoman_tokens_total", agent="model", model="small", kind="input") == 14
    assert value(text, "dragoman_tokens_total", agent="model", model="small", kind="output") == 4
    assert value(text, "dragoman_cost_total", agent="model", model="small", currency="EUR") == 0.5


async def test_metrics_need_a_token_from_other_machines() -> None:
    async with running(application(echo(), store="memory:", metrics_token="m3trics")) as url:
        assert (await get(url, "/metrics"))[0] == 404
        assert (await get(url, "/metrics", {"Authorization": "Bearer m3trics"}))[0] == 200
    async with running(application(echo(), store="memory:")) as url:
        assert (await get(url, "/metrics", {"X-Forwarded-For": "203.0.113.7"}))[0] == 404
        assert (await get(url, "/metrics"))[0] == 200


async def test_one_trace_spans_a_chain_of_agents() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    front, back = Agent("Front"), echo()

    @front.skill
    async def ask(turn: Turn) -> str:
        return (await turn.call(turn.text, "hello")).text

    async with running(application(back, store="memory:", tracer=OpenTelemetry(provider))) as inner:
        app = application(front, store="memory:", tracer=OpenTelemetry(provider))
        async with running(app) as outer, connect(outer) as agent:
            assert (await agent(inner)).text == "hello"
    spans: Any = exporter.get_finished_spans()
    by_name = {span.name: span for span in spans}
    assert {"invoke_agent front", "invoke_agent echo"} <= set(by_name)
    assert len({span.context.trace_id for span in spans}) == 1
    served = [
        span
        for span in spans
        if span.attributes["gen_ai.agent.id"] == "echo" and "rpc.method" in span.attributes
    ]
    front_span = by_name["invoke_agent front"].context.span_id
    assert served and all(span.parent.span_id == front_span for span in served)
    assert by_name["invoke_agent echo"].parent.span_id in {span.context.span_id for span in served}


async def test_one_trace_goes_from_the_client_through_a_delegation_to_the_webhooks() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    front, back = Agent("Front"), Agent("Back")
    delegated: asyncio.Queue[str] = asyncio.Queue()
    registered = asyncio.Event()

    @front.skill
    async def ask(turn: Turn) -> str:
        return (await turn.call(turn.text, "hello")).text

    @back.skill
    async def work(turn: Turn) -> str:
        delegated.put_nowait(turn.task_id)
        await registered.wait()
        return "done"

    options: Any = {"store": "memory:", "tracer": OpenTelemetry(provider), "push": QUICK}
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with (
        Receiver() as ours,
        Receiver() as theirs,
        running(application(back, **options)) as inner,
        running(application(front, **options)) as outer,
    ):
        params = {
            "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": inner}]},
            "configuration": {"taskPushNotificationConfig": {"url": ours.url}},
        }
        asked = asyncio.create_task(raw.result(outer, "SendMessage", params, traceparent=parent))
        config = {"taskId": await delegated.get(), "url": theirs.url}
        await raw.result(inner, "CreateTaskPushNotificationConfig", config)
        registered.set()
        assert (await asked)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        for webhook in (ours, theirs):
            await webhook.until(partial(completed, webhook))
    spans: Any = [
        span for span in exporter.get_finished_spans() if span.name != "a2a CreatePushConfig"
    ]  # that one is nobody's errand
    trace = parent.split("-")[1]
    assert {f"{span.context.trace_id:032x}" for span in spans} == {trace}
    agents = {span.attributes["gen_ai.agent.id"]: f"{span.context.span_id:016x}" for span in spans
              if "rpc.method" in span.attributes}  # fmt: skip
    for agent, webhook in (("front", ours), ("back", theirs)):
        assert {received.headers["traceparent"] for received in webhook.notifications} == {
            f"00-{trace}-{agents[agent]}-01"
        }


async def test_the_outcomes_of_notifications_are_counted() -> None:
    refusals = 2

    async def refuse_at_first(received: Notification) -> int:
        nonlocal refusals
        refusals -= 1
        return 503 if refusals >= 0 else 204

    async def never(received: Notification) -> int:
        return 410

    async with Receiver(refuse_at_first) as webhook, Receiver(never) as gone:
        async with running(application(echo(), store="memory:", push=QUICK)) as url:
            async with connect(url) as agent:
                await agent.send("hello", push=PushConfig(url=webhook.url))
                await agent.send("hello", push=PushConfig(url=gone.url))
            await webhook.until(partial(completed, webhook))
            await gone.until(lambda: len(gone.refused) == 1)
            async with asyncio.timeout(10):
                while True:  # the webhook has it before we have counted it
                    _, text = await get(url, "/metrics")
                    if value(text, "dragoman_push_total") == len(webhook.notifications) + 3:
                        break
    assert value(text, "dragoman_push_total", outcome="sent") == len(webhook.notifications)
    assert value(text, "dragoman_push_total", outcome="failed") == 2
    assert value(text, "dragoman_push_total", outcome="given up") == 1


async def test_a_store_that_cannot_be_written_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.server.application._PROBE_SECONDS", 0.0)
    async with running(application(echo(), store=f"sqlite:///{tmp_path}/t.db")) as url:
        assert (await get(url, "/readyz"))[0] == 200
        with closing(sqlite3.connect(tmp_path / "t.db")) as other:
            other.execute("begin exclusive")
            with monkeypatch.context() as patch:
                patch.setattr("dragoman.server.app.READY_SECONDS", 0.1)
                assert (await get(url, "/readyz"))[0] == 503
            other.rollback()
        assert (await get(url, "/readyz"))[0] == 200


async def test_a_server_is_not_ready_when_its_store_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    monkeypatch.setattr("dragoman.server.application.open_store", lambda url: store)
    async with running(application(echo())) as url:
        assert (await get(url, "/readyz"))[0] == 200
        await store.close()
        assert (await get(url, "/readyz"))[0] == 503
        assert (await get(url, "/healthz"))[0] == 200
        await store.open()
        assert (await get(url, "/readyz"))[0] == 200


async def test_a_caller_over_its_rate_gets_retry_after() -> None:
    app = application(echo(), store="memory:", quota=Quota(rate=0.5, burst=2))
    async with running(app) as url, connect(url, policy=Policy(attempts=1)) as agent:
        await agent.send("one")
        await agent.send("two")
        with pytest.raises(errors.RateLimited) as refused:
            await agent.send("three")
        assert refused.value.retry_after is not None and refused.value.retry_after >= 1


async def test_open_tasks_and_concurrency_are_limited_and_finished_work_makes_room() -> None:
    agent, gate = Agent("Gate"), asyncio.Event()

    @agent.skill
    async def wait(turn: Turn) -> str:
        await gate.wait()
        return "done"

    app = application(agent, store="memory:", quota=Quota(open_tasks=2))
    async with running(app) as url, connect(url, policy=Policy(attempts=1)) as client:
        first = await client.send("a", wait=False)
        await client.send("b", wait=False)
        with pytest.raises(errors.RateLimited, match="2 unfinished"):
            await client.send("c", wait=False)
        gate.set()
        await first.wait()


async def test_a_full_server_refuses_new_messages_and_finishes_its_tasks() -> None:
    agent, gate = Agent("Gate"), asyncio.Event()

    @agent.skill
    async def wait(turn: Turn) -> str:
        await gate.wait()
        return "done"

    app = application(agent, store="memory:", quota=Quota(queue=1))
    async with running(app) as url, connect(url, policy=Policy(attempts=1)) as client:
        first = await client.send("a", wait=False)
        with pytest.raises(errors.Unavailable):
            await client.send("b", wait=False)
        gate.set()
        assert (await first.wait()).text == "done"


@requirement(224)
async def test_the_audit_has_caller_and_outcome_of_each_operation(tmp_path) -> None:
    store = f"sqlite:///{tmp_path}/t.db"
    async with echo().test(store=store) as client:
        done = await client.send("hello")
        with pytest.raises(errors.TaskNotCancelable):
            await client.cancel(done.id)
        await client.get(done.id)
    opened = open_store(store)
    await opened.open()
    entries = await opened.audit.entries(task=done.id)
    await opened.close()
    assert [(e.operation, e.outcome) for e in entries] == [
        ("CancelTask", "TASK_NOT_CANCELABLE"),
        ("SendMessage", "OK"),
    ]


def test_a_json_log_line_says_which_task_and_hides_secrets() -> None:
    record = logging.LogRecord(
        "dragoman.x", logging.INFO, "f", 1, "got %s", ("Authorization: Bearer abcdefgh12345",), None
    )
    before = LOG_FIELDS.set(lambda: {"task": "t1", "principal": "ada", "tenant": ""})
    line = json.loads(JsonLines().format(record))
    LOG_FIELDS.reset(before)
    assert line["task"] == "t1" and line["principal"] == "ada" and "tenant" not in line
    assert "abcdefgh12345" not in line["message"]


@pytest.mark.parametrize(
    "text",
    [
        "Bearer s3cretvalue",
        "https://x.example/?api_key=s3cretvalue&x=1",
        '{"password": "s3cretvalue"}',
        "X-API-Key: s3cretvalue",
        "atr_s3cretvalue0123456789",
    ],
)
def test_secrets_in_log_lines_are_redacted(text: str) -> None:
    assert "s3cretvalue" not in redact(text)


def test_ordinary_words_are_not_redact() -> None:
    text = "the token of our esteem; task 01a1dfc9-c269 is working, keys: 3"
    assert redact(text) == text

"""What a hub counts, remembers for a while, and refuses: numbers, keys, bodies, connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.engine.protocols import Lease
from dragoman.engine.turn import Turn
from dragoman.errors import StoreUnavailable
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import ModelError, Usage
from dragoman.hub.models.calls import respond
from dragoman.hub.models.hosted import HostedModel
from dragoman.hub.models.prices import Price
from dragoman.hub.models.providers import RetryingModel
from dragoman.hub.store.database import Transaction, open_database
from dragoman.hub.store.requests import IdempotencyKeys
from dragoman.hub.tenants import quotas
from dragoman.server.runtime import running
from tests.hub.house import SCOUT, events, house, message
from tests.hub.scripted import ScriptedModel
from tests.hub.test_models import BUSY, DOWN, prompt
from tests.waiting import elapse, until


async def test_a_key_is_good_for_a_day_and_then_new_again(tmp_path: Path) -> None:
    async with house(["one", "two"], folder=tmp_path) as hub:
        acme, now = await hub.tenant("acme"), [1_000_000.0]
        hub.hub.idempotency_keys = IdempotencyKeys(hub.hub.database, clock=lambda: now[0])
        said = []
        for later in (0, 86_399, 2, 0):
            now[0] += later
            received = events(await acme("POST", "/v1/orchestrate", {"message": "go"}, idempotency_key="k"))
            said.append(received[-1][1]["content"])
        assert said == ["one", "one", "two", "two"]
        metrics = (await hub.nobody("GET", "/v1/metrics")).body.decode()
        assert "dragoman_hub_idempotency_replay_total 2" in metrics
        assert "dragoman_hub_idempotency_miss_total 2" in metrics


async def test_a_key_outlives_the_hub_and_is_each_tenants_own(tmp_path: Path) -> None:
    async with house(["one", "two"], folder=tmp_path) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        first, theirs = [
            events(await who("POST", "/v1/orchestrate", {"message": "go"}, idempotency_key="k"))[-1][1]
            for who in (acme, other)
        ]
        assert (first["content"], theirs["content"]) == ("one", "two")
    async with house([], folder=tmp_path) as hub:
        again = acme.__class__(hub.app, acme.token)
        received = events(await again("POST", "/v1/orchestrate", {"message": "go"}, idempotency_key="k"))
        assert received[-1][1]["request_id"] == first["request_id"]


async def test_a_repeated_idempotency_key_gets_the_running_request() -> None:
    hold = asyncio.Event()
    async with house([("thinking", hold, " done")]) as hub:
        acme = await hub.tenant("acme")
        both = [
            acme.open("POST", "/v1/orchestrate", {"message": "go"}, idempotency_key="k") for _ in range(2)
        ]
        first, second = both
        await first.until(lambda: b"thinking" in first.body)
        await second.until(lambda: b"thinking" in second.body)
        hold.set()
        ended = [events(await live.end())[-1][1] for live in both]
        assert len({each["request_id"] for each in ended}) == 1 and len(hub.model.prompts) == 1


async def test_a_key_whose_request_is_forgotten_begins_another(tmp_path: Path) -> None:
    async with house(["one", "two"], folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        body = {"message": "go"}
        await hub.hub.idempotency_keys.claim(acme.tenant.id, "k", "gone")
        await hub.hub.requests.store(acme.tenant.id, "gone", "index", via="native")
        for expected in ("one", "one"):
            received = events(await acme("POST", "/v1/orchestrate", body, idempotency_key="k"))
            assert received[-1][1]["content"] == expected


async def test_a_request_that_a_limit_refuses_stores_no_key(tmp_path: Path) -> None:
    async with house(lambda prompt: "hi", folder=tmp_path, rate_per_min=1) as hub:
        acme, body = await hub.tenant("acme"), {"message": "go"}
        first = events(await acme("POST", "/v1/orchestrate", body, idempotency_key="k"))[0][1]["request_id"]
        for n in range(3):
            assert (await acme("POST", "/v1/orchestrate", body, idempotency_key=f"k{n}")).status == 429
        assert [row["key"] for row in await hub.hub.database.all("select key from idempotency_keys")] == ["k"]
        again = events(await acme("POST", "/v1/orchestrate", body, idempotency_key="k"))
        assert again[0][1]["request_id"] == first, "it starts nothing"
        await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"rate_per_min": 0})
        assert events(await acme("POST", "/v1/orchestrate", body, idempotency_key="k1"))[-1][1]["ok"]
        await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}/policy", {"tokens_per_day": 1})
        assert (await acme("POST", "/v1/orchestrate", body, idempotency_key="k2")).status == 429
        assert len(await hub.hub.database.all("select key from idempotency_keys")) == 2


async def test_a_request_that_does_not_go_on_after_the_database_was_away_gives_its_slot_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "STARTING_CHECK_SECONDS", 0.01)
    agent, away, retried = Agent("a"), [StoreUnavailable("the database is away")], asyncio.Event()

    @agent.skill
    async def work(turn: Turn) -> str:
        if away:
            raise away.pop()
        return "done"

    async with house(code=[agent], max_concurrent=1) as hub:
        acme, runner, leases = await hub.tenant("acme"), hub.hub.engine.runner, list[Lease]()
        retry, runs = runner.retry, runner.runs

        def retry_later(lease: Lease) -> None:
            leases.append(lease)
            retried.set()

        monkeypatch.setattr(runner, "retry", retry_later)
        monkeypatch.setattr(runner, "runs", lambda *what: bool(leases) or runs(*what))
        first = acme.open("POST", "/v1/agents/a/chat", {"message": "go"})
        await retried.wait()
        await elapse(0.05)
        assert len(hub.hub.quotas.running_tasks(acme.tenant.key)) == 1, "it is about to run"
        (asked,) = (await acme("GET", "/v1/requests")).json["requests"]
        canceling = acme.open("POST", f"/v1/requests/{asked['request_id']}/cancel")
        log = hub.hub.store.scope(leases[0].scope)

        async def is_canceled() -> bool:
            return (await log.load(leases[0].task)).canceling is not None

        await until(is_canceled)
        retry(leases.pop())
        assert (await canceling.end()).status == 200 and not events(await first.end())[-1][1]["ok"]
        await until(lambda: not hub.hub.quotas.running_tasks(acme.tenant.key))
        assert (await acme.ask("go", "/v1/agents/a/chat"))[-1][1]["ok"]


@pytest.mark.parametrize("away_at", ["the tenant", "the agent"])
async def test_a_request_that_waits_for_the_database_keeps_its_slot(
    monkeypatch: pytest.MonkeyPatch, away_at: str
) -> None:
    agent, away, retried = Agent("a"), [StoreUnavailable("the database is away")], asyncio.Event()

    @agent.skill
    async def work(turn: Turn) -> str:
        if away:
            raise away.pop()
        return "done"

    async with house(code=[agent], max_concurrent=1) as hub:
        acme, runner = await hub.tenant("acme"), hub.hub.engine.runner
        find, retry, leases = hub.hub.tenants.find_active, runner.retry, list[Lease]()

        async def find_later(*what: Any, **options: Any) -> Any:
            if runner.running and away:
                raise away.pop()
            return await find(*what, **options)

        def retry_later(lease: Lease) -> None:
            leases.append(lease)
            retried.set()

        monkeypatch.setattr(runner, "retry", retry_later)
        monkeypatch.setattr(hub.hub.quotas, "runs_here", lambda *what: True)
        if away_at == "the tenant":
            monkeypatch.setattr(hub.hub.tenants, "find_active", find_later)
        first = acme.open("POST", "/v1/agents/a/chat", {"message": "go"})
        async with asyncio.timeout(20):
            await retried.wait()
        refused = await acme("POST", "/v1/agents/a/chat", {"message": "go"})
        assert (refused.status, refused.json["reason"]) == (429, "concurrent_request_limit")
        retry(leases.pop())
        assert events(await first.end())[-1][1]["ok"]
        assert (await acme.ask("go", "/v1/agents/a/chat"))[-1][1]["ok"], "the slot is free again"
        assert hub.hub.quotas.running_tasks(acme.tenant.key) == {}


@pytest.mark.parametrize(("agent", "text"), [("nobody", "hi"), ("index", "")])
async def test_a_message_that_nobody_can_answer_counts_as_a_read(agent: str, text: str) -> None:
    async with house(reads_per_min=2) as hub:
        acme = await hub.tenant("acme")
        sent = [await acme.rpc(agent, "message/send", message(text)) for _ in range(3)]
        assert [each.status for each in sent] == [200, 200, 429]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/orchestrate", b"{"),
        ("/v1/orchestrate", {"message": 5}),
        ("/v1/orchestrate", {"message": "hi", "agent": "nobody"}),
        ("/v1/orchestrate", {"message": "hi", "agent_def": {"id": "a b"}}),
        ("/v1/agents/nobody/chat", {"message": "hi"}),
        ("/v1/conversations/77/messages", {"message": "hi"}),
        ("/v1/events", {"type": " "}),
    ],
)
async def test_a_native_request_that_is_refused_counts_as_a_read(path: str, body: Any) -> None:
    async with house(reads_per_min=2) as hub:
        acme = await hub.tenant("acme")
        sent = [await acme("POST", path, body) for _ in range(3)]
        assert [each.status for each in sent][2] == 429 and sent[2].json["reason"] == "read_limit"
        assert all(400 <= each.status < 500 and each.status != 429 for each in sent[:2])


async def test_a_native_request_that_a_token_may_not_make_counts_as_a_read() -> None:
    async with house(reads_per_min=2) as hub:
        acme = await hub.tenant("acme")
        made = await hub.hub.tenants.tokens.create(acme.tenant.id, "reader", "read", actor="test")
        reader = acme.__class__(hub.app, made[1], acme.tenant)
        sent = [await reader("POST", "/v1/orchestrate", {"message": "hi"}) for _ in range(3)]
        assert [each.status for each in sent] == [403, 403, 429]


async def test_a_request_that_its_own_limit_refuses_is_no_read() -> None:
    async with house(lambda prompt: "ok", reads_per_min=2, rate_per_min=1) as hub:
        acme = await hub.tenant("acme")
        for _ in range(5):
            last = await acme("POST", "/v1/orchestrate", {"message": "hi"})
        assert last.json["reason"] == "rate_limit"
        assert (await acme("GET", "/v1/agents")).status == 200


async def test_a_provider_that_is_none_is_counted_without_its_name() -> None:
    async def completion(**_: Any) -> Any:
        raise LookupError("UnsupportedProviderError")

    metrics = HubMetrics()
    model = RetryingModel(
        HostedModel("openai/x", completion=completion), waits=(), count=metrics.count_provider
    )
    for name in ("made-up/x", "also made up", "mistral/y", ""):
        with pytest.raises(ModelError):
            [event async for event in model.respond(replace(prompt("hi"), model=name))]
    text = metrics.render({}).decode()
    counted = {line.partition("{")[2] for line in text.splitlines() if "provider_calls_total{" in line}
    assert counted == {'provider="unknown"} 2', 'provider="mistral"} 1', 'provider="openai"} 1'}


async def test_calls_of_models_are_counted_by_provider_and_by_how_they_failed() -> None:
    metrics = HubMetrics()

    async def sleep(seconds: float) -> None:
        pass

    refused = ModelError("invalid_request", "no")
    inner = ScriptedModel([BUSY, DOWN, "Fine.", refused, "Also fine.", DOWN, DOWN, DOWN])
    model = RetryingModel(inner, sleep=sleep, max_failures=1, count=metrics.count_provider)
    for name in ("p/m", "p/m", "", "q/m", "q/m"):
        await respond(model, prompt(model=name))
    text = metrics.render({}).decode()
    for line in (
        'calls_total{provider="p"} 4',
        'retries_total{provider="p"} 2',
        'failures_total{provider="p"} 3',
        '429_total{provider="p"} 1',
        '5xx_total{provider="p"} 1',
        'calls_total{provider="scripted"} 1',
        '5xx_total{provider="q"} 3',
        'circuit_open_total{provider="q"} 1',
    ):
        assert f"dragoman_hub_provider_{line}\n" in text


def test_large_numbers_in_the_metrics_have_all_their_digits() -> None:
    metrics = HubMetrics()
    metrics.count("tokens_total", 12_345_678)
    metrics.count("cost_total", 0.25)
    lines = metrics.render({}).decode().splitlines()
    assert {"dragoman_hub_tokens_total 12345678", "dragoman_hub_cost_total 0.25"} <= set(lines)


async def test_the_numbers_are_the_same_at_both_places_and_name_no_tenant_agent_or_model() -> None:
    reply = ("hi", Usage(input_tokens=7, output_tokens=2))
    price = {"secret/*": Price(input=1.0, output=1.0)}
    async with house([reply] * 2, metrics_token="m-1", prices=price) as hub:
        acme = await hub.tenant("acme")
        await acme.rpc("index", "message/send", message("hi"))
        spy = {"id": "merger-with-umbrella", "model": "secret/finetuned"}
        await acme.ask("hi", "/v1/agents/merger-with-umbrella/chat", agent_def=spy)
        public = await hub.nobody("GET", "/v1/metrics")
        own = await hub.nobody("GET", "/metrics", authorization="Bearer m-1")
        assert own.status == 200 and own.body == public.body
        assert b'requests_started_total{route="a2a",tenant="1"} 1' in own.body and b"acme" not in own.body
        assert b'tokens_total{kind="input",tenant="1"} 14' in own.body and b"cost_total{" in own.body
        assert b"merger" not in own.body and b"secret" not in own.body and b"index" not in own.body
        assert (await hub.nobody("GET", "/metrics", authorization="Bearer no")).status == 404


@pytest.mark.parametrize(("size", "status"), [(15 << 20, 200), (17 << 20, 413)])
async def test_a_body_has_sixteen_megabytes(size: int, status: int) -> None:
    async with house(["ok"]) as hub:
        acme = await hub.tenant("acme")
        answer = await acme("POST", "/v1/orchestrate", {"message": "x" * size}, content_length=str(size + 20))
        assert answer.status == status
        sent = await acme.rpc("index", "message/send", message("x" * size))
        assert ("error" in sent.json) is (status == 413)


async def test_connections_above_the_limit_get_503() -> None:
    async with house([], max_connections=2) as hub, running(hub.app) as url:
        port = int(url.rpartition(":")[2])

        async def ask() -> tuple[asyncio.StreamWriter, bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
            return writer, await reader.readline()

        answers = [await ask() for _ in range(3)]
        assert [line.split()[1] for _, line in answers] == [b"200", b"200", b"503"]
        for writer, _ in answers:
            writer.close()
            await writer.wait_closed()


async def test_a_request_is_counted_when_it_ends_by_how_it_ended() -> None:
    hold = asyncio.Event()
    async with house(
        [("one", hold), ModelError("provider_error", "down"), "/agent scout x", "S", "D"]
    ) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)

        async def counted(what: str, **labels: str) -> float:
            said = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
            lines = (await hub.nobody("GET", "/v1/metrics")).body.decode().splitlines()
            found = [line for line in lines if line.startswith(f"dragoman_hub_requests_{what}{{{said}}} ")]
            return float(found[0].rpartition(" ")[2]) if found else 0

        async def ended(n: int, **labels: str) -> None:
            await until(
                lambda: counted("completed_total", tenant="1", **labels), lambda counted: counted == n
            )

        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"one" in live.body)
        assert await counted("started_total", route="native", tenant="1") == 1
        assert await counted("completed_total", ok="true", route="native", tenant="1") == 0
        hold.set()
        await live.end()
        await ended(1, ok="true", route="native")
        assert await counted("duration_ms_sum", route="native", tenant="1") > 0
        await acme.rpc("index", "message/send", message("fail"))
        await ended(1, ok="false", route="a2a")
        await acme.ask("delegate")
        assert await counted("started_total", route="native", tenant="1") == 2
        await ended(2, ok="true", route="native")


async def test_run_once_repeats_a_key_only_after_its_result_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    database = await open_database("memory:").open()
    done: list[str] = []

    async def do(key: str) -> None:
        async def work(db: Transaction) -> None:
            done.append(key)

        await database.run_once(key, work, type(None))

    for key in ("a", "a", "b"):
        await do(key)
    assert done == ["a", "b"]
    monkeypatch.setattr("dragoman.hub.store.database._RESULT_SECONDS", -1)
    await do("c")
    await do("a")
    assert done == ["a", "b", "c", "a"]
    await database.close()

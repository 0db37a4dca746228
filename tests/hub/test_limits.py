"""What a hub counts, remembers for a while, and refuses: numbers, keys, bodies, connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import ModelError
from dragoman.hub.models.calls import RetryingModel, respond
from dragoman.hub.models.hosted import HostedModel
from dragoman.hub.store.database import Transaction, open_database
from dragoman.hub.store.requests import IdempotencyKeys
from dragoman.server.runtime import running
from tests.hub.house import SCOUT, events, house, message
from tests.hub.scripted import ScriptedModel
from tests.hub.test_models import BUSY, DOWN, prompt
from tests.waiting import until


async def test_a_key_is_good_for_a_day_and_then_new_again(tmp_path: Path) -> None:
    async with house(["one", "two"], folder=tmp_path) as hub:
        acme, now = await hub.tenant("acme"), [1_000_000.0]
        hub.hub.keys = IdempotencyKeys(hub.hub.database, clock=lambda: now[0])
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
        await hub.hub.keys.claim(acme.tenant.id, "k", "gone")
        await hub.hub.requests.store(acme.tenant.id, "gone", "index", via="native")
        for expected in ("one", "one"):
            received = events(await acme("POST", "/v1/orchestrate", body, idempotency_key="k"))
            assert received[-1][1]["content"] == expected


async def test_a_provider_that_is_none_is_counted_without_its_name() -> None:
    async def completion(**_: Any) -> Any:
        raise LookupError("UnsupportedProviderError")

    metrics = HubMetrics()
    model = RetryingModel(HostedModel("openai/x", completion=completion), waits=(), counted=metrics.provider)
    for name in ("made-up/x", "also made up", "mistral/y", ""):
        with pytest.raises(ModelError):
            [event async for event in model.respond(replace(prompt("hi"), model=name))]
    text = metrics.text({}).decode()
    counted = {line.partition("{")[2] for line in text.splitlines() if "provider_calls_total{" in line}
    assert counted == {'provider="unknown"} 2', 'provider="mistral"} 1', 'provider="openai"} 1'}


async def test_calls_of_models_are_counted_by_provider_and_by_how_they_failed() -> None:
    metrics = HubMetrics()

    async def sleep(seconds: float) -> None:
        pass

    refused = ModelError("invalid_request", "no")
    inner = ScriptedModel([BUSY, DOWN, "Fine.", refused, "Also fine.", DOWN, DOWN, DOWN])
    model = RetryingModel(inner, sleep=sleep, threshold=1, counted=metrics.provider)
    for name in ("p/m", "p/m", "", "q/m", "q/m"):
        await respond(model, prompt(model=name))
    text = metrics.text({}).decode()
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


async def test_the_numbers_are_the_same_at_both_places_and_name_no_tenant() -> None:
    async with house(["hi"], metrics_token="m-1") as hub:
        acme = await hub.tenant("acme")
        await acme.rpc("index", "message/send", message("hi"))
        public = await hub.nobody("GET", "/v1/metrics")
        own = await hub.nobody("GET", "/metrics", authorization="Bearer m-1")
        assert own.status == 200 and own.body == public.body
        assert b'requests_started_total{route="a2a",tenant="1"} 1' in own.body and b"acme" not in own.body
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

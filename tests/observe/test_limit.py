"""Quotas: limits of unfinished tasks, and a full server that refuses new messages in every version and binding."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from dragoman import Agent, Turn
from dragoman.observe.limit import Quota
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests import postgres, raw
from tests.ports import free_port
from tests.serving import Server as Process
from tests.waiting import until, until_works

NEW = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
OLD = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}]}
OLDEST = {"id": "t", "message": {"role": "user", "parts": [{"type": "text", "text": "x"}]}}
PROTO = {"request": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]}}

ASKED: dict[str, tuple[str, bytes, str]] = {
    "1.0 JSON-RPC": ("", raw.rpc("SendMessage", {"message": NEW}), "1.0"),
    "1.0 JSON-RPC, streamed": ("", raw.rpc("SendStreamingMessage", {"message": NEW}), "1.0"),
    "1.0 HTTP+JSON": ("/message:send", json.dumps({"message": NEW}).encode(), "1.0"),
    "1.0 HTTP+JSON, streamed": ("/message:stream", json.dumps({"message": NEW}).encode(), "1.0"),
    "0.3 JSON-RPC": ("", raw.rpc("message/send", {"message": OLD}), "0.3"),
    "0.3 JSON-RPC, streamed": ("", raw.rpc("message/stream", {"message": OLD}), "0.3"),
    "0.3 HTTP+JSON": ("/v1/message:send", json.dumps(PROTO).encode(), "0.3"),
    "0.2 JSON-RPC": ("", raw.rpc("message/send", {"message": OLD}), "0.2"),
    "0.1 JSON-RPC": ("", raw.rpc("tasks/send", OLDEST), ""),
    "0.1 JSON-RPC, streamed": ("", raw.rpc("tasks/sendSubscribe", OLDEST), ""),
}


class Full(NamedTuple):
    url: str
    grpc: int
    go: asyncio.Event


@pytest.fixture
async def full() -> AsyncIterator[Full]:
    """A server that runs as many tasks as it may."""
    agent, other, go, port = Agent("Waits"), Agent("Echoes"), asyncio.Event(), free_port()

    @agent.skill
    async def wait(turn: Turn) -> str:
        await go.wait()
        return "done"

    @other.skill
    async def echo(text: str) -> str:
        return text

    app = application(agent, other, store="memory:", max_running=3, grpc_port=port)
    async with running(app) as url:
        for _ in range(3):
            now = {"message": NEW, "configuration": {"returnImmediately": True}}
            await raw.result(f"{url}/waits", "SendMessage", now)
        yield Full(url, port, go)
        go.set()


@pytest.mark.parametrize(
    "claims", [{}, {"Dragoman-Depth": "1"}], ids=["anybody", "an agent of ours, it says"]
)
@pytest.mark.parametrize("agent", ["waits", "echoes"])
@pytest.mark.parametrize("how", ASKED)
async def test_a_full_server_answers_503_with_retry_after(
    full: Full, how: str, agent: str, claims: dict[str, str]
) -> None:
    path, body, version = ASKED[how]
    headers = {**claims, **({"A2A-Version": version} if version else {})}
    async with asyncio.timeout(10), raw.post(f"{full.url}/{agent}{path}", body, headers) as response:
        assert (response.status, response.headers.get("retry-after")) == (503, "1")
        assert b"too much to do" in await raw.read(response)


async def test_a_full_server_answers_unavailable_over_grpc(full: Full) -> None:
    grpc = pytest.importorskip("grpc")
    from dragoman.dialects.proto import v1_0
    from dragoman.model import ops
    from tests.server.test_grpc import Stub, message, refused

    async with grpc.aio.insecure_channel(f"127.0.0.1:{full.grpc}") as channel, asyncio.timeout(10):
        stub, sent = Stub(channel, v1_0.CODEC), message(v1_0.CODEC, tenant="echoes")
        for asked in (stub.unary(ops.SEND, sent), stub.stream(ops.STREAM, sent)):
            code, _, trailers = await refused(asked)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert b"RetryInfo" in trailers["grpc-status-details-bin"]


async def test_a_full_server_is_not_ready_until_there_is_room(full: Full) -> None:
    async def ready() -> int:
        async with raw.post(f"{full.url}/readyz", b"", {}, method="GET") as response:
            return response.status

    assert await ready() == 503
    full.go.set()
    await until(ready, lambda status: status == 200)
    async with asyncio.timeout(10):
        await raw.result(f"{full.url}/echoes", "SendMessage", {"message": NEW})


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    agent = Agent("Asks")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return await turn.ask("what?")

    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with running(application(agent, store=store, quota=Quota(open_tasks=2))) as url:
        yield url


async def outcomes(*asked: object) -> Counter[str]:
    said: Counter[str] = Counter()
    for each in asked:
        if isinstance(each, raw.Refused):
            said[str(each.status)] += 1
        else:
            assert isinstance(each, dict), each
            said["error" if "error" in each else "ok"] += 1
    return said


async def test_concurrent_messages_cannot_exceed_the_limit_of_unfinished_tasks(url: str) -> None:
    sends = [
        raw.call(
            url,
            "SendMessage",
            {"message": {"messageId": str(n), "role": "ROLE_USER", "parts": [{"text": "x"}]}},
        )
        for n in range(12)
    ]
    said = await outcomes(*await asyncio.gather(*sends, return_exceptions=True))
    assert said == {"ok": 2, "429": 10}


async def test_a_task_id_that_the_caller_chose_counts_as_a_new_task(url: str) -> None:
    async def send(name: str) -> object:
        message = {"role": "user", "parts": [{"type": "text", "text": "x"}]}
        try:
            return await raw.call(url, "tasks/send", {"id": name, "message": message}, a2a_version="")
        except raw.Refused as refused:
            return refused

    assert await outcomes(await send("a"), await send("b"), await send("c")) == {"ok": 2, "429": 1}
    assert await outcomes(await send("a")) == {"ok": 1}  # it goes on with what it began, and is done
    assert await outcomes(await send("c"), await send("d")) == {"ok": 1, "429": 1}


# -- several servers on one store ----------------------------------------------------------------------------------------


STORES = ["sqlite", *(["postgres"] if postgres.available() else [])]


@pytest.fixture(params=STORES)
async def two(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[list[str], asyncio.Event]]:
    """Two servers that count together: with PostgreSQL by default, with SQLite because they are told to."""
    agent, go = Agent("Waits"), asyncio.Event()

    @agent.skill
    async def wait(turn: Turn) -> str:
        if turn.text == "wait":
            await go.wait()
        return "done"

    fast, few = Quota(rate=1e-6, burst=10), Quota(concurrency=3)
    chosen = fast if "rate" in request.node.name else few
    if request.param == "sqlite":
        store, chosen = f"sqlite:///{tmp_path / 'tasks.db'}", replace(chosen, shared=True)
    else:
        store = postgres.server().fresh(tmp_path)
    async with running(application(agent, store=store, quota=chosen)) as one:
        async with running(application(agent, store=store, quota=chosen)) as other:
            yield [one, other], go
            go.set()


async def test_a_rate_holds_for_all_servers_of_a_store(two: tuple[list[str], asyncio.Event]) -> None:
    sends = [raw.call(two[0][n % 2], "SendMessage", {"message": NEW}) for n in range(30)]
    said = await outcomes(*await asyncio.gather(*sends, return_exceptions=True))
    assert 5 <= said["ok"] <= 10 and said["429"] == 30 - said["ok"]  # one may hold some that the other needs


async def test_a_concurrency_holds_for_all_servers_of_a_store(two: tuple[list[str], asyncio.Event]) -> None:
    urls, go = two
    slow = {"message": {**NEW, "parts": [{"text": "wait"}]}}
    begun = [asyncio.create_task(raw.call(urls[n % 2], "SendMessage", slow)) for n in range(9)]
    refused, running_ = await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
    while len(running_) > 3:
        done, running_ = await asyncio.wait(running_, return_when=asyncio.FIRST_COMPLETED)
        refused |= done
    said = await outcomes(*(each.exception() for each in refused))
    assert said == {"429": 6}
    go.set()
    await asyncio.gather(*running_)
    await until_works(lambda: raw.result(urls[0], "SendMessage", {"message": NEW}), raw.Refused)


AGENT = """
from dragoman import Agent
agent = Agent("Echo")
@agent.skill
async def echo(text: str) -> str:
    return text
"""


async def test_servers_of_one_store_never_accept_more_than_the_quota_though_one_is_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "echo.py").write_text(AGENT)
    options = ("--rate", "0.000001", "--burst", "40", "--shared-quotas")
    store = tmp_path / "t.db"
    servers = [Process(tmp_path / "echo.py", store=store, options=options) for _ in range(2)]
    async with servers[0], servers[1]:
        sends = [
            asyncio.create_task(raw.call(servers[n % 2].url, "SendMessage", {"message": NEW}))
            for n in range(60)
        ]
        await asyncio.wait(sends[:10])
        await servers[0].kill()
        said = await asyncio.gather(*sends, return_exceptions=True)
        accepted = sum(isinstance(each, dict) and "result" in each for each in said)

        async def more() -> int:
            """What the dead server held is lost; the rest can be had."""
            nonlocal accepted
            received = await asyncio.gather(
                *(raw.call(servers[1].url, "SendMessage", {"message": NEW}) for _ in range(10)),
                return_exceptions=True,
            )
            accepted += sum(isinstance(each, dict) and "result" in each for each in received)
            return sum(isinstance(each, raw.Refused) for each in received)

        await until(more, lambda refused: refused == 10)
    assert 1 <= accepted <= 40

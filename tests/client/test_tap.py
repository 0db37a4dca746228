"""A tap sees everything that a client sends and receives, over every binding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dragoman import Agent, connect
from dragoman.client import AgentCache, Bearer, ClientCredentials, Policy
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.client.transport.tap import WireEvent
from dragoman.errors import Unreachable
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.client.fakes import Site
from tests.client.test_oauth import BASE, Login
from tests.ports import free_port


class Seen:
    def __init__(self) -> None:
        self.events: list[WireEvent] = []

    async def __call__(self, event: WireEvent) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list[WireEvent]:
        return [each for each in self.events if each.kind == kind]


@pytest.fixture
async def site() -> AsyncIterator[tuple[str, int]]:
    agent = Agent("Echo", description="Repeats")

    @agent.skill
    async def echo(text: str) -> AsyncIterator[str]:
        yield "you said "
        yield text

    port = free_port()
    async with running(application(agent, store="memory:", grpc_port=port)) as url:
        yield url, port


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_bytes_of_a_stream_are_seen_in_both_directions(site: tuple[str, int], binding: str) -> None:
    seen = Seen()
    async with connect(
        site[0], tap=seen, binding=binding, credentials=Bearer("abc"), cache=AgentCache()
    ) as client:
        assert await client("hello") == "you said hello"
    card, sent = seen.of("request")
    assert card.method == "GET" and card.url.endswith("/.well-known/agent-card.json")
    assert sent.method == "POST" and sent.sent and b'"hello"' in sent.body
    assert sent.headers["Authorization"] == "Bearer abc", "masking is for whoever shows it"
    received = b"".join(each.body for each in seen.of("body") if each.n == sent.n)
    assert b"TASK_STATE_COMPLETED" in received
    assert [each.kind for each in seen.events if each.n == sent.n][-1] == "end"


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_messages_of_grpc_are_seen_as_json(site: tuple[str, int], version: str) -> None:
    seen = Seen()
    async with connect(site[0], tap=seen, binding="GRPC", version=version, cache=AgentCache()) as client:
        reply = await client("hello")
        assert (await client.get(reply.id)).id == reply.id
    streamed, got = [each for each in seen.of("request") if each.url.startswith("grpc://")]
    assert streamed.method.endswith("Message") and got.method.endswith("/GetTask")
    assert msgspec.json.decode(streamed.body)["message"]
    states = [each.body for each in seen.of("message") if each.n == streamed.n]
    assert states and all(msgspec.json.decode(each) for each in states)
    assert b"TASK_STATE_COMPLETED" in states[-1]


async def test_a_failed_connection_is_seen() -> None:
    seen = Seen()
    with pytest.raises(Unreachable):
        async with connect(f"http://127.0.0.1:{free_port()}", tap=seen, policy=Policy(attempts=1)):
            pass
    assert "refused" in seen.of("end")[0].error


async def test_requests_for_tokens_are_seen() -> None:
    seen, site = Seen(), Login(flow="clientCredentials")
    credentials = ClientCredentials("me", "s3cret")
    options: Any = {"credentials": credentials, "cache": AgentCache(), "tap": seen}
    async with connect(BASE, transport=AsgiTransport(site), **options) as client:
        await client("hello")
    assert f"{BASE}/token" in [each.url for each in seen.of("request")]


async def test_a_tap_that_waits_holds_the_client_back() -> None:
    go, held = asyncio.Event(), asyncio.Event()

    async def tap(event: WireEvent) -> None:
        if event.kind == "request":
            held.set()
            await go.wait()

    site = Site()
    opening = asyncio.create_task(
        connect(BASE, transport=AsgiTransport(site), tap=tap, cache=AgentCache()).open()
    )
    await held.wait()
    assert site.asked == []
    opening.cancel()

"""What one caller may cost us over gRPC: the limits are those of HTTP."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest
from grpc import StatusCode, aio

from dragoman import Agent
from dragoman.dialects.proto import v1_0
from dragoman.errors import Unauthenticated
from dragoman.model import ops
from dragoman.model.byte_budget import ByteBudget
from dragoman.model.ops import Principal
from dragoman.server.application import application
from dragoman.server.limits import Connections, Limits
from dragoman.server.runtime import running
from tests.server.http2 import HEADERS, MAX_CONCURRENT_STREAMS, Connection, dialled
from tests.server.test_grpc import Stub, message, refused, served
from tests.server.wire import Scripted, task
from tests.waiting import until

SEND = "/lf.a2a.v1.A2AService/SendMessage"
MEGABYTE = 1 << 20


class Door:
    """Lets in who has the word."""

    challenge = "Bearer"

    def __init__(self, word: str) -> None:
        self._word = word

    async def authenticate(self, headers: Any, *, query: str = "", certificate: bytes = b"") -> Principal:
        if headers.get("authorization") != self._word:
            raise Unauthenticated("who are you?")
        return Principal(id=self._word)


def _begin(connection: Connection, stream: int, size: int) -> None:
    """A call that says how long its message is, and does not send it."""
    connection.call(stream, SEND)
    connection.data(stream, b"\0" + size.to_bytes(4))


async def test_calls_on_one_connection_are_counted() -> None:
    async with (
        served(Scripted(), limits=Limits(max_streams=7)) as channel,
        dialled(channel.server.port) as raw,
    ):
        await raw.until(lambda: raw.settings)
        assert raw.settings[MAX_CONCURRENT_STREAMS] == 7


async def test_a_request_has_to_arrive_in_time() -> None:
    service = Scripted(result=task())
    async with (
        served(service, limits=Limits(body_timeout=0.2)) as channel,
        dialled(channel.server.port) as raw,
    ):
        _begin(raw, 1, 1000)
        await raw.until(lambda: 1 in raw.ended)
        assert service.calls == []
        await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC))  # others are served


async def test_a_call_without_a_request_is_refused() -> None:
    async with served(Scripted(result=task())) as channel, dialled(channel.server.port) as raw:
        raw.call(1, SEND)
        raw.data(1, b"", end=True)
        await raw.until(lambda: raw.ended.get(1) == HEADERS)


@pytest.mark.parametrize("agents", [("one",), ("one", "two")])
async def test_a_stranger_is_refused_before_anything_of_the_body_is_there(agents: tuple[str, ...]) -> None:
    services = [Scripted(result=task()) for _ in agents]
    async with (
        served(*services, agents=agents, authenticator=Door("sesame")) as channel,
        dialled(channel.server.port) as raw,
    ):
        raw.call(1, SEND)  # and not a byte of its message
        await raw.until(lambda: raw.ended.get(1) == HEADERS)
        code, _, trailers = await refused(Stub(channel, v1_0.CODEC).unary(ops.SEND, b"\xff\xff junk"))
        assert code is StatusCode.UNAUTHENTICATED and trailers["www-authenticate"] == "Bearer"
        allowed = {"authorization": "sesame"}
        await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC, tenant=agents[-1]), **allowed)


async def test_caller_of_one_agent_is_not_authenticated_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    services = [Scripted(result=task()), Scripted(result=task())]
    async with served(*services, agents=("one", "two"), authenticator=Door("x")) as channel:
        mounts = channel.server._calls._mounts
        for name in mounts:
            object.__setattr__(mounts[name], "authenticator", Door(f"friend of {name}"))
        stub = Stub(channel, v1_0.CODEC)
        for caller, called in (("one", "one"), ("two", "two"), ("one", "two"), ("two", "one")):
            call = stub.unary(
                ops.SEND, message(v1_0.CODEC, tenant=called), authorization=f"friend of {caller}"
            )
            if caller == called:
                await call
            else:
                assert (await refused(call))[0] is StatusCode.UNAUTHENTICATED
    assert [len(service.calls) for service in services] == [1, 1]


async def test_a_trace_that_no_header_can_carry_goes_no_further() -> None:
    service = Scripted(result=task())
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with served(service) as channel, dialled(channel.server.port) as raw:
        body = message(v1_0.CODEC).SerializeToString()
        raw.call(1, SEND, [(b"traceparent", trace), (b"tracestate", b"a=b\r\nx: y")])
        raw.data(1, b"\0" + len(body).to_bytes(4) + body, end=True)
        await raw.until(lambda: 1 in raw.ended)
    assert [call.trace for call, _ in service.calls] in ([], [{"traceparent": trace.decode()}])


async def test_one_connection_has_room_for_a_few_bodies_at_a_time() -> None:
    service = Scripted(result=task())
    async with served(service, limits=Limits(max_uploads=2)) as channel, dialled(channel.server.port) as raw:
        streams = [1, 3, 5, 7]
        body = message(v1_0.CODEC, "x" * MEGABYTE).SerializeToString()
        for stream in streams:
            _begin(raw, stream, len(body))

        def growing() -> set[int]:
            return {stream for stream in raw.windows if stream}

        await raw.until(lambda: len(growing()) == 2)
        (first, *_) = growing()
        raw.data(first, body[:60_000])
        await raw.until(lambda: 65_535 + raw.windows[first] > len(body))
        raw.data(first, body[60_000:], end=True)
        await raw.until(lambda: len(growing()) == 3 and first in raw.ended)  # now there is room for another
        assert len(service.calls) == 1


async def test_compressed_message_that_exceeds_the_body_limit_is_refused() -> None:
    service = Scripted(result=task())
    async with (
        served(service, limits=Limits(max_body=MEGABYTE)) as channel,
        dialled(channel.server.port) as raw,
    ):
        packed = gzip.compress(bytes(64 * MEGABYTE))
        raw.call(1, SEND, [(b"grpc-encoding", b"gzip")])
        raw.data(1, b"\1" + len(packed).to_bytes(4) + packed[:60_000])
        await raw.until(lambda: len(packed) < 65_530 + raw.windows.get(1, 0) or 1 in raw.ended)
        raw.data(1, packed[60_000:], end=True)
        await raw.until(lambda: 1 in raw.ended)
        assert service.calls == []


async def test_large_bodies_count_for_what_the_process_works_on() -> None:
    """The budget is the one of HTTP: who finds no room waits."""
    bodies, service = ByteBudget(MEGABYTE), Scripted(result=task())
    freed = asyncio.Event()

    async def work_on_a_body_over_http() -> None:
        await bodies.hold(MEGABYTE - 1)
        await freed.wait()

    other = asyncio.create_task(work_on_a_body_over_http())
    async with served(service, bodies=bodies) as channel:
        stub = Stub(channel, v1_0.CODEC)
        large = stub.unary(ops.SEND, message(v1_0.CODEC, text="x" * (MEGABYTE // 2)))
        async with asyncio.timeout(10):
            while not bodies._waiting:
                await asyncio.sleep(0.01)
        await stub.unary(ops.SEND, message(v1_0.CODEC))  # small ones are not counted
        assert len(service.calls) == 1
        freed.set()
        await large
        await other
        assert len(service.calls) == 2
        async with asyncio.timeout(10):
            while bodies.used:
                await asyncio.sleep(0.01)


async def test_silent_grpc_connection_is_closed() -> None:
    async with served(Scripted(), limits=Limits(head_timeout=0.2)) as channel:
        reader, writer = await asyncio.open_connection("127.0.0.1", channel.server.port)
        async with asyncio.timeout(10):
            while await reader.read(1000):
                pass
        writer.close()


async def test_connections_of_http_and_grpc_are_counted_together(tmp_path: Any) -> None:
    agent = Agent("hello", "Says hi.")

    @agent.skill
    async def hi(turn: Any) -> str:
        return "hi"

    app = application(agent, store="memory:", grpc_port=0, limits=Limits(max_connections=2))
    async with running(app) as url:
        (grpc,) = [binding.port for binding in app._bindings if hasattr(binding, "port")]
        async with aio.insecure_channel(f"127.0.0.1:{grpc}") as channel:
            await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC))  # one
            port = int(url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)  # two
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"200" in await reader.readline()
            async with dialled(grpc) as third:
                await third.until(lambda: third.closed)
                assert not third.settings
            other, theirs = await asyncio.open_connection("127.0.0.1", port)
            theirs.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"503" in await other.readline()
            theirs.close()
            await Stub(channel, v1_0.CODEC).unary(
                ops.SEND, message(v1_0.CODEC)
            )  # who was there first goes on
            writer.close()
        async with asyncio.timeout(10):
            await until(lambda: not (app.connections.here))


def test_workers_count_connections_together() -> None:
    class Others:
        mine = 0

        def set(self, value: int) -> None:
            self.mine = value

        def total(self) -> int:
            return self.mine + 3

    connections = Connections(4, Others())
    connections.count(1)
    assert not connections.full
    connections.count(1)
    assert connections.full
    connections.count(-1)
    assert not connections.full

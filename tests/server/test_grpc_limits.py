"""What one caller may cost us over gRPC: the limits are those of HTTP."""

from __future__ import annotations

import asyncio
import gzip
import tempfile
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode, aio
from msgspec import structs

from dragoman import Agent
from dragoman.dialects.proto import v1_0
from dragoman.errors import Unauthenticated
from dragoman.model import ops
from dragoman.model.byte_budget import ByteBudget
from dragoman.model.content import Artifact, Part
from dragoman.model.ops import Principal
from dragoman.server.application import application
from dragoman.server.grpc.readers import MAX_UNREAD_BYTES, CallReader, Readers, TooSlowReader
from dragoman.server.limits import Connections, Limits
from dragoman.server.runtime import running
from tests.server.http2 import HEADERS, MAX_CONCURRENT_STREAMS, Connection, dialled
from tests.server.test_grpc import Stub, message, refused, served
from tests.server.wire import Scripted, chunk, task
from tests.waiting import VirtualTimeLoop, until

SEND = "/lf.a2a.v1.A2AService/SendMessage"
STREAM = "/lf.a2a.v1.A2AService/SendStreamingMessage"
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
async def test_an_unauthenticated_grpc_call_is_refused_before_its_body(agents: tuple[str, ...]) -> None:
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
        await until(lambda: bodies._waiting)
        await stub.unary(ops.SEND, message(v1_0.CODEC))  # small ones are not counted
        assert len(service.calls) == 1
        freed.set()
        await large
        await other
        assert len(service.calls) == 2
        await until(lambda: not bodies.used)


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


def _call(connection: Connection, stream: int, method: str, tenant: str = "") -> None:
    """A call with its whole request. Nothing of the answer is read beyond HTTP/2's first 65,535 bytes."""
    body = message(v1_0.CODEC, tenant=tenant).SerializeToString()
    connection.call(stream, method)
    connection.data(stream, b"\0" + len(body).to_bytes(4) + body, end=True)


async def test_an_unread_grpc_stream_ends_although_the_client_answers_pings() -> None:
    service = Scripted([chunk("x" * MEGABYTE, 1)], [chunk("y", 2)])
    service.hold = asyncio.Event()
    async with (
        served(service, limits=Limits(write_timeout=0.2), keepalive=0.1) as channel,
        dialled(channel.server.port) as raw,
    ):
        _call(raw, 1, STREAM)
        await raw.until(lambda: raw.closed)
        await until(service.closed.is_set)
        await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC))  # others are served
        await until(lambda: not channel.server._calls._readers._connections)


async def test_an_unread_grpc_answer_closes_its_connection() -> None:
    large = Scripted(result=_large_task())
    async with (
        served(large, limits=Limits(write_timeout=0.2)) as channel,
        dialled(channel.server.port) as raw,
    ):
        _call(raw, 1, SEND)
        await raw.until(lambda: raw.closed)
        assert len(large.calls) == 1


async def test_other_calls_of_a_connection_go_on_when_one_is_not_read() -> None:
    unread, other = Scripted([chunk("x" * 100_000, 1)]), Scripted()
    unread.hold, other.hold = asyncio.Event(), asyncio.Event()
    async with (
        served(unread, other, agents=("unread", "other"), limits=Limits(write_timeout=0.2)) as channel,
        dialled(channel.server.port) as raw,
    ):
        _call(raw, 1, STREAM, tenant="other")  # waits for events, and none come
        _call(raw, 3, STREAM, tenant="unread")
        await until(unread.closed.is_set)
        assert not raw.closed and not other.closed.is_set()
        other.hold.set()
        await raw.until(lambda: 1 in raw.ended)
        await raw.until(lambda: raw.closed)  # only the one that nobody reads is left


async def test_server_stops_while_a_client_does_not_read(caplog: pytest.LogCaptureFixture) -> None:
    unread, other = Scripted([chunk("x" * 100_000, 1)]), Scripted()
    unread.hold, other.hold = asyncio.Event(), asyncio.Event()
    async with (
        served(unread, other, agents=("unread", "other"), limits=Limits(write_timeout=0.1)) as channel,
        dialled(channel.server.port) as raw,
    ):
        _call(raw, 1, STREAM, tenant="other")
        _call(raw, 3, STREAM, tenant="unread")
        await until(unread.closed.is_set)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def _large_task() -> Any:
    return structs.replace(task(), artifacts=(Artifact(artifact_id="a", parts=(Part(text="x" * MEGABYTE),)),))


class _Client:
    """A connection that has read so many bytes, and reads more each time it is asked."""

    def __init__(self, step: int) -> None:
        self._step, self._read = step, 0
        self.looks = 0
        self.aborted = asyncio.Event()

    def read_bytes(self) -> int:
        self.looks += 1
        self._read += self._step
        return self._read

    def abort(self) -> None:
        self.aborted.set()


def _readers(client: _Client) -> Readers:
    return Readers(Limits(write_timeout=0.02, read_rate=500), lambda peer: client)  # ten bytes in that time


async def _blocked(reader: CallReader, size: int) -> None:
    with reader.writing(size):
        await asyncio.Event().wait()


def test_a_message_has_as_long_as_it_takes_at_the_read_rate() -> None:
    async def count_looks(step: int) -> int:
        client = _Client(step)

        async def call() -> None:
            with pytest.raises(TooSlowReader):
                await _blocked(_readers(client).begin("peer", streams=True), 50)

        await asyncio.create_task(call())
        await client.aborted.wait()
        return client.looks

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(count_looks(9)) == 2  # below the rate: ended at the first check
        assert runner.run(count_looks(10)) == 7  # 50 bytes take five times as long, and one more is allowed


async def test_a_connection_whose_ended_calls_hold_much_is_closed() -> None:
    client = _Client(0)
    readers, closed = _readers(client), asyncio.Event()

    async def other() -> None:
        readers.begin("peer", streams=True)
        await closed.wait()

    async def call(size: int) -> None:
        with pytest.raises(TooSlowReader):
            await _blocked(readers.begin("peer", streams=True), size)
        await closed.wait()

    async with asyncio.TaskGroup() as group, asyncio.timeout(10):
        group.create_task(other())
        first = readers._timeout
        group.create_task(call(MAX_UNREAD_BYTES))
        await until(lambda: client.looks)
        await until(lambda: not first._since)
        assert not client.aborted.is_set()
        group.create_task(call(1))
        await client.aborted.wait()
        closed.set()
    assert not readers._connections


async def test_grpc_serves_where_temporary_files_have_a_long_path_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    async with served(Scripted(result=task())) as channel:
        await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr("dragoman.server.grpc.front.MAX_PATH_BYTES", 10_000)
    async with served(Scripted(result=task())) as channel:
        await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC))
    assert "Set TMPDIR" in caplog.text


@pytest.mark.parametrize("pairs", [[("x", "y" * MEGABYTE)], [(f"x-{n}", "y" * 10) for n in range(50_000)]])
async def test_a_call_with_very_much_metadata_is_refused_before_we_see_it(pairs: Any) -> None:
    service = Scripted(result=task())
    async with served(service) as channel:
        call = channel.unary_unary(SEND, request_serializer=lambda request: request.SerializeToString())
        with pytest.raises(aio.AioRpcError) as refusal:
            await call(message(v1_0.CODEC), metadata=pairs)
        assert refusal.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert not service.calls and not channel.server._calls._readers._connections

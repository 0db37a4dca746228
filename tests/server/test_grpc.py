"""gRPC as callers see it: both services on one port, spoken to with plain stubs over a real socket."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from msgspec.structs import replace

from dragoman.dialects.proto import v0_3, v1_0, values
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.proto.messages import RPC, V0_3, V1_0, Numbered
from dragoman.dialects.proto.status import DETAILS
from dragoman.dialects.proto.values import write_value
from dragoman.errors import (
    ExtendedCardNotConfigured,
    InvalidParams,
    TaskNotFound,
    Unauthenticated,
    Unavailable,
    UnsupportedOperation,
)
from dragoman.model import ops
from dragoman.model.card import AgentCard, Capabilities, Extension
from dragoman.model.content import Message, Part, Role
from dragoman.model.ops import Op, Principal, StreamResponse
from dragoman.model.task import Task, TaskState
from dragoman.server.grpc.server import Grpc
from dragoman.server.limits import Limits
from dragoman.server.mount import Mount
from tests.server.wire import CARD, Scripted, chunk, reply, status, task
from tests.waiting import until

CODECS = [v1_0.CODEC, v0_3.CODEC]
every_version = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.version)


class Stub:
    """Calls the methods of one service; answers are messages, or what went wrong."""

    def __init__(self, channel: Any, codec: Codec) -> None:
        self._channel, self._codec = channel, codec

    def _method(self, op: Op, kind: str) -> Any:
        codec = self._codec
        answer = codec.event if op.streams else codec.results[op]
        return getattr(self._channel, kind)(
            f"/{codec.service}/{codec.methods[op]}",
            request_serializer=lambda request: (
                request if isinstance(request, bytes) else request.SerializeToString()
            ),
            response_deserializer=answer.FromString,
        )

    def unary(self, op: Op, request: Any, **metadata: str) -> Any:
        return self._method(op, "unary_unary")(request, metadata=_pairs(metadata))

    def stream(self, op: Op, request: Any, **metadata: str) -> Any:
        return self._method(op, "unary_stream")(request, metadata=_pairs(metadata))


def _pairs(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", "-"), value) for name, value in metadata.items())


@asynccontextmanager
async def served(*services: Any, agents: tuple[str, ...] = ("hello",), **more: Any) -> AsyncIterator[Any]:
    """A channel to services behind gRPC; `.server` is what serves them."""
    names = {"versions", "authenticator", "card"}
    about = {"card": CARD, **{name: more.pop(name) for name in list(more) if name in names}}
    mounts = [
        Mount(service=service, agent=agent, path="/" if len(services) == 1 else f"/{agent}", **about)
        for service, agent in zip(services, agents, strict=True)
    ]
    server = Grpc(mounts, **more)
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        channel.server = server
        try:
            yield channel
        finally:
            await server.drain()
            await server.stop()


def message(codec: Codec, text: str = "hi", **more: Any) -> Any:
    """A request to send it."""
    if codec is v1_0.CODEC:
        request = V1_0.SendMessageRequest(**more)
        request.message.parts.add(text=text)
        said = request.message
    else:
        request = V0_3.SendMessageRequest(**more)
        request.request.content.add(text=text)
        said = request.request
    said.message_id, said.role = "m1", 1
    return request


async def refused(call: Any) -> tuple[StatusCode, Any, dict[str, Any]]:
    """The status of a call that fails, the ErrorInfo in it, and the trailers."""
    with pytest.raises(aio.AioRpcError) as failed:
        await call if not hasattr(call, "__aiter__") else [each async for each in call]
    trailers = dict(failed.value.trailing_metadata())
    said = RPC.Status.FromString(trailers[DETAILS])
    info = RPC.ErrorInfo()
    (packed,) = [each for each in said.details if each.type_url.endswith("google.rpc.ErrorInfo")]
    assert packed.type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    info.ParseFromString(packed.value)
    assert (said.code, said.message) == (failed.value.code().value[0], failed.value.details())
    assert info.domain == "a2a-protocol.org"
    return failed.value.code(), info, trailers


# --- answers


@every_version
async def test_a_send_is_answered_with_a_task_or_a_message(codec: Codec) -> None:
    service = Scripted()
    async with served(service) as channel:
        answer = await Stub(channel, codec).unary(ops.SEND, message(codec))
        assert answer.task.id == "t1" and answer.task.status.state == 3
        service.result = reply("hello")
        answer = await Stub(channel, codec).unary(ops.SEND, message(codec))
        assert answer.WhichOneof("payload") in ("message", "msg")
    call, request = service.calls[0]
    assert isinstance(request, ops.SendMessage) and request.message.text == "hi"
    assert (call.dialect, call.scope.agent) == (codec.name, "hello")


@every_version
async def test_a_stream_ends_with_its_last_event(codec: Codec) -> None:
    done = status(TaskState.COMPLETED, 3)
    service = Scripted([chunk("one ", 1)], [chunk("two", 2), done, chunk("never", 4)])
    async with served(service) as channel:
        events = [each async for each in Stub(channel, codec).stream(ops.STREAM, message(codec))]
    kinds = [each.WhichOneof("payload") for each in events]
    assert kinds == ["artifact_update", "artifact_update", "status_update"]
    assert service.closed.is_set()
    if codec is v0_3.CODEC:
        assert events[-1].status_update.final


async def test_events_are_numbered_only_for_clients_that_request_it() -> None:
    service = Scripted([chunk("one ", 7), status(TaskState.COMPLETED, 8)])
    async with served(service) as channel:
        method = channel.unary_stream("/lf.a2a.v1.A2AService/SendStreamingMessage")
        body = message(v1_0.CODEC).SerializeToString()
        call = method(body, metadata=(("dragoman", "1"),))
        received = [each async for each in call]
        assert dict(await call.initial_metadata())["dragoman"] == "1"
        plain = [each async for each in method(body)]
    assert [Numbered.FromString(each).seq for each in received] == [7, 8]
    for each in plain:
        event = V1_0.StreamResponse.FromString(each)
        assert event.SerializeToString() == each  # nothing unknown in it
        assert Numbered.FromString(each).seq == 0


async def test_metadata_says_the_rest() -> None:
    service = Scripted(result=task())
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    card = AgentCard(name="x", capabilities=Capabilities(extensions=(Extension(uri="urn:a"),)))
    async with served(service, card=card) as channel:
        call = Stub(channel, v1_0.CODEC).unary(
            ops.GET,
            V1_0.GetTaskRequest(id="t1", history_length=3),
            a2a_version="1.0",
            a2a_extensions="urn:a, urn:b",
            idempotency_key="k1",
            last_event_id="17",
            traceparent=trace,
            authorization="Bearer s3cret",
            dragoman_depth="2",
        )
        await call
        trailers = dict(await call.trailing_metadata())
    assert (trailers["a2a-extensions"], trailers["dragoman"]) == ("urn:a", "1")
    seen, request = service.calls[0]
    assert request == ops.GetTask(id="t1", history_length=3)
    assert (seen.idempotency_key, seen.extensions, seen.after) == ("k1", ("urn:a", "urn:b"), 17)
    assert (seen.trace, seen.depth) == ({"traceparent": trace}, 2)
    assert seen.credentials == {"authorization": "Bearer s3cret"}


async def test_an_extended_card_says_where_the_agent_is() -> None:
    async with served(Scripted(result=CARD)) as channel:
        for codec in CODECS:
            request = codec.requests[ops.EXTENDED_CARD]()
            card = codec.read_result(
                ops.EXTENDED_CARD,
                (await Stub(channel, codec).unary(ops.EXTENDED_CARD, request)).SerializeToString(),
            )
            assert card.name == CARD.name
            assert card.supported_interfaces[0].url == f"127.0.0.1:{channel.server.port}"


@pytest.mark.parametrize("error", [UnsupportedOperation("no"), ExtendedCardNotConfigured("none")])
async def test_before_1_0_the_card_is_given_where_there_is_no_extended_one(error: Exception) -> None:
    async with served(Scripted(result=error)) as channel:
        for codec in CODECS:
            request = codec.requests[ops.EXTENDED_CARD]()
            answer = Stub(channel, codec).unary(ops.EXTENDED_CARD, request)
            if codec.version == "1.0":
                assert (await refused(answer))[0] is StatusCode.FAILED_PRECONDITION
            else:
                card = codec.read_result(ops.EXTENDED_CARD, (await answer).SerializeToString())
                assert card.supported_interfaces[0].url == f"127.0.0.1:{channel.server.port}"


# --- refusals


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (TaskNotFound("t9"), StatusCode.NOT_FOUND, "TASK_NOT_FOUND"),
        (UnsupportedOperation("no"), StatusCode.FAILED_PRECONDITION, "UNSUPPORTED_OPERATION"),
        (InvalidParams("no", fields=[("id", "is odd")]), StatusCode.INVALID_ARGUMENT, "INVALID_PARAMS"),
        (KeyError("secret"), StatusCode.INTERNAL, "INTERNAL_ERROR"),
    ],
)
@every_version
async def test_an_error_names_its_reason(
    codec: Codec, error: Exception, code: StatusCode, reason: str
) -> None:
    async with served(Scripted(error, result=error)) as channel:
        stub = Stub(channel, codec)
        for call in (stub.unary(ops.SEND, message(codec)), stub.stream(ops.STREAM, message(codec))):
            got, info, _ = await refused(call)
            assert (got, info.reason) == (code, reason)
            assert "secret" not in str(info)


@every_version
async def test_an_error_after_the_first_event_ends_the_stream(codec: Codec) -> None:
    async with served(Scripted([chunk("one", 1)], TaskNotFound("t1"))) as channel:
        call = Stub(channel, codec).stream(ops.STREAM, message(codec))
        heard = []
        with pytest.raises(aio.AioRpcError) as failed:
            async for each in call:
                heard.append(each)
        assert len(heard) == 1 and failed.value.code() is StatusCode.NOT_FOUND


@every_version
@pytest.mark.parametrize("junk", [b"\xff\xff", b""])
async def test_a_request_that_cannot_be_read_is_the_callers_fault(codec: Codec, junk: bytes) -> None:
    async with served(Scripted()) as channel:
        for op in set(codec.methods) - {ops.LIST, ops.EXTENDED_CARD}:
            stub = Stub(channel, codec)
            code, info, _ = await refused((stub.stream if op.streams else stub.unary)(op, junk))
            assert (code, info.reason) == (StatusCode.INVALID_ARGUMENT, "INVALID_PARAMS")


async def test_a_version_that_contradicts_the_service_is_refused() -> None:
    async with served(Scripted()) as channel:
        for codec, version, good in (
            (v1_0.CODEC, "1.0", True),
            (v1_0.CODEC, "1.0.1", True),
            (v1_0.CODEC, "0.3", False),
            (v1_0.CODEC, "1.7", False),
            (v0_3.CODEC, "0.3.0", True),
            (v0_3.CODEC, "1.0", False),
        ):
            call = Stub(channel, codec).unary(ops.SEND, message(codec), a2a_version=version)
            if good:
                await call
            else:
                code, info, _ = await refused(call)
                assert (code, info.reason) == (StatusCode.FAILED_PRECONDITION, "VERSION_NOT_SUPPORTED")


async def test_an_agent_of_one_version_refuses_the_other() -> None:
    async with served(Scripted(), versions=("1.0",)) as channel:
        await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC))
        _, info, _ = await refused(Stub(channel, v0_3.CODEC).unary(ops.SEND, message(v0_3.CODEC)))
        assert info.reason == "VERSION_NOT_SUPPORTED"
        (only,) = channel.server.interfaces(channel.server._calls.default, "http://x")
        assert only.protocol_version == "1.0"


@every_version
async def test_a_method_that_does_not_exist_is_unimplemented(codec: Codec) -> None:
    async with served(Scripted()) as channel:
        with pytest.raises(aio.AioRpcError) as failed:
            await channel.unary_unary(f"/{codec.service}/Dance")(b"")
        assert failed.value.code() is StatusCode.UNIMPLEMENTED


async def test_request_that_is_too_large_is_refused_over_grpc() -> None:
    limits = Limits(max_body=1000, max_event=100)
    async with served(Scripted([chunk("x" * 200, 1)]), limits=limits) as channel:
        stub = Stub(channel, v1_0.CODEC)
        with pytest.raises(aio.AioRpcError) as failed:
            await stub.unary(ops.SEND, message(v1_0.CODEC, "x" * 2000))
        assert failed.value.code() is StatusCode.RESOURCE_EXHAUSTED
        _, info, _ = await refused(stub.stream(ops.STREAM, message(v1_0.CODEC)))
        assert info.reason == "INVALID_AGENT_RESPONSE"


async def test_many_small_values_are_too_large_as_well() -> None:
    request = message(v1_0.CODEC)
    for _ in range(600):
        request.message.parts.add()
    async with served(Scripted(), limits=Limits(max_nodes=500)) as channel:
        _, info, _ = await refused(Stub(channel, v1_0.CODEC).unary(ops.SEND, request))
        assert info.reason == "INVALID_PARAMS"


@pytest.mark.parametrize(
    ("document", "in_a_thread"),
    [
        ({"a": [True] * 100_000}, True),
        ({str(n): {"a": n} for n in range(50_000)}, True),
        ({"a": [1, {}]}, False),
    ],
    ids=["a list", "objects", "few"],
)
@every_version
async def test_an_answer_with_many_values_is_not_written_on_the_loop(
    codec: Codec, document: dict[str, Any], in_a_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def write(item: Any, depth: int = 0) -> Any:
        threads.append(threading.current_thread())
        return write_value(item, depth)

    monkeypatch.setattr(values, "write_value", write)
    said = Message(message_id="m", role=Role.USER, parts=(Part(text="x"),), metadata=document)
    large = replace(task(), history=(said,))
    async with served(Scripted([StreamResponse(large, 1)], result=large)) as channel:
        stub = Stub(channel, codec)
        answer = await stub.unary(ops.SEND, message(codec))
        assert codec.read_result(ops.SEND, answer.SerializeToString()).history[0].metadata == document
        events = [event async for event in stub.stream(ops.STREAM, message(codec))]
        event = codec.read_event(events[0].SerializeToString())
        assert isinstance(event, Task) and event.history[0].metadata == document
    assert {thread is not threading.current_thread() for thread in threads} == {in_a_thread}


class Door:
    """Lets in who says the word."""

    challenge = 'Bearer realm="hello"'

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        if headers.get("authorization") != "Bearer open":
            raise Unauthenticated("who are you?")
        return Principal(id="ann", tenant="acme")


async def test_callers_are_authenticated_before_their_body_is_read() -> None:
    service = Scripted([status(TaskState.COMPLETED)])
    async with served(service, authenticator=Door()) as channel:
        for codec in CODECS:
            stub = Stub(channel, codec)
            for op in codec.methods:
                code, _, trailers = await refused((stub.stream if op.streams else stub.unary)(op, b"\xff"))
                assert code is StatusCode.UNAUTHENTICATED
                assert trailers["www-authenticate"] == Door.challenge
        assert not service.calls
        await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC), authorization="Bearer open")
        call, _ = service.calls[0]
        assert (call.scope.owner, call.scope.tenant) == ("ann", "acme")


# --- several agents


async def test_the_tenant_names_the_agent_where_there_are_several() -> None:
    ann, bob = Scripted(result=task(id="ann's")), Scripted(result=task(id="bob's"))
    async with served(ann, bob, agents=("ann", "bob")) as channel:
        stub = Stub(channel, v1_0.CODEC)
        for name in ("ann", "bob"):
            answer = await stub.unary(ops.SEND, message(v1_0.CODEC, tenant=name))
            assert answer.task.id == f"{name}'s"
        code, _, _ = await refused(stub.unary(ops.SEND, message(v1_0.CODEC, tenant="eve")))
        assert code is StatusCode.NOT_FOUND
        for codec in CODECS:
            code, info, _ = await refused(Stub(channel, codec).unary(ops.SEND, message(codec)))
            assert (code, info.reason) == (StatusCode.INVALID_ARGUMENT, "INVALID_PARAMS")
        server = channel.server
        for mount in server._calls._mounts.values():
            (only,) = server.interfaces(mount, "https://agents.example/x")
            assert (only.url, only.tenant) == (f"agents.example:{server.port}", mount.agent)
            assert (only.protocol_binding, only.protocol_version) == ("GRPC", "1.0")


async def test_tenant_may_be_given_in_metadata() -> None:
    first, second = Scripted(), Scripted()
    async with served(first, second, agents=("first", "second")) as channel:
        old = Stub(channel, v0_3.CODEC)
        await old.unary(ops.SEND, message(v0_3.CODEC), a2a_tenant="second")
        assert [call.scope.agent for call, _ in second.calls] == ["second"] and not first.calls
        code, _, _ = await refused(old.unary(ops.SEND, message(v0_3.CODEC), a2a_tenant="third"))
        assert code is StatusCode.NOT_FOUND
        new = Stub(channel, v1_0.CODEC)
        await new.unary(ops.SEND, message(v1_0.CODEC, tenant="first"), a2a_tenant="second")
        assert len(first.calls) == 1, "the request's own word goes first"


async def test_a_single_agent_takes_any_tenant() -> None:
    async with served(Scripted()) as channel:
        for tenant in ("", "hello", "whatever"):
            await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC, tenant=tenant))
        first, second = channel.server.interfaces(channel.server._calls.default, "http://[::1]:8000/")
        assert (first.url, first.protocol_version) == (f"[::1]:{channel.server.port}", "1.0")
        assert (second.protocol_version, second.tenant) == ("0.3", "")


# --- callers who leave, servers that leave


async def test_a_caller_who_leaves_ends_the_reading() -> None:
    service = Scripted([chunk("one", 1)])
    service.hold = asyncio.Event()
    async with served(service) as channel:
        call = Stub(channel, v1_0.CODEC).stream(ops.STREAM, message(v1_0.CODEC))
        await anext(aiter(call))
        call.cancel()
        async with asyncio.timeout(10):
            await service.closed.wait()


async def test_unavailable_without_retry_after_gets_one() -> None:
    async with served(Scripted(result=Unavailable("the task store cannot be read at the moment"))) as channel:
        code, _, trailers = await refused(
            Stub(channel, v1_0.CODEC).unary(ops.GET, V1_0.GetTaskRequest(id="t"))
        )
        assert code is StatusCode.UNAVAILABLE and trailers["retry-after"] == "1"
        details = RPC.Status.FromString(trailers[DETAILS]).details
        assert any(each.type_url.endswith("RetryInfo") for each in details)


async def test_a_stopping_grpc_server_ends_streams_with_unavailable() -> None:
    service = Scripted([chunk("one", 1)])
    service.hold = asyncio.Event()
    async with served(service) as channel:
        call = Stub(channel, v1_0.CODEC).stream(ops.STREAM, message(v1_0.CODEC))
        events = aiter(call)
        await anext(events)
        async with asyncio.timeout(10):
            await channel.server.drain()
            with pytest.raises(aio.AioRpcError) as failed:
                await anext(events)
        assert failed.value.code() is StatusCode.UNAVAILABLE
        trailers = dict(failed.value.trailing_metadata() or ())
        details = RPC.Status.FromString(trailers[DETAILS]).details
        assert any(each.type_url.endswith("RetryInfo") for each in details)


@pytest.mark.parametrize("limits", [Limits(), Limits(max_connections=10)], ids=["any number", "counted"])
async def test_a_server_that_leaves_closes_its_listener_first_and_answers_who_waits(limits: Limits) -> None:
    class Held(Scripted):
        async def call(self, call: Any, request: Any) -> Any:
            result = await super().call(call, request)
            assert self.hold is not None
            await self.hold.wait()
            return result

    service = Held(result=task())
    service.hold = asyncio.Event()
    async with served(service, limits=limits) as channel:
        waiting = Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC))
        waited = asyncio.ensure_future(waiting)
        async with asyncio.timeout(10):
            await until(lambda: service.calls)
            await channel.server.drain()
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", channel.server.port)
                except ConnectionError:
                    break
                writer.close()
            service.hold.set()
            assert (await waited).HasField("task")
        with pytest.raises(aio.AioRpcError) as failed:
            await Stub(channel, v1_0.CODEC).unary(ops.SEND, message(v1_0.CODEC))
        assert failed.value.code() is StatusCode.UNAVAILABLE


async def test_a_taken_port_is_an_error() -> None:
    async with served(Scripted()) as channel:
        other = Grpc([Mount(service=Scripted(), card=CARD)], port=channel.server.port)
        with pytest.raises(OSError, match="cannot listen"):
            await other.start()


# --- health and reflection


async def test_no_method_is_registered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these would cost every call of any method."""
    registered: list[Any] = []
    method = "grpc.aio._server.Server.add_registered_method_handlers"
    monkeypatch.setattr(method, lambda *arguments: registered.append(arguments))
    async with served(Scripted()):
        assert not registered


async def test_each_service_is_healthy() -> None:
    async with served(Scripted()) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", *(codec.service for codec in CODECS)):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_describes_every_service() -> None:
    async with served(Scripted()) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)

        async def ask(**what: Any) -> Any:
            call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**what)]))
            return await anext(aiter(call))

        listed = await ask(list_services="")
        names = {service.name for service in listed.list_services_response.service}
        assert {codec.service for codec in CODECS} <= names and len(names) == 4
        for name in names:
            answer = await ask(file_containing_symbol=name)
            assert answer.file_descriptor_response.file_descriptor_proto, name


async def test_answer_to_a_caller_that_left_is_not_logged_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It depends on who is first, and nobody can say so beforehand: as gRPC says it."""
    log = logging.getLogger("grpc._cython.cygrpc")
    async with served(Scripted()):
        log.error("raised by servicer method", exc_info=aio.InternalError("Failed execute_batch"))
        log.error("raised by servicer method", exc_info=RuntimeError("something else"))
    (said,) = caplog.records
    assert said.exc_info and isinstance(said.exc_info[1], RuntimeError)

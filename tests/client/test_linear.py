"""Parsers of what a peer sends: twice the bytes cost about twice the time, whatever the bytes are.

Each case is the worst that its parser can be given (`tests/growth.py` measures).
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from dragoman.auth.canonical import canonical
from dragoman.auth.signing import Trust
from dragoman.client.authorize import origin_of
from dragoman.client.deduplicate import (
    ReplayFilter,
    StreamPosition,
    missed_events,
    parts_after,
    parts_after_with_duplicates,
)
from dragoman.client.discover import absolute_url, grpc_url, read_given_card
from dragoman.client.reply import Stream
from dragoman.client.routes import find_routes
from dragoman.client.transport import jsonrpc
from dragoman.client.transport.gzip_body import Inflater
from dragoman.client.transport.http1 import HttpConnection
from dragoman.client.transport.http_exchange import read_document
from dragoman.client.transport.network import HttpTransport
from dragoman.client.transport.transport import decode_json, retry_after, to_error
from dragoman.dialects.cards import read_card
from dragoman.dialects.errors import read_rest_error
from dragoman.dialects.proto import v0_3, v1_0
from dragoman.dialects.proto.messages import V0_3, V1_0
from dragoman.dialects.proto.status import read_status
from dragoman.dialects.select import DIALECTS
from dragoman.dialects.sse import SseReader
from dragoman.errors import A2AError
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.ops import StreamResponse
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus
from dragoman.push.guard import Guard
from tests.client.fakes import card
from tests.growth import assert_linear

Work = Callable[[], object]
CASES: dict[str, tuple[int, Callable[[int], Work]]] = {}


def case(n: int) -> Callable[[Callable[[int], Work]], Callable[[int], Work]]:
    """A parser and its worst case of size `n`: what is made is not measured, what it returns is."""

    def add(make: Callable[[int], Work]) -> Callable[[int], Work]:
        CASES[make.__name__] = n, make
        return make

    return add


_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


# --- bodies


def _unpack(body: bytes, encoding: str = "gzip") -> Work:
    return lambda: sum(len(piece) for piece in Inflater(encoding, "it").feed(body))


@case(2000)
def gzip_of_many_members(n: int) -> Work:
    return _unpack(gzip.compress(b"", mtime=0) * n + bytes(n * 100))


@case(2000)
def gzip_of_many_members_with_a_byte(n: int) -> Work:
    return _unpack(gzip.compress(b"x", mtime=0) * n)


@case(1 << 22)
def gzip_of_nothing_but_zeros(n: int) -> Work:
    return _unpack(gzip.compress(bytes(n * 4), mtime=0))


@case(1 << 20)
def deflate_of_noise(n: int) -> Work:
    return _unpack(zlib.compress(bytes(msgspec.json.encode(list(range(n // 4)))), 0), "deflate")


# --- HTTP


class _Wire(asyncio.Transport):
    def write(self, data: Any) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool:
        return False


def _hear(answer: bytes, cut: int = 1 << 16) -> Work:
    def work() -> None:
        connection = HttpConnection(lambda _: None, lambda _: None)
        connection.connection_made(_Wire())
        response = connection.send(b"", "it")
        for at in range(0, len(answer), cut):
            connection.data_received(answer[at : at + cut])
        response._take()

    return work


@case(5000)
def http_head_of_one_header_many_times(n: int) -> Work:
    return _hear(b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * n + b"\r\n")


@case(20_000)
def http_head_in_single_bytes(n: int) -> Work:
    return _hear(b"HTTP/1.1 200 OK\r\na:" + b"b" * n, cut=1)


@case(1 << 18)
def http_body_in_chunks_of_two_bytes(n: int) -> Work:
    return _hear(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nxy\r\n" * n)


@case(1 << 20)
def http_chunk_extensions(n: int) -> Work:
    return _hear(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;" + b"a" * n)


@case(1 << 20)
def http_trailers(n: int) -> Work:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    return _hear(head + b"a:b\r\n" * n)


@case(5000)
def http_informational_answers(n: int) -> Work:
    return _hear(b"HTTP/1.1 103 Early\r\na: b\r\n\r\n" * n)


@case(60_000)
def retry_after_header(n: int) -> Work:
    return lambda: [retry_after(value * n) for value in ("9", "Mon, ", "1 ", "(", ":", "-1")]


# --- server-sent events


def _frames(body: bytes, cut: int) -> Work:
    def work() -> None:
        reader = SseReader()
        for at in range(0, len(body), cut):
            reader.feed(body[at : at + cut])
        reader.end()

    return work


for _name, _unit, _cut in (
    ("line_without_an_end", b"data: " + b"x" * 94, 100),
    ("lines_of_one_frame", b"data:x\n", 1000),
    ("empty_lines", b"\n", 1 << 16),
    ("carriage_returns", b"\r", 1000),
    ("colons", b":", 1000),
    ("small_frames", b"data: {}\n\n", 1 << 16),
    ("ids", b"id: 1\n", 1000),
):
    CASES[f"sse_{_name}"] = 1 << 16, lambda n, unit=_unit, cut=_cut: _frames(unit * (n * 4 // len(unit)), cut)  # type: ignore[misc]


# --- JSON, in each dialect


for _name, _text in (
    ("open", "["),
    ("members", '{"a":'),
    ("digits", "1"),
    ("fraction", "0.1"),
    ("escapes", '"\\u00e9'),
    ("quotes", '_id"  '),
    ("spaces", " "),
    ("empty_objects", "{},"),
):
    for _kind, _read in (
        ("document", lambda body: read_document(body, "it")),
        ("decode_json", decode_json),
        ("direct", jsonrpc.read_model_event),
        ("list", lambda body: decode_json(b"[" + body + b"0]")),
        ("text", lambda body: jsonrpc.read_model_event(b'{"result":{"x":"' + body + b'"}}')),
    ):
        CASES[f"json_{_name}_{_kind}"] = (
            1 << 18,
            lambda n, text=_text, read=_read: (lambda body: lambda: read(body))(
                text.encode() * (n // len(text))
            ),  # type: ignore[misc]
        )


def _event(n: int, **members: Any) -> dict[str, Any]:
    artifact = {"artifactId": "a", "parts": [{"text": "x", "kind": "text"}] * n}
    return {"taskId": "t", "contextId": "c", "artifact": artifact, **members}


for _dialect in ("1.0", "0.3", "0.3-proto", "0.2", "0.1", "arbiter"):

    def _read_event(n: int, dialect: str = _dialect) -> Work:
        update = {"kind": "artifact-update", "id": "t", **_event(n)}
        document = {"artifactUpdate": update} if dialect in ("1.0", "0.3-proto") else update
        return lambda: DIALECTS[dialect].read_event(document)

    def _read_error(n: int, dialect: str = _dialect) -> Work:
        detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "X", "metadata": {"a": "b"}}
        error = {"code": -32001, "message": "no " * n, "data": [detail] * n, "details": [detail] * n}
        return lambda: (
            DIALECTS[dialect].read_error(error),
            read_rest_error({"error": error}, dialect, http=404),
            read_rest_error({"type": "/-error" * n, "title": "x" * n}, dialect, http=400),
        )

    CASES[f"event_of_many_parts_{_dialect}"] = 10_000, _read_event
    CASES[f"error_of_many_details_{_dialect}"] = 10_000, _read_error


class _Answer:
    status = 503
    headers: dict[str, str] = {}


@case(1 << 20)
def error_page(n: int) -> Work:
    pages = [b" " * n, b"<" * n, msgspec.json.encode({"error": {"message": "ab " * n}})]
    return lambda: [str(to_error(_Answer(), page, "it", _fail)) for page in pages]  # type: ignore[arg-type]


def _fail(document: dict[str, Any], status: int) -> A2AError:
    raise AssertionError


# --- cards


@case(4000)
def card_of_many_interfaces(n: int) -> Work:
    where = [
        {"url": f"http://h{i}.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        for i in range(n)
    ]
    document = card(supportedInterfaces=where)
    return lambda: find_routes(read_given_card(document))


@case(2000)
def card_of_many_of_everything(n: int) -> Work:
    document = card(
        skills=[{"id": str(i), "name": "s", "description": "s", "tags": ["t"] * 5} for i in range(n)],
        securitySchemes={
            f"s{i}": {"apiKeySecurityScheme": {"name": "k", "location": "header"}} for i in range(n)
        },
        securityRequirements=[{"schemes": {f"s{i}": {"list": []}}} for i in range(n)],
        defaultInputModes=["text/plain"] * n,
    )
    old = {
        **card(skills=document["skills"]),
        "url": "http://agent.test/",
        "security": [{f"s{i}": []} for i in range(n)],
    }
    del old["supportedInterfaces"]
    return lambda: (read_card(document), read_card(old))


@case(2000)
def card_with_many_signatures(n: int) -> Work:
    document = card(
        skills=[{"id": str(i), "name": "s", "description": "s", "tags": []} for i in range(n)],
        signatures=[{"protected": "e30", "signature": "AA"}] * 8,
    )

    async def fetch(url: str, form: Any = None, authorization: str = "") -> bytes:
        return b'{"keys": []}'

    def work() -> None:
        canonical(document)
        with suppress(A2AError):
            asyncio.run(Trust({"keys": []}).verify(document, fetch))

    return work


@case(1 << 16)
def addresses(n: int) -> Work:
    urls = [
        "http://" + unit * n
        for unit in ("a", "a.", "ä", "ä.", "[", ":", "@", "%", "/..", "?", "1.", "0x", "xn--a.", "-", "a-.")
    ]

    def work() -> None:
        for url in urls:
            for read in (
                origin_of,
                HttpTransport()._resolve,
                Guard(http=True)._check_host,
                lambda url: absolute_url(url, "http://agent.test/a/"),
                lambda url: grpc_url(url, "http://agent.test/"),
                lambda url: Guard(http=True).check(url),
                lambda url: Guard(http=True)._check_host(url[7:]),
            ):
                with suppress(A2AError, ValueError, OSError):
                    read(url)

    return work


# --- protobuf


for _codec, _messages in ((v1_0.CODEC, V1_0), (v0_3.CODEC, V0_3)):

    def _proto_event(n: int, codec: Any = _codec, messages: Any = _messages) -> Work:
        update = messages.StreamResponse()
        for _ in range(n):
            update.artifact_update.artifact.parts.add(text="x")
        body = update.SerializeToString()
        return lambda: codec.read_event(body)

    def _proto_metadata(n: int, codec: Any = _codec, messages: Any = _messages) -> Work:
        update = messages.StreamResponse()
        for i in range(n):
            update.artifact_update.metadata[str(i)] = i
        body = update.SerializeToString()
        return lambda: codec.read_event(body)

    CASES[f"proto_parts_{_codec.name}"] = 4000, _proto_event
    CASES[f"proto_metadata_{_codec.name}"] = 4000, _proto_metadata


@case(1 << 16)
def proto_status(n: int) -> Work:
    return lambda: read_status("INTERNAL", "x" * n, b"\x1a\x02\x0a\x00" * n)


# --- streams that are put together


def _chunk(text: str, *, append: bool = True, **members: Any) -> ArtifactUpdate:
    artifact = Artifact(artifact_id="a", parts=(Part(text=text),), **members)
    return ArtifactUpdate(task_id="t", context_id="c", artifact=artifact, append=append)


def _task(text: str, state: TaskState = TaskState.WORKING) -> Task:
    artifact = Artifact(artifact_id="a", parts=(Part(text=text),))
    return Task(id="t", context_id="c", status=TaskStatus(state=state), artifacts=(artifact,))


@case(4000)
def fold_of_chunks_with_metadata(n: int) -> Work:
    events = [_chunk("x", metadata={str(i): i}, extensions=(str(i),), name=str(i)) for i in range(n)]

    def work() -> Task | None:
        fold = Fold()
        for event in events:
            fold.apply(event)
        return fold.task

    return work


@case(1000)
def place_in_a_text_that_repeats_itself(n: int) -> Work:
    def work() -> None:
        place = StreamPosition("a" * n)
        for _ in range(n):
            place.contains("a")
            place.advance("a")

    return work


@case(20_000)
def parts_that_are_compared(n: int) -> Work:
    parts = [Part(text="a") if i % 2 else Part(data=i) for i in range(n)]
    twice = [part for part in parts for _ in range(2)]
    return lambda: (
        parts_after(parts, parts),
        parts_after_with_duplicates(twice, parts),
        parts_after([Part(text="a" * n)], parts),
    )


@case(500)
def stream_that_is_told_again_in_small_chunks(n: int) -> Work:
    said = [
        StatusUpdate(
            task_id="t",
            context_id="c",
            status=TaskStatus(
                state=TaskState.WORKING,
                message=Message(message_id=str(i), role=Role.AGENT, parts=(Part(text="a"),)),
            ),
        )
        for i in range(100)
    ]

    def work() -> None:
        fold = Fold()
        fold.apply(_task("a" * n))
        replay = ReplayFilter(fold, [each.status for each in said])
        events: list[Event] = [_task("a" * n * 2), *said, _chunk("a", append=False), *[_chunk("a")] * (n * 2)]
        for event in events:
            if not replay.is_continuous(event):
                continue
            for new in replay.read(event):
                fold.apply(new)
        missed_events(fold, _task("a" * n * 3))

    return work


@case(2000)
def stream_of_artifacts_that_begin_anew(n: int) -> Work:
    """Each event is as small as the one before, so what is known of the artifact does not grow."""

    async def batches() -> Any:
        yield [StreamResponse(_chunk("x" * 1000, append=False))]
        for i in range(n):
            yield [StreamResponse(_chunk(f"{i % 7}", append=False)), StreamResponse(_task(f"{i % 5}"))]

    async def read() -> int:
        stream = Stream(None, batches(), None)  # type: ignore[arg-type]
        return sum([len(piece.text) + piece.replaces async for piece in stream])

    return lambda: asyncio.run(read())


@pytest.mark.parametrize("name", CASES)
def test_twice_the_bytes_cost_twice_the_time(name: str) -> None:
    n, make = CASES[name]

    def run(work: Work) -> None:
        with suppress(A2AError, ValueError, OSError, *_NOT_JSON):
            work()

    assert_linear(run, make, 2 * n)


# --- bounds


@pytest.mark.parametrize(
    "beside", [b"0\r\n" + b"a:b\r\n" * 50_000, b"2;" + b"a" * 200_000], ids=["trailers", "chunk"]
)
def test_heads_trailers_and_chunk_extensions_are_limited(beside: bytes) -> None:
    connection = HttpConnection(lambda _: None, lambda _: None)
    connection.connection_made(_Wire())
    response = connection.send(b"", "it")
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + beside)
    assert not connection.usable
    with pytest.raises(A2AError, match="the rest of its answer has no end"):
        asyncio.run(response.read())


def test_small_chunks_that_came_together_are_one_piece() -> None:
    connection = HttpConnection(lambda _: None, lambda _: None)
    connection.connection_made(_Wire())
    response = connection.send(b"", "it")
    connection.data_received(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nxy\r\n" * 10_000
    )
    assert list(response._pieces) == [b"xy" * 10_000]


def test_a_card_does_not_send_us_to_a_thousand_places() -> None:
    where = [
        {"url": f"http://h{i}.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        for i in range(1000)
    ]
    ways = find_routes(read_given_card(card(supportedInterfaces=where)), prefer="http://h900.example")
    assert ways[0].url == "http://h900.example/"
    assert len({way.url for way in ways}) == 33

"""Twice as much costs twice as much: every reader of foreign bytes in bindings/ and dialects/, with its worst case.

Each case makes an input of a size, and reads it (`tests/growth.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import unquote

import msgspec
import pytest

from dragoman.auth import ApiKey, Basic, Bearer, hashed, hashed_password
from dragoman.auth.requirements import AgentAuthenticator, Requirements
from dragoman.dialects import cards, errors, paths, select
from dragoman.dialects.proto import v0_3, v1_0
from dragoman.dialects.proto.codec import Codec
from dragoman.dialects.proto.status import read_status
from dragoman.dialects.reading import looks_snake, read_base64
from dragoman.dialects.select import DIALECTS
from dragoman.dialects.sse import SseReader
from dragoman.errors import A2AError, InvalidParams
from dragoman.model import ops
from dragoman.model.ops import MAX_MODES, MAX_PARTS
from dragoman.push.receive import _named_tasks
from dragoman.server import app as server_app
from dragoman.server import rest
from dragoman.server.address import PublicAddress
from dragoman.server.cards import _holds
from dragoman.server.cors import _NAMES
from dragoman.server.exchange import Exchange
from dragoman.server.http1.protocol import HttpProtocol, ServerState
from dragoman.server.jsonrpc import MalformedEnvelope, read_envelope
from dragoman.server.limits import Limits
from dragoman.server.mount import ANONYMOUS, Mount
from dragoman.server.pipeline import call_of
from tests import growth
from tests.server.test_grpc import Stub, message, served
from tests.server.wire import CARD, Scripted, task

Case = Callable[[int], Callable[[], object]]
WHOLE = Limits(max_nodes=1 << 30)
REFUSALS = (A2AError, MalformedEnvelope, select.DialectRefused, ValueError, msgspec.DecodeError)


def assert_linear(case: Case, size: int = 1 << 20) -> None:
    """Also what is refused may cost no more."""

    def run(work: Callable[[], object]) -> None:
        with suppress(*REFUSALS):
            work()

    growth.assert_linear(run, case, size)


# --- JSON and what is around it

BODIES: dict[str, Callable[[int], bytes]] = {
    "empty strings": lambda n: b"[" * 65 + b'"",' * (n // 3),
    "strings with brackets": lambda n: b'["[{"],' * (n // 7),
    "escaped quotes": lambda n: b"[" * 65 + b'"' + b'\\"' * (n // 2),
    "backslashes": lambda n: b"[" * 65 + b'"' + b"\\" * n,
    "quotes": lambda n: b"[" * 65 + b'"' * n,
    "empty objects": lambda n: b"{}" * (n // 2),
    "sixty deep": lambda n: (b"[" * 60 + b"]" * 60) * (n // 120),
    "never closed": lambda n: b"{" * n,
    "never opened": lambda n: b"]" * n,
    "stairs": lambda n: b"".join(b"[" * (i % 60) + b"]" * (i % 60) for i in range(n // 60)),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_structure_of_a_document(body: Callable[[int], bytes]) -> None:
    def case(n: int) -> Callable[[], object]:
        document = body(n)
        return lambda: WHOLE.exceeded_by(document)

    assert_linear(case)


ENVELOPES: dict[str, Callable[[int], bytes]] = {
    "many members": lambda n: b'{"method":"a/b",' + b'"x":1,' * (n // 6) + b'"jsonrpc":"2.0","id":1}',
    "a long id": lambda n: b'{"method":"a/b","jsonrpc":"2.0","id":"' + b"1" * n + b'"}',
    "a number that goes on": lambda n: b'{"method":"a/b","jsonrpc":"2.0","id":' + b"1" * n + b"}",
    "a batch": lambda n: b'[{"method":"a"},' + b"1," * (n // 2) + b"1]",
    "blanks": lambda n: b" " * n + b"{}",
    "no method": lambda n: b'{"x":"' + b"\\u0041" * (n // 6) + b'"}',
}


@pytest.mark.parametrize("body", ENVELOPES.values(), ids=ENVELOPES)
def test_reading_an_envelope_is_linear(body: Callable[[int], bytes]) -> None:
    def case(n: int) -> Callable[[], object]:
        document = body(n)
        return lambda: read_envelope(document)

    assert_linear(case)


def _sent(part: bytes, n: int, **members: bytes) -> bytes:
    """A message of many parts, and whatever else."""
    parts = b",".join([part] * max(1, n // (len(part) + 1)))
    more = b"".join(b',"%b":%b' % (name.encode(), value) for name, value in members.items())
    return b'{"id":"t","message":{"messageId":"m","role":"user","parts":[%b],"content":[%b]%b}}' % (
        parts, parts, more,
    )  # fmt: skip


def _object(n: int, value: bytes) -> bytes:
    return b"{%b}" % b",".join(b'"%d":%b' % (i, value) for i in range(n // (9 + len(value))))


ONE = b'{"kind":"text","text":"a"}'
REQUESTS: dict[str, Callable[[int], bytes]] = {
    "text": lambda n: _sent(b'{"kind":"text","text":""}', n),
    "typed": lambda n: _sent(b'{"type":"text","text":""}', n),
    "files": lambda n: _sent(b'{"kind":"file","file":{"bytes":"YQ=="}}', n),
    "odd files": lambda n: _sent(b'{"file":{"name":"a"}}', n),
    "a long file": lambda n: _sent(b'{"kind":"file","file":{"bytes":"%b"}}' % (b"-_ \\n" * (n // 4)), 1),
    "data": lambda n: _sent(b'{"data":{}}', n),
    "nothing": lambda n: _sent(b"{}", n),
    "metadata": lambda n: _sent(ONE, 1, metadata=_object(n, b"[]")),
    "snake_case": lambda n: _sent(ONE, 1, message_id=b'"m"', metadata=_object(n, b'{"task_id":1}')),
    "strangers": lambda n: _sent(ONE, 1, strange_name=_object(n, b'{"task_id":null}')),
    "references": lambda n: _sent(ONE, 1, referenceTaskIds=b"[%b]" % b",".join([b'"a"'] * (n // 4))),
    "wrong references": lambda n: _sent(ONE, 1, referenceTaskIds=b"[%b1]" % (b'"a",' * (n // 4))),
    "a long wrong role": lambda n: _sent(ONE, 1).replace(b'"user"', b'"%b"' % (b" - at `" * (n // 7))),
    "a long number": lambda n: _sent(ONE, 1, taskId=b"1" * n),
    "almost a file with data": lambda n: _sent(ONE, 1, x=b'["file"%b]' % (b',"file"  ' * (n // 9))),
    "almost a type": lambda n: _sent(ONE, 1, x=b'["type"%b]' % (b" " * n)),
    "almost snakes": lambda n: _sent(ONE, 1, x=b'["%b"]' % (b'_id\\" ' * (n // 6))),
}


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("body", REQUESTS.values(), ids=REQUESTS)
def test_a_request_of_each_dialect(name: str, body: Callable[[int], bytes]) -> None:
    dialect = DIALECTS[name]

    def case(n: int) -> Callable[[], object]:
        document = body(n)

        def work() -> None:
            looks_snake(document)
            with suppress(select.DialectRefused):
                select.choose_for_rpc("", dialect.method(ops.SEND), document)
            dialect.read_request(ops.SEND, document)

        return work

    assert_linear(case)


def _task(n: int) -> dict[str, Any]:
    part = {"kind": "text", "type": "text", "text": ""}
    said = {"messageId": "m", "message_id": "m", "role": "agent", "parts": [part], "content": [part]}
    artifact = {"artifactId": "a", "name": "x", "parts": [part] * (n // 200)}
    status = {"state": "working", "timestamp": "2026-11-15T14:40:54Z"}
    return {
        "id": "t", "kind": "task", "contextId": "c", "context_id": "c", "status": status,
        "history": [said] * (n // 100), "artifacts": [artifact] * 2, "metadata": {str(i): [] for i in range(n // 10)},
    }  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_a_result_of_each_dialect(name: str) -> None:
    def case(n: int) -> Callable[[], object]:
        task = _task(n)
        return lambda: DIALECTS[name].read_result(ops.GET, task)

    assert_linear(case)


def test_reading_cards_and_errors_is_linear() -> None:
    def card(n: int) -> Callable[[], object]:
        skill = {"id": "a", "name": "a", "description": "", "tags": [], "security": [{"x": ["y"]}]}
        schemes = {str(i): {"type": "http", "scheme": "bearer"} for i in range(n // 100)}
        document = {
            "name": "x", "url": "http://a", "version": "1", "skills": [skill] * (n // 100), "securitySchemes": schemes,
            "authentication": {"schemes": ["Bearer"] * (n // 100)}, "capabilities": {},
            "additionalInterfaces": [{"url": "http://a", "transport": "JSONRPC"}] * (n // 100),
        }  # fmt: skip
        return lambda: cards.read_card(document)

    def error(n: int) -> Callable[[], object]:
        detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [{"field": "a"}]}
        document = {"error": {"code": 400, "message": "x" * n, "details": [detail] * (n // 10)}}
        return lambda: errors.read_rest_error(document, "1.0", http=400)

    assert_linear(card)
    assert_linear(error)


def test_reading_base64_in_any_spelling_is_linear() -> None:
    def case(n: int) -> Callable[[], object]:
        text = "-_\n " * (n // 4)
        return lambda: read_base64(text)

    assert_linear(case)


def test_task_of_a_notification_is_found_in_linear_time() -> None:
    def case(n: int) -> Callable[[], object]:
        inner = b'{"id":"a",%b"x":1}' % (b'"task":{"id":"b"},' * (n // 18))
        body = b'{"result":%b,"task":%b,"jsonrpc":"2.0"}' % (inner, inner)
        return lambda: _named_tasks(body)

    assert_linear(case)


# --- protobuf


def _proto(n: int, codec: Any, fill: Callable[[Any, Any, int], None]) -> Callable[[], object]:
    request = codec.requests[ops.SEND]()
    said = request.message if codec is v1_0.CODEC else request.request
    said.message_id, said.role = "m", 1
    fill(request, said, n)
    body = request.SerializeToString()
    return lambda: codec.read_request(ops.SEND, body, max_nodes=1 << 30)


def _fill_parts(request: Any, said: Any, n: int) -> None:
    parts = said.parts if hasattr(said, "parts") else said.content
    for _ in range(n // 4):
        parts.add()


def _fill_map(request: Any, said: Any, n: int) -> None:
    for i in range(n // 16):
        request.metadata.fields[str(i)].number_value = i


def _fill_list(request: Any, said: Any, n: int) -> None:
    values = request.metadata.fields["a"].list_value.values
    for _ in range(n // 4):
        values.add()


def _fill_strings(request: Any, said: Any, n: int) -> None:
    said.extensions.extend([""] * (n // 2))


FILLS = {"parts": _fill_parts, "a map": _fill_map, "a list": _fill_list, "strings": _fill_strings}


@pytest.mark.parametrize("codec", [v1_0.CODEC, v0_3.CODEC], ids=["1.0", "0.3"])
@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_reading_protobuf_is_linear(codec: Any, fill: Any) -> None:
    assert_linear(lambda n: _proto(n, codec, fill))


def test_reading_the_details_of_a_status_is_linear() -> None:
    def case(n: int) -> Callable[[], object]:
        details = b"\x1a\x02\x0a\x00" * (n // 4)
        return lambda: read_status("INTERNAL", "x" * n, details)

    assert_linear(case)


# --- event streams

STREAMS: dict[str, Callable[[int], list[bytes]]] = {
    "one byte at a time": lambda n: [b"data: "] + [b"x"] * (n // 16),
    "one long line in pieces": lambda n: [b"data: x"] + [b"y" * 16] * (n // 16) + [b"\n\n"],
    "many short lines": lambda n: [b"data\n" * (n // 5) + b"\n"],
    "many frames": lambda n: [b"data:\n\n" * (n // 7)],
    "returns": lambda n: [b"\r"] * (n // 16),
    "comments": lambda n: [b":\n" * 8] * (n // 16),
}


@pytest.mark.parametrize("pieces", STREAMS.values(), ids=STREAMS)
def test_reading_an_event_stream_is_linear(pieces: Callable[[int], list[bytes]]) -> None:
    def case(n: int) -> Callable[[], object]:
        chunks = pieces(n)

        def work() -> None:
            reader = SseReader(limit=1 << 30)
            for chunk in chunks:
                reader.feed(chunk)
            reader.end()

        return work

    assert_linear(case)


# --- heads, paths, queries, headers


class Sink(asyncio.Transport):
    def write(self, data: Any) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n%b\r\n"
HEADS: dict[str, Callable[[int], tuple[bytes, int]]] = {
    "a long target": lambda n: (GET % (b"a" * n, b""), 1 << 20),
    "a long line": lambda n: (GET % (b"", b"X: " + b"a" * n + b"\r\n"), 1 << 20),
    "many lines": lambda n: (GET % (b"", b"X:\r\n" * (n // 4)), 1 << 20),
    "in pieces": lambda n: (GET % (b"", b"X: " + b"a" * n + b"\r\n"), 256),
    "a target in pieces": lambda n: (GET % (b"a" * n, b""), 256),
    "blanks": lambda n: (GET % (b"", b"X:" + b" " * n + b"a\r\n"), 1 << 20),
    "small chunks": lambda n: (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * (n // 6), 1 << 16,
    ),
    "many requests": lambda n: ((GET % (b"", b"")) * (n // 30), 1 << 16),
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
async def test_a_head(head: Callable[[int], tuple[bytes, int]]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    state = ServerState(app, Limits(max_head=1 << 17))
    made: list[HttpProtocol] = []

    def case(n: int) -> Callable[[], object]:
        data, size = head(n)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]

        def work() -> None:
            for _ in range(50):
                protocol = Unanswered(state)
                protocol.connection_made(Sink())
                for piece in pieces:
                    protocol.data_received(piece)
                made.append(protocol)

        return work

    try:  # no longer than a head may be: in between the parser puts its pieces together, one by one
        assert_linear(case, 1 << 15)
    finally:
        for protocol in made:
            protocol.connection_lost(None)


class Unanswered(HttpProtocol):
    def _begin(self, request: Any, scope: Any) -> None: ...


TARGETS: dict[str, Callable[[int], str]] = {
    "slashes": lambda n: "/" * n,
    "segments": lambda n: "/a" * (n // 2),
    "escapes": lambda n: "/tasks/" + "%2F" * (n // 3),
    "broken escapes": lambda n: "/tasks/" + "%" * n,
    "colons": lambda n: "/tasks/" + ":cancel" * (n // 7),
    "tenants": lambda n: "/x" + "/tasks" * (n // 6),
    "configs": lambda n: "/v1/tasks/a" + "/pushNotificationConfigs" * (n // 24),
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_path(target: Callable[[int], str]) -> None:
    app = server_app.App([Mount(service=Scripted(), card=CARD, path="/a/b")])

    def case(n: int) -> Callable[[], object]:
        raw = target(n)
        scope = {"path": unquote(raw), "raw_path": raw.encode(), "root_path": "/x"}

        def work() -> None:
            below = server_app._below(scope)
            app._find(below)
            paths.find(below)
            paths.find(raw)

        return work

    assert_linear(case)


def _exchange(query: bytes = b"", **headers: bytes) -> Exchange:
    said = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    scope = {"method": "GET", "headers": said, "query_string": query}
    return Exchange(scope, MagicMock(), MagicMock(), "/", MagicMock())


QUERIES: dict[str, Callable[[int], bytes]] = {
    "many": lambda n: b"a2a-version=1&" * (n // 14),
    "empty": lambda n: b"&" * n + b"a2a-version=1",
    "escapes": lambda n: b"a2a-version=" + b"%41" * (n // 3),
    "broken": lambda n: b"a2a-version=" + b"%" * n,
    "underscores": lambda n: b"_" * n + b"=1",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query(query: Callable[[int], bytes]) -> None:
    found = paths.find("/tasks")
    assert found is not None
    path = paths.path_of("1.0", ops.LIST)
    assert path is not None

    def case(n: int) -> Callable[[], object]:
        exchange = _exchange(query(n))

        def work() -> None:
            exchange.version()
            rest._RestCall(exchange, MagicMock(), found, path)._query()

        return work

    assert_linear(case)


TRACE = b"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-"
HEADERS: dict[str, Callable[[int], dict[str, bytes]]] = {
    "extensions": lambda n: {"a2a_extensions": b"a, " * (n // 3)},
    "different extensions": lambda n: {"a2a_extensions": b",".join(b"%d" % i for i in range(n // 6))},
    "accept": lambda n: {"accept": b"application/a2a+json; q=0.5 ;" + b"; " * (n // 4) + b"," * (n // 2)},
    "forwarded": lambda n: {"forwarded": b'for="\\a";host=a,' * (n // 17)},
    "a forwarded text": lambda n: {"forwarded": b'for="' + b"\\a" * (n // 2)},
    "forwarded blanks": lambda n: {"forwarded": b"for=a" + b" " * n + b"!"},
    "a prefix": lambda n: {"x_forwarded_prefix": b"/a" * (n // 2) + b" "},
    "a host": lambda n: {"host": b"a" * n + b" "},
    "a trace": lambda n: {"traceparent": TRACE + b"a" * n + b"\n"},
    "tags": lambda n: {"if_none_match": b'W/"a",' * (n // 6)},
    "a date": lambda n: {"if_modified_since": b"Mon, " * (n // 5)},
    "a number": lambda n: {"last_event_id": b"1" * n},
    "cors": lambda n: {"access_control_request_headers": b"a , " * (n // 4) + b"!"},
    "cors blanks": lambda n: {"access_control_request_headers": b"a" + b" " * n + b"!"},
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_reading_headers_is_linear(headers: Callable[[int], dict[str, bytes]]) -> None:
    mount = Mount(service=Scripted(), card=CARD)
    address = PublicAddress(trusted_proxies=["*"])

    def case(n: int) -> Callable[[], object]:
        exchange = _exchange(**headers(n))

        def work() -> None:
            call_of(exchange, mount, ANONYMOUS, DIALECTS["1.0"])
            rest._type(exchange)
            address.base_url(exchange.scope, exchange.headers)
            _holds(exchange, b'"x"', 1)
            _NAMES.fullmatch(exchange.headers.get(b"access-control-request-headers", b""))

        return work

    assert_linear(case, 4 * Limits().max_head)


CREDENTIALS: dict[str, Callable[[int], dict[str, str]]] = {
    "a long token": lambda n: {"authorization": "Bearer " + "a" * n},
    "blanks": lambda n: {"authorization": "Bearer" + " " * n + "a"},
    "a long password": lambda n: {"authorization": "Basic " + "YTph" * (n // 4)},
    "colons": lambda n: {"authorization": "Basic " + "Ojo6" * (n // 4)},
    "cookies": lambda n: {"cookie": "k=%41; " * (n // 7)},
    "a long cookie": lambda n: {"cookie": 'k="' + "%" * n},
    "semicolons": lambda n: {"cookie": ";" * n},
}


@pytest.mark.parametrize("shown", CREDENTIALS.values(), ids=CREDENTIALS)
def test_checking_credentials_is_linear(shown: Callable[[int], dict[str, str]]) -> None:
    auth: list[Any] = [
        Bearer({"a": hashed("a" * 40)}),
        Basic({"a": hashed_password("a")}),
        ApiKey({"a": hashed("b" * 40)}, location="cookie", parameter="k"),
        ApiKey({"a": hashed("c" * 40)}, location="query", parameter="k"),
    ]
    guard = AgentAuthenticator(Requirements(auth), realm="x")

    def case(n: int) -> Callable[[], object]:
        headers = shown(n)

        def work() -> None:
            with suppress(StopIteration):
                guard.authenticate(headers, query="k=1&" * (n // 4)).send(None)  # as far as it goes by itself

        return work

    assert_linear(case)


# --- what is too much


def _parts(n: int) -> bytes:
    part = b'{"kind":"text","text":"a"}'
    return b'{"message":{"messageId":"m","role":"user","parts":[%b]}}' % b",".join([part] * n)


@pytest.mark.parametrize("name", [name for name in DIALECTS if name not in ("0.1", "draft")])
def test_a_message_has_a_thousand_parts_at_most(name: str) -> None:
    dialect = DIALECTS[name]
    request = dialect.read_request(ops.SEND, _parts(MAX_PARTS))
    assert isinstance(request, ops.SendMessage) and len(request.message.parts) == MAX_PARTS
    for n in (MAX_PARTS + 1, 100_000):
        with pytest.raises(InvalidParams, match="more than"):
            dialect.read_request(ops.SEND, _parts(n))


@pytest.mark.parametrize("codec", [v1_0.CODEC, v0_3.CODEC], ids=["1.0", "0.3"])
def test_messages_with_many_parts_over_grpc_are_linear(codec: Any) -> None:
    def sent(n: int) -> ops.Request:
        def fill(request: Any, said: Any, n: int) -> None:
            parts = said.parts if hasattr(said, "parts") else said.content
            for _ in range(n):
                parts.add(text="a")

        request: ops.Request = _proto(n, codec, fill)()  # type: ignore[assignment]
        return request

    request = sent(MAX_PARTS)
    assert isinstance(request, ops.SendMessage) and len(request.message.parts) == MAX_PARTS
    with pytest.raises(InvalidParams, match="more than"):
        sent(MAX_PARTS + 1)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_sender_accepts_a_thousand_output_modes_at_most(name: str) -> None:
    def sent(n: int) -> bytes:
        modes = b'"acceptedOutputModes":[%b]' % b",".join([b'"a"'] * n)
        if name in ("0.1", "draft"):
            return b'{"id":"t",%b,"message":{"role":"user","parts":[{"type":"text","text":"a"}]}}' % modes
        return _parts(1)[:-1] + b',"configuration":{%b}}' % modes

    request = DIALECTS[name].read_request(ops.SEND, sent(MAX_MODES))
    assert isinstance(request, ops.SendMessage)
    assert len(request.configuration.accepted_output_modes) == MAX_MODES
    with pytest.raises(InvalidParams, match="acceptedOutputModes must not be more than"):
        DIALECTS[name].read_request(ops.SEND, sent(MAX_MODES + 1))


@pytest.mark.parametrize("codec", [v1_0.CODEC, v0_3.CODEC], ids=["1.0", "0.3"])
def test_output_modes_of_a_grpc_message_are_limited(codec: Any) -> None:
    def fill(request: Any, said: Any, n: int) -> None:
        (said.parts if hasattr(said, "parts") else said.content).add(text="a")
        request.configuration.accepted_output_modes.extend(["a"] * n)

    _proto(MAX_MODES, codec, fill)()
    with pytest.raises(InvalidParams, match="must not be more than"):
        _proto(MAX_MODES + 1, codec, fill)()


async def test_a_large_request_over_grpc_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    service, threads = Scripted(result=task()), set()
    read = Codec.read_message

    def noted(*args: Any, **options: Any) -> Any:
        threads.add(threading.current_thread() is threading.main_thread())
        return read(*args, **options)

    monkeypatch.setattr(Codec, "read_message", noted)
    async with served(service) as channel:
        stub = Stub(channel, v1_0.CODEC)
        await stub.unary(ops.SEND, message(v1_0.CODEC, "x" * 100_000))
        assert threads == {False}
        await stub.unary(ops.SEND, message(v1_0.CODEC))
    assert threads == {True, False}


def test_metadata_over_grpc_is_what_was_sent() -> None:
    said = {"a": [1, 2.5, None, True, {"b": "c", "": {}}], "d": {}, "ü": []}
    body = v1_0.CODEC.write_request(
        ops.CANCEL, ops.CancelTask(id="t", metadata={**said, **{str(i): i for i in range(1000)}})
    )
    request = v1_0.CODEC.read_request(ops.CANCEL, body)
    assert request == ops.CancelTask(id="t", metadata={**said, **{str(i): i for i in range(1000)}})

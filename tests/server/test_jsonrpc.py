"""JSON-RPC: envelopes, ids, errors, and what becomes of headers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from dragoman.errors import Forbidden, InvalidParams, RateLimited, TaskNotFound, Unauthenticated, Unavailable
from dragoman.model.ops import GetTask, Principal, Scope, SendMessage, StreamResponse
from dragoman.server.app import App
from dragoman.server.limits import Limits
from dragoman.server.mount import Mount
from tests.server.wire import CARD, HELLO, Scripted, app_of, envelope, open_request, reply, request, rpc

V1 = {"A2A-Version": "1.0"}


async def post(app: Any, body: bytes, **headers: str) -> Any:
    return await request(app, "POST", "/", body, headers={"A2A-Version": "1.0", **headers})


# --- answers


async def test_a_call_is_answered_in_an_envelope_with_its_id() -> None:
    answer = await rpc(app_of(), "GetTask", {"id": "t1"}, id="x-1", headers=V1)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.json == {
        "jsonrpc": "2.0",
        "id": "x-1",
        "result": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}},
    }


async def test_a_reply_without_a_task_is_a_message() -> None:
    answer = await rpc(app_of(Scripted(result=reply("hi"))), "SendMessage", HELLO, headers=V1)
    assert answer.json["result"]["message"]["parts"] == [{"text": "hi"}]


@pytest.mark.parametrize("path", ["/agents/hello", "/agents/hello/"])
async def test_the_endpoint_answers_with_and_without_a_slash(path: str) -> None:
    app = App([Mount(path="/agents/hello", agent="hello", service=Scripted(), card=CARD)])
    answer = await rpc(app, "GetTask", {"id": "t1"}, path=path, headers=V1)
    assert answer.json["result"]["id"] == "t1"


@pytest.mark.parametrize(
    "id", ["0", "-7", "1.50", "1e3", "null", '""', '"a"', '"\\u0041\\n\\"/"', '"é\U0001f980"', "9" * 100]
)
async def test_an_id_comes_back_byte_for_byte(id: str) -> None:
    body = f'{{"jsonrpc":"2.0","id": {id} ,"method":"GetTask","params":{{"id":"t1"}}}}'.encode()
    answer = await post(app_of(), body)
    assert answer.body.startswith(f'{{"jsonrpc":"2.0","id":{id},"result":'.encode())


@pytest.mark.parametrize("id", ["true", "{}", "[1]", '"' + "x" * 600 + '"'])
async def test_an_odd_id_is_refused_and_not_repeated(id: str) -> None:
    service = Scripted()
    body = f'{{"jsonrpc":"2.0","id":{id},"method":"GetTask","params":{{"id":"t1"}}}}'.encode()
    answer = await post(app_of(service), body)
    assert answer.json["id"] is None and answer.json["error"]["code"] == -32600
    assert not service.calls


async def test_an_id_cannot_break_out_of_an_event() -> None:
    body = b'{"jsonrpc":"2.0","id":"a\\r\\n\\r\\ndata: forged","method":"SendStreamingMessage","params":%s}'
    service = Scripted([StreamResponse(reply("hi"))])
    answer = await post(app_of(service), body % msgspec.json.encode(HELLO))
    (event,) = answer.body.removesuffix(b"\n\n").split(b"\n\n")
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    assert len(lines) == 1 and b"\r" not in answer.body
    assert msgspec.json.decode(lines[0].removeprefix(b"data:"))["id"] == "a\r\n\r\ndata: forged"


# --- requests that make no sense


BAD = {
    "nothing": (b"", -32700, None),
    "not JSON": (b"{", -32700, None),
    "trailing bytes": (b'{"jsonrpc":"2.0","id":1,"method":"GetTask"} x', -32700, None),
    "not UTF-8": (b'{"jsonrpc":"2.0","id":"\xff","method":"GetTask"}', -32700, None),
    "half a surrogate": (b'{"jsonrpc":"2.0","id":"\\ud800","method":"GetTask"}', -32700, None),
    "NaN": (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":NaN}}', -32700, None),
    "a control character": (b'{"jsonrpc":"2.0","id":"a\nb","method":"GetTask"}', -32700, None),
    "a batch": (envelope("GetTask").join([b"[", b"]"]), -32600, None),
    "an empty batch": (b" []", -32600, None),
    "half a batch": (b"[1,", -32700, None),
    "no method and not JSON": (b'{"id":1} x', -32700, None),
    "a string": (b'"GetTask"', -32600, None),
    "null": (b"null", -32600, None),
    "another jsonrpc": (b'{"jsonrpc":"1.0","id":1,"method":"GetTask"}', -32600, 1),
    "jsonrpc as a number": (b'{"jsonrpc":2.0,"id":1,"method":"GetTask"}', -32600, 1),
    "no jsonrpc": (b'{"id":1,"method":"GetTask"}', -32600, 1),
    "no id": (b'{"jsonrpc":"2.0","method":"GetTask","params":{"id":"t1"}}', -32600, None),
    "no method": (b'{"jsonrpc":"2.0","id":1}', -32600, 1),
    "a method that is no string": (b'{"jsonrpc":"2.0","id":"q","method":5}', -32600, "q"),
    "no method and an odd id": (b'{"jsonrpc":"2.0","id":{}}', -32600, None),
    "an unknown method": (b'{"jsonrpc":"2.0","id":1,"method":"Fly"}', -32601, 1),
    "an empty method": (b'{"jsonrpc":"2.0","id":1,"method":""}', -32601, 1),
    "params as an array": (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":["t1"]}', -32602, 1),
    "params as a string": (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":"t1"}', -32602, 1),
    "missing members": (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}', -32602, 1),
    "a number too large": (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"t","historyLength":1e999}}', -32602, 1),
}  # fmt: skip


@pytest.mark.parametrize(("body", "code", "id"), BAD.values(), ids=BAD.keys())
async def test_bad_input_is_answered_with_an_error_and_changes_nothing(
    body: bytes, code: int, id: Any
) -> None:
    service = Scripted()
    answer = await post(app_of(service), body)
    assert answer.status == 200
    assert answer.json["jsonrpc"] == "2.0" and "result" not in answer.json
    assert answer.json["error"]["code"] == code and answer.json["id"] == id
    assert answer.json["error"]["data"][0]["domain"] == "a2a-protocol.org"
    assert not service.calls


async def test_of_a_repeated_member_the_last_counts() -> None:
    service = Scripted()
    body = b'{"jsonrpc":"2.0","id":1,"id":2,"method":"Fly","method":"GetTask","params":{"id":"a","id":"b"}}'
    answer = await post(app_of(service), body)
    assert answer.json["id"] == 2
    assert service.calls[0][1] == GetTask(id="b")


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("depth", [100, 100_000])
async def test_deep_nesting_is_refused_before_it_is_decoded(
    opening: bytes, closing: bytes, depth: int
) -> None:
    deep = opening * depth + b"1" + closing * depth
    answer = await post(
        app_of(), b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"t1","x":%b}}' % deep
    )
    assert answer.json["error"]["code"] == -32600
    assert "64 levels" in answer.json["error"]["message"]


async def test_a_body_is_refused_by_its_announced_length_before_it_is_read() -> None:
    app = app_of(limits=Limits(max_body=100))
    pending = open_request(app, "POST", "/", b"never read", headers={**V1, "Content-Length": "101"})
    answer = await pending.end()
    assert answer.status == 200 and answer.json["error"]["code"] == -32600
    assert "100 bytes" in answer.json["error"]["message"]
    assert pending.unread == [b"never read"]


@pytest.mark.parametrize("length", ["many", "-1", "9" * 5000])
async def test_an_odd_content_length_is_refused(length: str) -> None:
    answer = await post(app_of(), envelope("GetTask", {"id": "t1"}), **{"Content-Length": length})
    assert answer.json["error"]["code"] == -32600


async def test_a_body_is_counted_while_it_arrives() -> None:
    app = app_of(limits=Limits(max_body=100))
    pending = open_request(app, "POST", "/", b"x" * 60, b"x" * 60, b"never read", headers=V1)
    answer = await pending.end()
    assert answer.json["error"]["code"] == -32600
    assert pending.unread == [b"never read"]


async def test_a_body_in_pieces_is_put_together() -> None:
    body = envelope("GetTask", {"id": "t1"})
    answer = await request(app_of(), "POST", "/", body[:5], b"", body[5:], headers=V1)
    assert answer.json["result"]["id"] == "t1"


async def test_a_body_that_never_comes_is_not_waited_for() -> None:
    app = app_of(limits=Limits(body_timeout=0.01))
    pending = open_request(app, "POST", "/", b"{", b"", headers=V1)
    pending.unread.clear()
    answer = await pending.end()
    assert answer.json["error"]["code"] == -32600 and "in time" in answer.json["error"]["message"]


async def test_client_that_left_before_the_end_of_its_request_gets_no_answer() -> None:
    service = Scripted()
    pending = open_request(app_of(service), "POST", "/", b"{", headers=V1)
    pending.unread.clear()
    pending.gone.set()
    answer = await pending.end()
    assert answer.status == 0 and not service.calls


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("", 200),
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("application/a2a+json", 200),
        ("APPLICATION/JSON", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=json", 415),
    ],
)
async def test_content_types_of_browser_forms_are_refused(kind: str, status: int) -> None:
    service = Scripted()
    headers = {"Content-Type": kind} if kind else {}
    answer = await post(app_of(service), envelope("GetTask", {"id": "t1"}), **headers)
    assert answer.status == status
    assert len(service.calls) == (status == 200)
    assert status == 200 or answer.json["error"]["code"] == -32005


# --- errors of the service


async def test_an_error_of_the_service_keeps_its_code_reason_and_fields() -> None:
    service = Scripted(result=InvalidParams("no", fields=(("message.parts", "is empty"),)))
    error = (await rpc(app_of(service), "SendMessage", HELLO, headers=V1)).json["error"]
    assert error["code"] == -32602
    assert error["data"][0]["reason"] == "INVALID_PARAMS"
    assert error["data"][1]["fieldViolations"] == [{"field": "message.parts", "description": "is empty"}]


async def test_an_unknown_task_is_not_found() -> None:
    answer = await rpc(app_of(Scripted(result=TaskNotFound("t9"))), "GetTask", {"id": "t9"}, headers=V1)
    assert answer.status == 200 and answer.json["error"]["code"] == -32001


async def test_a_bug_is_logged_once_and_stays_inside(caplog: pytest.LogCaptureFixture) -> None:
    service = Scripted(result=RuntimeError("the password is hunter2"))
    with caplog.at_level(logging.ERROR):
        answer = await rpc(app_of(service), "GetTask", {"id": "t1"}, headers=V1)
    assert answer.status == 200 and answer.json["error"]["code"] == -32603
    assert b"hunter2" not in answer.body and b"Traceback" not in answer.body
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_a_result_that_cannot_be_written_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    answer = await rpc(app_of(Scripted(result=reply("\ud800"))), "SendMessage", HELLO, headers=V1)
    assert answer.status == 200 and answer.json["error"]["code"] == -32603


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (Unavailable("later", retry_after=0.2), 503, "1"),
        (Unavailable("later"), 503, "1"),
        (RateLimited("slower", retry_after=30), 429, "30"),
    ],
)
async def test_http_says_when_to_come_back(error: Exception, status: int, retry: str) -> None:
    answer = await rpc(app_of(Scripted(result=error)), "GetTask", {"id": "t1"}, headers=V1)
    assert answer.status == status and answer.headers["retry-after"] == retry
    assert answer.json["id"] == 1


# --- who is calling


class Doorman:
    challenge = 'Bearer realm="agents"'

    async def authenticate(self, headers: Mapping[str, str], **shown: Any) -> Principal:
        match headers.get("authorization"):
            case None:
                raise Unauthenticated("say who you are")
            case "Bearer mallory":
                raise Forbidden("not you")
            case given:
                return Principal(id=given.removeprefix("Bearer "), tenant="acme")


async def test_an_unauthenticated_call_is_refused_before_its_body_is_read() -> None:
    service = Scripted()
    app = app_of(service, authenticator=Doorman())
    pending = open_request(app, "POST", "/", b"anything", headers=V1)
    answer = await pending.end()
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="agents"'
    assert answer.json["id"] is None and answer.json["error"]["code"] == -32000
    assert answer.json["error"]["data"][0]["reason"] == "UNAUTHENTICATED"
    assert pending.unread == [b"anything"]


async def test_a_caller_without_permission_gets_403() -> None:
    app = app_of(authenticator=Doorman())
    answer = await rpc(app, "GetTask", {"id": "t1"}, headers={**V1, "Authorization": "Bearer mallory"})
    assert answer.status == 403 and answer.json["error"]["data"][0]["reason"] == "PERMISSION_DENIED"


async def test_the_scope_is_that_of_the_principal_and_the_mount() -> None:
    service = Scripted()
    app = app_of(service, authenticator=Doorman())
    await rpc(app, "SendMessage", {**HELLO, "tenant": "acme"}, headers={**V1, "Authorization": "Bearer ada"})
    call, request = service.calls[0]
    assert call.scope == Scope("acme", "hello", "ada") and call.principal.id == "ada"
    assert call.credentials == {"authorization": "Bearer ada"}
    assert isinstance(request, SendMessage)


# --- what headers say


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_headers_become_the_call() -> None:
    service = Scripted()
    headers = {
        **V1,
        "Idempotency-Key": "k1",
        "Last-Event-ID": "41",
        "traceparent": TRACEPARENT,
        "Dragoman-Depth": "3",
        "Dragoman-Timeout": "60",
    }
    before = time.time()
    await rpc(app_of(service), "GetTask", {"id": "t1"}, headers=headers)
    call = service.calls[0][0]
    assert (call.idempotency_key, call.after, call.depth, call.dialect) == ("k1", 41, 3, "1.0")
    assert call.trace == {"traceparent": TRACEPARENT}
    assert call.deadline is not None and call.deadline >= before + 60


async def test_headers_that_make_no_sense_are_left_out() -> None:
    service = Scripted()
    headers = {
        **V1,
        "Last-Event-ID": "sse-evt-101",
        "Dragoman-Depth": "9" * 5000,
        "Dragoman-Timeout": "nan",
        "traceparent": "x" * 5000,
    }
    await rpc(app_of(service), "GetTask", {"id": "t1"}, headers=headers)
    call = service.calls[0][0]
    assert (call.after, call.depth, call.deadline, call.trace) == (None, 0, None, {})


@pytest.mark.parametrize(
    "said",
    [
        "junk-abc principal=root-x-y",
        TRACEPARENT + "-more",
        "ff" + TRACEPARENT[2:],
        TRACEPARENT.upper(),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "01" + TRACEPARENT[2:] + "-x\r\nSet-Cookie: a=b",
    ],
)
async def test_a_trace_that_is_none_goes_no_further(said: str) -> None:
    service = Scripted()
    headers = {**V1, "traceparent": said, "tracestate": "a=b"}
    await rpc(app_of(service), "GetTask", {"id": "t1"}, headers=headers)
    assert service.calls[0][0].trace == {}


@pytest.mark.parametrize("state", ["a=b\r\nSet-Cookie: c=d", "a=b\n", "a=\0", "a=\x7f", "a=ä"])
async def test_a_state_that_no_header_can_carry_goes_no_further(state: str) -> None:
    service = Scripted()
    headers = {**V1, "traceparent": TRACEPARENT, "tracestate": f"{state},c=d"}
    await rpc(app_of(service), "GetTask", {"id": "t1"}, headers=headers)
    assert service.calls[0][0].trace == {"traceparent": TRACEPARENT}


async def test_a_key_of_any_length_is_not_taken() -> None:
    answer = await rpc(app_of(), "GetTask", {"id": "t1"}, headers={**V1, "Idempotency-Key": "k" * 300})
    assert answer.json["error"]["code"] == -32600


async def test_extensions_that_the_agent_has_are_activated() -> None:
    service = Scripted()
    asked = "https://ext.example/a, https://ext.example/b"
    answer = await rpc(app_of(service), "GetTask", {"id": "t1"}, headers={**V1, "A2A-Extensions": asked})
    assert service.calls[0][0].extensions == ("https://ext.example/a", "https://ext.example/b")
    assert answer.headers["a2a-extensions"] == "https://ext.example/a"


async def test_the_version_may_be_in_the_query() -> None:
    body = envelope("GetTask", {"id": "t1"})
    answer = await request(app_of(), "POST", "/", body, query="A2A-Version=7.0")
    assert answer.json["error"]["code"] == -32009


async def test_an_unknown_version_is_not_supported() -> None:
    answer = await rpc(app_of(), "GetTask", {"id": "t1"}, headers={"A2A-Version": "2.0"})
    assert answer.status == 200 and answer.json["error"]["code"] == -32009
    assert answer.json["error"]["data"][0]["reason"] == "VERSION_NOT_SUPPORTED"


async def test_a_version_the_agent_does_not_speak_is_not_supported() -> None:
    answer = await rpc(app_of(versions=("0.3",)), "GetTask", {"id": "t1"}, headers=V1)
    assert answer.json["error"]["code"] == -32009


# --- paths and methods


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_another_http_method_is_not_allowed(method: str) -> None:
    answer = await request(app_of(), method, "/")
    assert answer.status == 405 and answer.headers["allow"] == "POST"


async def test_an_unknown_path_is_not_found() -> None:
    answer = await rpc(app_of(), "GetTask", path="/nowhere")
    assert answer.status == 404 and answer.json["error"]["status"] == "NOT_FOUND"


async def test_many_calls_at_once_keep_their_ids_apart() -> None:
    app = app_of()
    answers = await asyncio.gather(*[rpc(app, "GetTask", {"id": "t1"}, id=n, headers=V1) for n in range(200)])
    assert [answer.json["id"] for answer in answers] == list(range(200))


# --- envelopes that are none


@pytest.mark.parametrize(
    ("body", "id", "why"),
    [
        ({"jsonrpc": 2.0, "id": 7, "method": "GetTask"}, 7, 'jsonrpc must be "2.0"'),
        ({"jsonrpc": None, "id": 7, "method": "GetTask"}, 7, 'jsonrpc must be "2.0"'),
        ({"jsonrpc": "2.0", "id": True, "method": "GetTask"}, None, "id must be a string"),
        ({"jsonrpc": 2, "id": {}, "method": "GetTask"}, None, "id must be a string"),
    ],
)
async def test_a_wrong_envelope_is_refused_in_the_version_of_its_method(body: Any, id: Any, why: str) -> None:
    for method, details in (("GetTask", True), ("tasks/get", False)):
        answer = await request(app_of(), "POST", "/", msgspec.json.encode({**body, "method": method}))
        error = answer.json["error"]
        assert (answer.status, answer.json["id"], error["code"]) == (200, id, -32600)
        assert why in error["message"] and ("data" in error) is details


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"jsonrpc": "2.0", "id": 7}, "method is missing"),
        ({"jsonrpc": "2.0", "id": 7, "method": 1}, "method must be a string"),
        ({"jsonrpc": "2.0", "id": 7, "method": None}, "method must be a string"),
    ],
)
async def test_a_call_without_a_method_says_so_under_its_id(body: Any, why: str) -> None:
    answer = await request(app_of(), "POST", "/", msgspec.json.encode(body))
    assert (answer.json["id"], answer.json["error"]) == (7, {"code": -32600, "message": why})

"""What the binding itself does for callers of the versions before 1.0, and for Arbiter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.errors import InvalidParams, TaskNotFound, Unauthenticated
from dragoman.model.ops import SendMessage, StreamResponse, SubscribeToTask
from dragoman.model.task import TaskState
from tests.requirements import older
from tests.server.wire import Scripted, app_of, chunk, request, rpc, status, task

S = TaskState

SEND = {
    "message": {
        "kind": "message",
        "messageId": "m1",
        "role": "user",
        "parts": [{"kind": "text", "text": "hi"}],
    }
}
OLD = {"id": "t1", "sessionId": "s1", "message": {"role": "user", "parts": [{"type": "text", "text": "hi"}]}}


async def test_a_caller_of_0_3_gets_its_own_shapes() -> None:
    service = Scripted()
    result = (await rpc(app_of(service), "message/send", SEND)).json["result"]
    assert result["kind"] == "task" and result["status"]["state"] == "completed"
    call = service.calls[0][0]
    assert (call.dialect, call.names_tasks, call.strict_cancel, call.reads_finished) == (
        "0.3",
        False,
        True,
        True,
    )


async def test_a_caller_of_0_1_names_its_tasks() -> None:
    service = Scripted()
    result = (await rpc(app_of(service), "tasks/send", OLD)).json["result"]
    assert result["id"] == "t1" and "kind" not in result
    call = service.calls[0][0]
    assert (call.dialect, call.names_tasks) == ("0.1", True)


@pytest.mark.parametrize(
    ("origin", "has", "lacks"),
    [
        ("0.1", {"id", "sessionId"}, {"kind", "type", "contextId"}),
        ("0.2", {"kind", "contextId"}, {"type", "sessionId"}),
        ("0.2-type", {"type", "contextId"}, {"kind", "sessionId"}),
        ("0.3", {"kind", "contextId"}, {"type", "sessionId"}),
        ("1.0", {"kind", "contextId"}, {"type", "sessionId"}),
        ("", {"kind", "contextId"}, {"type", "sessionId"}),
    ],
)
async def test_the_origin_of_a_task_decides_between_versions_with_the_same_method(
    origin: str, has: set[str], lacks: set[str]
) -> None:
    result = (await rpc(app_of(Scripted(origin=origin)), "tasks/get", {"id": "t1"})).json["result"]
    assert has <= set(result) and not lacks & set(result)


async def test_a_header_spares_the_question() -> None:
    service = Scripted(origin="0.1")
    result = (await rpc(app_of(service), "tasks/get", {"id": "t1"}, headers={"A2A-Version": "0.3"})).json[
        "result"
    ]
    assert result["kind"] == "task"


@pytest.mark.parametrize(
    "body", [b'{"method":"message/send","params":%s}', b'{"id":null,"method":"message/send","params":%s}']
)
async def test_examples_of_older_versions_leave_out_the_envelope(body: bytes) -> None:
    answer = await request(app_of(), "POST", "/", body % msgspec.json.encode(SEND))
    assert answer.json["id"] is None and answer.json["result"]["kind"] == "task"


async def test_wrong_envelope_is_refused_in_every_version() -> None:
    answer = await request(
        app_of(), "POST", "/", b'{"jsonrpc":"1.0","id":4,"method":"message/send","params":{}}'
    )
    assert answer.json["error"]["code"] == -32600 and answer.json["id"] == 4


async def test_error_for_an_invalid_request_has_no_details_of_1_0() -> None:
    error = (await request(app_of(), "POST", "/", b"{")).json["error"]
    assert error["code"] == -32700 and "data" not in error


@pytest.mark.parametrize("state", [S.INPUT_REQUIRED, S.AUTH_REQUIRED, S.COMPLETED])
@pytest.mark.parametrize("method", ["message/stream", "tasks/resubscribe"])
async def test_a_stream_ends_with_final_when_the_task_waits_or_is_done(state: TaskState, method: str) -> None:
    service = Scripted(
        [StreamResponse(task(S.WORKING), 1)], [status(state, 2)], [chunk("late", 3)], origin="0.3"
    )
    params: dict[str, Any] = SEND if method == "message/stream" else {"id": "t1"}
    results = (await rpc(app_of(service), method, params)).results()
    assert [result.get("final") for result in results] == [None, True]
    assert results[-1]["status"]["state"] == state.word


async def test_a_refused_resubscription_of_0_3_is_an_event() -> None:
    answer = await rpc(
        app_of(Scripted(TaskNotFound("t1"), origin="0.3")), "tasks/resubscribe", {"id": "t1"}, id=9
    )
    assert answer.headers["content-type"] == "text/event-stream"
    [frame] = answer.frames()
    document = msgspec.json.decode(frame.data)
    assert document["id"] == 9 and document["error"]["code"] == -32001


@pytest.mark.parametrize("method", ["message/stream", "tasks/sendSubscribe"])
async def test_any_other_refused_stream_is_not(method: str) -> None:
    params: dict[str, Any] = OLD if method.startswith("tasks") else SEND
    answer = await rpc(app_of(Scripted(InvalidParams("no"))), method, params)
    assert answer.headers["content-type"] == "application/json" and answer.json["error"]["code"] == -32602


@pytest.mark.parametrize(("origin", "after"), [("0.3", 7), ("0.2", 7), ("0.1", None)])
async def test_only_a_version_that_can_go_on_in_the_middle_does(origin: str, after: int | None) -> None:
    service = Scripted([status(S.COMPLETED, 8)], origin=origin)
    await rpc(app_of(service), "tasks/resubscribe", {"id": "t1"}, headers={"Last-Event-ID": "7"})
    call, asked = service.calls[0]
    assert call.after == after and isinstance(asked, SubscribeToTask)


async def test_extensions_are_answered_in_the_old_spelling() -> None:
    answer = await rpc(app_of(), "message/send", SEND, headers={"X-A2A-Extensions": "https://ext.example/a"})
    assert answer.headers["x-a2a-extensions"] == "https://ext.example/a"


async def test_an_unauthenticated_call_of_0_3_gets_an_error_of_0_3() -> None:
    class Nobody:
        challenge = "Bearer"

        async def authenticate(self, headers: Any, **shown: Any) -> Any:
            raise Unauthenticated("who?")

    answer = await rpc(app_of(authenticator=Nobody()), "message/send", SEND)
    assert answer.status == 401 and answer.json["error"]["code"] == -32000


# --- Arbiter


async def test_a_slash_method_with_version_1_is_arbiter() -> None:
    service = Scripted()
    await rpc(app_of(service), "message/send", SEND, headers={"A2A-Version": "1.0"})
    assert service.calls[0][0].dialect == "arbiter"


async def test_arbiter_comes_with_0_3() -> None:
    headers = {"A2A-Version": "1.0"}
    spoken = await rpc(app_of(versions=("1.0", "0.3")), "message/send", SEND, headers=headers)
    assert spoken.json["result"]["kind"] == "task"
    refused = await rpc(app_of(versions=("1.0",)), "message/send", SEND, headers=headers)
    assert refused.json["id"] is not None and refused.json["error"]["code"] == -32601


async def test_sse_frames_of_arbiter_have_an_event_line() -> None:
    service = Scripted([chunk("a", 2), status(S.COMPLETED, 3)])
    answer = await rpc(app_of(service), "message/stream", SEND, headers={"A2A-Version": "1.0"})
    assert {frame.event for frame in answer.frames()} == {"message"}
    assert answer.results()[-1]["final"] is True


@older("X34")
@pytest.mark.parametrize(
    ("version", "code"), [("", 0), ("1", 0), ("1.0", 0), ("0.3", -32007), ("2.0", -32007)]
)
async def test_an_arbiter_mount_checks_the_version_first(version: str, code: int) -> None:
    headers = {"A2A-Version": version} if version else {}
    answer = await rpc(app_of(only="arbiter"), "message/send", SEND, headers=headers)
    assert answer.status == 200 and answer.json.get("error", {}).get("code", 0) == code
    assert answer.json["id"] == (None if code else 1)


@older("X34")
async def test_a_send_of_arbiter_waits_for_the_end() -> None:
    service = Scripted()
    await rpc(app_of(service), "message/send", SEND, headers={"A2A-Version": "1.0"})
    (_, sent) = service.calls[0]
    assert isinstance(sent, SendMessage) and not sent.configuration.return_immediately


@older("X34")
@pytest.mark.parametrize("op", ["set", "get", "list", "delete"])
async def test_arbiter_has_no_push_notifications(op: str) -> None:
    service = Scripted()
    method = f"tasks/pushNotificationConfig/{op}"
    answer = await rpc(app_of(service, only="arbiter"), method, {"id": "t1"}, headers={"A2A-Version": "1.0"})
    assert answer.json["error"]["code"] == -32004 and service.calls == []


async def test_on_an_arbiter_mount_an_empty_version_is_1_0() -> None:
    service = Scripted()
    await rpc(app_of(service, only="arbiter"), "tasks/get", {"id": "t1"})
    assert service.calls[0][0].dialect == "arbiter"

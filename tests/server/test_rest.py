"""HTTP+JSON: paths, queries, bodies, statuses, media types and streams, in 1.0 and in 0.3."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dragoman import errors as e
from dragoman.dialects.errors import code, name_of
from dragoman.model import ops
from dragoman.model.ops import PushConfig, PushConfigPage, TaskPage
from dragoman.model.task import TaskState
from dragoman.server.app import App
from dragoman.server.limits import Limits
from dragoman.server.mount import Mount
from tests.server.wire import (
    CARD,
    HELLO,
    Answer,
    Scripted,
    app_of,
    chunk,
    open_request,
    reply,
    request,
    status,
    task,
)

BODY = msgspec.json.encode(HELLO)
CONTENT = {"message": {"messageId": "m1", "role": "ROLE_USER", "content": [{"text": "hello"}]}}
HOOK = "https://hook.example"
PUSH = {"url": HOOK}


async def request_of(
    method: str, path: str, body: Any = None, *, result: Any = None, **more: Any
) -> ops.Request:
    """What the agent was asked when this was requested."""
    service = Scripted([status(TaskState.COMPLETED, 1)], result=result)
    content = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
    answer = await request(app_of(service), method, path, content, **more)
    assert answer.status == 200, answer.body
    return service.calls[0][1]


async def refused(error: Exception, method: str = "GET", path: str = "/tasks/t1", **more: Any) -> Answer:
    return await request(app_of(Scripted(result=error)), method, path, **more)


# --- routes

ROUTES: list[tuple[str, str, Any, Any, ops.Request]] = [
    ("GET", "/tasks", None, TaskPage(tasks=(), next_page_token="", page_size=50, total_size=0), ops.ListTasks()),
    ("GET", "/tasks/t1", None, None, ops.GetTask(id="t1")),
    ("POST", "/tasks/t1:cancel", {}, None, ops.CancelTask(id="t1")),
    ("POST", "/tasks/t1:cancel", {"metadata": {"a": 1}}, None, ops.CancelTask(id="t1", metadata={"a": 1})),
    ("POST", "/tasks/t1:subscribe", {}, None, ops.SubscribeToTask(id="t1")),
    ("GET", "/tasks/t1:subscribe", None, None, ops.SubscribeToTask(id="t1")),
    ("POST", "/tasks/t1/pushNotificationConfigs", PUSH, PushConfig(url="u"), ops.CreatePushConfig(config=PushConfig(task_id="t1", url=HOOK))),
    ("GET", "/tasks/t1/pushNotificationConfigs", None, PushConfigPage(), ops.ListPushConfigs(task_id="t1")),
    ("GET", "/tasks/t1/pushNotificationConfigs/p1", None, PushConfig(url="u"), ops.GetPushConfig(task_id="t1", id="p1")),
    ("DELETE", "/tasks/t1/pushNotificationConfigs/p1", None, None, ops.DeletePushConfig(task_id="t1", id="p1")),
    ("GET", "/extendedAgentCard", None, CARD, ops.GetExtendedCard()),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "result", "meant"), ROUTES)
async def test_every_operation_has_its_address(
    method: str, path: str, body: Any, result: Any, meant: ops.Request
) -> None:
    assert await request_of(method, path, body, result=result) == meant


@pytest.mark.parametrize(("method", "path", "body", "result", "meant"), ROUTES)
async def test_every_address_exists_again_below_a_tenant(
    method: str, path: str, body: Any, result: Any, meant: ops.Request
) -> None:
    assert await request_of(method, "/acme" + path, body, result=result) == replace(meant, tenant="acme")


@pytest.mark.parametrize(("method", "path", "body", "result", "meant"), ROUTES[1:])
async def test_0_3_has_the_same_below_v1(
    method: str, path: str, body: Any, result: Any, meant: ops.Request
) -> None:
    if isinstance(meant, ops.CancelTask):
        meant = ops.CancelTask(id="t1")
    path = "/v1/card" if path == "/extendedAgentCard" else "/v1" + path
    assert await request_of(method, path, body, result=result) == meant


@pytest.mark.parametrize("path", ["/message:send", "/message:stream", "/acme/message:send"])
async def test_a_message_is_the_whole_body(path: str) -> None:
    sent = await request_of("POST", path, BODY)
    assert isinstance(sent, ops.SendMessage) and sent.message.text == "hello"


@pytest.mark.parametrize("path", ["/v1/message:send", "/v1/message:stream"])
async def test_a_message_of_0_3_has_content(path: str) -> None:
    sent = await request_of("POST", path, CONTENT)
    assert isinstance(sent, ops.SendMessage) and sent.message.text == "hello"


@pytest.mark.parametrize(
    ("raw", "path", "id"),
    [
        ("/tasks/a%2Fb", "/tasks/a/b", "a/b"),
        ("/tasks/a%3Acancel", "/tasks/a:cancel", "a:cancel"),
        ("/tasks/a%252Fb", "/tasks/a%2Fb", "a%2Fb"),
        ("/tasks/%C3%A9%20%F0%9F%A6%80", "/tasks/é 🦀", "é 🦀"),
        ("/v1/tasks/a%2Fb", "/v1/tasks/a/b", "a/b"),
        ("/acme/tasks/a%2fb", "/acme/tasks/a/b", "a/b"),
    ],
)
async def test_an_id_may_have_any_character(raw: str, path: str, id: str) -> None:
    service = Scripted()
    answer = Answer(app_of(service), _scope(path, raw), [b""])
    await answer.end()
    assert answer.status == 200, answer.body
    assert service.calls[0][1].id == id  # type: ignore[attr-defined]


def _scope(path: str, raw: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": raw.encode(),
        "query_string": b"",
        "headers": [(b"host", b"agents.example")],
        "client": None,
        "server": None,
    }


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/tasks/t1"), ("GET", "/message:send"), ("DELETE", "/tasks/t1:cancel")]
)
async def test_a_verb_that_does_not_fit_is_not_allowed(method: str, path: str) -> None:
    answer = await request(app_of(), method, path)
    assert answer.status == 405 and method not in answer.headers["allow"]
    assert answer.json["error"]["status"] == "UNIMPLEMENTED", "the codes are those of google.rpc"


@pytest.mark.parametrize("path", ["/nowhere", "/v1/nowhere", "/v1/tasks", "/tasks/t1/x", "/a/b/tasks"])
async def test_another_path_is_not_found(path: str) -> None:
    assert (await request(app_of(), "GET", path)).status == 404


async def test_several_agents_have_their_own_addresses() -> None:
    first, second = Scripted(), Scripted()
    mounts = [Mount(path=f"/{n}", agent=n, service=s, card=CARD) for n, s in (("a", first), ("b", second))]
    await request(App(mounts), "GET", "/b/tasks/t1")
    await request(App(mounts), "GET", "/b/acme/tasks/t1")
    assert not first.calls
    assert [each.tenant for _, each in second.calls] == ["", "acme"]
    assert second.calls[0][0].scope.agent == "b"


# --- queries and bodies


@pytest.mark.parametrize("query", ["historyLength=3", "history_length=3", "historyLength=1&historyLength=3"])
@pytest.mark.parametrize("path", ["/tasks/t1", "/v1/tasks/t1"])
async def test_a_query_may_be_spelled_either_way_and_the_last_value_counts(path: str, query: str) -> None:
    assert await request_of("GET", path, query=query) == ops.GetTask(id="t1", history_length=3)


async def test_a_list_takes_all_it_can_take_from_the_query() -> None:
    query = (
        "contextId=c%201&status=TASK_STATE_WORKING&page_size=7&pageToken=x&historyLength=0"
        "&statusTimestampAfter=2026-01-02T03:04:05+00:00&includeArtifacts=true&unknown=1"
    )
    page = TaskPage(tasks=(), next_page_token="", page_size=7, total_size=0)
    assert await request_of("GET", "/tasks", query=query, result=page) == ops.ListTasks(
        context_id="c 1",
        status=TaskState.WORKING,
        page_size=7,
        page_token="x",
        history_length=0,
        status_timestamp_after="2026-01-02T03:04:05.000Z",
        include_artifacts=True,
    )


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("pageSize=0", "pageSize"),
        ("pageSize=many", "pageSize"),
        ("pageSize=--1", "pageSize"),
        ("status=TASK_STATE_NOPE", "status"),
        ("includeArtifacts=perhaps", "includeArtifacts"),
        ("statusTimestampAfter=yesterday", "statusTimestampAfter"),
        ("historyLength=-1", "historyLength"),
    ],
)
async def test_a_value_that_makes_no_sense_is_named(query: str, field: str) -> None:
    answer = await request(app_of(), "GET", "/tasks", query=query)
    assert answer.status == 400
    _, bad = answer.json["error"]["details"]
    assert bad["fieldViolations"][0]["field"] == field


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b" \n", b'{"id":"other"}'])
@pytest.mark.parametrize("path", ["/tasks/t1:cancel", "/tasks/t1:subscribe", "/v1/tasks/t1:cancel"])
async def test_a_body_that_says_nothing_is_fine(path: str, body: bytes) -> None:
    assert (await request_of("POST", path, body)).id == "t1"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/message:send", b"{", "PARSE_ERROR"),
        ("/message:send", b'{"message":"\xff"}', "PARSE_ERROR"),
        ("/message:send", b"", "INVALID_PARAMS"),
        ("/message:send", b"[]", "INVALID_PARAMS"),
        ("/message:send", b'{"message":{}}', "INVALID_PARAMS"),
        ("/tasks/t1:cancel", b"[]", "INVALID_PARAMS"),
        ("/tasks/t1:cancel", b"{]", "PARSE_ERROR"),
        ("/tasks/t1:cancel", b'{"metadata":1}', "INVALID_PARAMS"),
        ("/tasks/t1/pushNotificationConfigs", b"{}", "INVALID_PARAMS"),
    ],
)
async def test_a_bad_body_is_refused_and_changes_nothing(path: str, body: bytes, reason: str) -> None:
    service = Scripted()
    answer = await request(app_of(service), "POST", path, body)
    assert answer.status == 400 and answer.json["error"]["details"][0]["reason"] == reason
    assert not service.calls


async def test_a_body_that_is_too_deep_is_refused() -> None:
    deep = b'{"metadata":' + b"[" * 100 + b"]" * 100 + b"}"
    assert (await request(app_of(), "POST", "/tasks/t1:cancel", deep)).status == 400


@pytest.mark.parametrize("headers", [{}, {"content-length": "1000"}], ids=["counted", "declared"])
async def test_a_body_that_is_too_long_is_refused_with_the_status_for_that(headers: dict[str, str]) -> None:
    app = app_of(limits=Limits(max_body=10))
    answer = await request(app, "POST", "/message:send", BODY, headers=headers)
    error = answer.json["error"]
    assert (answer.status, error["code"], error["status"]) == (413, 413, "INVALID_ARGUMENT")
    assert error["details"][0]["reason"] == "INVALID_REQUEST" and "10 bytes" in error["message"]
    older = await request(app, "POST", "/v1/message:send", BODY, headers=headers)
    assert (older.status, older.json["code"]) == (413, -32600)
    rpc = await request(app, "POST", "/", BODY, headers=headers)
    assert (rpc.status, rpc.json["error"]["code"]) == (200, -32600)


async def test_a_body_that_does_not_come_is_refused_with_the_status_for_that() -> None:
    slow = open_request(app_of(limits=Limits(body_timeout=0.01)), "POST", "/message:send")
    slow.unread.clear()
    answer = await slow.end()
    assert answer.status == 408 and answer.json["error"]["code"] == 408


HEADS: list[tuple[str, Any]] = [
    ("/tasks", TaskPage(tasks=(), next_page_token="", page_size=50, total_size=0)),
    ("/tasks/t1", None),
    ("/acme/tasks/t1", None),
    ("/tasks/t1/pushNotificationConfigs", PushConfigPage()),
    ("/tasks/t1/pushNotificationConfigs/p1", PushConfig(url="u")),
    ("/extendedAgentCard", CARD),
    ("/agent/authenticatedExtendedCard", CARD),
    ("/v1/tasks/t1", None),
    ("/v1/card", CARD),
    ("/tasks/t1", e.TaskNotFound("t1")),
]


@pytest.mark.parametrize(("path", "result"), HEADS, ids=[f"{n} {path}" for n, (path, _) in enumerate(HEADS)])
async def test_head_is_get_without_the_body(path: str, result: Any) -> None:
    get, head = [await request(app_of(Scripted(result=result)), verb, path) for verb in ("GET", "HEAD")]
    assert get.body and not head.body
    assert head.status == get.status and head.headers == get.headers


SLASHES = [("POST", "/message:send"), ("POST", "/acme/message:send"), ("GET", "/tasks/t1"), ("GET", "/v1/tasks/t1"), ("GET", "/docs")]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), SLASHES)
async def test_a_slash_at_the_end_changes_nothing(method: str, path: str) -> None:
    body = BODY if method == "POST" else b""
    without, with_one, with_two = [
        await request(app_of(Scripted()), method, path + end, body) for end in ("", "/", "//")
    ]
    assert without.status == with_one.status == 200 and without.body == with_one.body
    assert with_two.status == 404


async def test_a_form_cannot_send_a_message() -> None:
    headers = {"Content-Type": "text/plain"}
    answer = await request(app_of(), "POST", "/message:send", BODY, headers=headers)
    assert answer.status == 400
    assert answer.json["error"]["details"][0]["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"
    older = await request(app_of(), "POST", "/v1/message:send", BODY, headers=headers)
    assert (older.status, older.json["code"]) == (415, -32005)


async def test_a_tenant_in_the_body_must_be_the_one_in_the_path() -> None:
    body = msgspec.json.encode({**HELLO, "tenant": "acme"})
    assert (await request_of("POST", "/acme/message:send", body)).tenant == "acme"
    answer = await request(app_of(), "POST", "/other/message:send", body)
    assert (
        answer.status == 400 and answer.json["error"]["details"][1]["fieldViolations"][0]["field"] == "tenant"
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/tasks"),
        ("GET", "/tasks/t1"),
        ("POST", "/tasks/t1:cancel"),
        ("DELETE", "/tasks/t1/pushNotificationConfigs/p1"),
        ("GET", "/extendedAgentCard"),
    ],
)
async def test_a_tenant_may_be_in_the_query_and_is_then_the_one_in_the_path(method: str, path: str) -> None:
    page = TaskPage(tasks=(), next_page_token="", page_size=50, total_size=0)
    result = {"/tasks": page, "/extendedAgentCard": CARD}.get(path)
    assert (await request_of(method, path, result=result, query="tenant=acme")).tenant == "acme"
    answer = await request(app_of(), method, "/other" + path, query="tenant=acme")
    assert answer.status == 400 and "tenant" in answer.json["error"]["message"]


async def test_0_3_may_have_the_id_of_a_new_push_config_in_the_query() -> None:
    config = PushConfig(id="p1", task_id="t1", url=HOOK)
    path = "/v1/tasks/t1/pushNotificationConfigs"
    made = await request_of(
        "POST", path, {"pushNotificationConfig": PUSH}, result=config, query="configId=p1"
    )
    assert made == ops.CreatePushConfig(config=config)


@pytest.mark.parametrize(
    "body",
    [
        {"config": {"name": "tasks/t1/pushNotificationConfigs/p1", "pushNotificationConfig": PUSH}},
        {"parent": "tasks/t1", "configId": "p1", "config": {"pushNotificationConfig": PUSH}},
        {"name": "tasks/t1/pushNotificationConfigs/p1", "pushNotificationConfig": PUSH},
        {"pushNotificationConfig": {"id": "p1", **PUSH}},
        {"id": "p1", **PUSH},
    ],
)
async def test_0_3_takes_a_push_config_however_it_is_wrapped(body: Any) -> None:
    config = PushConfig(id="p1", task_id="t1", url=HOOK)
    path = "/v1/tasks/t1/pushNotificationConfigs"
    assert await request_of("POST", path, body, result=config) == ops.CreatePushConfig(config=config)


# --- answers


async def test_an_answer_has_no_envelope() -> None:
    answer = await request(app_of(), "POST", "/message:send", BODY)
    assert answer.json == {
        "task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}
    }
    answer = await request(app_of(Scripted(result=reply("hi"))), "POST", "/message:send", BODY)
    assert answer.json["message"]["parts"] == [{"text": "hi"}]


async def test_an_answer_of_0_3_is_the_json_of_its_protobuf() -> None:
    canceled = Scripted(result=task(TaskState.CANCELED))
    answer = await request(app_of(canceled), "POST", "/v1/message:send", msgspec.json.encode(CONTENT))
    assert answer.json["task"]["status"]["state"] == "TASK_STATE_CANCELLED"
    config = Scripted(result=PushConfig(id="p1", task_id="t1", url="u"))
    answer = await request(app_of(config), "GET", "/v1/tasks/t1/pushNotificationConfigs/p1")
    assert answer.json["name"] == "tasks/t1/pushNotificationConfigs/p1"


async def test_a_deletion_answers_with_nothing() -> None:
    answer = await request(app_of(), "DELETE", "/tasks/t1/pushNotificationConfigs/p1")
    assert answer.status == 200 and answer.json == {}


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({}, "application/json"),
        ({"Content-Type": "application/json"}, "application/json"),
        ({"Content-Type": "application/a2a+json"}, "application/a2a+json"),
        ({"Content-Type": "application/a2a+json; charset=utf-8"}, "application/a2a+json"),
        ({"Accept": "application/a2a+json"}, "application/a2a+json"),
        ({"Accept": "*/*"}, "application/json"),
        ({"Accept": "application/json"}, "application/json"),
        ({"Accept": "application/json, application/a2a+json"}, "application/a2a+json"),
        ({"Content-Type": "application/a2a+json", "Accept": "application/json"}, "application/json"),
        ({"Accept": "application/a2a+json;q=0, application/json"}, "application/json"),
        ({"Accept": "application/a2a+json;v=1; q=0.5, application/json;q=0.9"}, "application/json"),
        ({"Accept": "application/json;q=0.1, application/A2A+json;q=0.2, */*"}, "application/a2a+json"),
    ],
)
async def test_the_media_type_is_the_one_the_caller_uses(headers: dict[str, str], kind: str) -> None:
    answer = await request(app_of(), "POST", "/message:send", BODY, headers=headers)
    assert answer.status == 200 and answer.headers["content-type"] == kind
    answer = await request(app_of(), "POST", "/message:send", b"{", headers=headers)
    assert answer.status == 400 and answer.headers["content-type"] == kind


# --- errors

SHARE_A_CODE = (e.ExtensionRequired, e.Unauthenticated, e.Forbidden, e.RateLimited, e.Unavailable)
"""Errors that 0.3 has no code for."""
ERRORS: list[tuple[e.A2AError, int, str, int]] = [
    (e.TaskNotFound("t1"), 404, "NOT_FOUND", 404),
    (e.TaskNotCancelable("no"), 400, "FAILED_PRECONDITION", 409),
    (e.PushNotSupported("no"), 400, "FAILED_PRECONDITION", 501),
    (e.UnsupportedOperation("no"), 400, "FAILED_PRECONDITION", 501),
    (e.ContentTypeNotSupported("no"), 400, "INVALID_ARGUMENT", 415),
    (e.InvalidAgentResponse("no"), 500, "INTERNAL", 502),
    (e.ExtensionRequired("no"), 400, "FAILED_PRECONDITION", 400),
    (e.InvalidParams("no"), 400, "INVALID_ARGUMENT", 422),
    (e.Unauthenticated("no"), 401, "UNAUTHENTICATED", 401),
    (e.Forbidden("no"), 403, "PERMISSION_DENIED", 403),
    (e.RateLimited("no", retry_after=7), 429, "RESOURCE_EXHAUSTED", 429),
    (e.Unavailable("no", retry_after=7), 503, "UNAVAILABLE", 503),
    (e.A2AError("no"), 500, "INTERNAL", 500),
]


@pytest.mark.parametrize(("error", "http", "grpc", "old"), ERRORS)
async def test_an_error_has_its_status_and_says_why(
    error: e.A2AError, http: int, grpc: str, old: int
) -> None:
    answer = await refused(error)
    assert answer.status == http
    said = answer.json["error"]
    assert (said["code"], said["status"], said["message"]) == (http, grpc, error.message)
    assert said["details"][0]["reason"] == error.reason and said["details"][0]["domain"] == "a2a-protocol.org"
    assert answer.headers.get("retry-after") == ("7" if error.retry_after else None)


@pytest.mark.parametrize(("error", "http", "grpc", "old"), ERRORS)
async def test_an_error_of_0_3_has_a_code_and_the_statuses_of_its_time(
    error: e.A2AError, http: int, grpc: str, old: int
) -> None:
    answer = await refused(error, path="/v1/tasks/t1")
    assert answer.status == old
    known: dict[str, Any] = {"type": name_of(error)} if name_of(error) else {}
    if isinstance(error, SHARE_A_CODE):
        known["data"] = {"reason": error.reason}
    assert answer.json == {"code": code(error, "0.3"), "message": error.message, **known}


async def test_internal_errors_are_not_shown_to_callers(caplog: pytest.LogCaptureFixture) -> None:
    answer = await refused(RuntimeError("secret"))
    assert answer.status == 500 and b"secret" not in answer.body
    assert "secret" in caplog.text


@pytest.mark.parametrize("path", ["/extendedAgentCard", "/v1/card", "/agent/authenticatedExtendedCard"])
async def test_without_an_extended_card_each_version_says_so_in_its_words(path: str) -> None:
    answer = await refused(e.UnsupportedOperation("none"), path=path)
    if path == "/extendedAgentCard":
        assert answer.status == 400
        assert answer.json["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"
    else:
        assert answer.status == 404
        assert path != "/v1/card" or answer.json["code"] == -32007


# --- versions and extensions


@pytest.mark.parametrize(
    ("path", "version"), [("/tasks/t1", v) for v in ("", "1", "1.0", "1.0.1")] + [("/v1/tasks/t1", v) for v in ("", "0.3", "0.3.0", "0.2.6")]
)  # fmt: skip
async def test_a_version_that_fits_the_path_is_served(path: str, version: str) -> None:
    assert (await request(app_of(), "GET", path, headers={"A2A-Version": version})).status == 200
    assert (await request(app_of(), "GET", path, query=f"A2A-Version={version}")).status == 200


@pytest.mark.parametrize(
    ("path", "version"), [("/tasks/t1", v) for v in ("0.3", "2.0", "x")] + [("/v1/tasks/t1", v) for v in ("1.0", "0.9")]
)  # fmt: skip
async def test_a_version_that_does_not_is_refused_in_the_words_of_the_path(path: str, version: str) -> None:
    said: list[dict[str, Any]] = [{"headers": {"A2A-Version": version}}, {"query": f"a2a-version={version}"}]
    for more in said:
        answer = await request(app_of(), "GET", path, **more)
        assert answer.status == 400
        if path.startswith("/v1"):
            assert answer.json["code"] == -32009
        else:
            assert answer.json["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


@pytest.mark.parametrize(("versions", "path"), [(("1.0",), "/v1/tasks/t1"), (("0.3",), "/tasks/t1")])
async def test_a_version_the_agent_does_not_speak_is_not_supported(
    versions: tuple[str, ...], path: str
) -> None:
    service = Scripted()
    answer = await request(app_of(service, versions=versions), "GET", path)
    assert answer.status == 400 and not service.calls


async def test_below_a_mount_called_v1_header_and_body_decide_the_version() -> None:
    service = Scripted()
    app = App([Mount(path="/v1", agent="hello", service=service, card=CARD)])
    old = await request(app, "POST", "/v1/message:send", msgspec.json.encode(CONTENT))
    new = await request(app, "POST", "/v1/message:send", BODY)
    got = await request(app, "GET", "/v1/tasks/t1", headers={"A2A-Version": "0.3"})
    assert (old.status, new.status, got.status) == (200, 200, 200)
    assert [call.dialect for call, _ in service.calls] == ["0.3-proto", "1.0", "0.3-proto"]
    assert service.calls[2][1] == ops.GetTask(id="t1")


@pytest.mark.parametrize(
    ("path", "name"), [("/tasks/t1", "a2a-extensions"), ("/v1/tasks/t1", "x-a2a-extensions")]
)
@pytest.mark.parametrize("asked", ["A2A-Extensions", "X-A2A-Extensions"])
async def test_extensions_are_read_in_both_spellings_and_answered_in_that_of_the_version(
    path: str, name: str, asked: str
) -> None:
    service = Scripted()
    headers = {asked: "https://ext.example/a, https://ext.example/b"}
    answer = await request(app_of(service), "GET", path, headers=headers)
    assert service.calls[0][0].extensions == ("https://ext.example/a", "https://ext.example/b")
    assert answer.headers[name] == "https://ext.example/a"
    streamed = await request(app_of(Scripted([chunk("a", 1)])), "GET", path + ":subscribe", headers=headers)
    assert streamed.headers[name] == "https://ext.example/a"


# --- streams


@pytest.mark.parametrize(("path", "final"), [("/message:stream", None), ("/v1/message:stream", True)])
async def test_a_stream_is_frames_without_an_envelope(path: str, final: bool | None) -> None:
    service = Scripted([chunk("a", 1)], [status(TaskState.COMPLETED, 2)])
    body = msgspec.json.encode(CONTENT if path.startswith("/v1") else HELLO)
    answer = await request(app_of(service), "POST", path, body)
    assert answer.headers["content-type"] == "text/event-stream"
    first, last = [(frame.id, msgspec.json.decode(frame.data)) for frame in answer.frames()]
    assert first[0] == "1" and first[1]["artifactUpdate"]["artifact"]["parts"] == [{"text": "a"}]
    assert last[0] == "2" and last[1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert last[1]["statusUpdate"].get("final") is final


@pytest.mark.parametrize("verb", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/tasks/t1:subscribe", "/v1/tasks/t1:subscribe"])
async def test_a_subscription_goes_on_after_the_last_event(verb: str, path: str) -> None:
    service = Scripted([status(TaskState.COMPLETED, 9)])
    await request(app_of(service), verb, path, headers={"Last-Event-ID": "8"})
    assert service.calls[0][0].after == 8


@pytest.mark.parametrize("path", ["/tasks/t1:subscribe", "/v1/tasks/t1:subscribe"])
async def test_error_before_a_stream_is_a_response_and_a_later_one_is_an_event(path: str) -> None:
    answer = await request(app_of(Scripted(e.TaskNotFound("t1"))), "GET", path)
    assert answer.status == 404 and answer.headers["content-type"] == "application/json"
    answer = await request(app_of(Scripted([chunk("a", 1)], e.Unavailable("gone"))), "GET", path)
    assert answer.status == 200
    last = answer.frames()[-1]
    said = msgspec.json.decode(last.data)
    assert last.event == "error" and last.id == ""
    assert (said if path.startswith("/v1") else said["error"])["message"] == "gone"


# --- what describes it


async def test_the_openapi_document_has_every_path_of_the_supported_versions() -> None:
    document = (await request(app_of(), "GET", "/openapi.json")).json
    assert document["openapi"].startswith("3.1") and document["info"]["title"] == "Hello"
    assert document["servers"][0]["url"] == "http://agents.example"
    assert {"/message:send", "/tasks/{id}:cancel", "/v1/tasks/{id}", "/v1/card"} <= set(document["paths"])
    assert set(document["paths"]["/tasks/{id}:subscribe"]) == {"parameters", "get", "post"}
    newest = (await request(app_of(versions=("1.0",)), "GET", "/openapi.json")).json
    assert not [path for path in newest["paths"] if path.startswith("/v1")]


async def test_every_reference_in_the_document_leads_somewhere() -> None:
    answer = await request(app_of(), "GET", "/openapi.json")
    document, open_ends = answer.json, [answer.json]
    while open_ends:
        value = open_ends.pop()
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                place: Any = document
                for step in value["$ref"].removeprefix("#/").split("/"):
                    place = place[step]
            open_ends += value.values()
        elif isinstance(value, list):
            open_ends += value


async def test_the_page_for_people_fetches_nothing() -> None:
    answer = await request(app_of(card=replace(CARD, name="<b>")), "GET", "/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    page = answer.body.decode()
    assert "&lt;b&gt;" in page and "<b>" not in page and "<script" not in page and "src=" not in page
    assert "/tasks/{id}:cancel" in page

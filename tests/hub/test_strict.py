"""`--strict`: what an Arbiter server refuses over A2A is refused, with its codes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.hub.settings import InvalidSetting, load_settings
from tests.hub.house import SCOUT, Caller, house, message

HOME = "/v1/a2a/agents/index"


@pytest.fixture
async def ada() -> AsyncIterator[Caller]:
    async with house(lambda prompt: "All is well.", strict=True) as home:
        yield await home.tenant("ada")


async def test_the_five_methods_answer_as_before(ada: Caller) -> None:
    for version in ({}, {"a2a_version": "1.0"}, {"a2a_version": "1"}, {"a2a_version": ""}):
        task = (await ada.rpc("index", "message/send", message("hi", f"m{version}"), **version)).json[
            "result"
        ]
        assert task["status"]["state"] == "completed" and task["kind"] == "task"
    assert (await ada.rpc("index", "tasks/get", {"id": task["id"]})).json["result"]["id"] == task["id"]
    received = (await ada.rpc("index", "message/stream", message("hi", "s"))).results()
    assert received[-1]["final"] is True
    (end,) = (await ada.rpc("index", "tasks/resubscribe", {"id": task["id"]})).results()
    assert end["final"] is True
    canceled = await ada.rpc("index", "tasks/cancel", {"id": task["id"]})
    assert canceled.json["error"]["code"] == -32002


@pytest.mark.parametrize(
    "version", ["0.3", "0.3.0", "0.2", "0.1", "1.1", "2.0", "1.0.0", "v1.0", "x", "1.0, 1.0"]
)
async def test_another_version_is_refused_before_the_body_is_read(ada: Caller, version: str) -> None:
    for body in (b"{", {"jsonrpc": "2.0", "id": 7, "method": "message/send", "params": message("hi")}):
        answer = await ada("POST", HOME, body, a2a_version=version)
        assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, -32007, None)


@pytest.mark.parametrize(
    "method",
    [
        "SendMessage",
        "SendStreamingMessage",
        "GetTask",
        "ListTasks",
        "CancelTask",
        "SubscribeToTask",
        "GetExtendedAgentCard",
        "CreateTaskPushNotificationConfig",
        "agent/getAuthenticatedExtendedCard",
        "tasks/list",
        "tasks/send",
        "tasks/sendSubscribe",
        "tasks/pushNotification/set",
        "nonsense",
    ],
)
async def test_methods_of_other_versions_do_not_exist(ada: Caller, method: str) -> None:
    answer = await ada.rpc("index", method, message("hi"))
    assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, -32601, 1)


@pytest.mark.parametrize("method", ["set", "get", "list", "delete"])
async def test_push_notifications_are_refused(ada: Caller, method: str) -> None:
    answer = await ada.rpc("index", f"tasks/pushNotificationConfig/{method}", {"id": "x"})
    assert (answer.status, answer.json["error"]["code"]) == (200, -32004)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([{"text": "no kind"}], -32602),
        ([{"type": "text", "text": "0.1"}], -32602),
        ([{"kind": "picture"}], -32602),
        ("text", -32602),
        ([], -32602),
        ([{"kind": "text", "text": ""}], -32602),
        ([{"kind": "data", "data": {}}], -32005),
        ([{"kind": "file", "file": {"bytes": "", "name": "a"}}], -32005),
    ],
)
async def test_parts_of_other_kinds_are_refused(ada: Caller, parts: Any, code: int) -> None:
    sent = {"message": {"role": "user", "messageId": "m", "parts": parts}}
    answer = await ada.rpc("index", "message/send", sent)
    assert (answer.status, answer.json["error"]["code"]) == (200, code)


@pytest.mark.parametrize("gone", ["role", "messageId", "parts"])
async def test_a_message_without_a_member_is_refused(ada: Caller, gone: str) -> None:
    whole = message("hi")["message"]
    answer = await ada.rpc(
        "index", "message/send", {"message": {k: v for k, v in whole.items() if k != gone}}
    )
    assert (answer.status, answer.json["error"]["code"]) == (200, -32602)


@pytest.mark.parametrize(
    ("body", "code"), [(b"", -32700), (b"{", -32700), (b"[]", -32600), (b'{"id": 1}', -32600), (b"7", -32600)]
)
async def test_an_invalid_envelope_is_refused_with_status_200(ada: Caller, body: bytes, code: int) -> None:
    answer = await ada("POST", HOME, body)
    assert (answer.status, answer.json["error"]["code"]) == (200, code)


async def test_too_many_requests_are_refused_without_an_envelope() -> None:
    async with house(lambda prompt: "Fine.", strict=True, rate_per_min=1, rate_burst=1) as home:
        ada = await home.tenant("ada")
        assert (await ada.rpc("index", "message/send", message("hi", "m1"))).status == 200
        for method in ("message/send", "message/stream"):
            refused = await ada.rpc("index", method, message("hi", "m2"))
            assert refused.status == 429 and refused.headers["retry-after"] == "60"
            assert refused.json == {
                "error": "too many requests; try again later",
                "reason": "rate_limit",
                "retry_after_seconds": 60,
            }


async def test_another_content_type_does_not_change_the_status(ada: Caller) -> None:
    answer = await ada("POST", HOME, b"{}", content_type="text/plain")
    assert answer.status == 200 and "error" in answer.json


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"{HOME}/message:send", 404),
        ("POST", f"{HOME}/v1/message:send", 404),
        ("GET", f"{HOME}/tasks", 404),
        ("GET", f"{HOME}/.well-known/agent-card.json", 404),
        ("GET", f"{HOME}/.well-known/agent.json", 404),
        ("GET", f"{HOME}/extendedAgentCard", 404),
        ("GET", "/.well-known/agent.json", 404),
        ("GET", "/v1/a2a", 404),
        ("POST", "/v1/a2a/foo", 404),
        ("GET", HOME, 405),
        ("PUT", HOME, 405),
        ("POST", f"{HOME}/agent-card.json", 405),
        ("GET", "/v1/a2a/agents/nobody/agent-card.json", 404),
        ("GET", f"{HOME}/agent-card.json", 200),
    ],
)
async def test_only_the_paths_of_an_arbiter_server_are_served(
    ada: Caller, method: str, path: str, status: int
) -> None:
    assert (await ada(method, path)).status == status


async def test_an_unknown_agent_is_a_task_that_is_not_found(ada: Caller) -> None:
    answer = await ada.rpc("nobody", "message/send", message("hi"))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32001)


async def test_the_card_has_only_the_members_of_an_arbiter_card(ada: Caller) -> None:
    await ada("POST", "/v1/agents", {**SCOUT, "capabilities": ["/search"]})
    card = (await ada("GET", "/v1/a2a/agents/scout/agent-card.json")).json
    members = {
        "protocolVersion", "name", "description", "url", "version", "capabilities", "defaultInputModes",
        "defaultOutputModes", "preferredTransport", "securitySchemes", "security", "skills",
    }  # fmt: skip
    assert set(card) == members
    assert card["url"].endswith("/v1/a2a/agents/scout") and card["protocolVersion"] == "1.0"
    assert card["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    assert [skill["id"] for skill in card["skills"]] == ["chat", "web-search"]
    stub = (await ada("GET", "/.well-known/agent-card.json")).json
    assert set(stub) == members


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Token", ""])
async def test_the_scheme_of_a_token_is_case_sensitive(ada: Caller, scheme: str) -> None:
    answer = await ada("GET", "/v1/agents", authorization=f"{scheme} {ada.token}")
    assert answer.status == 401
    assert (await ada("GET", "/v1/agents")).status == 200


@pytest.mark.parametrize("other", [{"push": True}, {"grpc_port": 0}])
def test_a_strict_hub_offers_nothing_that_an_arbiter_server_does_not(other: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="neither push notifications nor gRPC"):
        load_settings({"strict": True, **other}, environment={})

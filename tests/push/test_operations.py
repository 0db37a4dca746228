"""Push configs over the wire: every operation, in every version that has it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.push.options import PushOptions
from dragoman.server.application import application
from tests.push.net import Net

URL = "https://webhook.example/a2a"
AUTH = {"scheme": "Bearer", "credentials": "shh"}
AUTHS = {"schemes": ["Bearer"], "credentials": "shh"}


def make(**options: Any) -> Agent:
    agent = Agent("push", **options)

    @agent.skill
    async def wait(turn: Turn) -> str:
        """Asks, so that its task stays open."""
        return await turn.ask("more?")

    return agent


class Wire:
    """JSON-RPC and HTTP+JSON to an application in this process."""

    def __init__(self, transport: AsgiTransport) -> None:
        self._transport = transport

    async def rpc(self, method: str, params: Any, version: str = "") -> dict[str, Any]:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        status, document = await self.http("POST", "/", body, version)
        assert status == 200
        return document

    async def ask(self, call: tuple[str, Any], version: str = "") -> dict[str, Any]:
        return await self.rpc(*call, version)

    async def http(self, method: str, path: str, body: bytes = b"", version: str = "") -> tuple[int, Any]:
        headers = {"content-type": "application/json", **({"a2a-version": version} if version else {})}
        response = await self._transport.request(method, f"http://agent{path}", headers, body)
        said = await response.read()
        return response.status, json.loads(said) if said else None

    async def task(self) -> str:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        answer = await self.rpc("SendMessage", {"message": message}, "1.0")
        task: str = answer["result"]["task"]["id"]
        return task


@pytest.fixture(autouse=True)
def _no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that is far away answers after seconds, and the test would wait for it in the end."""
    monkeypatch.setattr("dragoman.push.guard._Resolver.resolve", Net().resolve)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    transport = AsgiTransport(application(make(), store="memory:"))
    yield Wire(transport)
    await transport.close()


# The forms of each version: (create, get, list, delete) as (method, params), and what create answers


def v1_0(task: str, id: str, url: str = URL) -> dict[str, Any]:
    return {
        "create": ("CreateTaskPushNotificationConfig", _flat(task, id, url)),
        "get": ("GetTaskPushNotificationConfig", {"taskId": task, "id": id}),
        "list": ("ListTaskPushNotificationConfigs", {"taskId": task}),
        "delete": ("DeleteTaskPushNotificationConfig", {"taskId": task, "id": id}),
        "config": _flat(task, id, url),
        "listed": lambda *configs: {"configs": list(configs)},
    }


def v0_3(task: str, id: str, url: str = URL) -> dict[str, Any]:
    config = {"taskId": task, "pushNotificationConfig": _inner(id, url)}
    named = {"id": task, "pushNotificationConfigId": id}
    return {
        "create": ("tasks/pushNotificationConfig/set", config),
        "get": ("tasks/pushNotificationConfig/get", named),
        "list": ("tasks/pushNotificationConfig/list", {"id": task}),
        "delete": ("tasks/pushNotificationConfig/delete", named),
        "config": config,
        "listed": lambda *configs: list(configs),
    }


def _flat(task: str, id: str, url: str) -> dict[str, Any]:
    return {"taskId": task, "id": id, "url": url, "token": "t0k", "authentication": AUTH}


def _inner(id: str, url: str) -> dict[str, Any]:
    return {"id": id, "url": url, "token": "t0k", "authentication": AUTHS}


@pytest.mark.parametrize(("version", "form"), [("1.0", v1_0), ("0.3", v0_3), ("0.2", v0_3), ("", v0_3)])
async def test_create_get_list_and_delete(wire: Wire, version: str, form: Any) -> None:
    task = await wire.task()

    async def result(name: str, **more: Any) -> Any:
        answer = await wire.ask(form(task, **{"id": "one", **more})[name], version)
        assert "result" in answer, answer
        return answer["result"]

    one, two = form(task, "one"), form(task, "two")
    assert await result("create") == one["config"]
    assert await result("create", id="two") == two["config"]
    assert await result("get") == one["config"]
    assert await result("list") == one["listed"](one["config"], two["config"])
    replaced = form(task, "one", "https://other.example/x")
    assert await result("create", url="https://other.example/x") == replaced["config"]
    assert await result("list") == one["listed"](replaced["config"], two["config"])
    for _ in range(2):
        assert await result("delete") is None
    assert await result("list") == one["listed"](two["config"])
    answer = await wire.ask(form(task, "one")["get"], version)
    assert answer["error"]["code"] == -32001


@pytest.mark.parametrize("version", ["0.1", ""])
async def test_the_first_version_has_one_config_per_task_and_keeps_its_secret(
    wire: Wire, version: str
) -> None:
    message = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
    await wire.rpc("tasks/send", {"id": "t1", "message": message}, version)
    config = {"url": URL, "token": "t0k", "authentication": AUTHS}
    for url in (URL, "https://other.example/x"):
        given = {"id": "t1", "pushNotificationConfig": {**config, "url": url}}
        shown = {
            "id": "t1",
            "pushNotificationConfig": {**config, "url": url, "authentication": {"schemes": ["Bearer"]}},
        }
        assert (await wire.rpc("tasks/pushNotification/set", given, version))["result"] == shown
        assert (await wire.rpc("tasks/pushNotification/get", {"id": "t1"}, version))["result"] == shown
    configs = await wire.rpc("ListTaskPushNotificationConfigs", {"taskId": "t1"}, "1.0")
    assert [each["authentication"] for each in configs["result"]["configs"]] == [AUTH]


async def test_the_push_methods_of_the_first_version_take_the_second_versions_params(wire: Wire) -> None:
    task = await wire.task()
    given = {"taskId": task, "pushNotificationConfig": _inner("one", URL)}
    assert (await wire.rpc("tasks/pushNotification/set", given))["result"] == given


async def test_push_configs_are_managed_over_http_and_json(wire: Wire) -> None:
    task = await wire.task()
    base = f"/tasks/{task}/pushNotificationConfigs"
    body = {"url": URL, "token": "t0k"}
    status, created = await wire.http("POST", base, json.dumps(body).encode(), "1.0")
    assert status == 200 and created.items() >= {**body, "taskId": task}.items() and created["id"]
    assert await wire.http("GET", f"{base}/{created['id']}", version="1.0") == (200, created)
    assert await wire.http("GET", base, version="1.0") == (200, {"configs": [created]})
    assert await wire.http("DELETE", f"{base}/{created['id']}", version="1.0") == (200, {})
    assert await wire.http("DELETE", f"{base}/{created['id']}", version="1.0") == (200, {})
    status, _ = await wire.http("GET", f"{base}/{created['id']}", version="1.0")
    assert status == 404


@pytest.mark.parametrize(
    "body",
    [
        {"url": URL, "id": "one"},
        {"pushNotificationConfig": {"url": URL, "id": "one"}},
        {"config": {"pushNotificationConfig": {"url": URL, "id": "one"}}, "configId": "one"},
    ],
)
async def test_http_and_json_of_0_3_in_all_its_readings(wire: Wire, body: dict[str, Any]) -> None:
    task = await wire.task()
    base = f"tasks/{task}/pushNotificationConfigs"
    status, created = await wire.http("POST", f"/v1/{base}", json.dumps(body).encode())
    assert (status, created["name"]) == (200, f"{base}/one")
    assert created["pushNotificationConfig"]["url"] == URL
    assert await wire.http("GET", f"/v1/{base}/one") == (200, created)
    status, listed = await wire.http("GET", f"/v1/{base}")
    assert (status, listed["configs"]) == (200, [created])
    status, _ = await wire.http("DELETE", f"/v1/{base}/one")
    assert status in (200, 204)
    assert (await wire.http("GET", f"/v1/{base}/one"))[0] == 404


async def test_an_id_is_made_when_none_is_given(wire: Wire) -> None:
    task = await wire.task()
    config = {"taskId": task, "url": URL}
    ids = [
        (await wire.rpc("CreateTaskPushNotificationConfig", config, "1.0"))["result"]["id"] for _ in range(2)
    ]
    assert all(ids) and ids[0] != ids[1]


async def test_a_get_without_an_id_gives_any_one(wire: Wire) -> None:
    task = await wire.task()
    await wire.ask(v0_3(task, "one")["create"])
    got = await wire.rpc("tasks/pushNotificationConfig/get", {"id": task})
    assert got["result"]["pushNotificationConfig"]["id"] == "one"


async def test_a_list_comes_in_pages(wire: Wire) -> None:
    task = await wire.task()
    for id in "abcde":
        await wire.ask(v1_0(task, id)["create"], "1.0")
    seen, token = [], ""
    while True:
        asked = {"taskId": task, "pageSize": 2, "pageToken": token}
        page = (await wire.rpc("ListTaskPushNotificationConfigs", asked, "1.0"))["result"]
        seen.append([config["id"] for config in page["configs"]])
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert seen == [["a", "b"], ["c", "d"], ["e"]]
    wrong = {"taskId": task, "pageToken": "nonsense"}
    assert (await wire.rpc("ListTaskPushNotificationConfigs", wrong, "1.0"))["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("deleted", "rest"),
    [("d", "ef"), ("cd", "ef"), ("abcd", "ef"), ("de", "f"), ("abcdef", ""), ("a", "ef"), ("e", "f")],
)
async def test_pages_continue_correctly_after_deletions(wire: Wire, deleted: str, rest: str) -> None:
    task, token = await wire.task(), ""
    for id in "abcdef":
        await wire.ask(v1_0(task, id)["create"], "1.0")
    for _ in range(2):
        asked = {"taskId": task, "pageSize": 2, "pageToken": token}
        page = (await wire.rpc("ListTaskPushNotificationConfigs", asked, "1.0"))["result"]
        token = page["nextPageToken"]
    for id in deleted:
        await wire.ask(v1_0(task, id)["delete"], "1.0")
    asked = {"taskId": task, "pageToken": token}
    page = (await wire.rpc("ListTaskPushNotificationConfigs", asked, "1.0"))["result"]
    assert [config["id"] for config in page.get("configs", [])] == list(rest)
    other = await wire.task()
    await wire.ask(v1_0(other, "x")["create"], "1.0")
    elsewhere = await wire.rpc("ListTaskPushNotificationConfigs", {**asked, "taskId": other}, "1.0")
    assert elsewhere["error"]["code"] == -32602


SENDS: list[tuple[str, Any, str, Any]] = [
    (
        "SendMessage",
        {
            "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]},
            "configuration": {"taskPushNotificationConfig": {"url": URL, "id": "one"}},
        },
        "1.0",
        lambda result: result["task"]["id"],
    ),
    (
        "message/send",
        {
            "message": {
                "messageId": "m",
                "role": "user",
                "kind": "message",
                "parts": [{"kind": "text", "text": "hi"}],
            },
            "configuration": {"pushNotificationConfig": {"url": URL, "id": "one"}},
        },
        "0.3",
        lambda result: result["id"],
    ),
    (
        "tasks/send",
        {
            "id": "t1",
            "message": {"role": "user", "parts": [{"type": "text", "text": "hi"}]},
            "pushNotification": {"url": URL},
        },
        "",
        lambda result: result["id"],
    ),
]


@pytest.mark.parametrize(("method", "params", "version", "id_of"), SENDS)
async def test_a_message_can_bring_a_config_along(
    wire: Wire, method: str, params: Any, version: str, id_of: Any
) -> None:
    task = id_of((await wire.rpc(method, params, version))["result"])
    listed = await wire.rpc("ListTaskPushNotificationConfigs", {"taskId": task}, "1.0")
    (config,) = listed["result"]["configs"]
    assert (config["url"], config["taskId"]) == (URL, task)


# What is refused

OPERATIONS = ("create", "get", "list", "delete")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("version", "form"), [("1.0", v1_0), ("0.3", v0_3), ("0.2", v0_3)])
async def test_a_task_that_is_not_there_has_no_configs(
    wire: Wire, version: str, form: Any, operation: str
) -> None:
    answer = await wire.ask(form("missing", "one")[operation], version)
    assert answer["error"]["code"] == -32001


@pytest.mark.parametrize("off", ["agent", "server"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("version", "form"), [("1.0", v1_0), ("0.3", v0_3), ("0.2", v0_3)])
async def test_an_agent_without_push_says_so(off: str, version: str, form: Any, operation: str) -> None:
    options: dict[str, Any] = {"push": None} if off == "server" else {}
    transport = AsgiTransport(application(make(push=off != "agent"), store="memory:", **options))
    try:
        wire = Wire(transport)
        task = await wire.task()
        answer = await wire.ask(form(task, "one")[operation], version)
        assert answer["error"]["code"] == -32003
        method, params, version, _ = SENDS[0]
        sent = await wire.rpc(method, params, version)
        assert sent["error"]["code"] == -32003
        _, card = await wire.http("GET", "/.well-known/agent-card.json")
        assert card["capabilities"]["pushNotifications"] is False
    finally:
        await transport.close()


async def test_the_card_says_that_push_notifications_are_supported(wire: Wire) -> None:
    _, card = await wire.http("GET", "/.well-known/agent-card.json")
    assert card["capabilities"]["pushNotifications"] is True


BAD = [
    {"url": ""},
    {"url": "http://webhook.example/"},
    {"url": "https://127.0.0.1/"},
    {"url": "https://169.254.169.254/latest/meta-data"},
    {"url": "https://[::ffff:10.0.0.1]/"},
    {"url": "https://2130706433/"},
    {"url": "https://user:pass@webhook.example/"},
    {"url": "file:///etc/passwd"},
    {"url": "https://webhook.example/" + "x" * 3000},
    {"token": "x" * 3000},
    {"token": "two\r\nSet-Cookie: lines"},
    {"token": "nul\x00"},
    {"token": "schön"},
    {"token": " blank"},
    {"id": "i" * 200},
    {"id": "line\nbreak"},
    {"authentication": {"scheme": "Bearer", "credentials": "x\r\nX-Injected: 1"}},
    {"authentication": {"scheme": "Bearer\r\nX-Injected:", "credentials": "x"}},
    {"authentication": {"scheme": "", "credentials": "x"}},
    {"authentication": {"scheme": "Bearer", "credentials": "x" * 10_000}},
    {"authentication": {"scheme": "ApiKey", "credentials": '{"in":"header","name":"Host","value":"x"}'}},
    {"authentication": {"scheme": "ApiKey", "credentials": '{"in":"header","name":"X:Y","value":"x"}'}},
    {
        "authentication": {
            "scheme": "ApiKey",
            "credentials": '{"in":"header","name":"X-Y","value":"a\\r\\nb"}',
        }
    },
    {"authentication": {"scheme": "ApiKey", "credentials": '{"in":"query","name":"key","value":"x"}'}},
    {
        "authentication": {
            "scheme": "apiKey",
            "credentials": '{"in":"header","name":"Content-Length","value":"0"}',
        }
    },
    {
        "authentication": {
            "scheme": "apiKey",
            "credentials": '{"in":"header","name":"webhook-id","value":"0"}',
        }
    },
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad)[:60])
async def test_a_config_with_an_invalid_url_or_credential_is_refused(wire: Wire, bad: dict[str, Any]) -> None:
    task = await wire.task()
    config = {"taskId": task, "id": "one", "url": URL, **bad}
    answer = await wire.rpc("CreateTaskPushNotificationConfig", config, "1.0")
    assert answer["error"]["code"] == -32602, answer
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    sent = await wire.rpc(
        "SendMessage",
        {"message": message, "configuration": {"taskPushNotificationConfig": {**config, "taskId": ""}}},
        "1.0",
    )
    assert sent["error"]["code"] == -32602, sent
    listed = await wire.rpc("ListTasks", {}, "1.0")
    assert len(listed["result"]["tasks"]) == 1  # a message with such a config begins nothing
    assert (await wire.ask(v1_0(task, "one")["list"], "1.0"))["result"] == {"configs": []}


async def test_a_task_takes_a_limited_number_of_configs(wire: Wire) -> None:
    task = await wire.task()
    codes = [
        (await wire.ask(v1_0(task, f"c{i}")["create"], "1.0")).get("error", {}).get("code") for i in range(17)
    ]
    assert codes == [None] * 16 + [-32602]


async def test_a_developer_may_register_loopback() -> None:
    options = PushOptions(allow_private=True)
    transport = AsgiTransport(application(make(), store="memory:", push=options))
    try:
        wire = Wire(transport)
        config = {"taskId": await wire.task(), "id": "one", "url": "http://127.0.0.1:1/webhook"}
        assert (await wire.rpc("CreateTaskPushNotificationConfig", config, "1.0"))["result"] == config
    finally:
        await transport.close()

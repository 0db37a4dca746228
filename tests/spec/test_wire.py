"""Where the versions disagree, what a whole server does: raw HTTP in, raw HTTP out, all dialects at one address."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests import raw
from tests.requirements import older

HOOK = "https://client.example/hook"
OLD = ("0.1", "0.2", "0.3")


def agent_of(**options: Any) -> Agent:
    agent = Agent("Wire", description="Says what came", input_modes=["*/*"], output_modes=["*/*"], **options)

    @agent.skill(default=True)
    async def do(turn: Turn) -> AsyncIterator[str]:
        """Does what the text says."""
        match turn.text:
            case "ask":
                yield f"It is {await turn.ask('Which city?')}"
            case "log in":
                await turn.need_auth("Log in")
            case "reject":
                turn.reject("no")
            case "wait":
                await asyncio.Event().wait()
            case "two":
                await turn.artifact("a").write("one")
                await turn.artifact("b").write("two")
            case "files":
                yield ",".join(part.raw.hex() for part in turn.files if part.raw is not None)
            case "data":
                yield json.dumps([part.data for part in turn.message.parts[1:]])
            case _:
                yield "hello "
                yield "world"

    return agent


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with running(application(agent_of(), store="memory:", drain=0)) as url:
        yield url


async def http(
    url: str, method: str = "POST", body: Any = b"", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with raw.post(url, sent, named, method=method) as response:
        return response.status, response.headers, await raw.read(response)


async def rpc(url: str, method: str, params: Any, version: str | None = None) -> Any:
    """The response, or the responses in a stream. No header at all without a version."""
    headers = {} if version is None else {"A2A_Version": version}
    status, said, body = await http(url, "POST", raw.rpc(method, params), **headers)
    assert status == 200
    if said["content-type"] != "text/event-stream":
        return json.loads(body)
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]


async def code(url: str, method: str, params: Any, version: str | None = None) -> int:
    number: int = (await rpc(url, method, params, version))["error"]["code"]
    return number


def v1(text: str, *parts: Any, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}, *parts], **more}}


def v03(text: str, *parts: Any, tag: str = "kind", **more: Any) -> dict[str, Any]:
    said = [{tag: "text", "text": text}, *parts]
    return {"message": {tag: "message", "messageId": "m", "role": "user", "parts": said, **more}}


def v01(id: str, text: str, *parts: Any, **more: Any) -> dict[str, Any]:
    return {"id": id, "message": {"role": "user", "parts": [{"type": "text", "text": text}, *parts]}, **more}


def v03_rest(text: str, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": text}]}, **more}


def text_of(response: Any) -> str:
    task = response["result"].get("task", response["result"])
    return "".join(part["text"] for part in task["artifacts"][0]["parts"])


async def finished(url: str) -> str:
    id: str = (await rpc(url, "SendMessage", v1("go")))["result"]["task"]["id"]
    return id


async def waiting(url: str) -> str:
    params = {**v1("wait"), "configuration": {"returnImmediately": True}}
    id: str = (await rpc(url, "SendMessage", params))["result"]["task"]["id"]
    return id


# --- an agent of one version alone


@pytest.mark.parametrize(
    ("version", "method", "params"),
    [
        ("0.3", "message/send", v03("ask")),
        ("0.2", "message/send", v03("ask")),
        ("0.2", "message/send", v03("ask", tag="type")),
        ("0.1", "tasks/send", v01("t", "ask")),
    ],
)
async def test_an_agent_of_one_version_is_whole_to_callers_who_do_not_say_theirs(
    version: str, method: str, params: Any
) -> None:
    async with running(application(agent_of(versions=(version,)), store="memory:")) as url:
        task = (await rpc(url, method, params))["result"]
        assert (await rpc(url, "tasks/get", {"id": task["id"]}))["result"].keys() >= task.keys() - {"history"}
        assert (await rpc(url, "tasks/cancel", {"id": task["id"]}))["result"]["status"]["state"] == "canceled"
        assert await code(url, "SendMessage", v1("ask")) == -32009


# --- which dialect it is (rows 1, 2, 3 and 41)

SENT: dict[str, Any] = {"SendMessage": v1("go"), "message/send": v03("go"), "tasks/send": v01("t", "go")}


@older("X27")
@pytest.mark.parametrize(
    ("version", "method", "outcome"),
    [
        (None, "SendMessage", "task"),
        ("", "SendMessage", "task"),
        ("1", "SendMessage", "task"),
        ("1.0", "SendMessage", "task"),
        ("1.0.1", "SendMessage", "task"),
        ("1.1", "SendMessage", -32009),
        ("0.3", "SendMessage", -32009),
        ("0.3.0", "SendMessage", -32009),
        ("0.9", "SendMessage", -32009),
        ("2.0", "SendMessage", -32009),
        ("newest", "SendMessage", -32009),
        (None, "message/send", "kind"),
        ("", "message/send", "kind"),
        ("0.3.0", "message/send", "kind"),
        ("0.2.5", "message/send", "kind"),
        ("1.0", "message/send", "kind"),
        ("0.1", "message/send", -32009),
        ("0.9", "message/send", -32009),
        ("2.0", "message/send", -32009),
        (None, "tasks/send", "sessionId"),
        ("", "tasks/send", "sessionId"),
        ("0.1.0", "tasks/send", "sessionId"),
        ("0.3", "tasks/send", -32009),
        ("1.0", "tasks/send", -32601),
    ],
)
async def test_the_method_says_the_version_and_the_header_may_only_veto(
    url: str, version: str | None, method: str, outcome: str | int
) -> None:
    response = await rpc(url, method, SENT[method], version)
    if isinstance(outcome, int):
        assert response["error"]["code"] == outcome and response["id"] == 1
    else:
        assert outcome in response["result"]


async def test_the_version_may_be_in_the_query_and_vetoes_there_too(url: str) -> None:
    _, _, body = await http(url + "/?A2A-Version=0.3", "POST", raw.rpc("SendMessage", v1("go")))
    assert json.loads(body)["error"]["code"] == -32009


@pytest.mark.parametrize(
    ("path", "version", "status"),
    [
        ("/message:send", "", 200),
        ("/message:send", "1", 200),
        ("/message:send", "1.0.1", 200),
        ("/message:send", "0.3", 400),
        ("/message:send", "2.0", 400),
        ("/v1/message:send", "", 200),
        ("/v1/message:send", "0.3.0", 200),
        ("/v1/message:send", "1.0", 400),
        ("/v1/message:send", "0.9", 400),
    ],
)
async def test_the_path_says_the_version_of_a_plain_http_call(
    url: str, path: str, version: str, status: int
) -> None:
    body = v03_rest("go") if path.startswith("/v1") else v1("go")
    got, _, answer = await http(url + path, "POST", body, **({"A2A_Version": version} if version else {}))
    assert got == status
    if status == 400 and path.startswith("/v1"):
        assert json.loads(answer)["code"] == -32009
    elif status == 400:
        assert json.loads(answer)["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


# --- the envelope (row 38)


@pytest.mark.parametrize(
    "id", ['"a"', '""', "7", "-3", "1.5", "1e3", "null", "123456789012345678901234567890", '"\\u00e9"']
)
@pytest.mark.parametrize("method", ["GetTask", "tasks/get"])
async def test_an_id_comes_back_as_it_was_written(url: str, method: str, id: str) -> None:
    body = f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"id":"q"}}}}'
    _, _, answer = await http(url, "POST", body.encode())
    assert answer.startswith(f'{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32001'.encode())


@pytest.mark.parametrize("id", ["true", "[1]", "{}"])
async def test_an_id_that_cannot_be_one_is_not_echoed(url: str, id: str) -> None:
    body = f'{{"jsonrpc":"2.0","id":{id},"method":"GetTask","params":{{"id":"q"}}}}'
    answer = json.loads((await http(url, "POST", body.encode()))[2])
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)


@pytest.mark.parametrize("version", [None, "1.0"])
@pytest.mark.parametrize(
    ("body", "number"), [(b"", -32700), (b"{", -32700), (b"[]", -32600), (b"null", -32600)]
)
async def test_an_invalid_request_gets_an_error_in_the_version_of_the_header(
    url: str, body: bytes, number: int, version: str | None
) -> None:
    status, _, answer = await http(url, "POST", body, **({"A2A_Version": version} if version else {}))
    said = json.loads(answer)
    assert (status, said["id"], said["error"]["code"]) == (200, None, number)
    assert ("data" in said["error"]) is (version == "1.0")


async def test_only_callers_of_older_versions_may_leave_out_the_envelope(url: str) -> None:
    for method, version, number in (
        ("tasks/get", None, -32001),
        ("GetTask", None, -32600),
        ("tasks/get", "1.0", -32600),
    ):
        body = {"method": method, "params": {"id": "q"}}
        _, _, answer = await http(url, "POST", body, **({"A2A_Version": version} if version else {}))
        said = json.loads(answer)
        assert (said["id"], said["error"]["code"]) == (None, number)


# --- finished tasks (rows 10 and 11)


async def test_a_message_to_a_finished_task_is_refused_in_the_code_of_each_version(url: str) -> None:
    id = await finished(url)
    file = {"type": "file", "file": {"data": "aGk="}}
    assert await code(url, "tasks/send", v01(id, "more")) == -32009
    assert await code(url, "tasks/send", v01(id, "more", file)) == -32004  # the draft
    assert await code(url, "message/send", v03("more", tag="type", taskId=id)) == -32004
    for version in ("0.2", "0.3", "1.0"):
        assert await code(url, "message/send", v03("more", taskId=id), version) == -32004
    assert await code(url, "SendMessage", v1("more", taskId=id)) == -32004
    status, _, body = await http(url + "/message:send", "POST", v1("more", taskId=id))
    assert status == 400 and json.loads(body)["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"


async def test_a_canceled_task_can_be_canceled_again_in_1_0_only(url: str) -> None:
    id = await waiting(url)
    assert (await rpc(url, "tasks/cancel", {"id": id}, "0.1"))["result"]["status"]["state"] == "canceled"
    for version in (*OLD, "1.0"):
        assert await code(url, "tasks/cancel", {"id": id}, version) == -32002
    again = await rpc(url, "CancelTask", {"id": id})
    assert again["result"]["status"]["state"] == "TASK_STATE_CANCELED"
    for body in (b"", b"null", b"{}"):
        assert (await http(f"{url}/tasks/{id}:cancel", "POST", body))[0] == 200
        assert (await http(f"{url}/v1/tasks/{id}:cancel", "POST", body))[0] == 409
    assert await code(url, "CancelTask", {"id": await finished(url)}) == -32002


@older("X18")
async def test_a_subscription_to_a_finished_task_gets_the_task_or_in_1_0_an_error(url: str) -> None:
    id = await finished(url)
    assert await code(url, "SubscribeToTask", {"id": id}) == -32004
    for version in OLD:
        events = [each["result"] for each in await rpc(url, "tasks/resubscribe", {"id": id}, version)]
        assert [event.get("final") for event in events][-1] is True
        assert (events[0].get("kind") == "task") is (version != "0.1")
    [only] = await rpc(url, "tasks/resubscribe", {"id": id}, "1.0")
    assert only["result"]["final"] is True
    assert only["result"]["status"]["message"]["parts"] == [{"kind": "text", "text": "hello world"}]
    for verb in ("GET", "POST"):  # row 6
        assert (await http(f"{url}/tasks/{id}:subscribe", verb))[0] == 400
        status, _, body = await http(f"{url}/v1/tasks/{id}:subscribe", verb)
        assert status == 200 and b'"final":true' in body


# --- what a task looks like to others


async def test_a_task_is_written_in_its_origin_version_or_the_requested_one(url: str) -> None:
    made = (await rpc(url, "tasks/send", v01("mine", "two", sessionId="s1")))["result"]
    assert (made["id"], made["sessionId"]) == ("mine", "s1")
    assert [artifact["index"] for artifact in made["artifacts"]] == [0, 1]
    assert (await rpc(url, "tasks/get", {"id": "mine"}))["result"] == made
    for version in ("0.2", "0.3", "1.0"):
        seen = (await rpc(url, "tasks/get", {"id": "mine"}, version))["result"]
        assert (seen["kind"], seen["contextId"]) == ("task", "s1")
        assert len(seen["artifacts"]) == 2 and all(artifact["artifactId"] for artifact in seen["artifacts"])
    seen = (await rpc(url, "GetTask", {"id": "mine"}))["result"]
    assert (seen["contextId"], seen["status"]["state"]) == ("s1", "TASK_STATE_COMPLETED")


async def test_a_question_of_one_version_can_be_answered_in_another(url: str) -> None:
    asked = (await rpc(url, "SendMessage", v1("ask", contextId="c1")))["result"]["task"]
    answered = (await rpc(url, "tasks/send", v01(asked["id"], "Paris")))["result"]
    assert (answered["sessionId"], text_of({"result": answered})) == ("c1", "It is Paris")


async def test_a_task_of_another_context_is_an_invalid_parameter(url: str) -> None:  # row 21
    asked = (await rpc(url, "SendMessage", v1("ask", contextId="c1")))["result"]["task"]["id"]
    assert await code(url, "SendMessage", v1("x", taskId=asked, contextId="c2")) == -32602
    assert await code(url, "message/send", v03("x", taskId=asked, contextId="c2")) == -32602


@pytest.mark.parametrize(
    ("version", "length", "messages"),
    [
        ("0.1", None, 0), ("0.1", 0, 0), ("0.1", 1, 1),
        ("0.2", None, 1), ("0.2", 0, 0), ("0.2", 1, 1),
        ("0.3", None, 1), ("0.3", 0, 0), ("0.3", 1, 1),
    ],
)  # fmt: skip
async def test_the_default_history_length_depends_on_the_version(
    url: str, version: str, length: int | None, messages: int
) -> None:
    id = await finished(url)
    asked = {"id": id, **({} if length is None else {"historyLength": length})}
    task = (await rpc(url, "tasks/get", asked, version))["result"]
    assert len(task.get("history", ())) == messages
    assert "history" in task or messages == 0


async def test_no_history_is_all_of_it_only_in_the_protobuf_of_0_3(url: str) -> None:
    id = await finished(url)
    assert b"history" in (await http(f"{url}/v1/tasks/{id}?historyLength=0", "GET"))[2]
    assert b"history" not in (await http(f"{url}/tasks/{id}?historyLength=0", "GET"))[2]
    assert b"history" in (await http(f"{url}/v1/tasks/{id}?history_length=1", "GET"))[2]


async def test_a_negative_length_is_refused_in_every_version(url: str) -> None:
    id = await finished(url)
    for version in OLD:
        assert await code(url, "tasks/get", {"id": id, "historyLength": -1}, version) == -32602
    assert await code(url, "GetTask", {"id": id, "historyLength": -1}) == -32602
    assert (await http(f"{url}/v1/tasks/{id}?historyLength=-1", "GET"))[0] == 422
    assert (await http(f"{url}/tasks/{id}?historyLength=-1", "GET"))[0] == 400


# --- streams (rows 5 and 27)


@pytest.mark.parametrize("version", ["0.2", "0.3", "1.0"])
@pytest.mark.parametrize(
    ("text", "state"),
    [("ask", "input-required"), ("log in", "auth-required"), ("reject", "rejected"), ("go", "completed")],
)
async def test_only_the_last_event_of_an_older_version_is_final(
    url: str, version: str, text: str, state: str
) -> None:
    events = [each["result"] for each in await rpc(url, "message/stream", v03(text), version)]
    assert (events[0]["kind"] == "task") is (version != "1.0")
    finals = [event["final"] for event in events if event["kind"] == "status-update"]
    assert finals[-1] is True and not any(finals[:-1])
    assert events[-1]["status"]["state"] == state


@pytest.mark.parametrize(
    ("text", "state", "true"),
    [
        ("log in", "input-required", "auth-required"),
        ("reject", "failed", "rejected"),
        ("go", "completed", ""),
    ],
)
async def test_0_1_has_no_word_for_some_states_and_no_task_in_a_stream(
    url: str, text: str, state: str, true: str
) -> None:
    events = [each["result"] for each in await rpc(url, "tasks/sendSubscribe", v01("t", text))]
    assert all(("status" in event) != ("artifact" in event) for event in events)
    assert (events[-1]["status"]["state"], events[-1]["final"]) == (state, True)
    assert events[-1].get("metadata", {}).get("a2a.state", "") == true


async def test_parts_that_say_type_are_answered_with_type(url: str) -> None:
    events = [each["result"] for each in await rpc(url, "message/stream", v03("go", tag="type"))]
    assert len(events) > 1 and all("type" in event and "kind" not in event for event in events)
    mixed = v03("go", {"type": "text", "text": "more"}, {"text": "bare"})
    assert (await rpc(url, "message/send", mixed))["result"]["kind"] == "task"


async def test_1_0_never_says_final(url: str) -> None:
    events = await rpc(url, "SendStreamingMessage", v1("go"))
    assert "task" in events[0]["result"] and "final" not in json.dumps(events)


# --- waiting (rows 4 and 31)


async def test_every_version_can_send_without_waiting(url: str) -> None:
    for version in ("0.2", "0.3"):
        params = {**v03("wait"), "configuration": {"blocking": False}}
        state = (await rpc(url, "message/send", params, version))["result"]["status"]["state"]
        assert state in ("submitted", "working")
    for path, body in (
        ("/message:send", {**v1("wait"), "configuration": {"returnImmediately": True}}),
        ("/v1/message:send", v03_rest("wait", configuration={})),
    ):
        status, _, answer = await http(url + path, "POST", body)
        assert status == 200 and b"COMPLETED" not in answer
    status, _, answer = await http(url + "/v1/message:send", "POST", v03_rest("go"))
    assert status == 200 and b"TASK_STATE_COMPLETED" in answer


# --- parts (section 2, rows 22, 23, 29 and 39)


@pytest.mark.parametrize("encoded", ["+//+Pw==", "+//+Pw", "-__-Pw==", "-__-Pw"])
async def test_bytes_may_be_any_base64(url: str, encoded: str) -> None:
    expected = base64.b64decode("+//+Pw==").hex()
    assert text_of(await rpc(url, "SendMessage", v1("files", {"raw": encoded}))) == expected
    for member in ("bytes", "data"):
        file = {member: encoded}
        assert (
            text_of(await rpc(url, "message/send", v03("files", {"kind": "file", "file": file}))) == expected
        )
        part = {"type": "file", "file": file}
        assert text_of(await rpc(url, "tasks/send", v01("t" + member, "files", part))) == expected


@pytest.mark.parametrize("value", [None, 5, "x", [1], {"a": 1}])
async def test_data_may_be_any_value(url: str, value: Any) -> None:
    assert json.loads(text_of(await rpc(url, "SendMessage", v1("data", {"data": value})))) == [value]
    boxed = {"kind": "data", "data": {"value": value}, "metadata": {"data_part_compat": True}}
    assert json.loads(text_of(await rpc(url, "message/send", v03("data", boxed)))) == [value]


@older("X12")
async def test_a_file_of_0_1_may_be_named_and_not_there(url: str) -> None:
    part = {"type": "file", "file": {"name": "x", "mimeType": "a/b"}}
    seen = text_of(await rpc(url, "tasks/send", v01("t", "data", part)))
    assert json.loads(seen) == [{"file": {"name": "x", "mimeType": "a/b"}}]


@pytest.mark.parametrize(
    "message",
    [
        v1("x", {"text": "a", "url": "https://x.example"}),
        v1("x", {"mediaType": "a/b"}),
        v1("x", {"raw": "!!"}),
        v1("x", role=0),
        v1("x", role="ROLE_UNSPECIFIED"),
        v1("x", parts=[]),
        v1("x", messageId=""),
    ],
)
async def test_a_message_that_breaks_the_rules_is_an_invalid_parameter_with_its_field(
    url: str, message: Any
) -> None:
    error = (await rpc(url, "SendMessage", message))["error"]
    assert error["code"] == -32602
    assert [each["@type"].rpartition(".")[2] for each in error["data"]] == ["ErrorInfo", "BadRequest"]


async def test_spellings_that_protobuf_json_allows_are_accepted(url: str) -> None:
    for message in (
        v1("x", role=1),
        v1("x", role="ROLE_AGENT"),
        v1("x", {"text": None, "url": "https://x.example"}),
        {**v1("x", unheardOf={}), "unheardOf": 1},
    ):
        assert "task" in (await rpc(url, "SendMessage", message))["result"]
    listed = (await rpc(url, "ListTasks", {"status": 3}))["result"]
    assert listed["totalSize"] == 4


# --- push configs (rows 12, 13, 14, 30)


async def test_the_one_push_config_of_0_1_is_set_replaced_and_taken_back_with_null(url: str) -> None:
    id = await waiting(url)
    await rpc(url, "CreateTaskPushNotificationConfig", {"taskId": id, "url": HOOK + "/of-somebody-else"})
    for path in ("/1", "/2"):
        config = {"url": HOOK + path, "authentication": {"schemes": "Bearer", "credentials": "secret"}}
        made = await rpc(url, "tasks/pushNotification/set", {"id": id, "pushNotificationConfig": config})
        assert made["result"]["pushNotificationConfig"]["url"] == HOOK + path
    got = await rpc(url, "tasks/pushNotification/get", {"id": id})
    assert got["result"]["pushNotificationConfig"] == {
        "url": HOOK + "/2",
        "authentication": {"schemes": ["Bearer"]},
    }
    cleared = await rpc(url, "tasks/pushNotification/set", {"id": id, "pushNotificationConfig": None})
    assert cleared["result"] == {"id": id, "pushNotificationConfig": None}
    left = (await rpc(url, "ListTaskPushNotificationConfigs", {"taskId": id}))["result"]["configs"]
    assert [config["url"] for config in left] == [HOOK + "/of-somebody-else"]
    assert await code(url, "tasks/pushNotification/set", {"id": id}) == -32602


async def test_a_push_config_has_one_life_in_all_versions(url: str) -> None:
    id = await waiting(url)
    made = await rpc(url, "CreateTaskPushNotificationConfig", {"taskId": id, "url": HOOK})
    minted = made["result"]["id"]
    assert minted and made["result"]["taskId"] == id
    config = {"id": "mine", "url": HOOK, "authentication": {"schemes": ["Basic", "Bearer"]}}
    await rpc(url, "tasks/pushNotificationConfig/set", {"taskId": id, "pushNotificationConfig": config})
    listed = (await rpc(url, "tasks/pushNotificationConfig/list", {"id": id}))["result"]
    assert [each["pushNotificationConfig"]["id"] for each in listed] == [minted, "mine"]
    params = {"id": id, "pushNotificationConfigId": "mine"}
    assert (await rpc(url, "tasks/pushNotificationConfig/delete", params))["result"] is None
    params = {"taskId": id, "id": "mine"}
    assert await code(url, "GetTaskPushNotificationConfig", params) == -32001
    assert (await rpc(url, "DeleteTaskPushNotificationConfig", params))["result"] is None
    assert await code(url, "DeleteTaskPushNotificationConfig", {"taskId": "nope", "id": "x"}) == -32001
    assert (await http(f"{url}/tasks/{id}/pushNotificationConfigs/{minted}", "DELETE"))[::2] == (200, b"{}")
    assert await code(url, "tasks/pushNotificationConfig/list", {"id": id}, "1.0") == -32004


@pytest.mark.parametrize("params", [{"id": "", "x": 1}, {"taskId": "", "x": 1}])
async def test_the_push_methods_of_0_1_take_either_name_for_the_task(url: str, params: Any) -> None:
    name = next(iter(params))
    id = await waiting(url)
    made = await rpc(url, "tasks/pushNotification/set", {name: id, "pushNotificationConfig": {"url": HOOK}})
    assert made["result"][name] == id
    got = await rpc(url, "tasks/pushNotification/get", {"id": id})
    assert got["result"]["pushNotificationConfig"]["url"] == HOOK


# --- cards, lists and media types (rows 9, 17, 18, 32, 36, 42)


async def test_a_missing_extended_card_has_the_error_of_each_version(url: str) -> None:
    assert await code(url, "GetExtendedAgentCard", {}) == -32004
    assert await code(url, "agent/getAuthenticatedExtendedCard", {}) == -32007
    assert await code(url, "agent/getAuthenticatedExtendedCard", {}, "1.0") == -32601
    for path, status in (
        ("/extendedAgentCard", 400),
        ("/v1/card", 404),
        ("/agent/authenticatedExtendedCard", 404),
    ):
        assert (await http(url + path, "GET"))[0] == status


async def test_a_list_has_its_four_members_and_leaves_out_what_was_not_asked_for(url: str) -> None:
    await waiting(url)
    asked: dict[str, Any] = {"pageSize": 10}
    page = (await rpc(url, "ListTasks", asked))["result"]
    assert (page["pageSize"], page["totalSize"], page["nextPageToken"]) == (10, 1, "")
    [task] = page["tasks"]
    assert "artifacts" not in task
    asked = {
        "includeArtifacts": True,
        "historyLength": 0,
        "statusTimestampAfter": task["status"]["timestamp"],
    }
    [task] = (await rpc(url, "ListTasks", asked))["result"]["tasks"]
    assert task["artifacts"] == [] and "history" not in task
    for wrong in (
        {"pageSize": 0},
        {"pageSize": 101},
        {"status": "NOPE"},
        {"pageToken": "x"},
        {"historyLength": -1},
    ):
        error = (await rpc(url, "ListTasks", wrong))["error"]
        assert error["code"] == -32602
        assert [violation["field"] for violation in error["data"][1]["fieldViolations"]] == list(wrong)


async def test_an_arbiter_client_finds_a_card_it_can_read_and_a_reply_in_the_status(url: str) -> None:
    status, _, body = await http(url + "/agent-card.json", "GET", A2A_Version="1.0")
    card = json.loads(body)
    assert status == 200 and all(card[name] for name in ("name", "description", "url", "version", "skills"))
    task = (await rpc(url, "message/send", v03("go", contextId="c9"), "1.0"))["result"]
    assert (task["kind"], task["contextId"], task["status"]["state"]) == ("task", "c9", "completed")
    assert task["status"]["message"]["messageId"] == task["id"] + "-r"
    assert [message["role"] for message in task["history"]] == ["user", "agent"]
    error = (await rpc(url, "message/send", {"message": {"role": "user", "parts": []}}, "1.0"))["error"]
    assert error.keys() == {"code", "message"} and error["code"] == -32602
    _, _, stream = await http(url, "POST", raw.rpc("message/stream", v03("go")), A2A_Version="1.0")
    assert stream.count(b"event: message\n") == stream.count(b"data: ") > 2


async def test_a_card_of_1_0_alone_and_one_for_everybody_have_tags_of_their_own(url: str) -> None:
    tags = set()
    for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
        for version in ("0.3", "1.0"):
            status, headers, body = await http(url + path, "GET", A2A_Version=version)
            assert status == 200 and ("url" in json.loads(body)) is (version == "0.3")
            assert "max-age" in headers["cache-control"] and headers["vary"] == "A2A-Version"
            held = {"A2A_Version": version, "If_None_Match": headers["etag"]}
            assert (await http(url + path, "GET", **held))[0] == 304
            tags.add(headers["etag"])
    assert len(tags) == 2


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        ("/tasks/q", "", "application/json"),
        ("/tasks/q", "*/*", "application/json"),
        ("/tasks/q", "application/a2a+json", "application/a2a+json"),
        ("/tasks/q", "application/json", "application/json"),
        ("/v1/tasks/q", "", "application/json"),
    ],
)
async def test_plain_http_of_1_0_has_a_media_type_of_its_own_for_those_who_ask(
    url: str, path: str, accept: str, kind: str
) -> None:
    status, headers, _ = await http(url + path, "GET", **({"Accept": accept} if accept else {}))
    assert (status, headers["content-type"]) == (404, kind)


async def test_a_tenant_in_the_body_may_not_differ_from_the_path(url: str) -> None:
    assert (await http(url + "/acme/message:send", "POST", v1("go")))[0] == 200
    assert (await http(url + "/acme/message:send", "POST", {**v1("go"), "tenant": "other"}))[0] == 400

"""Agents of the hub over A2A, as the pages of the Arbiter describe it, live."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.client.client import connect
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import TaskNotFound, Unauthenticated
from dragoman.hub.models import ModelError
from dragoman.model.card import AgentCard, Interface
from tests.hub.house import SCOUT, Caller, house, message
from tests.hub.scripted import by_agent
from tests.push.webhook import Receiver
from tests.requirements import older
from tests.server.wire import Answer

HOME = "/v1/a2a/agents/index"


def code(answer: Answer) -> int:
    assert answer.status == 200
    number: int = answer.json["error"]["code"]
    return number


async def test_a_message_is_answered_with_a_task_that_has_the_reply_and_the_metadata() -> None:
    async with house(["A short summary."]) as hub:
        acme = await hub.tenant("acme")
        answer = await acme.rpc("index", "message/send", message("summarize this RFC", contextId="c-42"))
        task = answer.json["result"]
        assert answer.status == 200 and answer.json["id"] == 1
        assert task["kind"] == "task" and task["contextId"] == "c-42"
        assert len(task["id"]) == 16 and int(task["id"], 16) >= 0
        reply = task["status"]["message"]
        assert task["status"]["state"] == "completed"
        assert reply["messageId"] == f"{task['id']}-r" and reply["role"] == "agent"
        assert reply["parts"] == [{"kind": "text", "text": "A short summary."}]
        asked, received = task["history"]
        assert asked["messageId"] == "m-1" and asked["taskId"] == task["id"] and asked["contextId"] == "c-42"
        assert received["messageId"] == reply["messageId"]
        assert task["metadata"]["x-arbiter.agent_id"] == "index"
        assert {"x-arbiter.input_tokens", "x-arbiter.output_tokens"} <= set(task["metadata"])
        assert task["artifacts"][0]["parts"] == reply["parts"]
        got = (await acme.rpc("index", "tasks/get", {"id": task["id"], "historyLength": 1})).json["result"]
        assert got["artifacts"] == task["artifacts"] and got["history"] == [received]


async def test_a_task_says_when_it_was_asked_for_and_when_it_changed() -> None:
    hold = asyncio.Event()
    async with house([("one", hold, " two")]) as hub:
        acme = await hub.tenant("acme")
        sending = acme.open_rpc("index", "message/send", message("hi"))
        id = await running(hub, acme)
        begun = (await acme.rpc("index", "tasks/get", {"id": id})).json["result"]["metadata"]
        hold.set()
        await sending.end()
        ended = (await acme.rpc("index", "tasks/get", {"id": id})).json["result"]["metadata"]
        for about in (begun, ended):
            assert about["x-arbiter.agent_id"] == "index"
            assert time.time() - 60 < about["x-arbiter.created_at"] <= about["x-arbiter.updated_at"]
        assert begun["x-arbiter.created_at"] == ended["x-arbiter.created_at"]


async def test_a_stream_has_deltas_a_last_chunk_timestamps_and_ids() -> None:
    async with house(["hello from the hub"]) as hub:
        acme = await hub.tenant("acme")
        answer = await acme.rpc("index", "message/stream", message("hi"))
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert {frame.event for frame in answer.frames()} == {"message"}
        assert all(frame.id for frame in answer.frames())
        first, *middle, last = answer.results()
        assert first["kind"] == "status-update" and first["status"]["state"] == "working"
        assert first["final"] is False and first["status"]["timestamp"]
        texts = [each["artifact"] for each in middle]
        assert {each["artifactId"] for each in texts} == {f"{first['taskId']}-text-0"}
        assert texts[0]["name"] == "response" and len(texts) > 3
        assert [each["append"] for each in middle] == [False] + [True] * (len(middle) - 1)
        assert [each["lastChunk"] for each in middle] == [False] * (len(middle) - 1) + [True]
        assert "".join(each["parts"][0]["text"] for each in texts) == "hello from the hub"
        assert last["final"] is True and last["status"]["state"] == "completed"
        assert last["status"]["message"]["parts"][0]["text"] == "hello from the hub"


async def test_a_token_is_checked_before_the_path_and_the_path_before_the_method() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        for caller, method, path, status in (
            (hub.nobody, "OPTIONS", HOME, 204),
            (hub.nobody, "GET", "/v1/health", 200),
            (hub.nobody, "GET", "/v1/metrics", 200),
            (hub.nobody, "GET", "/.well-known/agent-card.json", 200),
            (hub.nobody, "GET", "/v1/no/such/path", 401),
            (hub.nobody, "POST", HOME, 401),
            (hub.nobody, "GET", "/v1/admin/tenants", 401),
            (acme, "GET", "/v1/admin/tenants", 401),
            (hub.admin, "GET", "/v1/agents", 401),
            (acme, "GET", "/v1/a2a/agents/nobody/agent-card.json", 404),
            (acme, "GET", "/v1/a2a/agents/index/agent-card.json", 200),
            (acme, "GET", HOME, 405),
            (acme, "GET", "/v1/a2a", 404),
            (acme, "POST", "/v1/a2a/foo", 404),
            (acme, "GET", "/v1/no/such/path", 404),
            (acme, "DELETE", "/v1/agents", 405),
        ):
            answer = await caller(method, path)
            assert answer.status == status, (method, path, answer.status)
            if status >= 400:
                assert msgspec.json.decode(answer.body)["error"]


@pytest.mark.parametrize("version", ["", "1", "1.0"])
async def test_the_hub_serves_every_version(version: str) -> None:
    async with house(["ok"]) as hub:
        acme = await hub.tenant("acme")
        headers = {"a2a_version": version} if version else {}
        assert (await acme.rpc("index", "message/send", message("hi"), **headers)).json["result"][
            "kind"
        ] == "task"


async def test_another_version_is_refused_before_the_request_is_read(acme: Caller) -> None:
    for body in (b"{", {"jsonrpc": "2.0", "id": 7, "method": "tasks/get", "params": {"id": "x"}}):
        answer = await acme("POST", HOME, body, a2a_version="2.0")
        assert code(answer) == -32007 and answer.json["id"] is None


@older("X34")
async def test_invalid_calls_of_arbiter_have_its_error_codes() -> None:
    async with house(["done"]) as hub:
        acme = await hub.tenant("acme")
        file = {"kind": "file", "file": {"bytes": "aGk=", "name": "x"}}
        bare = {"role": "user", "messageId": "m", "parts": []}
        for body, expected in (
            (b"", -32700),
            (b"{", -32700),
            (b"[]", -32600),
            ({"jsonrpc": "1.0", "id": 1, "method": "message/send"}, -32600),
            ({"id": 1, "method": "message/send", "params": message("hi")}, -32600),
            ({"jsonrpc": "2.0", "id": 1}, -32600),
        ):
            assert code(await acme("POST", HOME, body)) == expected, body
        for method, params, expected in (
            ("tasks/fly", {}, -32601),
            ("message/send", {}, -32602),
            ("message/send", {"message": {**bare, "parts": "x"}}, -32602),
            ("message/send", {"message": {**bare, "parts": [{"kind": "smell"}]}}, -32602),
            ("message/send", {"message": {**bare, "parts": [{"kind": "text", "text": "  "}]}}, -32602),
            ("message/send", {"message": {**bare, "parts": [file]}}, -32005),
            ("message/stream", {"message": {**bare, "parts": [{"kind": "data", "data": {}}]}}, -32005),
            ("tasks/get", {}, -32602),
            ("tasks/get", {"id": "nope"}, -32001),
            ("tasks/cancel", {"id": "nope"}, -32001),
            ("tasks/resubscribe", {"id": "nope"}, -32001),
            *(
                (f"tasks/pushNotificationConfig/{verb}", {"id": "x"}, -32004)
                for verb in ("set", "get", "list", "delete")
            ),
        ):
            answer = await acme.rpc("index", method, params, id="seven")
            assert (code(answer), answer.json["id"]) == (expected, "seven"), method
        assert code(await acme.rpc("nobody", "message/send", message("hi"))) == -32001
        assert (
            code(await acme.rpc("nobody", "message/send", {"message": {**bare, "parts": [file]}})) == -32005
        )


async def test_a_canceled_send_returns_a_canceled_task_that_stays_canceled() -> None:
    hold = asyncio.Event()
    async with house([("thinking ", hold, "too late")]) as hub:
        acme = await hub.tenant("acme")
        sending = acme.open_rpc("index", "message/send", message("go"))
        id = await running(hub, acme)
        canceled = (await acme.rpc("index", "tasks/cancel", {"id": id})).json["result"]
        assert canceled["status"]["state"] == "canceled"
        hold.set()
        assert (await sending.end()).json["result"]["status"]["state"] == "canceled"
        assert code(await acme.rpc("index", "tasks/cancel", {"id": id})) == -32002
        assert (await acme.rpc("index", "tasks/get", {"id": id})).json["result"]["status"][
            "state"
        ] == "canceled"


async def test_cancel_by_the_native_path_ends_an_a2a_stream() -> None:
    hold = asyncio.Event()
    async with house([("thinking ", hold)]) as hub:
        acme = await hub.tenant("acme")
        stream = acme.open_rpc("index", "message/stream", message("go"))
        await stream.until(lambda: b"thinking" in stream.body)
        id = stream.results()[0]["taskId"]
        answer = await acme("POST", f"/v1/requests/{id}/cancel")
        assert answer.json == {"request_id": id, "cancelled": True}
        last = (await stream.end()).results()[-1]
        assert last["final"] is True and last["status"]["state"] == "canceled"
        again = await acme("POST", f"/v1/requests/{id}/cancel")
        assert again.status == 404 and again.json["cancelled"] is False


async def test_a_task_over_a2a_is_a_request_of_the_native_api() -> None:
    async with house(["answer"]) as hub:
        acme = await hub.tenant("acme")
        task = (await acme.rpc("index", "message/send", message("hi"))).json["result"]
        (request,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert request["request_id"] == task["id"] and request["via"] == "a2a"
        received = (await acme("GET", f"/v1/requests/{task['id']}/events")).frames()
        assert received[0].event == "request_received" and received[-1].event == "done"


async def test_a_file_in_a_task_is_text_over_arbiter_and_base64_over_other_versions() -> None:
    async with house(["/write notes.md\n# Notes\n/endwrite", "Written."]) as hub:
        acme = await hub.tenant("acme")
        task = (await acme.rpc("index", "message/send", message("write"))).json["result"]
        (file,) = [each for each in task["artifacts"] if each["name"] == "notes.md"]
        plain = file["parts"][0]["file"]["bytes"]
        assert plain.strip() == "# Notes"
        answer = (await acme.rpc("index", "GetTask", {"id": task["id"]})).json["result"]
        (file,) = [each for each in answer["artifacts"] if each["name"] == "notes.md"]
        assert base64.b64decode(file["parts"][0]["raw"], validate=True).decode() == plain


async def test_a_caller_can_have_a_context_remembered() -> None:
    async with house(["Hello, Ada.", "You are Ada."]) as hub:
        acme = await hub.tenant("acme")
        wanted = {"contextId": "c-1", "metadata": {"contextHistory": True}}
        for n, text in enumerate(("I am Ada.", "Who am I?")):
            await acme.rpc("index", "message/send", message(text, id=f"m-{n}", **wanted))
        received = [each.content for each in hub.model.prompts[-1].messages]
        assert received[:2] == ["I am Ada.", "Hello, Ada."] and "Who am I?" in received[2]


async def test_a_message_that_is_sent_twice_is_done_once() -> None:
    async with house(["once", "twice"]) as hub:
        acme = await hub.tenant("acme")
        sent = message("hi", id="m-9")
        first, second = [(await acme.rpc("index", "message/send", sent)).json["result"] for _ in range(2)]
        assert first["id"] == second["id"] and len(hub.model.prompts) == 1
        other = (await acme.rpc("index", "message/send", message("something else", id="m-9"))).json["result"]
        assert other["id"] != first["id"]
        assert len((await acme("GET", "/v1/requests")).json["requests"]) == 2


async def test_a_message_that_is_streamed_twice_is_streamed_from_the_start_again(acme: Caller) -> None:
    first = (await acme.rpc("index", "message/stream", message("hi"))).results()
    assert (await acme.rpc("index", "message/stream", message("hi"))).results() == first


async def test_browsers_may_send_the_version_and_a2a_is_counted() -> None:
    async with house(["hi"], public_url="https://hub.example.com/") as hub:
        acme = await hub.tenant("acme")
        preflight = await hub.nobody("OPTIONS", HOME, origin="https://app.example.com")
        assert "A2A-Version" in preflight.headers["access-control-allow-headers"]
        await acme.rpc("index", "message/send", message("hi"))
        metrics = (await hub.nobody("GET", "/v1/metrics")).body.decode()
        assert 'dragoman_hub_requests_started_total{route="a2a",tenant="1"} 1' in metrics
        card = (await acme("GET", f"{HOME}/agent-card.json")).json
        assert card["url"] == "https://hub.example.com/v1/a2a/agents/index"


async def test_a_task_of_another_agent_is_not_found() -> None:
    async with house(["hi"]) as hub:
        acme = await hub.tenant("acme")
        assert (await acme("POST", "/v1/agents", SCOUT)).status == 201
        id = (await acme.rpc("index", "message/send", message("hi"))).json["result"]["id"]
        assert code(await acme.rpc("scout", "tasks/get", {"id": id})) == -32001


async def test_the_public_card_says_how_to_find_agents_and_names_none() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        answer = await hub.nobody("GET", "/.well-known/agent-card.json")
        stub = answer.json
        assert stub["protocolVersion"] == "1.0" and stub["version"] == "stub"
        assert stub["url"].endswith("/v1/a2a") and stub["preferredTransport"] == "JSONRPC"
        assert [skill["id"] for skill in stub["skills"]] == ["discover"]
        assert stub["security"] == [{"bearer": []}]
        assert b"scout" not in answer.body.lower()


@pytest.mark.parametrize("path", ["/", "/v1/a2a", "/v1/a2a/agents"])
async def test_a_call_of_the_hub_itself_is_told_where_its_agents_are(acme: Caller, path: str) -> None:
    answer = await acme("POST", path, {})
    assert answer.status == 404
    assert answer.json["error"] == f"there is nothing at {path}: an agent is at /v1/a2a/agents/ID"


async def test_a_card_is_derived_from_the_constitution(acme: Caller) -> None:
    made = (await acme("POST", "/v1/agents", {**SCOUT, "capabilities": ["/search", "/fetch"]})).json
    card = (await acme("GET", "/v1/a2a/agents/scout/agent-card.json")).json
    assert card["protocolVersion"] == "1.0" and card["name"] == "Scout"
    assert card["description"] == "research-analyst — find things out"
    assert card["version"] == str(made["updated_at"])
    assert card["capabilities"] == {
        "streaming": True,
        "pushNotifications": False,
        "stateTransitionHistory": False,
    }
    assert [skill["id"] for skill in card["skills"]] == ["chat", "web-search", "fetch-url"]
    assert card["defaultOutputModes"] == ["text/plain", "application/json"]
    assert (await acme("GET", f"{HOME}/agent-card.json")).json["version"] == "index"


@pytest.mark.parametrize(
    ("version", "binding"),
    [
        *((version, "JSONRPC") for version in ("1.0", "0.3", "0.2", "0.1", "arbiter")),
        *((version, "HTTP+JSON") for version in ("1.0", "0.3")),
    ],
)
async def test_the_same_agent_answers_in_every_version_and_binding(version: str, binding: str) -> None:
    async with house(["one two"]) as hub:
        acme = await hub.tenant("acme")
        async with connect(
            f"http://hub{HOME}",
            transport=AsgiTransport(hub.app),
            credentials=acme.token,
            version=version,
            binding=binding,
        ) as agent:
            reply = await agent.send("hi")
            assert str(reply) == "one two"


async def test_agents_answer_over_grpc_to_those_who_bring_a_token() -> None:
    async with house(lambda prompt: "one two", grpc_port=0, public_url="http://127.0.0.1") as hub:
        acme, umbrella = await hub.tenant("acme"), await hub.tenant("umbrella")
        await acme("POST", "/v1/agents", SCOUT)
        card = (await acme("GET", "/v1/a2a/agents/scout/agent-card.json", a2a_version="1.0")).json
        (way,) = [each for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"]
        assert way["tenant"] == "scout"
        where = Interface(url=way["url"], protocol_binding="GRPC", protocol_version="1.0", tenant="scout")
        scout = AgentCard(name="Scout", supported_interfaces=(where,))
        async with connect(scout, credentials=acme.token) as agent:
            reply = await agent.send("hi")
            assert str(reply) == "one two"
            assert reply.task is not None
            known = await agent.get(reply.task.id)
            assert known.metadata["x-arbiter.agent_id"] == "scout"
        for token in (umbrella.token, "atr_" + "0" * 64):
            async with connect(scout, credentials=token) as agent:
                with pytest.raises((TaskNotFound, Unauthenticated)):
                    await agent.send("hi")
        index = replace(scout, supported_interfaces=(replace(where, tenant=""),))
        async with connect(index, credentials=acme.token) as agent:
            assert str(await agent.send("hi")) == "one two"


@pytest.mark.parametrize("version", ["", "1.0", "0.3"])
async def test_push_notifications_are_sent_once_they_are_enabled(version: str) -> None:
    async with Receiver() as hook, house(["one two"], push=True, allow_private=True) as hub:
        acme = await hub.tenant("acme")
        label = {"a2a_version": version} if version else {}
        card = (await acme("GET", f"{HOME}/agent-card.json")).json
        assert card["capabilities"]["pushNotifications"] is True
        task = (await acme.rpc("index", "message/send", message("hi"), **label)).json["result"]
        config = {"taskId": task["id"], "pushNotificationConfig": {"url": hook.url}}
        made = await acme.rpc("index", "tasks/pushNotificationConfig/set", config, **label)
        id = made.json["result"]["pushNotificationConfig"]["id"]
        listed = await acme.rpc("index", "tasks/pushNotificationConfig/list", {"id": task["id"]}, **label)
        assert [each["pushNotificationConfig"]["id"] for each in listed.json["result"]] == [id]
        umbrella = await hub.tenant("umbrella")
        assert (
            code(await umbrella.rpc("index", "tasks/pushNotificationConfig/set", config, **label)) == -32001
        )


async def test_a_webhook_gets_the_end_of_a_task() -> None:
    hold = asyncio.Event()
    async with Receiver() as hook, house([("one", hold, " two")], push=True, allow_private=True) as hub:
        acme = await hub.tenant("acme")
        sending = acme.open_rpc("index", "message/send", message("hi"))
        id = await running(hub, acme)
        config = {"taskId": id, "pushNotificationConfig": {"url": hook.url}}
        await acme.rpc("index", "tasks/pushNotificationConfig/set", config)
        hold.set()
        await sending.end()
        (received,) = await hook.wait_for(1)
        assert (received.document["id"], received.document["status"]["state"]) == (id, "completed")


async def test_reserved_metadata_of_callers_is_ignored() -> None:
    async with house(["fine"]) as hub:
        acme = await hub.tenant("acme")
        conversation = (await acme("POST", "/v1/conversations", {})).json["id"]
        spoof = {"x-arbiter.conversation_id": conversation, "x-dragoman.version": 99, "mine": 1}
        sent = {**message("hi", metadata=spoof), "metadata": spoof}
        task = (await acme.rpc("index", "message/send", sent, dragoman_depth="1")).json["result"]
        assert task["status"]["state"] == "completed"
        (request,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert request["conversation_id"] == 0


async def running(hub: Any, caller: Any) -> str:
    """The id of the one task that is running for a tenant."""
    async with asyncio.timeout(20):
        while not (
            begun := [
                id
                for (_, id), each in hub.hub.quotas.running_tasks(caller.tenant.key).items()
                if each.started
            ]
        ):
            await asyncio.sleep(0)
        return begun[0]


async def test_a_canceled_task_says_whose_it_was_on_every_path() -> None:
    async with house([("one", asyncio.Event())]) as hub:
        acme = await hub.tenant("acme")
        sending = acme.open_rpc("index", "message/send", message("hi"))
        canceled = (await acme.rpc("index", "tasks/cancel", {"id": await running(hub, acme)})).json["result"]
        sent = (await sending.end()).json["result"]
        got = (await acme.rpc("index", "tasks/get", {"id": sent["id"]})).json["result"]
        for task in (canceled, sent, got):
            assert task["status"]["state"] == "canceled"
            assert task["metadata"]["x-arbiter.agent_id"] == "index"
            assert task["metadata"]["x-arbiter.created_at"] <= task["metadata"]["x-arbiter.updated_at"]


@pytest.mark.parametrize("later", range(6))
async def test_a_request_that_is_canceled_as_it_begins_is_on_record(later: int) -> None:
    async with house([("one", asyncio.Event())]) as hub:
        acme = await hub.tenant("acme")
        sending = acme.open_rpc("index", "message/send", message("hi"))
        async with asyncio.timeout(20):
            while not (known := [id for _, id in hub.hub.quotas.running_tasks(acme.tenant.key)]):
                await asyncio.sleep(0)
        for _ in range(later):
            await asyncio.sleep(0)
        answer = (await acme.rpc("index", "tasks/cancel", {"id": known[0]})).json
        while "error" in answer:  # it is not there yet
            answer = (await acme.rpc("index", "tasks/cancel", {"id": known[0]})).json
        assert answer["result"]["metadata"]["x-arbiter.agent_id"] == "index"
        (listed,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert (listed["request_id"], listed["state"], listed["via"]) == (known[0], "canceled", "a2a")
        assert (await sending.end()).json["result"]["metadata"]["x-arbiter.agent_id"] == "index"


async def test_a_canceled_stream_ends_with_a_message_that_says_so() -> None:
    never = asyncio.Event()
    async with house([("Half an answer", never)]) as hub:
        acme = await hub.tenant("acme")
        stream = acme.open_rpc("index", "message/stream", message("hi"))
        await stream.until(lambda: b"answer" in stream.body)
        id = stream.results()[0]["taskId"]
        canceled = (await acme.rpc("index", "tasks/cancel", {"id": id})).json["result"]
        assert canceled["status"]["state"] == "canceled" and "message" not in canceled["status"]
        end = (await stream.end()).results()[-1]
        assert end["status"]["state"] == "canceled" and end["final"] is True
        assert end["status"]["message"]["messageId"] == f"{id}-err"
        assert end["status"]["message"]["parts"][0]["text"] == "The task was canceled."


async def test_the_history_of_a_task_that_failed_is_what_was_asked() -> None:
    async with house([ModelError("auth_failed", "the provider does not know us")]) as hub:
        acme = await hub.tenant("acme")
        task = (await acme.rpc("index", "message/send", message("hi"))).json["result"]
        assert task["status"]["state"] == "failed"
        assert [each["role"] for each in task["history"]] == ["user"]
        assert task["metadata"]["x-arbiter.error_type"] == "auth_failed"


async def test_an_agent_that_raises_gives_an_error_to_a_waiting_send_and_a_failed_task() -> None:
    def broken(prompt: Any) -> str:
        raise RuntimeError("a secret")

    async with house(broken) as hub:
        acme = await hub.tenant("acme")
        answer = (await acme.rpc("index", "message/send", message("hi"))).json
        assert answer["error"]["code"] == -32006
        assert "secret" not in str(answer)
        request = (await acme("GET", "/v1/requests")).json["requests"][0]
        assert (request["state"], request["error_message"]) == ("failed", "the agent broke down")
        task = (await acme.rpc("index", "tasks/get", {"id": request["request_id"]})).json["result"]
        assert task["status"]["state"] == "failed"
        assert task["metadata"]["x-arbiter.error_type"] == "internal_error"
        end = (await acme.rpc("index", "message/stream", message("ho", "m-2"))).results()[-1]
        assert (end["status"]["state"], end["final"]) == ("failed", True)
        assert end["status"]["message"]["messageId"] == f"{end['taskId']}-err"
        body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
        newer = await acme.rpc("index", "SendMessage", body, a2a_version="1.0")
        assert newer.json["result"]["task"]["status"]["state"] == "TASK_STATE_FAILED"


async def test_a_task_of_an_0_1_client_is_answered_in_its_dialect(acme: Caller) -> None:
    sent = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
    made = (await acme.rpc("index", "tasks/send", {"id": "t-1", "message": sent})).json["result"]
    got = (await acme.rpc("index", "tasks/get", {"id": "t-1"})).json["result"]
    assert "sessionId" in got and "kind" not in got
    assert got["artifacts"] == made["artifacts"]
    refused = (await acme.rpc("index", "tasks/cancel", {"id": "t-1"})).json["error"]
    assert refused["code"] == -32002


async def test_artifacts_of_delegated_agents_are_numbered_apart() -> None:
    script: dict[str, Any] = {
        "Index": ["/agent scout look", "So."],
        "Scout": ["/todo list\n/todo list", "seen"],
    }
    async with house(by_agent(script)) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        task = (await acme.rpc("index", "message/send", message("go"))).json["result"]
        ids = [each["artifactId"].removeprefix(task["id"]) for each in task["artifacts"]]
        assert ids == ["-tool-100000", "-tool-100001", "-sub-1", "-tool-0", "-text-0"]

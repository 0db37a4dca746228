"""Agents of the hub over A2A, as the pages of the Arbiter describe it, live."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.auth.schemes import ApiKey
from dragoman.client.client import connect
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.engine.turn import Turn
from dragoman.errors import TaskNotFound, Unauthenticated
from dragoman.model.card import AgentCard, Interface, Skill
from tests.hub.house import SCOUT, Caller, events, house, message
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


async def test_defect_1_and_9_a_stream_has_real_deltas_a_last_chunk_timestamps_and_ids() -> None:
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


async def test_the_order_of_checks() -> None:
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


async def test_another_version_is_refused_before_the_request_is_read() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
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


async def test_defect_5_a_canceled_send_returns_a_canceled_task_and_stays_canceled() -> None:
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


async def test_defect_2_and_3_resubscribing_replays_and_follows_to_the_end() -> None:
    hold = asyncio.Event()
    async with house([("first", hold, " second")]) as hub:
        acme = await hub.tenant("acme")
        stream = acme.open_rpc("index", "message/stream", message("go"))
        await stream.until(lambda: b"first" in stream.body)
        id = stream.results()[0]["taskId"]
        late = acme.open_rpc("index", "tasks/resubscribe", {"id": id})
        await late.until(lambda: b"first" in late.body)
        hold.set()
        results = (await late.end()).results()
        said = [e["artifact"] for e in results if e["kind"] == "artifact-update"]
        text = "".join(each["parts"][0]["text"] for each in said if each["artifactId"] == f"{id}-text-0")
        assert text == "first second"
        assert results[0]["status"]["state"] == "working"
        assert results[-1]["final"] is True and results[-1]["status"]["state"] == "completed"
        (only,) = (await acme.rpc("index", "tasks/resubscribe", {"id": id})).results()
        assert only["final"] is True and only["status"]["message"]["parts"][0]["text"] == "first second"


async def test_defect_9_a_subscriber_that_comes_back_gets_only_what_it_missed() -> None:
    async with house(["one two three"]) as hub:
        acme = await hub.tenant("acme")
        frames = (await acme.rpc("index", "message/stream", message("go"))).frames()
        id = msgspec.json.decode(frames[0].data)["result"]["taskId"]
        assert len(frames) > 3
        for seen in frames[1:-1]:
            again = await acme.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=seen.id)
            missed = [frame for frame in frames if int(frame.id) > int(seen.id)]
            assert [frame for frame in again.frames() if frame.id and b"-meta-" not in frame.data] == missed


async def test_defect_2_a_task_over_a2a_is_a_request_of_the_native_api() -> None:
    async with house(["answer"]) as hub:
        acme = await hub.tenant("acme")
        task = (await acme.rpc("index", "message/send", message("hi"))).json["result"]
        (request,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert request["request_id"] == task["id"] and request["via"] == "a2a"
        received = (await acme("GET", f"/v1/requests/{task['id']}/events")).frames()
        assert received[0].event == "request_received" and received[-1].event == "done"


async def test_defect_6_files_are_in_the_task_and_history_is_as_long_as_asked() -> None:
    async with house(["/write notes.md\n# Notes\n/endwrite", "Written."]) as hub:
        acme = await hub.tenant("acme")
        task = (await acme.rpc("index", "message/send", message("write"))).json["result"]
        (file,) = [each for each in task["artifacts"] if each["name"] == "notes.md"]
        assert file["parts"][0]["file"]["bytes"].strip() == "# Notes"
        got = await acme.rpc("index", "tasks/get", {"id": task["id"], "historyLength": 1})
        (last,) = got.json["result"]["history"]
        assert last["parts"][0]["text"] == "Written."


async def test_defect_8_a_file_is_text_where_the_seeds_say_so_and_base64_in_every_other_version() -> None:
    async with house(["/write notes.md\n# Notes\n/endwrite", "Written."]) as hub:
        acme = await hub.tenant("acme")
        task = (await acme.rpc("index", "message/send", message("write"))).json["result"]
        (file,) = [each for each in task["artifacts"] if each["name"] == "notes.md"]
        plain = file["parts"][0]["file"]["bytes"]
        assert plain.strip() == "# Notes"
        answer = (await acme.rpc("index", "GetTask", {"id": task["id"]})).json["result"]
        (file,) = [each for each in answer["artifacts"] if each["name"] == "notes.md"]
        assert base64.b64decode(file["parts"][0]["raw"], validate=True).decode() == plain


async def test_defect_10_a_context_is_opaque_unless_a_constitution_wants_to_remember_it() -> None:
    async with house(["Hello, Ada.", "Who?", "Hello, Ada.", "You are Ada."]) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        await acme("POST", "/v1/agents", {**SCOUT, "id": "elephant", "context_history": True})
        for agent, remembered in (("scout", 1), ("elephant", 3)):
            for n, text in enumerate(("I am Ada.", "Who am I?")):
                await acme.rpc(agent, "message/send", message(text, id=f"m-{n}", contextId="c-1"))
            assert len(hub.model.prompts[-1].messages) == remembered
        assert [m.content for m in hub.model.prompts[-1].messages][:2] == ["I am Ada.", "Hello, Ada."]


async def test_a_caller_can_have_a_context_remembered() -> None:
    async with house(["Hello, Ada.", "You are Ada."]) as hub:
        acme = await hub.tenant("acme")
        wanted = {"contextId": "c-1", "metadata": {"contextHistory": True}}
        for n, text in enumerate(("I am Ada.", "Who am I?")):
            await acme.rpc("index", "message/send", message(text, id=f"m-{n}", **wanted))
        received = [each.content for each in hub.model.prompts[-1].messages]
        assert received[:2] == ["I am Ada.", "Hello, Ada."] and "Who am I?" in received[2]


async def test_defect_14_a_message_that_is_sent_twice_is_done_once() -> None:
    async with house(["once", "twice"]) as hub:
        acme = await hub.tenant("acme")
        sent = message("hi", id="m-9")
        first, second = [(await acme.rpc("index", "message/send", sent)).json["result"] for _ in range(2)]
        assert first["id"] == second["id"] and len(hub.model.prompts) == 1
        other = (await acme.rpc("index", "message/send", message("something else", id="m-9"))).json["result"]
        assert other["id"] != first["id"]
        assert len((await acme("GET", "/v1/requests")).json["requests"]) == 2


async def test_defect_14_browsers_may_send_the_version_and_a2a_is_counted() -> None:
    async with house(["hi"], public_url="https://hub.example.com/") as hub:
        acme = await hub.tenant("acme")
        preflight = await hub.nobody("OPTIONS", HOME, origin="https://app.example.com")
        assert "A2A-Version" in preflight.headers["access-control-allow-headers"]
        await acme.rpc("index", "message/send", message("hi"))
        metrics = (await hub.nobody("GET", "/v1/metrics")).body.decode()
        assert 'dragoman_hub_requests_started_total{route="a2a",tenant="1"} 1' in metrics
        card = (await acme("GET", f"{HOME}/agent-card.json")).json
        assert card["url"] == "https://hub.example.com/v1/a2a/agents/index"


async def test_defect_15_a_task_of_another_agent_is_not_found() -> None:
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


async def test_a_card_is_derived_from_the_constitution() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
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


async def test_an_agent_that_is_code_is_there_for_every_tenant() -> None:
    greeter = Agent("Greeter", description="Greets")

    @greeter.skill
    async def greet(name: str) -> str:
        """Say hello."""
        return f"Hello, {name}!"

    async with house(code=[greeter]) as hub:
        for name in ("acme", "umbrella"):
            tenant = await hub.tenant(name)
            task = (await tenant.rpc("greeter", "message/send", message("Ada"))).json["result"]
            assert task["status"]["message"]["parts"][0]["text"] == "Hello, Ada!"
            assert "greeter" in {agent["id"] for agent in (await tenant("GET", "/v1/agents")).json["agents"]}
            assert (await tenant("DELETE", "/v1/agents/greeter")).status == 400


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


async def test_without_push_the_card_of_an_agent_that_is_code_does_not_promise_it() -> None:
    async with house(code=[Agent("Greeter", description="Greets")]) as hub:
        acme = await hub.tenant("acme")
        card = (await acme("GET", "/v1/a2a/agents/greeter/agent-card.json")).json
        assert not card["capabilities"].get("pushNotifications")


async def test_the_card_of_an_agent_that_is_code_asks_for_a_token_like_every_other() -> None:
    async with house(code=[Agent("Greeter", description="Greets")]) as hub:
        acme = await hub.tenant("acme")
        cards = [
            (await acme("GET", f"/v1/a2a/agents/{id}/agent-card.json")).json for id in ("index", "greeter")
        ]
        assert cards[0]["securitySchemes"] == cards[1]["securitySchemes"] != {}
        assert cards[0]["security"] == cards[1]["security"] == [{"bearer": []}]


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
            begun := [id for (_, id), each in hub.hub.quotas.of(caller.tenant.key).items() if each.begun]
        ):
            await asyncio.sleep(0)
        return begun[0]


async def test_a_card_of_code_asks_for_no_scheme_that_the_hub_does_not_have() -> None:
    secret = Agent("Vault", auth=[ApiKey({"ann": "0" * 64})], extended_card=[Skill(id="more", name="more")])

    @secret.skill(scopes=["vault:open"])
    async def unlock(turn: Turn) -> str:
        return "open"

    async with house(code=[secret]) as hub:
        acme = await hub.tenant("acme")
        card = (await acme("GET", "/v1/a2a/agents/vault/agent-card.json", a2a_version="1.0")).json
        more = (await acme.rpc("vault", "GetExtendedAgentCard", a2a_version="1.0")).json["result"]
        for each in (card, more):
            assert list(each["securitySchemes"]) == ["bearer"]
            named = {name for skill in each["skills"] for need in needs(skill) for name in need}
            assert named == {"bearer"}
        assert "vault:open" in str(card["skills"])


def needs(skill: Any) -> list[Any]:
    """What a skill asks for, in the shape of either version."""
    return [
        need.get("schemes", need) for need in skill.get("securityRequirements", skill.get("security", []))
    ]


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
            while not (known := [id for _, id in hub.hub.quotas.of(acme.tenant.key)]):
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


@older("X34")
async def test_a_late_subscription_of_arbiter_replays_the_texts_and_adds_the_lifecycle_and_the_tokens() -> (
    None
):
    hold = asyncio.Event()
    async with house(["one\n/mem read", ("two ", hold, "three")]) as hub:
        acme = await hub.tenant("acme")
        first = acme.open_rpc("index", "message/stream", message("hi"))
        await first.until(lambda: b"two" in first.body)
        id = first.results()[0]["taskId"]
        late = acme.open_rpc("index", "tasks/resubscribe", {"id": id})
        await late.until(lambda: b"x-arbiter.token_usage" in late.body)
        hold.set()
        received, heard = (await late.end()).results(), (await first.end()).results()
        assert received[0]["status"]["state"] == "working" and received[-1]["final"] is True
        assert not any("-meta-" in str(each) for each in heard), (
            "a stream from the beginning has A2A's events alone"
        )
        metas = [each["artifact"] for each in received if "-meta-" in str(each.get("artifact"))]
        kinds = [artifact["name"] for artifact in metas]
        assert kinds == ["stream_start", "token_usage", "token_usage", "stream_end"]
        (part,) = metas[1]["parts"]
        assert part["metadata"] == {"x-arbiter.token_usage": True} and part["data"]["output_tokens"] == 2
        assert len({artifact["artifactId"] for artifact in metas}) == 4
        text = [each for each in received if "-text-0" in str(each.get("artifact"))]
        assert "".join(each["artifact"]["parts"][0]["text"] for each in text) == "one\n\ntwo three"
        numbers = [int(frame.id) for frame in late.frames() if frame.id]
        assert numbers == sorted(numbers)
        rest = await acme.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": numbers[1]})
        missed = [frame for frame in late.frames() if frame.id and int(frame.id) > numbers[1]]
        assert rest.frames()[1:] == missed, "who goes on gets the rest of the same stream"


def frame_kinds(results: list[Any]) -> list[str]:
    """What each frame of a stream is: the state of a status, else the end of the artifact's id, or its name for a note."""
    out = []
    for each in results:
        if each["kind"] == "status-update":
            out.append(each["status"]["state"])
        elif "-meta-" in each["artifact"]["artifactId"]:
            out.append(each["artifact"]["name"])
        else:
            out.append(each["artifact"]["artifactId"].partition("-")[2])
    return out


async def test_resubscribing_replays_the_log_event_by_event_with_the_notes_where_they_were_written() -> None:
    hold = asyncio.Event()
    async with house(["one\n/mem write note\n/write a.txt\nfile\n/endwrite", ("two ", hold, "three")]) as hub:
        acme = await hub.tenant("acme")
        first = acme.open_rpc("index", "message/stream", message("hi"))
        await first.until(lambda: b"two" in first.body)
        id = first.results()[0]["taskId"]
        late = acme.open_rpc("index", "tasks/resubscribe", {"id": id})
        await late.until(lambda: b"two" in late.body)
        hold.set()
        received, heard = (await late.end()).results(), (await first.end()).results()
        kinds = frame_kinds(received)
        notes = {"stream_start", "token_usage", "stream_end"}
        assert [kind for kind in kinds if kind not in notes] == frame_kinds(heard), (
            "the same events, in order"
        )
        assert kinds[:2] == ["working", "stream_start"]
        used = kinds.index("token_usage")
        assert kinds.index("text-0") < used < kinds.index("tool-0"), (
            "the tokens of the first reply come after its text"
        )
        assert kinds[-2:] == ["stream_end", "completed"] or kinds[-3:-1] == ["stream_end", "text-0"]
        live = [each for each in received if each["kind"] == "artifact-update" and "-meta-" not in str(each)]
        assert live == [each for each in heard if each["kind"] == "artifact-update"], (
            "piece by piece, not as one"
        )
        numbers = [int(frame.id) for frame in late.frames() if frame.id]
        assert numbers == sorted(set(numbers)), "each event has a place of its own"
        native = [kind for kind, _ in events(await acme("GET", f"/v1/requests/{id}/events"))]
        shown = [kind for kind in native if kind in notes]
        assert shown == [kind for kind in kinds if kind in notes], "the same as the native API"


async def test_a_resubscription_shows_a_note_before_the_next_event_of_a2a_comes() -> None:
    hold = asyncio.Event()
    async with house(["one\n/mem read", (hold, "two")]) as hub:
        acme = await hub.tenant("acme")
        first = acme.open_rpc("index", "message/stream", message("hi"))
        await first.until(lambda: b"tool_call" in first.body)
        late = acme.open_rpc("index", "tasks/resubscribe", {"id": first.results()[0]["taskId"]})
        await late.until(lambda: b"x-arbiter.token_usage" in late.body)  # the second reply has not begun
        hold.set()
        assert (await late.end()).results()[-1]["final"] is True
        await first.end()


@pytest.mark.parametrize("ended", [False, True])
async def test_a_resubscription_after_any_event_replays_the_rest_with_the_notes_between(ended: bool) -> None:
    hold = asyncio.Event()
    async with house(["one\n/mem write note", ("two ", hold, "three")]) as hub:
        acme = await hub.tenant("acme")
        first = acme.open_rpc("index", "message/stream", message("hi"))
        await first.until(lambda: b"two" in first.body)
        id = first.results()[0]["taskId"]
        whole = acme.open_rpc("index", "tasks/resubscribe", {"id": id})
        await whole.until(lambda: b"two" in whole.body)
        cursors = [frame.id for frame in whole.frames() if frame.id]
        if ended:
            hold.set()
            await whole.end()
        late = {n: acme.open_rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=n) for n in cursors}
        hold.set()
        frames = (await whole.end()).frames()
        assert {"stream_start", "token_usage", "stream_end"} <= set(frame_kinds(whole.results()))
        for seen, stream in late.items():
            place = next(n for n, frame in enumerate(frames) if frame.id == seen)
            received = (await stream.end()).frames()
            assert received[0].id == "" and b'"working"' in received[0].data
            assert received[1:] == frames[place + 1 :], f"after {seen}"
        assert cursors == sorted(cursors, key=int)
        again = await acme.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": 0})
        assert again.frames() == frames, "the whole of a task that has ended"
        ahead = await acme.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id="999999")
        assert [each["final"] for each in ahead.results()] == [True], "an event that never was is none"
        await first.end()


async def test_a_resubscription_after_a_restart_has_the_same_notes_between(tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with house(["one\n/mem write note", ("two ", hold)], folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        first = acme.open_rpc("index", "message/stream", message("hi"))
        await first.until(lambda: b"two" in first.body)
        id = first.results()[0]["taskId"]
        whole = acme.open_rpc("index", "tasks/resubscribe", {"id": id})
        await whole.until(lambda: b"two" in whole.body)
        before = [frame for frame in whole.frames() if frame.id and b"-meta-" in frame.data]
    async with house(["two three"], folder=tmp_path) as hub:
        acme = Caller(hub.app, acme.token, acme.tenant)
        rest = await acme.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=before[0].id)
        again = await acme.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": 0})
        notes = [frame for frame in again.frames() if frame.id and b"-meta-" in frame.data]
        assert notes[: len(before)] == before and rest.results()[-1]["status"]["state"] == "completed"
        assert [frame for frame in rest.frames() if b"-meta-" in frame.data] == notes[1:]
        native = events(await acme("GET", f"/v1/requests/{id}/events?since_seq={before[0].id}"))
        shown = [kind for kind, _ in native if kind in ("stream_start", "token_usage", "stream_end")]
        assert shown == [each for each in frame_kinds(rest.results()) if each in shown]


async def test_a_resubscription_after_the_question_of_a_task_has_the_notes_after_the_answer() -> None:
    async with house(["/exec date", "done"], approve=("/exec",)) as hub:
        acme = await hub.tenant("acme")
        asked = await acme.rpc("index", "message/stream", message("hi"))
        id, seen = asked.results()[0]["taskId"], asked.frames()[-1].id
        assert asked.results()[-1]["status"]["state"] == "input-required"
        await acme.rpc("index", "message/send", message("no", "m-2", taskId=id))
        rest = await acme.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=seen)
        whole = await acme.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": 0})
        shown = [frame for frame in whole.frames() if frame.id and int(frame.id) > int(seen)]
        assert [frame for frame in rest.frames() if frame.id] == shown
        assert frame_kinds(rest.results())[:2] == ["working", "tool-0"], "it works again after the answer"
        assert "token_usage" in frame_kinds(rest.results())


async def test_a_resubscription_to_an_agent_that_is_code_ends_with_its_answer() -> None:
    hold = asyncio.Event()
    agent = Agent("Coder", id="coder")

    @agent.skill
    async def work(turn: Turn) -> None:
        out = turn.artifact("words")
        await out.write("half ")
        await hold.wait()
        await out.write("done")

    async with house(code=[agent]) as hub:
        acme = await hub.tenant("acme")
        first = acme.open_rpc("coder", "message/stream", message("hi"))
        await first.until(lambda: b"half" in first.body)
        late = acme.open_rpc("coder", "tasks/resubscribe", {"id": first.results()[0]["taskId"]})
        await late.until(lambda: b"half" in late.body)
        seen = next(frame.id for frame in first.frames() if b"half" in frame.data)
        hold.set()
        received, heard = (await late.end()).results(), (await first.end()).results()
        assert received == heard
        rest = await acme.rpc("coder", "tasks/resubscribe", {"id": received[0]["taskId"]}, last_event_id=seen)
        assert rest.results()[-1] == heard[-1], "also after an event"

"""The native API of the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.engine.engine import Engine
from dragoman.errors import StoreUnavailable
from dragoman.hub.hub import START_SECONDS
from dragoman.hub.models import ModelError, Stop
from dragoman.model.ops import Call
from dragoman.server.routes import NotFound
from tests.hub.house import SCOUT, Caller, events, house, kinds, message
from tests.hub.scripted import Scripted, ScriptedModel, by_agent


async def test_a_request_begins_with_request_received_and_ends_with_done() -> None:
    async with house(["Hello, you."]) as hub:
        acme = await hub.tenant("acme")
        reply = await acme.ask("x" * 300)
        assert kinds(reply) == [
            "request_received",
            "stream_start",
            "text",
            "token_usage",
            "stream_end",
            "done",
        ]
        received, done = reply[0][1], reply[-1][1]
        assert received["agent"] == "index" and received["tenant"] == "acme"
        assert received["message"] == "x" * 200 + "…"
        assert done["ok"] is True and done["content"] == "Hello, you."
        assert done["request_id"] == received["request_id"] and done["tenant_id"] == acme.tenant.id
        assert {"input_tokens", "output_tokens", "files_bytes", "duration_ms"} <= set(done)
        assert "".join(payload["delta"] for kind, payload in reply if kind == "text") == "Hello, you."


async def test_a_provider_that_fails_mid_stream_ends_with_done_and_a_safe_reason() -> None:
    async with house([("Half an ans", ModelError("provider_error", "the model provider failed"))]) as hub:
        acme = await hub.tenant("acme")
        reply = await acme.ask("go")
        assert kinds(reply)[-2:] == ["error", "done"]
        done = reply[-1][1]
        assert done["ok"] is False and done["error_code"] == "provider_error"
        assert done["content"] == "Half an ans"
        request = (await acme("GET", f"/v1/requests/{done['request_id']}")).json["request"]
        assert request["state"] == "failed" and request["error_message"] == "the model provider failed"


async def test_events_can_be_read_again_from_anywhere() -> None:
    async with house(["one two three"]) as hub:
        acme = await hub.tenant("acme")
        live = await acme("POST", "/v1/orchestrate", {"message": "go"})
        id = live.headers["x-request-id"]
        again = await acme("GET", f"/v1/requests/{id}/events")
        assert again.body == live.body
        frames = live.frames()
        for seen in frames:
            if seen.id:
                rest = await acme("GET", f"/v1/requests/{id}/events?since_seq={seen.id}")
                after = await acme("GET", f"/v1/requests/{id}/events", last_event_id=seen.id)
                expected = [frame for frame in frames if frame.id and int(frame.id) > int(seen.id)]
                assert [frame for frame in rest.frames() if frame.id] == expected
                assert rest.body == after.body


async def test_a_reader_that_left_comes_back_to_what_it_missed_while_the_work_goes_on() -> None:
    hold = asyncio.Event()
    async with house([("before", hold, " after")]) as hub:
        acme = await hub.tenant("acme")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"before" in live.body)
        live.gone.set()
        await live.end()
        id, last = live.headers["x-request-id"], live.frames()[-1].id
        assert (await acme("GET", f"/v1/requests/{id}")).json["request"]["state"] == "running"
        back = acme.open("GET", f"/v1/requests/{id}/events", last_event_id=last)
        hold.set()
        reply = events(await back.end())
        assert [payload["delta"] for kind, payload in reply if kind == "text"] == [" after"]
        assert reply[-1][0] == "done" and reply[-1][1]["content"] == "before after"


async def test_the_same_key_is_answered_with_the_same_request() -> None:
    async with house(["once", "twice"]) as hub:
        acme = await hub.tenant("acme")
        body = {"message": "pay"}
        first, second = [await acme("POST", "/v1/orchestrate", body, idempotency_key="k1") for _ in range(2)]
        assert first.headers["x-request-id"] == second.headers["x-request-id"]
        assert first.body == second.body and len(hub.model.prompts) == 1
        other = await acme("POST", "/v1/orchestrate", body, idempotency_key="k2")
        assert other.headers["x-request-id"] != first.headers["x-request-id"]
        assert (await acme("POST", "/v1/orchestrate", body, idempotency_key="k" * 257)).status == 400


async def test_requests_have_their_agent_and_their_last_event() -> None:
    async with house(["hi"]) as hub:
        acme = await hub.tenant("acme")
        live = await acme("POST", "/v1/orchestrate", {"message": "go"})
        (request,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert request["agent_id"] == "index" and request["state"] == "completed"
        assert request["last_seq"] == int(live.frames()[-1].id)
        assert request["completed_at"] >= request["started_at"] > 0


async def test_an_invalid_request_is_refused_before_it_starts(acme: Caller) -> None:
    for path, body, status in (
        ("/v1/orchestrate", b"{", 400),
        ("/v1/orchestrate", {}, 400),
        ("/v1/orchestrate", {"message": " "}, 400),
        ("/v1/orchestrate", {"message": [{"type": "image", "text": ""}]}, 400),
        ("/v1/orchestrate", {"message": "hi", "agent": "nobody"}, 404),
        ("/v1/orchestrate", {"message": "hi", "agent": "a", "agent_def": {"id": "b"}}, 400),
        ("/v1/orchestrate", {"message": "hi", "agent_def": {"id": "index"}}, 400),
        ("/v1/agents/nobody/chat", {"message": "hi"}, 404),
        ("/v1/agents/index/chat", {"message": "hi", "agent": "scout"}, 400),
        ("/v1/conversations/77/messages", {"message": "hi"}, 404),
    ):
        answer = await acme("POST", path, body)
        assert answer.status == status and answer.json["error"], (path, body, answer.body)
    assert (await acme("GET", "/v1/requests/nope")).status == 404
    assert (await acme("GET", "/v1/requests/nope/events")).status == 404
    assert (await acme("GET", "/v1/requests")).json == {"requests": []}


async def test_an_agent_that_comes_with_the_request_is_there_for_it_alone() -> None:
    async with house(["I am inline."]) as hub:
        acme = await hub.tenant("acme")
        reply = await acme.ask("who?", agent_def={"id": "guest", "name": "Guest", "goal": "visit"})
        assert reply[-1][1]["content"] == "I am inline." and reply[0][1]["agent"] == "guest"
        assert "NAME: Guest" in hub.model.prompts[0].system
        assert (await acme("GET", "/v1/agents/guest")).status == 404
        gone = await acme.rpc("guest", "message/send", message("still there?"))
        assert gone.json["error"]["code"] == -32001


async def test_agents_are_made_replaced_and_deleted(acme: Caller) -> None:
    made = await acme("POST", "/v1/agents", {"agent_def": SCOUT})
    assert made.status == 201 and made.json["version"] == 1 and made.json["max_tokens"] == 4096
    twice = await acme("POST", "/v1/agents", SCOUT)
    assert twice.status == 409 and twice.json["existing"]["id"] == "scout"
    changed = await acme("PATCH", "/v1/agents/scout", {"goal": "find more"})
    assert changed.json["goal"] == "find more" and changed.json["role"] == "" and changed.json["version"] == 2
    listed = (await acme("GET", "/v1/agents")).json
    assert [agent["id"] for agent in listed["agents"]] == ["index", "scout"]
    for method in ("PATCH", "DELETE"):
        assert (await acme(method, "/v1/agents/index", {})).status == 400
    assert (await acme("PATCH", "/v1/agents/nobody", {"goal": "x"})).status == 404
    assert (await acme("DELETE", "/v1/agents/scout")).status == 204
    assert (await acme("GET", "/v1/agents/scout")).status == 404


async def test_a_task_goes_on_with_the_constitution_it_began_with() -> None:
    hold = asyncio.Event()
    async with house([("/help", hold), "done"]) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        live = acme.open("POST", "/v1/agents/scout/chat", {"message": "go"})
        await live.until(lambda: b"stream_start" in live.body)
        await acme("PATCH", "/v1/agents/scout", {"name": "Someone Else"})
        await acme("DELETE", "/v1/agents/scout")
        hold.set()
        assert events(await live.end())[-1][1]["content"] == "done"
        assert ["NAME: Scout" in prompt.system for prompt in hub.model.prompts] == [True, True]


async def test_a_conversation_remembers() -> None:
    async with house(["Hello, Ada.", "You are Ada."]) as hub:
        acme = await hub.tenant("acme")
        conversation = (await acme("POST", "/v1/conversations", {"title": "Names"})).json
        path = f"/v1/conversations/{conversation['id']}"
        done = (await acme.ask("I am Ada.", f"{path}/messages"))[-1][1]
        assert done["conversation_id"] == conversation["id"]
        await acme.ask("Who am I?", f"{path}/messages")
        said = [(m.role, m.content) for m in hub.model.prompts[1].messages]
        assert said[:2] == [("user", "I am Ada."), ("assistant", "Hello, Ada.")]
        listed = (await acme("GET", f"{path}/messages")).json
        assert [m["role"] for m in listed["messages"]] == ["user", "assistant"] * 2
        assert listed["messages"][1]["request_id"] == done["request_id"]
        assert listed["messages"][1]["output_tokens"] > 0
        after = (await acme("GET", f"{path}/messages?after_id={listed['messages'][2]['id']}")).json
        assert [m["content"] for m in after["messages"]] == ["You are Ada."]
        changed = (await acme("PATCH", path, {"archived": True})).json
        assert changed["archived"] is True and changed["title"] == "Names" and changed["message_count"] == 4
        assert (await acme("DELETE", path)).status == 204
        assert (await acme("GET", f"{path}/messages")).status == 404


async def test_an_answer_without_a_reader_is_stored_in_the_conversation() -> None:
    hold = asyncio.Event()
    async with house([("I", hold, " waited")]) as hub:
        acme = await hub.tenant("acme")
        path = f"/v1/conversations/{(await acme('POST', '/v1/conversations', {})).json['id']}/messages"
        live = acme.open("POST", path, {"message": "hello"})
        await live.until(lambda: b"stream_start" in live.body)
        live.gone.set()
        await live.end()
        assert [m["role"] for m in (await acme("GET", path)).json["messages"]] == ["user"]
        hold.set()
        await acme("GET", f"/v1/requests/{live.headers['x-request-id']}/events")
        assert [m["content"] for m in (await acme("GET", path)).json["messages"]] == ["hello", "I waited"]


async def test_a_message_whose_request_never_began_goes_from_its_conversation_after_a_while() -> None:
    """A hub that is killed, or a caller who leaves, between the two leaves a message that nobody answers. Its sender sends it again."""
    async with house(["Found."]) as hub:
        acme = await hub.tenant("acme")
        talk = (await acme("POST", "/v1/conversations", {})).json["id"]
        path = f"/v1/conversations/{talk}/messages"
        await hub.hub.conversations.add_question(acme.tenant.id, talk, "r-1", "look")
        await acme.ask("look", path)

        async def contents() -> list[str]:
            return [each["content"] for each in (await acme("GET", path)).json["messages"]]

        assert await contents() == ["look", "look", "Found."], "the first may be about to begin"
        await hub.hub.database.change(f"update messages set created_at = created_at - {START_SECONDS + 1}")
        assert await contents() == ["look", "Found."]
        assert await hub.hub.conversations.with_unanswered(2**40, 10) == []


async def test_a_failed_answer_is_no_message() -> None:
    async with house([ModelError("auth_failed", "no")]) as hub:
        acme = await hub.tenant("acme")
        path = f"/v1/conversations/{(await acme('POST', '/v1/conversations', {})).json['id']}/messages"
        assert (await acme.ask("hello", path))[-1][1]["ok"] is False
        assert [m["role"] for m in (await acme("GET", path)).json["messages"]] == ["user"]


async def test_delegated_events_have_a_depth_and_one_agent_answers() -> None:
    scripts: dict[str, Iterable[Scripted]] = {
        "Index": ["/agent scout look around", "Scout found a tree."],
        "Scout": ["A tree."],
    }
    async with house(by_agent(scripts)) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        reply = await acme.ask("what is there?")
        assert reply[-1][1]["content"] == "Scout found a tree."
        (response,) = [payload for kind, payload in reply if kind == "sub_agent_response"]
        assert response["agent"] == "scout" and response["depth"] == 1 and response["content"] == "A tree."
        assert {p["depth"] for kind, p in reply if kind == "token_usage"} == {0, 1}
        (request,) = (await acme("GET", "/v1/requests")).json["requests"]
        assert request["agent_id"] == "index"
        assert "scout" in hub.model.prompts[0].messages[-1].content


@pytest.mark.parametrize("command", ["/agent scout look", "/parallel\n/agent scout look\n/endparallel"])
async def test_an_agent_is_asked_again_if_the_database_was_away_as_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    scripts: dict[str, Iterable[Scripted]] = {"Index": [command, "Done."], "Scout": ["A tree."]}
    accept, away = Engine._accept_message, [StoreUnavailable("the database is away")]

    async def accept_later(self: Engine, program: Any, call: Call, *what: Any, **more: Any) -> Any:
        if call.inside and away:
            raise away.pop()
        return await accept(self, program, call, *what, **more)

    monkeypatch.setattr(Engine, "_accept_message", accept_later)
    async with house(by_agent(scripts)) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        reply = await acme.ask("what is there?")
        assert [data["ok"] for kind, data in reply if kind in ("tool_call", "done")] == [True, True]
        assert len(hub.model.prompts) == 3 and not away


async def test_a_list_of_requests_is_whole_or_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(lambda prompt: "hi") as hub:
        acme = await hub.tenant("acme")
        ids = [(await acme.ask("go"))[-1][1]["request_id"] for _ in range(2)]
        describe = hub.hub.describe
        missing: Exception = StoreUnavailable("the database is away")

        async def describe_one(tenant: Any, stored: Any) -> Any:
            if stored.request_id == ids[0]:
                raise missing
            return await describe(tenant, stored)

        monkeypatch.setattr(hub.hub, "describe", describe_one)
        assert (await acme("GET", "/v1/requests")).status == 503
        missing = NotFound("it was deleted at this moment")
        listed = (await acme("GET", "/v1/requests")).json["requests"]
        assert [each["request_id"] for each in listed] == ids[1:]


async def test_a_list_of_requests_and_a_stream_of_one_read_no_whole_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant may have many, each with a log of megabytes."""
    never = asyncio.Event()
    replies: dict[str, Scripted] = {
        "run": ("Hm", never),
        "fail": ModelError("provider_error", "no"),
        "ask": "/exec ls",
        "do": "ok",
    }
    async with house(
        lambda prompt: replies[prompt.messages[-1].content.split()[-1]], approve=("/exec",), allow_exec=True
    ) as hub:
        acme = await hub.tenant("acme")
        ids = {word: (await acme.ask(word))[-1][1]["request_id"] for word in ("do", "fail", "ask")}
        canceled = (await acme.ask("ask"))[-1][1]["request_id"]
        assert (await acme("POST", f"/v1/requests/{canceled}/cancel")).status == 200
        running = acme.open("POST", "/v1/orchestrate", {"message": "run"})
        await running.until(lambda: b"Hm" in running.body)
        seqs = [frame.id for frame in (await acme("GET", f"/v1/requests/{ids['do']}/events")).frames()]

        async def read_all(*_: object) -> None:
            pytest.fail("the whole log of a request is read")

        monkeypatch.setattr(hub.hub, "snapshot", read_all)
        listed = (await acme("GET", "/v1/requests")).json["requests"]
        assert [each["state"] for each in listed] == [
            "running",
            "canceled",
            "input-required",
            "failed",
            "completed",
        ]
        assert [bool(each["completed_at"]) for each in listed] == [False, True, False, True, True]
        assert [each["error_message"] for each in listed] == ["", "the request was canceled", "", "no", ""]
        waits = {key: listed[2].get(key) for key in ("approval", "details")}
        assert waits == {
            "approval": True,
            "details": {"agent": "index", "command": "/exec", "arguments": "ls"},
        }
        assert str(listed[4]["last_seq"]) == seqs[-1]
        for word, end in (("do", None), ("fail", "provider_error"), ("ask", "input-required")):
            streamed = events(await acme("GET", f"/v1/requests/{ids[word]}/events"))
            assert streamed[0][0] == "request_received" and streamed[-1][1].get("error_code") == end
        monkeypatch.undo()


async def test_files_memory_and_todos_over_http(acme: Caller) -> None:
    conversation = (await acme("POST", "/v1/conversations", {})).json["id"]
    files = f"/v1/conversations/{conversation}/artifacts"
    made = await acme("POST", files, {"path": "a/b.txt", "content": "hello"})
    assert made.status == 201
    assert (await acme("POST", files, {"path": "a/b.txt", "content": "hello!"})).status == 200
    assert (await acme("POST", files, {"path": "../x", "content": ""})).status == 400
    raw = await acme("GET", f"{files}/{made.json['id']}/raw")
    assert raw.body == b"hello!" and raw.headers["x-content-type-options"] == "nosniff"
    entry = {
        "type": "project",
        "title": "Bridge",
        "content": "made of stone",
        "artifact_id": made.json["id"],
    }
    one = await acme("POST", "/v1/memory/entries", entry)
    two = await acme("POST", "/v1/memory/entries", {"type": "learning", "title": "Stone lasts"})
    assert (one.status, two.status) == (201, 201)
    got = (await acme("GET", f"/v1/memory/entries/{one.json['id']}")).json
    assert got["artifact"]["path"] == "a/b.txt"
    found = (await acme("GET", "/v1/memory/entries?q=stone")).json
    assert found["count"] == 2
    edge = {"source_id": one.json["id"], "target_id": two.json["id"], "relation": "supports"}
    assert (await acme("POST", "/v1/memory/relations", edge)).status == 201
    again = await acme("POST", "/v1/memory/relations", edge)
    assert again.status == 409 and again.json["existing_id"]
    graph = (await acme("GET", "/v1/memory/graph")).json
    assert len(graph["entries"]) == 2 and len(graph["relations"]) == 1
    path = f"/v1/memory/entries/{two.json['id']}"
    assert (await acme("POST", f"{path}/invalidate")).status == 200
    assert (await acme("POST", f"{path}/invalidate")).status == 404
    assert (await acme("POST", "/v1/memory/entries", {"type": "odd", "title": "x"})).status == 400
    todo = await acme("POST", "/v1/todos", {"subject": "paint"})
    assert (await acme("PATCH", f"/v1/todos/{todo.json['id']}", {"state": "completed"})).status == 200
    assert (await acme("GET", "/v1/todos")).json["count"] == 0
    assert (await acme("DELETE", f"{files}/{made.json['id']}")).status == 204
    assert (await acme("GET", f"/v1/memory/entries/{one.json['id']}")).json["artifact_id"] is None


@pytest.mark.parametrize("kind", ["text/html\r\nSet-Cookie: a=b", "x", "a/b\x00", "text/ü", "a/" + "b" * 500])
async def test_the_kind_of_a_file_does_not_become_a_header_of_its_own(acme: Caller, kind: str) -> None:
    conversation = (await acme("POST", "/v1/conversations", {})).json["id"]
    files = f"/v1/conversations/{conversation}/artifacts"
    refused = await acme("POST", files, {"path": "a.txt", "content": "x", "mime_type": kind})
    assert refused.status == 400 and (await acme("GET", files)).json["count"] == 0
    kind = 'text/plain; charset="utf-8"'
    made = await acme("POST", files, {"path": "a.txt", "content": "x", "mime_type": kind})
    raw = await acme("GET", f"{files}/{made.json['id']}/raw")
    assert raw.headers["content-type"] == kind


async def test_a_hub_whose_store_is_away_is_not_ready(tmp_path: Path) -> None:
    async with house(folder=tmp_path) as hub:
        assert (await hub.nobody("GET", "/readyz")).status == 200
        await hub.hub.store.close()
        assert (await hub.nobody("GET", "/readyz")).status == 503
        assert (await hub.nobody("GET", "/healthz")).status == 200
        await hub.hub.store.open()
        assert (await hub.nobody("GET", "/readyz")).status == 200


async def test_a_hub_with_a_damaged_store_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(folder=tmp_path) as hub:
        monkeypatch.setattr(hub.hub.store, "damage", lambda: "a page is damaged")
        answer = await hub.nobody("GET", "/readyz")
        assert answer.status == 503 and answer.json == {"status": "damaged"}


async def test_the_api_describes_itself() -> None:
    async with house() as hub:
        document = (await hub.nobody("GET", "/v1/openapi.json")).json
        assert document["openapi"] == "3.1.0"
        names = [
            operation["operationId"]
            for place in document["paths"].values()
            for verb, operation in place.items()
            if verb != "parameters"
        ]
        assert len(names) == len(set(names)) > 40
        refs = set(_refs(document))
        assert refs <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
        schema = (await hub.nobody("GET", "/v1/constitution.schema.json")).json
        assert "capabilities" in msgspec.json.encode(schema).decode()
        acme = await hub.tenant("acme")
        assert (await acme("GET", "/v1/models")).json["models"]


def _refs(value: object) -> list[str]:
    if isinstance(value, dict):
        return [v for k, v in value.items() if k == "$ref"] + [r for v in value.values() for r in _refs(v)]
    return [ref for each in value for ref in _refs(each)] if isinstance(value, list) else []


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_tenant_has_as_many_agents_as_the_operator_allows_however_they_are_made(method: str) -> None:
    async with house(max_agents=2) as hub:
        acme = await hub.tenant("acme")
        for id, status in (("a", 201), ("b", 201), ("c", 413)):
            path = f"/v1/agents/{id}" if method == "PUT" else "/v1/agents"
            assert (await acme(method, path, {"id": id})).status == status
        assert (await acme("PUT", "/v1/agents/a", {"id": "a", "name": "A"})).status == 200
        assert (await acme("PATCH", "/v1/agents/c", {"id": "c"})).status == 404


async def test_an_event_goes_to_the_agent_that_names_it_most_exactly() -> None:
    async with house(["Cooler on.", "Looking.", "Index looks.", "Cooler checked."]) as hub:
        acme = await hub.tenant("acme")
        for id, patterns in (("watch", ["sensor.*"]), ("cooler", ["deploy.*", "sensor.temperature.*"])):
            await acme("POST", "/v1/agents", {"id": id, "event_types": patterns})

        async def happened(type: str, **more: object) -> tuple[str, str]:
            reply = events(await acme("POST", "/v1/events", {"type": type, **more}))
            assert reply[-1][1]["ok"]
            return reply[0][1]["agent"], hub.model.prompts[-1].messages[-1].content

        agent, said = await happened("sensor.temperature.high", source="rack 4", payload={"celsius": 84.6})
        assert agent == "cooler"
        assert said.endswith(
            '| Event: sensor.temperature.high\n| Source: rack 4\n| Payload: {"celsius":84.6}'
        )
        assert (await happened("sensor.door"))[0] == "watch"
        assert (await happened("coffee"))[0] == "index"
        assert (await happened("coffee", agent="cooler"))[0] == "cooler"
        assert (await acme("POST", "/v1/events", {"type": "x", "agent": "nobody"})).status == 404
        for wrong in ({}, {"type": " "}):
            assert (await acme("POST", "/v1/events", wrong)).status == 400


async def test_an_entry_can_be_detached_from_its_file_and_have_a_given_age(acme: Caller) -> None:
    talk = (await acme("POST", "/v1/conversations", {})).json["id"]
    file = await acme("POST", f"/v1/conversations/{talk}/artifacts", {"path": "a.txt", "content": "x"})
    entry = {"type": "user", "title": "t", "artifact_id": file.json["id"], "created_at": 1_700_000_000}
    made = (await acme("POST", "/v1/memory/entries", entry)).json
    assert made["created_at"] == made["updated_at"] == made["valid_from"] == 1_700_000_000
    path = f"/v1/memory/entries/{made['id']}"
    assert (await acme("PATCH", path, {"title": "u"})).json["artifact_id"] == file.json["id"]
    freed = (await acme("PATCH", path, {"artifact_id": None})).json
    assert freed["artifact_id"] is None and freed["title"] == "u"
    assert (await acme("PATCH", path, {"title": None})).status == 200


@pytest.mark.parametrize("path", ["/v1/memory/entries", "/v1/memory/graph"])
async def test_memory_is_asked_for_types_there_are(acme: Caller, path: str) -> None:
    assert (await acme("GET", f"{path}?type=user,project")).status == 200
    refused = await acme("GET", f"{path}?type=user,plans")
    assert refused.status == 400 and "there is no type 'plans'" in refused.json["error"]


async def test_a_request_says_whether_its_answer_is_read_aloud() -> None:
    async with house(lambda prompt: "Fine.") as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", {**SCOUT, "channel": "voice"})
        await acme("POST", "/v1/agents", {"id": "desk", "mode": "writer", "intent": {"mode": "heuristic"}})

        async def aloud(path: str, text: str = "hi", **body: Any) -> list[bool]:
            before = len(hub.model.prompts)
            reply = await acme.ask(text, path, **body)
            assert reply[0][1].get("channel", "") == body.get("channel", "") and reply[-1][1]["ok"]
            return ["read aloud" in prompt.system for prompt in hub.model.prompts[before:]]

        assert await aloud("/v1/orchestrate") == [False]
        assert await aloud("/v1/orchestrate", channel="voice") == [True]
        assert await aloud("/v1/agents/scout/chat") == [True]
        assert await aloud("/v1/agents/scout/chat", channel="text") == [False]
        assert await aloud("/v1/agents/desk/chat", "@scout look", channel="text") == [False]
        assert await aloud("/v1/agents/desk/chat", "@scout look", channel="voice") == [True]


async def test_an_answer_that_the_limit_of_tokens_cuts_says_so() -> None:
    async with house([("half an ans", Stop("max_tokens")), "whole"]) as hub:
        acme = await hub.tenant("acme")
        assert (await acme.ask("hi"))[-1][1]["truncated"] is True
        assert "truncated" not in (await acme.ask("hi"))[-1][1]


def all_ended(received: list[tuple[str, Any]]) -> bool:
    """Every stream that began has ended, once."""
    begun = sorted(payload["stream_id"] for kind, payload in received if kind == "stream_start")
    ended = sorted(payload["stream_id"] for kind, payload in received if kind == "stream_end")
    return begun == ended != []


async def test_canceling_what_does_not_run_is_answered_as_an_arbiter_server_answers() -> None:
    async with house(["fine"]) as hub:
        acme = await hub.tenant("acme")
        ended = (await acme.ask("hi"))[-1][1]["request_id"]
        why = "no in-flight request with that id"
        for id in (ended, "nothing"):
            answer = await acme("POST", f"/v1/requests/{id}/cancel")
            assert answer.status == 404
            assert answer.json == {"error": why, "request_id": id, "cancelled": False, "reason": why}


async def test_a_cancel_ends_the_streams_of_the_agents_that_were_asked_too() -> None:
    never = asyncio.Event()
    model = ScriptedModel(by_agent({"Index": ["/agent scout look"], "Scout": [("hm", never)]}))
    async with house(model=model) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        running = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await running.until(lambda: b"event: agent_start" in running.body)
        await acme("POST", f"/v1/requests/{running.headers['x-request-id']}/cancel")
        received = events(await running.end())
        assert received[-1][1]["error_code"] == "cancelled"
        assert all_ended(received)
        ends = [payload for kind, payload in received if kind == "stream_end"]
        assert {"agent": "scout", "stream_id": 1, "ok": False} in ends


async def test_an_agent_that_raises_ends_its_stream() -> None:
    def broken(prompt: Any) -> str:
        raise RuntimeError("a secret")

    async with house(broken) as hub:
        acme = await hub.tenant("acme")
        received = await acme.ask("go")
        assert all_ended(received)
        assert received[-1][1]["error_code"] == "internal_error"
        assert "secret" not in str(received)


async def test_a_head_request_of_a_stream_does_not_wait() -> None:
    never = asyncio.Event()
    async with house([("hm", never)]) as hub:
        acme = await hub.tenant("acme")
        running = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await running.until(lambda: b"event: text" in running.body)
        id = running.headers["x-request-id"]
        answer = await acme("HEAD", f"/v1/requests/{id}/events")
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/event-stream", b"")
        assert (await acme("HEAD", "/v1/requests/nothing/events")).status == 404
        answer = await acme("HEAD", "/v1/notifications/stream")
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/event-stream", b"")
        await acme("POST", f"/v1/requests/{id}/cancel")


async def test_the_label_of_a_command_has_no_content() -> None:
    replies = ["/mem write a secret\n/mem shared write another\n/mem add link 1 refines 2", "So."]
    async with house(replies) as hub:
        acme = await hub.tenant("acme")
        received = await acme.ask("go")
        called = [payload["tool"] for kind, payload in received if kind == "tool_call"]
        assert called == ["mem:write", "mem:shared write", "mem:add link"]
        fed = hub.model.prompts[1].messages[-1].content
        assert fed.count("[END MEMORY]") == 2 and fed.count("[END SHARED MEMORY]") == 1


async def test_a_constitution_is_shown_with_its_defaults(acme: Caller) -> None:
    shown = (await acme("POST", "/v1/agents", {"id": "scout", "advisor": "some/model"})).json
    assert shown["advisor"] == {
        "model": "some/model",
        "mode": "consult",
        "prompt": "",
        "max_redirects": 2,
        "malformed_halts": True,
    }
    assert shown["memory"]["age_half_life_days"] == 90
    assert shown["intent"]["mode"] == "off"


async def test_an_agent_may_be_wrapped_in_agent_def(acme: Caller) -> None:
    assert (await acme("POST", "/v1/agents", {"agent_def": {"id": "scout"}})).status == 201
    refused = await acme("POST", "/v1/agents", {"agent_def": 5})
    assert refused.json["error"] == "an agent definition is a JSON object"


async def test_an_etag_of_any_form_avoids_sending_a_file_again(acme: Caller) -> None:
    await acme("POST", "/v1/conversations", {})
    stored = (await acme("POST", "/v1/conversations/1/artifacts", {"path": "a.txt", "content": "x"})).json
    assert stored["mime_type"] == "text/plain"
    etag = (await acme("GET", "/v1/artifacts/1/raw")).headers["etag"]
    for sent in (etag, etag.strip('"'), "*", f"W/{etag}", f'"other", {etag}'):
        assert (await acme("GET", "/v1/artifacts/1/raw", if_none_match=sent)).status == 304, sent
    assert (await acme("GET", "/v1/artifacts/1/raw", if_none_match='"other"')).status == 200


async def test_the_notes_that_agents_share_can_be_read() -> None:
    async with house(["/mem shared write for all\n/mem write for me", "So."]) as hub:
        acme = await hub.tenant("acme")
        await acme.ask("go")
        listed = (await acme("GET", "/v1/memory")).json["scratchpads"]
        assert [each["agent_id"] for each in listed] == ["", "index"]
        shared = (await acme("GET", "/v1/memory/*")).json
        assert shared["agent_id"] == "" and "for all" in shared["content"]
        assert "for me" in (await acme("GET", "/v1/memory/index")).json["content"]

"""A hub as its callers see it, where that was not what the documents say: streams that end, replays, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from dragoman.hub.models import ModelError
from tests.hub.house import SCOUT, Caller, House, events, house, message
from tests.hub.scripted import ScriptedModel, by_agent


@pytest.fixture
async def home() -> AsyncIterator[House]:
    async with house(lambda prompt: "All is well.") as opened:
        yield opened


@pytest.fixture
async def ada(home: House) -> Caller:
    return await home.tenant("ada")


def paired(received: list[tuple[str, Any]]) -> bool:
    """Every stream that began has ended, once."""
    begun = sorted(payload["stream_id"] for kind, payload in received if kind == "stream_start")
    ended = sorted(payload["stream_id"] for kind, payload in received if kind == "stream_end")
    return begun == ended != []


# -- streams end --------------------------------------------------------------------------------------------------


async def test_a_cancel_ends_the_streams_of_the_agents_that_were_asked_too() -> None:
    never = asyncio.Event()
    model = ScriptedModel(by_agent({"Index": ["/agent scout look"], "Scout": [("hm", never)]}))
    async with house(model=model) as home:
        ada = await home.tenant("ada")
        await ada("POST", "/v1/agents", SCOUT)
        running = ada.open("POST", "/v1/orchestrate", {"message": "go"})
        await running.until(lambda: b"event: agent_start" in running.body)
        await ada("POST", f"/v1/requests/{running.headers['x-request-id']}/cancel")
        received = events(await running.end())
        assert received[-1][1]["error_code"] == "cancelled"
        assert paired(received)
        ends = [payload for kind, payload in received if kind == "stream_end"]
        assert {"agent": "scout", "stream_id": 1, "ok": False} in ends


async def test_an_agent_that_breaks_down_ends_its_stream() -> None:
    def broken(prompt: Any) -> str:
        raise RuntimeError("a secret of the house")

    async with house(broken) as home:
        ada = await home.tenant("ada")
        received = await ada.ask("go")
        assert paired(received)
        assert received[-1][1]["error_code"] == "internal_error"
        assert "secret" not in str(received)


# -- Arbiter's dialect ----------------------------------------------------------------------------------------------


async def test_a_repeated_streamed_message_streams_from_the_start(ada: Caller) -> None:
    first = (await ada.rpc("index", "message/stream", message("hi"))).results()
    again = (await ada.rpc("index", "message/stream", message("hi"))).results()
    assert again == first
    assert again[0]["status"]["state"] == "working" and again[0]["final"] is False
    pieces = [each for each in again if each["kind"] == "artifact-update"]
    assert [each["append"] for each in pieces] == [False] + [True] * (len(pieces) - 1)
    assert "".join(part["text"] for each in pieces for part in each["artifact"]["parts"]) == "All is well."
    assert pieces[-1]["lastChunk"] is True
    assert again[-1]["status"]["state"] == "completed" and again[-1]["final"] is True


async def test_a_subscription_to_a_finished_task_gets_only_its_end(ada: Caller) -> None:
    task = (await ada.rpc("index", "message/send", message("hi"))).json["result"]
    received = (await ada.rpc("index", "tasks/resubscribe", {"id": task["id"]})).results()
    assert [(each["status"]["state"], each["final"]) for each in received] == [("completed", True)]


async def test_an_answer_that_came_in_pieces_is_one_text_in_the_task(ada: Caller) -> None:
    task = (await ada.rpc("index", "message/send", message("hi"))).json["result"]
    assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "All is well."}]
    again = (await ada.rpc("index", "tasks/get", {"id": task["id"]})).json["result"]
    assert again["artifacts"] == task["artifacts"]


async def test_a_canceled_stream_ends_with_a_word_about_it() -> None:
    never = asyncio.Event()
    async with house([("Half an answer", never)]) as home:
        ada = await home.tenant("ada")
        running = ada.open_rpc("index", "message/stream", message("hi"))
        await running.until(lambda: b"answer" in running.body)
        id = running.results()[0]["taskId"]
        canceled = (await ada.rpc("index", "tasks/cancel", {"id": id})).json["result"]
        assert canceled["status"]["state"] == "canceled" and "message" not in canceled["status"]
        end = (await running.end()).results()[-1]
        assert end["status"]["state"] == "canceled" and end["final"] is True
        assert end["status"]["message"]["messageId"] == f"{id}-err"
        assert end["status"]["message"]["parts"][0]["text"] == "The task was canceled."


async def test_the_history_of_a_task_that_failed_is_what_was_asked() -> None:
    async with house([ModelError("auth_failed", "the provider does not know us")]) as home:
        ada = await home.tenant("ada")
        task = (await ada.rpc("index", "message/send", message("hi"))).json["result"]
        assert task["status"]["state"] == "failed"
        assert [each["role"] for each in task["history"]] == ["user"]
        assert task["metadata"]["x-arbiter.error_type"] == "auth_failed"


@pytest.mark.parametrize("member", ["messageId", "contextId", "taskId"])
async def test_an_id_in_a_message_is_a_string(ada: Caller, member: str) -> None:
    for method in ("message/send", "message/stream"):
        params = message("hi")
        params["message"][member] = 5
        assert (await ada.rpc("index", method, params)).json["error"]["code"] == -32602


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/resubscribe"])
async def test_the_id_of_a_task_is_a_string(ada: Caller, method: str) -> None:
    assert (await ada.rpc("index", method, {"id": 5})).json["error"]["code"] == -32602


# -- the native API -------------------------------------------------------------------------------------------------


async def test_an_etag_of_any_form_avoids_sending_a_file_again(ada: Caller) -> None:
    await ada("POST", "/v1/conversations", {})
    kept = (await ada("POST", "/v1/conversations/1/artifacts", {"path": "a.txt", "content": "x"})).json
    assert kept["mime_type"] == "text/plain"
    etag = (await ada("GET", "/v1/artifacts/1/raw")).headers["etag"]
    for known in (etag, etag.strip('"'), "*", f"W/{etag}", f'"other", {etag}'):
        assert (await ada("GET", "/v1/artifacts/1/raw", if_none_match=known)).status == 304, known
    assert (await ada("GET", "/v1/artifacts/1/raw", if_none_match='"other"')).status == 200


async def test_a_constitution_is_shown_with_all_that_it_leaves_unsaid(ada: Caller) -> None:
    shown = (await ada("POST", "/v1/agents", {"id": "scout", "advisor": "some/model"})).json
    assert shown["advisor"] == {
        "model": "some/model",
        "mode": "consult",
        "prompt": "",
        "max_redirects": 2,
        "malformed_halts": True,
    }
    assert shown["memory"]["age_half_life_days"] == 90
    assert shown["intent"]["mode"] == "off"


async def test_an_agent_that_breaks_down_is_an_error_to_who_waits_and_a_failed_task_to_everybody_else() -> (
    None
):
    def broken(prompt: Any) -> str:
        raise RuntimeError("a secret of the house")

    async with house(broken) as home:
        ada = await home.tenant("ada")
        answer = (await ada.rpc("index", "message/send", message("hi"))).json
        assert answer["error"]["code"] == -32006
        assert "secret" not in str(answer)
        request = (await ada("GET", "/v1/requests")).json["requests"][0]
        assert (request["state"], request["error_message"]) == ("failed", "the agent broke down")
        task = (await ada.rpc("index", "tasks/get", {"id": request["request_id"]})).json["result"]
        assert task["status"]["state"] == "failed"
        assert task["metadata"]["x-arbiter.error_type"] == "internal_error"
        end = (await ada.rpc("index", "message/stream", message("ho", "m-2"))).results()[-1]
        assert (end["status"]["state"], end["final"]) == ("failed", True)
        assert end["status"]["message"]["messageId"] == f"{end['taskId']}-err"
        body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
        newer = await ada.rpc("index", "SendMessage", body, a2a_version="1.0")
        assert newer.json["result"]["task"]["status"]["state"] == "TASK_STATE_FAILED"


async def test_a_definition_that_is_wrapped_is_an_object_too(ada: Caller) -> None:
    assert (await ada("POST", "/v1/agents", {"agent_def": {"id": "scout"}})).status == 201
    refused = await ada("POST", "/v1/agents", {"agent_def": 5})
    assert refused.json["error"] == "an agent definition is a JSON object"


async def test_the_label_of_a_command_has_no_content() -> None:
    replies = ["/mem write a secret\n/mem shared write another\n/mem add link 1 refines 2", "So."]
    async with house(replies) as home:
        ada = await home.tenant("ada")
        received = await ada.ask("go")
        called = [payload["tool"] for kind, payload in received if kind == "tool_call"]
        assert called == ["mem:write", "mem:shared write", "mem:add link"]
        fed = home.model.prompts[1].messages[-1].content
        assert fed.count("[END MEMORY]") == 2 and fed.count("[END SHARED MEMORY]") == 1


# -- agents that are code -------------------------------------------------------------------------------------------

WORKER = Agent("Worker", description="Works")


@WORKER.skill
async def work(text: str, turn: Turn) -> str:
    """Repeat it, as a file too."""
    await turn.artifact("copy").write(text)
    return f"done: {text}"


async def test_an_agent_that_is_code_gets_the_task_and_nothing_around_it() -> None:
    async with house(["/agent worker sweep the floor", "So."], code=[WORKER]) as home:
        ada = await home.tenant("ada")
        received = await ada.ask("go")
        answers = [payload["content"] for kind, payload in received if kind == "sub_agent_response"]
        assert answers == ["sweep the floor\ndone: sweep the floor"]


async def test_a_delegated_agent_gets_the_original_request() -> None:
    async with house(by_agent({"Index": ["/agent scout look", "So."], "Scout": ["seen"]})) as home:
        ada = await home.tenant("ada")
        await ada("POST", "/v1/agents", SCOUT)
        await ada.ask("what is there?")
        asked = home.model.prompts[1].messages[-1].content
        assert asked.startswith(
            "[DELEGATION CONTEXT]\n| original request: what is there?\n| delegated by: index\n"
        )
        assert asked.endswith("[END DELEGATION CONTEXT]\nlook")


async def test_artifacts_of_python_agents_are_separate_lines_of_the_answer() -> None:
    async with house(code=[WORKER]) as home:
        ada = await home.tenant("ada")
        received = await ada.ask("sweep", "/v1/agents/worker/chat")
        assert received[-1][1]["content"] == "sweep\ndone: sweep"


async def test_a_task_of_an_0_1_client_is_answered_in_its_dialect(ada: Caller) -> None:
    asked = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
    made = (await ada.rpc("index", "tasks/send", {"id": "t-1", "message": asked})).json["result"]
    got = (await ada.rpc("index", "tasks/get", {"id": "t-1"})).json["result"]
    assert "sessionId" in got and "kind" not in got
    assert got["artifacts"] == made["artifacts"]
    refused = (await ada.rpc("index", "tasks/cancel", {"id": "t-1"})).json["error"]
    assert refused["code"] == -32002


async def test_code_that_raises_is_an_error_to_who_waits_and_code_that_refuses_is_not() -> None:
    agent = Agent("Odd", description="Fails in several ways")

    @agent.skill
    async def fail(text: str, turn: Turn) -> str:
        if text == "reject":
            turn.reject("not today")
        raise RuntimeError("a secret of the house")

    async with house(code=[agent]) as home:
        ada = await home.tenant("ada")
        answer = (await ada.rpc("odd", "message/send", message("raise"))).json
        assert answer["error"]["code"] == -32006 and "secret" not in str(answer)
        answer = (await ada.rpc("odd", "message/send", message("reject", "m-2"))).json
        assert answer["result"]["status"]["state"] == "rejected"


async def test_events_of_delegated_agents_are_numbered() -> None:
    script: dict[str, Any] = {
        "Index": ["/agent scout look", "So."],
        "Scout": ["/todo list\n/todo list", "seen"],
    }
    async with house(by_agent(script)) as home:
        ada = await home.tenant("ada")
        await ada("POST", "/v1/agents", SCOUT)
        task = (await ada.rpc("index", "message/send", message("go"))).json["result"]
        ids = [each["artifactId"].removeprefix(task["id"]) for each in task["artifacts"]]
        assert ids == ["-tool-100000", "-tool-100001", "-sub-1", "-tool-0", "-text-0"]


async def test_a_head_request_of_a_stream_does_not_wait() -> None:
    never = asyncio.Event()
    async with house([("hm", never)]) as home:
        ada = await home.tenant("ada")
        running = ada.open("POST", "/v1/orchestrate", {"message": "go"})
        await running.until(lambda: b"event: text" in running.body)
        id = running.headers["x-request-id"]
        answer = await ada("HEAD", f"/v1/requests/{id}/events")
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/event-stream", b"")
        assert (await ada("HEAD", "/v1/requests/nothing/events")).status == 404
        answer = await ada("HEAD", "/v1/notifications/stream")
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/event-stream", b"")
        await ada("POST", f"/v1/requests/{id}/cancel")


async def test_a_resubscription_names_its_last_event_in_the_params_or_a_header(ada: Caller) -> None:
    first = await ada.rpc("index", "message/stream", message("hi"))
    id, seen = first.results()[0]["taskId"], first.frames()[1].id
    by_header = await ada.rpc("index", "tasks/resubscribe", {"id": id}, last_event_id=seen)
    by_params = await ada.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": int(seen)})
    assert by_params.body == by_header.body
    updates = [each for each in by_params.results() if each["kind"] == "artifact-update"]
    missed = [each for each in updates if "-meta-" not in each["artifact"]["artifactId"]]
    assert missed == [each for each in first.results()[2:] if each["kind"] == "artifact-update"]
    for wrong in ("7", -1, 1.5, True):
        refused = await ada.rpc("index", "tasks/resubscribe", {"id": id, "sinceSeq": wrong})
        assert refused.json["error"]["code"] == -32602


async def test_the_notes_that_agents_share_can_be_read() -> None:
    async with house(["/mem shared write for all\n/mem write for me", "So."]) as home:
        ada = await home.tenant("ada")
        await ada.ask("go")
        listed = (await ada("GET", "/v1/memory")).json["scratchpads"]
        assert [each["agent_id"] for each in listed] == ["", "index"]
        shared = (await ada("GET", "/v1/memory/*")).json
        assert shared["agent_id"] == "" and "for all" in shared["content"]
        assert "for me" in (await ada("GET", "/v1/memory/index")).json["content"]

"""What versions before 1.0 demanded of a server, put to a whole one over sockets (see `test_requirements.py`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.auth import Bearer
from dragoman.model.card import Extension
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests import raw
from tests.push.webhook import Receiver
from tests.requirements import older
from tests.spec.speakers import Document
from tests.spec.test_requirements import ALICE, EXTENSION, PUSH, TOKENS, agent_of, fetch


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with running(application(agent_of(), store="memory:", push=PUSH)) as url:
        yield url


def task(id: str, text: str, **more: Any) -> Document:
    """`tasks/send`, as 0.1 has it."""
    return {"id": id, "message": {"role": "user", "parts": [{"type": "text", "text": text}]}, **more}


def message(text: str, **more: Any) -> Document:
    """`message/send`, as 0.2 and 0.3 have it."""
    parts = [{"kind": "text", "text": text}]
    return {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": parts, **more}}


async def call(url: str, method: str, params: Document) -> Document:
    return await raw.call(url, method, params, a2a_version="")


async def result(url: str, method: str, params: Document) -> Document:
    said = await call(url, method, params)
    assert "result" in said, said
    made: Document = said["result"]
    return made


async def streamed(url: str, method: str, params: Document) -> list[Document]:
    heard = []
    async for event in raw.stream(url, method, params, a2a_version=""):
        assert event.document["id"] == 1 and event.document["jsonrpc"] == "2.0"
        heard.append(event.result)
    return heard


# --- 0.1 and the draft


@older("X1", "X2", "X3")
async def test_in_0_1_the_client_names_the_task_and_goes_on_with_that_name(url: str) -> None:
    asked = await result(url, "tasks/send", task("my-task", "ask"))
    assert asked["id"] == "my-task" and asked["status"]["state"] == "input-required" and asked["sessionId"]
    done = await result(url, "tasks/send", task("my-task", "a cat"))
    assert done["id"] == "my-task" and done["status"]["state"] == "completed"
    assert done["sessionId"] == asked["sessionId"]
    kept = await result(url, "tasks/send", task("other", "hi", sessionId="my-session"))
    assert kept["sessionId"] == "my-session"


@older("X4", "X5", "X16")
async def test_a_finished_task_is_not_reopened(url: str) -> None:
    await result(url, "tasks/send", task("t", "hi"))
    again = await call(url, "tasks/send", task("t", "more"))
    assert again["error"]["code"] == -32009
    assert (await result(url, "tasks/get", {"id": "t"}))["status"]["state"] == "completed"


@older("X6", "X7")
@pytest.mark.parametrize(("text", "end"), [("hi", "completed"), ("ask", "input-required")])
async def test_the_last_event_of_a_stream_is_final_and_each_has_the_id_of_the_request(
    url: str, text: str, end: str
) -> None:
    events = await streamed(url, "tasks/sendSubscribe", task("t", text))
    assert events[-1]["final"] is True and events[-1]["status"]["state"] == end
    assert not any(event.get("final") for event in events[:-1])


@older("X8")
async def test_0_1_gives_history_only_to_those_who_ask(url: str) -> None:
    await result(url, "tasks/send", task("t", "ask"))
    await result(url, "tasks/send", task("t", "a cat"))
    assert not (await result(url, "tasks/get", {"id": "t"})).get("history")
    assert len((await result(url, "tasks/get", {"id": "t", "historyLength": 1}))["history"]) == 1


@older("X13", "X15")
async def test_a_webhook_of_0_1_gets_the_task_with_the_token_in_a_header(url: str) -> None:
    async with Receiver() as hook:
        config = {"url": hook.url, "token": "my-token"}
        await result(url, "tasks/send", task("t", "hi", pushNotification=config))
        (received, *_) = await hook.wait_for(1)
        assert received.headers["x-a2a-notification-token"] == "my-token"
        assert "t" in (received.document.get("id"), received.document.get("taskId"))
        assert received.document["status"]["state"] == "completed"


@older("X16")
async def test_0_1_has_a_code_of_its_own_for_an_agent_that_does_not_stream() -> None:
    async with running(application(agent_of(streaming=False), store="memory:")) as url:
        with pytest.raises(raw.Refused) as caught:
            await streamed(url, "tasks/sendSubscribe", task("t", "hi"))
        assert caught.value.error["code"] == -32006


# --- 0.2 and 0.3


@older("X21", "X30", "X32")
async def test_the_core_methods_of_0_3_are_there_and_every_object_says_its_kind(url: str) -> None:
    made = await result(url, "message/send", message("ask"))
    assert made["kind"] == "task" and made["status"]["message"]["kind"] == "message"
    assert made["history"] and all(each["kind"] == "message" for each in made["history"])
    assert (await result(url, "tasks/get", {"id": made["id"]}))["id"] == made["id"]
    canceled = await result(url, "tasks/cancel", {"id": made["id"]})
    assert canceled["status"]["state"] == "canceled"
    done = await result(url, "message/send", message("hi"))
    assert done["artifacts"][0]["parts"][0] == {"kind": "text", "text": "hi"}


@older("X21", "X7")
async def test_streams_of_0_3_say_which_status_is_final(url: str) -> None:
    events = await streamed(url, "message/stream", message("one two"))
    assert {event["kind"] for event in events} == {"task", "status-update", "artifact-update"}
    statuses = [event for event in events if event["kind"] == "status-update"]
    assert [event["final"] for event in statuses] == [False] * (len(statuses) - 1) + [True]


@older("X23")
async def test_a_finished_task_of_0_3_takes_no_messages_and_cannot_be_canceled(url: str) -> None:
    made = await result(url, "message/send", message("hi"))
    assert "error" in await call(url, "message/send", message("more", taskId=made["id"]))
    assert (await call(url, "tasks/cancel", {"id": made["id"]}))["error"]["code"] == -32002
    assert (await call(url, "tasks/get", {"id": "none"}))["error"]["code"] == -32001


@older("X22")
async def test_the_extended_card_of_0_2_is_at_an_address() -> None:
    path = "/agent/authenticatedExtendedCard"
    async with running(
        application(agent_of(auth=[Bearer(TOKENS)], extended_card=[]), store="memory:")
    ) as url:
        response, _ = await fetch(url + path, "GET", b"", a2a_version="")
        assert response.status == 401 and response.headers["www-authenticate"].startswith("Bearer")
        response, body = await fetch(url + path, "GET", b"", a2a_version="", authorization=ALICE)
        assert response.status == 200 and json.loads(body)["name"] == "Conformer"
    async with running(application(agent_of(), store="memory:")) as url:
        response, _ = await fetch(url + path, "GET", b"", a2a_version="")
        assert response.status == 404


@older("X24")
async def test_a_push_config_may_be_asked_for_without_its_id(url: str) -> None:
    made = await result(url, "message/send", message("ask"))
    config = {"url": "http://127.0.0.1:9/", "id": "c"}
    await result(
        url, "tasks/pushNotificationConfig/set", {"taskId": made["id"], "pushNotificationConfig": config}
    )
    got = await result(url, "tasks/pushNotificationConfig/get", {"id": made["id"]})
    assert got["pushNotificationConfig"]["url"] == config["url"]


@older("X25")
async def test_extensions_of_0_3_have_a_header_with_an_x() -> None:
    async with running(application(agent_of(extensions=[Extension(uri=EXTENSION)]), store="memory:")) as url:
        body = raw.rpc("message/send", message("hi"))
        response, _ = await fetch(url, "POST", body, a2a_version="", x_a2a_extensions=EXTENSION)
        assert response.headers["x-a2a-extensions"] == EXTENSION


@older("X11", "X26")
async def test_the_card_of_0_3_names_its_transports_the_main_one_among_them(url: str) -> None:
    card = await raw.get(url + "/.well-known/agent-card.json", a2a_version="")
    assert card["protocolVersion"].startswith("0.3") and card["preferredTransport"] == "JSONRPC"
    listed = [(each["transport"], each["url"]) for each in card["additionalInterfaces"]]
    assert (card["preferredTransport"], card["url"]) in listed
    assert card["defaultInputModes"] and card["defaultOutputModes"]
    assert (await raw.get(url + "/.well-known/agent.json", a2a_version=""))["url"] == card["url"]
    assert "result" in await call(card["url"], "message/send", message("hi"))


@older("X28")
async def test_http_of_0_3_is_below_v1_and_plain_json(url: str) -> None:
    said = {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "ask"}]}}
    response, body = await fetch(url + "/v1/message:send", "POST", json.dumps(said).encode(), a2a_version="")
    assert response.status == 200 and response.headers["content-type"].startswith("application/json")
    made = json.loads(body)["task"]
    response, body = await fetch(f"{url}/v1/tasks/{made['id']}", "GET", b"", a2a_version="")
    assert response.status == 200 and json.loads(body)["id"] == made["id"]

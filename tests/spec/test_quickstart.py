"""The quickstart of the official SDK, ported by changing its imports: what it says will happen happens, on the wire."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from tests import raw
from tests.spec import quickstart
from tests.waiting import until


@asynccontextmanager
async def serving(make: Callable[[], Any]) -> AsyncIterator[str]:
    """Served as the quickstart does it: by uvicorn."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make(), lifespan="on", log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(10):
            await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()


def user_message(text: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "parts": [{"type": "text", "text": text}], "messageId": "0f1e2d3c", **more}
    return {"message": message}


async def test_hello_world_answers_with_the_message_the_quickstart_shows() -> None:
    async with serving(quickstart.hello_world) as url:
        response = await raw.call(
            url, "message/send", user_message("how much is 10 USD in INR?"), a2a_version=""
        )
    result = response["result"]
    assert response["jsonrpc"] == "2.0" and response["id"] == 1
    assert result.pop("messageId")
    result.pop("contextId", None)
    assert result == {"type": "message", "role": "agent", "parts": [{"type": "text", "text": "Hello World"}]}


async def test_hello_world_streams_one_chunk_that_is_final() -> None:
    async with serving(quickstart.hello_world) as url:
        stream = raw.stream(url, "message/stream", user_message("how much is 10 USD in INR?"), a2a_version="")
        chunks = [event.result async for event in stream]
    (chunk,) = chunks
    assert chunk.pop("messageId")
    chunk.pop("contextId", None)
    assert chunk == {
        "type": "message",
        "role": "agent",
        "parts": [{"type": "text", "text": "Hello World"}],
        "final": True,
    }


async def test_hello_world_says_who_it_is_where_the_quickstart_looks() -> None:
    async with serving(quickstart.hello_world) as url:
        card = await raw.get(f"{url}/.well-known/agent.json", a2a_version="")
    assert card["name"] == "Hello World Agent" and card["version"] == "1.0.0"
    assert card["url"].rstrip("/") == url
    assert card["capabilities"]["streaming"] is True
    assert [skill["id"] for skill in card["skills"]] == ["hello_world"]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_quickstart_agent_serves_every_version(version: str) -> None:
    role, discriminator = ("ROLE_USER", {}) if version == "1.0" else ("user", {"kind": "text"})
    message = {"role": role, "parts": [{**discriminator, "text": "hi"}], "messageId": "m"}
    method = "SendMessage" if version == "1.0" else "message/send"
    async with serving(quickstart.hello_world) as url:
        result = await raw.result(url, method, {"message": message}, a2a_version=version)
    answer = result["message"] if version == "1.0" else result
    assert answer["parts"][0]["text"] == "Hello World"


async def test_the_currency_agent_answers_in_a_single_turn_with_a_task_that_can_be_had_again() -> None:
    async with serving(quickstart.currency) as url:
        task = await raw.result(
            url, "message/send", user_message("how much is 10 USD in INR?"), a2a_version=""
        )
        again = await raw.result(url, "tasks/get", {"id": task["id"]}, a2a_version="")
    assert task["type"] == "task" and task["status"]["state"] == "completed"
    (artifact,) = task["artifacts"]
    assert artifact["name"] == "current_result" and artifact["description"] == "Result of request to agent."
    assert artifact["parts"] == [{"type": "text", "text": "10 USD is 855.6 INR"}]
    assert again == task


async def test_the_currency_agent_streams_its_progress_then_an_artifact_then_the_end() -> None:
    async with serving(quickstart.currency) as url:
        stream = raw.stream(url, "message/stream", user_message("how much is 10 USD in INR?"), a2a_version="")
        events = [event.result async for event in stream]
    progress = [
        event["status"]["message"]["parts"][0]["text"]
        for event in events
        if event["type"] == "status-update" and "message" in event["status"]
    ]
    assert progress == ["Looking up the exchange rates...", "Processing the exchange rates.."]
    *before, artifact, last = events
    assert artifact["type"] == "artifact-update" and artifact["lastChunk"] is True
    assert artifact["artifact"]["parts"][0]["text"] == "10 USD is 855.6 INR"
    assert last["type"] == "status-update" and last["status"]["state"] == "completed"
    assert last["final"] is True
    assert not any(event.get("final") for event in before)


async def test_the_currency_agent_asks_and_goes_on_with_the_same_task() -> None:
    async with serving(quickstart.currency) as url:
        first = await raw.result(url, "message/send", user_message("how much is 100 USD?"), a2a_version="")
        assert first["status"]["state"] == "input-required"
        question = first["status"]["message"]["parts"][0]["text"]
        assert question == "To which currency would you like to convert?"
        answer = user_message("in GBP", taskId=first["id"], contextId=first["contextId"])
        second = await raw.result(url, "message/send", answer, a2a_version="")
    assert second["id"] == first["id"] and second["status"]["state"] == "completed"
    assert second["artifacts"][0]["parts"][0]["text"] == "100 USD is 74.91 GBP"


async def test_the_question_of_the_currency_agent_ends_its_stream() -> None:
    async with serving(quickstart.currency) as url:
        stream = raw.stream(url, "message/stream", user_message("how much is 100 USD?"), a2a_version="")
        events = [event.result async for event in stream]
    assert events[-1]["status"]["state"] == "input-required" and events[-1]["final"] is True

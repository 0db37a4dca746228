"""The binding on the real engine: streams that break off and go on, several readers, every dialect at one URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dragoman import Agent, Turn
from dragoman.server.app import App
from dragoman.server.application import application
from tests.server.test_fuzz import requests
from tests.server.test_legacy import OLD, SEND
from tests.server.wire import HELLO, Answer, open_request, open_rpc, request, rpc

V1 = {"A2A-Version": "1.0"}


class Gate:
    """Lets the agent write one chunk per opening."""

    def __init__(self) -> None:
        self.openings = asyncio.Semaphore(0)

    def open(self, times: int = 1) -> None:
        for _ in range(times):
            self.openings.release()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def app(gate: Gate) -> AsyncIterator[App]:
    agent = Agent("Counter", description="Counts")

    @agent.skill
    async def count(turn: Turn) -> AsyncIterator[str]:
        """Counts to five, when told to."""
        if "what" in turn.text:
            await turn.ask("How far?")
        for n in range(1, 6):
            if "slowly" in turn.text:
                await gate.openings.acquire()
            yield f"{n} "

    app = application(agent, store="memory:")
    await app.start()
    yield app
    await app.stop()


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"message": {**HELLO["message"], "parts": [{"text": text}], **more}}


def task_id(answer: Answer) -> str:
    id = answer.results()[0]["task"]["id"]
    assert isinstance(id, str)
    return id


def ids(answer: Answer) -> list[int]:
    return [int(frame.id) for frame in answer.frames() if frame.id]


def text(results: list[Any]) -> str:
    """What a reader has put together from the events it saw."""
    whole = ""
    for result in results:
        if "task" in result:
            artifacts = result["task"].get("artifacts", [])
            whole = "".join(part["text"] for artifact in artifacts for part in artifact["parts"])
        elif "artifactUpdate" in result:
            update = result["artifactUpdate"]
            chunk = "".join(part["text"] for part in update["artifact"]["parts"])
            whole = whole + chunk if update.get("append") else chunk
    return whole


async def test_a_blocking_send_returns_the_finished_task(app: App) -> None:
    task = (await rpc(app, "SendMessage", say("go"), headers=V1)).json["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"]
    again = (await rpc(app, "GetTask", {"id": task["id"]}, headers=V1)).json["result"]
    assert again == task


async def test_a_stream_begins_with_the_task_and_ends_with_its_end(app: App) -> None:
    answer = await rpc(app, "SendStreamingMessage", say("go"), headers=V1)
    results = answer.results()
    assert "task" in results[0]
    assert results[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text(results) == "1 2 3 4 5 "
    assert ids(answer) == sorted(set(ids(answer)))


async def test_a_reader_that_drops_out_misses_nothing_and_sees_nothing_twice(app: App, gate: Gate) -> None:
    first = open_rpc(app, "SendStreamingMessage", say("slowly"), headers=V1)
    await first.until(lambda: bool(first.sends))
    gate.open(2)
    await first.until(lambda: "2 " in text(first.results()))
    first.gone.set()
    await first.end()
    gate.open(3)
    headers = {**V1, "Last-Event-ID": str(ids(first)[-1])}
    second = await rpc(app, "SubscribeToTask", {"id": task_id(first)}, headers=headers)
    assert text(first.results() + second.results()) == "1 2 3 4 5 "
    seen = ids(first) + ids(second)
    assert seen == sorted(set(seen))


async def test_a_reader_that_comes_back_after_the_end_gets_the_rest(app: App) -> None:
    whole = await rpc(app, "SendStreamingMessage", say("go"), headers=V1)
    for n in range(len(ids(whole))):
        headers = {**V1, "Last-Event-ID": str(ids(whole)[n])}
        rest = await rpc(app, "SubscribeToTask", {"id": task_id(whole)}, headers=headers)
        assert rest.status == 200
        assert [frame.data for frame in rest.frames()] == [frame.data for frame in whole.frames()][n + 1 :]


async def test_several_readers_see_the_same_events_in_the_same_order(app: App, gate: Gate) -> None:
    first = open_rpc(app, "SendStreamingMessage", say("slowly"), headers=V1)
    await first.until(lambda: bool(first.sends))
    others = [open_rpc(app, "SubscribeToTask", {"id": task_id(first)}, headers=V1) for _ in range(5)]
    for other in others:
        await other.until(lambda other=other: bool(other.sends))  # type: ignore[misc]
    gate.open(5)
    for answer in (first, *others):
        await answer.end()
    assert all(text(answer.results()) == "1 2 3 4 5 " for answer in (first, *others))
    tails = [answer.frames()[-3:] for answer in (first, *others)]
    assert all(tail == tails[0] for tail in tails)


async def test_the_end_of_the_reading_is_not_the_end_of_the_task(app: App, gate: Gate) -> None:
    answer = open_rpc(app, "SendStreamingMessage", say("slowly"), headers=V1)
    await answer.until(lambda: bool(answer.sends))
    answer.gone.set()
    await answer.end()
    gate.open(5)
    rest = await rpc(app, "SubscribeToTask", {"id": task_id(answer)}, headers={**V1, "Last-Event-ID": "1"})
    assert rest.results()[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_canceling_ends_every_reader(app: App) -> None:
    answer = open_rpc(app, "SendStreamingMessage", say("slowly"), headers=V1)
    await answer.until(lambda: bool(answer.sends))
    canceled = await rpc(app, "CancelTask", {"id": task_id(answer)}, headers=V1)
    assert canceled.json["result"]["status"]["state"] == "TASK_STATE_CANCELED"
    await answer.end()
    assert answer.results()[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_question_ends_the_stream_and_its_answer_begins_another(app: App) -> None:
    asked = await rpc(app, "SendStreamingMessage", say("what"), headers=V1)
    assert asked.results()[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    received = await rpc(app, "SendStreamingMessage", say("go", taskId=task_id(asked)), headers=V1)
    assert received.results()[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_question_to_an_older_caller_is_final_and_its_answer_goes_on(app: App) -> None:
    message = {**SEND["message"], "parts": [{"kind": "text", "text": "what"}]}
    asked = (await rpc(app, "message/stream", {"message": message})).results()
    assert asked[-1]["final"] is True and asked[-1]["status"]["state"] == "input-required"
    answer = {**SEND["message"], "messageId": "m2", "taskId": asked[0]["id"]}
    received = (await rpc(app, "message/stream", {"message": answer})).results()
    assert [result["final"] for result in received if "final" in result][-1] is True
    assert received[-1]["status"]["state"] == "completed"


async def test_one_url_serves_every_dialect(app: App) -> None:
    new = (await rpc(app, "SendMessage", say("go"), headers=V1)).json["result"]["task"]
    v0_3 = (await rpc(app, "message/send", SEND)).json["result"]
    v0_1 = (await rpc(app, "tasks/send", OLD)).json["result"]
    arbiter = (await rpc(app, "message/send", SEND, headers=V1)).json["result"]
    assert new["status"]["state"] == "TASK_STATE_COMPLETED"
    assert v0_3["kind"] == "task" and v0_3["status"]["state"] == "completed"
    assert v0_1["id"] == "t1" and v0_1["status"]["state"] == "completed" and "kind" not in v0_1
    assert arbiter["kind"] == "task" and arbiter["status"]["message"]["role"] == "agent"
    old = (await rpc(app, "tasks/get", {"id": "t1"})).json["result"]
    assert "kind" not in old and old["id"] == "t1"
    late = (await rpc(app, "tasks/resubscribe", {"id": v0_3["id"]})).results()
    assert late[0]["id"] == v0_3["id"] and late[-1]["status"]["state"] == "completed"


async def test_a_stop_ends_streams_and_a_restart_takes_them_up(tmp_path: Any) -> None:
    agent = Agent("Waiter", description="Waits")
    released = asyncio.Event()

    @agent.skill
    async def wait(turn: Turn) -> str:
        """Waits."""
        await released.wait()
        return "done"

    store = f"sqlite:///{tmp_path}/tasks.db"
    before = application(agent, store=store, drain=0)
    answer = open_rpc(before, "SendStreamingMessage", say("go"), headers=V1)
    await answer.until(lambda: bool(answer.sends))
    await before.stop()
    await answer.end()
    assert answer.finished
    released.set()
    after = application(agent, store=store)
    headers = {**V1, "Last-Event-ID": str(ids(answer)[-1])}
    rest = await rpc(after, "SubscribeToTask", {"id": task_id(answer)}, headers=headers)
    assert text(rest.results()) == "done"
    seen = ids(answer) + ids(rest)
    assert seen == sorted(set(seen))
    await after.stop()


@pytest.mark.parametrize("seed", range(100, 104))
async def test_damaged_requests_do_not_damage_the_engine(
    app: App, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    for body, headers in requests(seed, 500):
        answer = open_request(app, "POST", "/", body, headers=headers)
        async with asyncio.timeout(10):
            await answer.end()
        assert answer.status in (200, 415) and b"Traceback" not in answer.body
        documents = (
            [msgspec.json.decode(frame.data) for frame in answer.frames()]
            if answer.headers["content-type"] == "text/event-stream"
            else [answer.json]
        )
        for document in documents:
            assert document.get("error", {}).get("code") != -32603, (body, headers, document)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert (await request(app, "GET", "/healthz")).status == 200

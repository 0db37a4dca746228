"""What operators do to tasks, and what else the API shows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import Agent, Turn
from dragoman.console import AgentConsole
from dragoman.engine import fork
from dragoman.push.options import PushOptions
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.console.conftest import TOKEN, Operator, console_app
from tests.server.wire import request
from tests.waiting import until

STATE = "TASK_STATE_"


async def rows(operator: Operator, query: str = "") -> list[dict[str, Any]]:
    page = await operator.get(f"/tasks{query}")
    found: list[dict[str, Any]] = page["tasks"]
    return found


async def wait_for_state(operator: Operator, key: str, state: str) -> dict[str, Any]:
    async def look() -> dict[str, Any]:
        found: dict[str, Any] = await operator.get(f"/tasks/{key}")
        return found

    found: dict[str, Any] = await until(look, lambda row: row["state"] == STATE + state)
    return found


async def test_a_task_is_shown_as_it_was_at_each_record(operator: Operator) -> None:
    await operator.send("tea")
    (row,) = await rows(operator)
    states = [
        (await operator.get(f"/tasks/{row['key']}/at/{n}"))["status"]["state"]
        for n in range(1, row["records"] + 1)
    ]
    assert states[0] == "TASK_STATE_SUBMITTED" and states[-1] == "TASK_STATE_COMPLETED"
    for n in (0, row["records"] + 1, 10**15):
        assert (await operator("GET", f"/tasks/{row['key']}/at/{n}")).status == 404


async def test_an_event_is_shown_in_every_dialect_and_binding(operator: Operator) -> None:
    await operator.send("tea")
    (row,) = await rows(operator)
    records = (await operator.get(f"/tasks/{row['key']}/records"))["records"]
    artifact = next(record["seq"] for record in records if record["kind"] == "artifact")
    for seq in (1, artifact, row["records"]):
        views = (await operator.get(f"/tasks/{row['key']}/records/{seq}/as"))["views"]
        rpc = {view["dialect"] for view in views if view["binding"] == "JSON-RPC"}
        assert rpc == {"1.0", "0.3", "0.2", "0.2-type", "0.1", "draft", "arbiter"}, seq
        assert {view["dialect"] for view in views if view["binding"] == "HTTP+JSON"} == {"1.0", "0.3"}
        assert {view["dialect"] for view in views if view["binding"] == "gRPC"} == {"1.0", "0.3"}
        assert "hunter2" not in str(views)
        assert all(view["text"] and view["contentType"] for view in views)
    private = next(record["seq"] for record in records if record["kind"] == "turn")
    assert (await operator.get(f"/tasks/{row['key']}/records/{private}/as"))["views"] == []


async def test_a_running_task_is_canceled_and_a_finished_one_is_a_conflict() -> None:
    agent, started = Agent("Slow"), asyncio.Event()

    @agent.skill
    async def slow(turn: Turn) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    async with console_app(agent, drain=0) as (app, _):
        operator = Operator(app)
        sending = asyncio.create_task(operator.send("go"))
        await started.wait()
        (row,) = await until(lambda: rows(operator))
        assert row["node"] and row["leaseExpires"]
        answer = await operator("POST", f"/tasks/{row['key']}/cancel")
        assert (answer.status, answer.json["state"]) == (200, "TASK_STATE_CANCELED")
        assert (await sending)["status"]["state"] == "TASK_STATE_CANCELED"
        again = await operator("POST", f"/tasks/{row['key']}/retry")
        assert again.status == 201
        await wait_for_state(operator, again.json["key"], "WORKING")
        assert (await operator("POST", f"/tasks/{again.json['key']}/retry")).status == 409
        entries = (await operator.get("/audit"))["entries"]
        operations = [
            (e["operation"], e["outcome"], e["principal"]) for e in entries if e["dialect"] == "console"
        ]
        assert ("cancel", "OK", "console:operator") in operations
        assert ("retry", "OK", "console:operator") in operations


async def test_canceling_a_finished_task_is_a_conflict(operator: Operator) -> None:
    await operator.send("tea")
    (row,) = await rows(operator)
    answer = await operator("POST", f"/tasks/{row['key']}/cancel")
    assert (answer.status, answer.json["error"]["code"]) == (409, "CONFLICT")


def counting_agent(calls: list[str], broken: list[bool]) -> Agent:
    agent = Agent("Count")

    @agent.skill
    async def count(turn: Turn) -> AsyncIterator[str]:
        for step in ("a", "b", "c"):
            await turn.step(step, lambda step=step: calls.append(step))
            yield step
        if broken:
            raise RuntimeError("no")

    return agent


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_failed_task_is_retried_with_its_recorded_steps(store: str, tmp_path: Path) -> None:
    calls: list[str] = []
    broken = [True]
    url = "memory:" if store == "memory" else f"sqlite:///{tmp_path}/tasks.db"
    async with console_app(counting_agent(calls, broken), store=url) as (app, _):
        operator = Operator(app)
        task = await operator.send("go")
        assert task["status"]["state"] == "TASK_STATE_FAILED" and calls == ["a", "b", "c"]
        broken.clear()
        (row,) = await rows(operator)
        made = await operator("POST", f"/tasks/{row['key']}/retry")
        done = await wait_for_state(operator, made.json["key"], "COMPLETED")
        assert calls == ["a", "b", "c"], "recorded steps do not run again"
        assert done["id"] != row["id"] and done["task"]["id"] == done["id"]
        assert done["parent"] == {
            "kind": "fork",
            "taskId": row["id"],
            "key": row["key"],
            "record": row["records"] - 1,
        }
        copied = (await operator.get(f"/tasks/{done['key']}/records"))["records"]
        assert row["id"] not in str(copied[1:]), "the copy names itself"
        original = await operator.get(f"/tasks/{row['key']}")
        assert original["state"] == "TASK_STATE_FAILED" and original["records"] == row["records"]


async def test_a_fork_runs_again_what_comes_after_its_record(tmp_path: Path) -> None:
    calls: list[str] = []
    async with console_app(counting_agent(calls, []), store=f"sqlite:///{tmp_path}/tasks.db") as (app, _):
        operator = Operator(app)
        await operator.send("go")
        (row,) = await rows(operator)
        records = (await operator.get(f"/tasks/{row['key']}/records"))["records"]
        first = next(record["seq"] for record in records if record["kind"] == "step")
        assert records[first - 1]["data"]["took"] >= 0
        made = await operator("POST", f"/tasks/{row['key']}/fork", {"record": first})
        assert made.status == 201
        done = await wait_for_state(operator, made.json["key"], "COMPLETED")
        assert calls == ["a", "b", "c", "b", "c"]
        copied = (await operator.get(f"/tasks/{done['key']}/records"))["records"]
        assert [r["kind"] for r in copied[:first]] == [r["kind"] for r in records[:first]]
        assert copied[first]["kind"] == "attempt" and copied[first]["attempt"] == 2
        assert (await operator.get(f"/tasks/{row['key']}"))["task"]["artifacts"] == done["task"]["artifacts"]
        for bad in (0, -1, 10**6):
            assert (await operator("POST", f"/tasks/{row['key']}/fork", {"record": bad})).status == 400
        assert (await operator("POST", f"/tasks/{row['key']}/fork", {"record": "1"})).status == 400


async def test_a_copy_whose_writer_died_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    async with console_app(counting_agent(calls, [])) as (app, _):
        operator = Operator(app)
        await operator.send("go")
        (row,) = await rows(operator)

        async def die(*given: Any) -> None:
            raise RuntimeError("the process died")

        with monkeypatch.context() as patched:
            patched.setattr(fork, "_append", die)
            answer = await operator("POST", f"/tasks/{row['key']}/fork", {"record": row["records"]})
            assert answer.status == 500
        await until(lambda: rows(operator, "?state=TASK_STATE_FAILED"))
        assert calls == ["a", "b", "c"]


async def test_a_turn_that_runs_again_is_a_second_attempt(tmp_path: Path) -> None:
    agent, runs, started = Agent("Twice"), list[int](), asyncio.Event()

    @agent.skill
    async def twice(turn: Turn) -> str:
        runs.append(1)
        await turn.status("begun")
        if len(runs) == 1:
            started.set()
            await asyncio.Event().wait()
        return "done"

    store = f"sqlite:///{tmp_path}/tasks.db"
    async with console_app(agent, store=store, drain=0) as (app, _):
        sending = asyncio.create_task(Operator(app).send("go"))
        await started.wait()
        (row,) = await until(lambda: rows(Operator(app)))
        live = Operator(app).open("GET", f"/tasks/{row['key']}/events")
        await live.until(lambda: b"begun" in live.body)
    seen = max(int(frame.id) for frame in live.frames() if frame.id)
    sending.cancel()
    async with console_app(agent, store=store) as (app, _):
        operator = Operator(app)
        rest = operator.open("GET", f"/tasks/{row['key']}/events", last_event_id=str(seen))
        await rest.until(lambda: b"TASK_STATE_COMPLETED" in rest.body)
        rest.gone.set()
        await rest.end()
        numbers = [int(frame.id) for frame in rest.frames() if frame.id]
        assert numbers == list(range(seen + 1, numbers[-1] + 1)), "each event once"
        detail = await operator.get(f"/tasks/{row['key']}")
        assert detail["attempts"] == 2
        assert [row["attempts"] for row in await rows(operator)] == [2]
        states = [msgspec.json.decode(frame.data) for frame in rest.frames() if frame.event == "state"]
        assert states[-1]["attempts"] == 2
        records = (await operator.get(f"/tasks/{row['key']}/records"))["records"]
        place = next(n for n, record in enumerate(records) if record["kind"] == "attempt")
        assert {r["attempt"] for r in records[:place]} == {1} and {r["attempt"] for r in records[place:]} == {
            2
        }
        assert all(record["time"] for record in records)


async def test_the_list_of_tasks_is_live(operator: Operator) -> None:
    live = operator.open("GET", "/tasks/stream")
    await live.until(lambda: live.status == 200)
    await operator.send("tea")
    await live.until(lambda: b"TASK_STATE_COMPLETED" in live.body)
    live.gone.set()
    await live.end()
    assert {frame.event for frame in live.frames() if frame.data} == {"task"}
    assert b'"text":"tea"' in live.body


async def test_nodes_metrics_and_the_openapi_document(operator: Operator) -> None:
    await operator.send("tea")
    nodes = (await operator.get("/nodes"))["nodes"]
    assert [node["self"] for node in nodes].count(True) == 1 and all(node["expires"] for node in nodes)
    metrics = (await operator.get("/metrics"))["metrics"]
    assert any(metric["samples"] and metric["type"] == "counter" for metric in metrics)
    document = await operator.get("/openapi.json")
    described = {
        f"{verb.upper()} {path}"
        for path, place in document["paths"].items()
        for verb in place
        if verb != "parameters"
    }
    assert {"GET /tasks", "POST /tasks/{key}/fork", "GET /webhooks", "GET /tasks/{key}/events"} <= described
    page = document["paths"]["/tasks"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert page == {"$ref": "#/components/schemas/TaskSummaryPage"}
    row = document["components"]["schemas"]["TaskSummary"]["properties"]
    assert set(row) == set((await rows(operator))[0])


async def test_a_webhook_is_shown_without_its_secrets_and_told_again() -> None:
    console = AgentConsole(TOKEN)
    console.prepare(host="127.0.0.1", url="http://127.0.0.1", store="memory:", public_url="", tls=False)
    agent = Agent("Hello")

    @agent.skill
    async def hello(turn: Turn) -> str:
        return "hi"

    app = application(agent, store="memory:", console=console, push=PushOptions(allow_private=True))
    async with running(app) as url:
        operator = Operator(app)
        base = url.removeprefix("http://")
        receiver = (await operator("POST", "/receivers", host=base)).json
        assert receiver["url"].startswith(f"{url}/console/api/receive/")
        watch = operator.open("GET", f"/receivers/{receiver['id']}/events")
        config = {
            "url": receiver["url"] + "?key=verysecret",
            "authentication": {"scheme": "Bearer", "credentials": "verysecretverysecret"},
        }
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}
        body = {"message": message, "configuration": {"taskPushNotificationConfig": config}}
        sent = await request(
            app,
            "POST",
            "/message:send",
            msgspec.json.encode(body),
            headers={"content-type": "application/json", "a2a-version": "1.0", "host": base},
        )
        assert sent.status == 200, sent.body
        await watch.until(lambda: b"TASK_STATE_COMPLETED" in watch.body)
        (row,) = await rows(operator)
        (webhook,) = (await operator.get(f"/tasks/{row['key']}"))["webhooks"]
        assert webhook["url"] == receiver["url"] + "?***" and webhook["task"] == row["key"]
        for path in (f"/tasks/{row['key']}", "/webhooks", f"/webhooks?task={row['key']}"):
            assert b"verysecret" not in (await operator("GET", path)).body
        assert b"verysecret" not in watch.body

        async def settled() -> Any:
            (found,) = (await operator.get("/webhooks"))["webhooks"]
            return found["cursor"] == found["last"]

        await until(settled)
        before = len(watch.frames())
        page = files("dragoman.console").joinpath("page/webhooks.js").read_text()
        (first,) = re.findall(r'"From the start", again\(w, (\d+)\)', page)
        answer = await operator("POST", f"/webhooks/{webhook['key']}/redeliver", {"from": int(first)})
        assert answer.status == 200 and answer.json["cursor"] == 0
        await watch.until(lambda: len(watch.frames()) > before)
        watch.gone.set()
        await watch.end()
        assert (await operator.get("/webhooks?state=dead"))["webhooks"] == []
        assert (await operator("GET", "/webhooks?state=sad")).status == 400
        assert (await operator("POST", "/webhooks/x/redeliver", {})).status == 404
        assert (await operator("GET", "/receivers/x/events")).status == 404
        for _ in range(15):
            await operator("POST", "/receivers")
        assert (await operator("POST", "/receivers")).status == 429


async def test_a_task_that_was_begun_at_another_server_is_shown_as_that_server_shows_it() -> None:
    other = Agent("Other")

    @other.skill
    async def other_work(turn: Turn) -> str:
        return f"did {turn.text}"

    async with running(application(other, store="memory:")) as url:
        agent = Agent("Caller")

        @agent.skill
        async def caller(turn: Turn) -> str:
            return (await turn.call(url, "this")).text

        async with console_app(agent) as (app, _):
            operator = Operator(app)
            await operator.send("go")
            (row,) = (await operator.get("/tasks"))["tasks"]
            (child,) = (await operator.get(f"/tasks/{row['key']}"))["children"]
            assert (child["url"], child["key"]) == (url, None)
            task = await operator.get(f"/tasks/{row['key']}/children/{child['taskId']}")
            assert task["id"] == child["taskId"] and task["artifacts"][0]["parts"] == [{"text": "did this"}]
            assert (await operator("GET", f"/tasks/{row['key']}/children/nothing")).status == 404

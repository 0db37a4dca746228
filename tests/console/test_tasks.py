"""What the operator API says of agents, tasks and their logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import Agent, Turn
from dragoman.engine.snapshot import Snapshot
from tests.console.conftest import Operator, console_app


async def test_agents_have_their_card_their_skills_and_their_counts(operator: Operator) -> None:
    await operator.send("tea")
    (agent,) = (await operator.get("/agents"))["agents"]
    assert (agent["id"], agent["path"], agent["url"]) == ("hello", "/", "http://127.0.0.1:8000/")
    assert agent["card"]["supportedInterfaces"] and agent["skills"][0]["id"] == "hello"
    assert agent["counts"] == {"TASK_STATE_COMPLETED": 1}


async def test_tasks_are_listed_newest_first_with_filters_and_pages(operator: Operator) -> None:
    for text in ("one", "two", "ask three", "fail four"):
        await operator.send(text)
    page = await operator.get("/tasks")
    assert [row["text"] for row in page["tasks"]] == ["fail four", "ask three", "two", "one"]
    assert page["counts"] == {
        "TASK_STATE_COMPLETED": 2,
        "TASK_STATE_FAILED": 1,
        "TASK_STATE_INPUT_REQUIRED": 1,
    }
    assert page["next"] is None
    waiting = (await operator.get("/tasks?waiting=1"))["tasks"]
    assert [(row["text"], row["question"]) for row in waiting] == [("ask three", "Which city?")]
    assert [r["text"] for r in (await operator.get("/tasks?state=TASK_STATE_FAILED"))["tasks"]] == [
        "fail four"
    ]
    assert [r["text"] for r in (await operator.get("/tasks?text=TWO"))["tasks"]] == ["two"]
    assert (await operator.get("/tasks?agent=other"))["tasks"] == []
    seen, cursor = [], ""
    while True:
        page = await operator.get(f"/tasks?limit=1{cursor}")
        seen += [row["text"] for row in page["tasks"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == ["fail four", "ask three", "two", "one"]


async def test_a_log_is_read_in_pages_and_live_with_private_records(operator: Operator) -> None:
    await operator.send("ask")
    (row,) = (await operator.get("/tasks"))["tasks"]
    whole = await operator.get(f"/tasks/{row['key']}/records")
    kinds = [record["kind"] for record in whole["records"]]
    assert kinds[:2] == ["message", "turn"] and "step" in kinds and kinds[-1] == "ask"
    assert [record["seq"] for record in whole["records"]] == list(range(1, row["records"] + 1))
    assert (whole["last"], whole["more"]) == (row["records"], False)
    part = await operator.get(f"/tasks/{row['key']}/records?after=2&limit=2")
    assert ([r["seq"] for r in part["records"]], part["last"], part["more"]) == ([3, 4], 4, True)
    live = operator.open("GET", f"/tasks/{row['key']}/events?after={row['records'] - 1}")
    await live.until(lambda: len(live.frames()) >= 2)
    await operator.send("Pune", taskId=row["id"])
    await live.until(lambda: b"COMPLETED" in live.body)
    live.gone.set()
    await live.end()
    events = [frame for frame in live.frames() if frame.id]
    numbers = [int(frame.id or 0) for frame in events]
    assert numbers == list(range(row["records"], numbers[-1] + 1))
    detail = await operator.get(f"/tasks/{row['key']}")
    assert detail["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_secrets_are_masked_in_records_summaries_and_folds(operator: Operator) -> None:
    await operator.send("my token is Bearer abcdefghijklmnop123")
    (row,) = (await operator.get("/tasks"))["tasks"]
    for path in ("/tasks", f"/tasks/{row['key']}", f"/tasks/{row['key']}/records"):
        body = (await operator("GET", path)).body
        assert b"hunter2" not in body and b"abcdefghijklmnop123" not in body, path


async def test_bad_input_is_a_clear_json_error(operator: Operator) -> None:
    await operator.send("tea")
    (row,) = (await operator.get("/tasks"))["tasks"]
    for path, status in (
        ("/tasks?nonsense=1", 400),
        ("/tasks?cursor=%FF", 400),
        ("/tasks?cursor=abc", 400),
        ("/tasks?state=happy", 400),
        ("/tasks?since=yesterday", 400),
        ("/tasks?limit=-1", 400),
        ("/tasks?limit=" + "9" * 5000, 400),
        ("/tasks/x", 404),
        ("/tasks/" + "A" * 3000, 404),
        (f"/tasks/{row['key']}x/records", 404),
        (f"/tasks/{row['key']}/records?after=-1", 400),
        ("/nothing", 404),
    ):
        answer = await operator("GET", path)
        assert answer.status == status, (path, answer.status, answer.body)
        assert set(answer.json["error"]) >= {"code", "message"}
    assert (await operator("PUT", "/me")).status == 405
    assert (await operator("POST", "/session", b"{")).status == 400
    assert (await operator("POST", "/session", {"token": 5})).status == 400


def test_keys_are_safe_in_urls() -> None:
    from dragoman.console.keys import key_of
    from dragoman.model.ops import Scope

    key = key_of(Scope("a/b", "ü", 'x"y'), "../..")
    assert key.replace("-", "").replace("_", "").isalnum() and msgspec.json.encode(key)


async def test_opening_the_page_of_a_long_log_folds_it_at_most_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("Long")

    @agent.skill
    async def write(turn: Turn) -> None:
        for n in range(2000):
            await turn.artifact("result").write(f"line {n} of a text that is long enough\n")

    folded = 0
    apply = Snapshot._apply

    def count(snapshot: Snapshot, *record: Any) -> None:
        nonlocal folded
        folded += 1
        apply(snapshot, *record)

    async with console_app(agent, store=f"sqlite:///{tmp_path}/tasks.db") as (app, _):
        operator = Operator(app)
        await operator.send("go", agent="")
        (row,) = (await operator.get("/tasks"))["tasks"]
        monkeypatch.setattr(Snapshot, "_apply", count)
        one = await operator.get(f"/tasks/{row['key']}?fold=0")
        assert (one["records"], one["task"]) == (row["records"], None)
        tail = await operator.get(f"/tasks/{row['key']}/records?after={row['records'] - 100}")
        assert len(tail["records"]) == 100 and {record["attempt"] for record in tail["records"]} == {1}
        live = operator.open("GET", f"/tasks/{row['key']}/events?after={row['records']}")
        await live.until(lambda: b"event: state" in live.body)
        live.gone.set()
        await live.end()
        assert row["records"] > 2000 and folded <= row["records"]


async def test_a_copy_of_a_task_shows_the_attempts_of_the_log_that_it_has(tmp_path: Path) -> None:
    """The lease of a copy is its first, but its log has the records of those before."""
    runs: list[str] = []
    agent = Agent("Dies")

    @agent.skill
    async def work(turn: Turn) -> str:
        runs.append(turn.text)
        await turn.status("once")
        return "done"

    store = f"sqlite:///{tmp_path}/tasks.db"
    async with console_app(agent, store=store) as (app, _):
        operator = Operator(app)
        await operator.send("go")
        (row,) = (await operator.get("/tasks"))["tasks"]
        made = await operator("POST", f"/tasks/{row['key']}/fork", {"record": 3})
        assert made.status == 201
        key = made.json["key"]
        live = operator.open("GET", f"/tasks/{key}/events")
        await live.until(lambda: b"COMPLETED" in live.body)
        live.gone.set()
        await live.end()
        records = (await operator.get(f"/tasks/{key}/records"))["records"]
        assert records[-1]["kind"] == "status"
        tail = (await operator.get(f"/tasks/{key}/records?after=1"))["records"]
        assert [r["attempt"] for r in tail] == [r["attempt"] for r in records[1:]]
        assert (await operator.get(f"/tasks/{key}"))["attempts"] == max(r["attempt"] for r in records)

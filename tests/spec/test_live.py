"""Every example of the specifications, played on a live server: its request is accepted, its answer has that shape.

A shape is the members, their kinds, and all values that are not somebody's choice: ids and moments are ours, and so is
when a task is done.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dragoman.dialects import select
from dragoman.model import ops
from tests.spec.examples import EXAMPLES, Example
from tests.spec.examples import call as rpc
from tests.spec.live import Live, playing, responses

CHOSEN = {"id", "taskId", "contextId", "sessionId", "messageId", "artifactId", "timestamp"}
"""Members whose values the server chooses."""
STATED = {"kind", "messageId", "role", "contextId", "sessionId", "index", "append", "lastChunk", "final", "timestamp",
          "artifactId", "taskId", "history", "metadata"}  # fmt: skip
"""Members that a version has and its examples leave out."""
SAME = {"type": "kind", "data": "bytes"}
"""Members that examples spell in two ways."""
SETTLED = {"completed", "failed", "canceled", "rejected", "input-required"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.dialect}-{e.name}")
async def test_an_example_played_on_a_live_server_comes_out_as_it_was_written(example: Example) -> None:
    async with playing(example) as live, asyncio.timeout(10):
        await before(live, example)
        if "resubscribe" in example.name and "finished" not in example.name:
            answer = live.open(example.request, example.version)
            await answer.until(lambda: answer.status != 0)
            live.agent.cue.set()
            got = responses(await answer.end())
        else:
            got = await live.post(example.request, example.version)
    expected = [response["result"] for response in example.responses]
    assert all(response["id"] == example.request.get("id") for response in got)
    assert all("result" in response for response in got), got
    results = [response["result"] for response in got]
    if "resubscribe" in example.name:  # who comes back is first told what there is already
        results = [result for result in results if "<section 1...>" not in str(result)]
    if len(expected) == 1 and len(results) == 1:
        assert misfits(results[0], expected[0]) == []
        return
    assert misfits(results[-1], expected[-1]) == []  # the one that ends the stream, and says so
    for result in results[:-1]:
        alike = [like for like in expected if kind(like) == kind(result)]
        assert not alike or any(misfits(unfinished(result), unfinished(like)) == [] for like in alike), result
    chunks = [[part["text"] for part in parts(event)] for event in results if kind(event) == "artifact"]
    written = [[part["text"] for part in parts(event)] for event in expected if kind(event) == "artifact"]
    assert [text for chunk in chunks for text in chunk if text] == [
        t for chunk in written for t in chunk if t
    ]


async def before(live: Live, example: Example) -> None:
    """What has to be there before the request makes sense."""
    params = example.request["params"]
    op = select.choose_for_rpc(example.version, example.request["method"], msgspec.json.encode(params)).op
    result: Any = example.responses[0]["result"] or {}
    context = params.get("sessionId") or result.get("contextId") or result.get("sessionId") or ""
    task = params.get("taskId") or params.get("id") or params.get("message", {}).get("taskId") or ""
    text = (result.get("history") or [{"parts": [{"text": "go"}]}])[0]["parts"][0]["text"]
    if op is ops.LIST:
        await live.begin("task-1", params["contextId"])
    elif example.name == "several turns: the answer":
        await live.begin(task, context, text, first="ask")
    elif op is ops.GET or "finished" in example.name:
        await live.begin(task, context, text)
    elif op in (ops.CANCEL, ops.SUBSCRIBE) or op.name.endswith("Config"):
        await live.begin(task, context, first="wait")
    if op is ops.PUSH_GET:
        setting = {"id": task, "pushNotificationConfig": result["pushNotificationConfig"]}
        await live.post(rpc("tasks/pushNotification/set", setting), example.version)
    elif op is ops.PUSH_DELETE:
        config = {"taskId": task, "url": "https://client.example.com/hook", "id": params["id"]}
        await live.post(rpc("CreateTaskPushNotificationConfig", config), example.version)


def kind(event: Any) -> str:
    """What an event of a stream speaks of, whatever its version."""
    for name in ("artifactUpdate", "statusUpdate"):
        if name in event:
            return name.removesuffix("Update")
    if "artifact" in event:
        return "artifact"
    return "task" if "history" in event or "task" in event or event.get("kind") == "task" else "status"


def unfinished(event: Any) -> Any:
    """An event without what makes it the last one."""
    inner = event.get("statusUpdate", event)
    if "status" not in inner:
        return event
    status = {"state": "working", "timestamp": "now"}
    kept = {**inner, "status": status, "final": False}
    return {**event, "statusUpdate": kept} if "statusUpdate" in event else kept


def parts(event: Any) -> list[dict[str, Any]]:
    artifact: Any = event.get("artifactUpdate", event)["artifact"]
    return list(artifact["parts"])


def misfits(ours: Any, example: Any, path: str = "$") -> list[str]:
    """How an answer of ours departs from an example."""
    name = path.rpartition(".")[2]
    if isinstance(example, dict):
        if not isinstance(ours, dict):
            return [f"{path}: {ours!r} is no object"]
        if name in ("data", "metadata"):
            return [] if ours == example or not example else [f"{path}: {ours!r} is not {example!r}"]
        same = SAME if name == "file" else {"type": "kind"}
        mine = {same.get(key, key): value for key, value in ours.items()}
        theirs = {same.get(key, key): value for key, value in example.items()}
        if not settled(example):  # when the example was answered, its task was not done; here it is
            mine = {key: value for key, value in mine.items() if key != "artifacts"}
            theirs = {key: value for key, value in theirs.items() if key != "message"}
        if example.get("append"):  # who has the beginning knows the name
            theirs = {key: value for key, value in theirs.items() if key != "name"}
        missing = [
            f"{path}.{key} is missing" for key in theirs if key not in mine and theirs[key] not in ({}, [])
        ]
        added = [f"{path}.{key} is not in the example" for key in mine.keys() - theirs.keys() - STATED]
        deeper = [
            e for key in theirs.keys() & mine.keys() for e in misfits(mine[key], theirs[key], f"{path}.{key}")
        ]
        return missing + added + deeper
    if isinstance(example, list):
        if name == "history":
            ours, example = ours[:1], example[:1]
        if not isinstance(ours, list) or len(ours) != len(example):
            return [f"{path}: {ours!r} is no list of {len(example)}"]
        pairs = zip(ours, example, strict=True)
        return [error for n, (a, b) in enumerate(pairs) for error in misfits(a, b, f"{path}[{n}]")]
    if name in CHOSEN:
        return [] if isinstance(ours, str) and ours else [f"{path}: {ours!r}"]
    if name == "state" and str(example).removeprefix("TASK_STATE_").lower() not in SETTLED:
        return []
    return [] if ours == example else [f"{path}: {ours!r} is not {example!r}"]


def settled(example: dict[str, Any]) -> bool:
    """Whether a task, or its status, waits for nobody but the client."""
    status = example.get("status", example)
    state = status.get("state", "completed") if isinstance(status, dict) else "completed"
    return str(state).removeprefix("TASK_STATE_").lower().replace("_", "-") in SETTLED

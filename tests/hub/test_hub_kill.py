"""A hub is killed (SIGKILL) in the middle of orchestrated work and started again, as often as it likes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.client.client import connect
from dragoman.client.credentials import Bearer
from dragoman.client.retry import Policy
from dragoman.dialects.sse import Frame
from dragoman.hub.store.memories import SHARED, Scratchpads
from dragoman.hub.store.todos import Todos
from dragoman.model.task import TaskState
from tests.hub.house import tables_of
from tests.hub.killing import ADMIN, Process, call, listen, recorded

SCRIPT: dict[str, Any] = {
    "pace": 0.004,
    "replies": {
        "Index": [
            "Asking around.\n/mem shared write begun\n/mem add entry project Looking\nall over\n/endmem\n/todo add look\n"
            "/parallel\n/agent scout look in the north\n"
            "/agent scout look in the south\n/endparallel",
            "They have looked.\n/write report.md\n# Report\nall is well\n/endwrite\n/mem shared read",
            "Everybody has looked, and all is well in the north and in the south.",
        ],
        "Scout": [
            "/agent critic is this good enough to be told to others",
            "It is quiet there, says the scout.",
        ],
        "Critic": ["It is good enough, says the critic, and so it can be told."],
    },
}
ANSWER = SCRIPT["replies"]["Index"][-1]


@pytest.mark.parametrize("points", [(1, 7, 20), (3, 12, 25), (5, 16, 31)])
async def test_a_killed_hub_goes_on_and_no_model_call_and_no_command_counts_twice(
    tmp_path: Path, points: tuple[int, ...]
) -> None:
    hub = Process(tmp_path, SCRIPT)
    await hub.start()
    try:
        token = (await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"}))["token"]
        for id, name in (("scout", "Scout"), ("critic", "Critic")):
            constitution = {"id": id, "name": name, "goal": "look", "capabilities": ["delegation"]}
            await call(hub.url, token, "POST", "/v1/agents", constitution)
        body = {"message": "look around"}
        heard = await listen(hub.url, token, "POST", "/v1/orchestrate", body, "", points[0])
        id = msgspec.json.decode(heard[0].data)["request_id"]
        for point in (*points[1:], 10_000):
            await hub.kill()
            await hub.start()
            last = [frame.id for frame in heard if frame.id][-1]
            heard += await listen(hub.url, token, "GET", f"/v1/requests/{id}/events", None, last, point)
        assert heard[0].event == "request_received" and heard[-1].event == "done"
        numbers = [int(frame.id) for frame in heard if frame.id]
        assert numbers == sorted(set(numbers)), "an event came twice, or out of order"
        done = msgspec.json.decode(heard[-1].data)
        assert done["ok"] is True and done["content"] == ANSWER
        asked = await call(hub.url, token, "GET", f"/v1/requests/{id}")
        assert asked["request"]["state"] == "completed"
        entries = await call(hub.url, token, "GET", "/v1/memory/entries")
        assert [entry["title"] for entry in entries["entries"]] == ["Looking"]
    finally:
        await hub.kill()
    steps = await recorded(tmp_path, "index", "scout", "critic")
    assert [key for key, n in Counter(steps).items() if n > 1] == []
    assert sum(key.startswith("tool/") for _, key in steps) == 4 + 2 + 2
    assert sum(key.startswith("model/") for _, key in steps) == 3 + 2 * 2 + 2 * 1
    database = await tables_of(tmp_path).open()
    try:
        notes = await Scratchpads(database).read(1, SHARED)
        todos = await Todos(database).list(1)
    finally:
        await database.close()
    assert notes.count("begun") == 1 and [todo.subject for todo in todos] == ["look"]


ADVISED: dict[str, Any] = {
    "pace": 0.002,
    "replies": {
        **SCRIPT["replies"],
        "Scout": [
            "/advise is it worth a look",
            "/agent critic is this good enough to be told to others",
            "It is quiet there, says the scout.\nAnd so it was yesterday.",
        ],
        "Critic": ["Let me see.\n/mem read", "It is good enough, says the critic,\nand so it can be told."],
        "*": ["<signal>CONTINUE</signal>"],
    },
}


async def test_readers_of_a_hub_that_is_killed_repeatedly_get_the_same_events(
    tmp_path: Path,
) -> None:
    """Delegation two deep, children side by side, an advisor at the gate: and it is killed after every few events."""
    whole, _ = await lived_through(tmp_path / "whole", 10_000)
    heard, kills = await lived_through(tmp_path / "killed", 6)
    assert kills > 5
    assert summarize(heard) == summarize(whole)
    done, expected = (msgspec.json.decode(frames[-1].data) for frames in (heard, whole))
    for name in ("ok", "content", "input_tokens", "output_tokens", "files_bytes"):
        assert done[name] == expected[name]
    steps = await recorded(tmp_path / "killed", "index", "scout", "critic")
    assert len(steps) == len(set(steps)), "something is on record twice"
    assert Counter(key for _, key in steps) == Counter(
        key for _, key in await recorded(tmp_path / "whole", "index", "scout", "critic")
    )


async def lived_through(folder: Path, every: int) -> tuple[list[Frame], int]:
    """What a reader hears of a request whose hub is killed after `every` events, and how often that was."""
    folder.mkdir()
    hub, kills = Process(folder, ADVISED), 0
    await hub.start()
    try:
        token = (await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"}))["token"]
        advisor = {"model": "wise", "mode": "gate"}
        for id, more in (("scout", {"advisor": advisor}), ("critic", {})):
            granted = ["advise", "delegation"]
            constitution = {
                "id": id,
                "name": id.capitalize(),
                "goal": "look",
                "capabilities": granted,
                **more,
            }
            await call(hub.url, token, "POST", "/v1/agents", constitution)
        body = {"message": "look around"}
        heard = await listen(hub.url, token, "POST", "/v1/orchestrate", body, "", every)
        id = msgspec.json.decode(heard[0].data)["request_id"]
        while heard[-1].event != "done":
            await hub.kill()
            await hub.start()
            kills += 1
            last = [frame.id for frame in heard if frame.id][-1]
            heard += await listen(hub.url, token, "GET", f"/v1/requests/{id}/events", None, last, every)
    finally:
        await hub.kill()
    numbers = [int(frame.id) for frame in heard if frame.id]
    assert numbers == sorted(set(numbers)), "an event came twice, or out of order"
    return heard, kills


def summarize(heard: list[Frame]) -> tuple[Counter[str], dict[int, str]]:
    """All that was told, whatever the order of agents that work side by side, and however the text was cut."""
    events, text = Counter[str](), dict[int, str]()
    for frame in heard[1:-1]:
        data = msgspec.json.decode(frame.data)
        if frame.event == "text":
            assert "replaces" not in data, "the model says the same again, so nothing needs to be taken back"
            text[data["stream_id"]] = text.get(data["stream_id"], "") + data["delta"]
        elif not data.get("estimated"):  # what a reply used that a kill broke off: nobody else has that
            events[f"{frame.event} {data}"] += 1
    return events, text


async def test_the_stream_of_an_a2a_client_goes_on_through_kills(tmp_path: Path) -> None:
    """It reads what a task is, as it becomes that, and does not have to know that its hub is gone for a while."""
    hub = Process(tmp_path, SCRIPT)
    await hub.start()
    try:
        token = (await call(hub.url, ADMIN, "POST", "/v1/admin/tenants", {"name": "acme"}))["token"]
        for id, name in (("scout", "Scout"), ("critic", "Critic")):
            constitution = {"id": id, "name": name, "goal": "look", "capabilities": ["delegation"]}
            await call(hub.url, token, "POST", "/v1/agents", constitution)
        policy, heard = Policy(shortest=0.05, longest=0.2, attempts=50), 0
        index = f"{hub.url}/v1/a2a/agents/index"
        async with connect(index, credentials=Bearer(token), policy=policy) as agent:
            stream = agent.stream("look around")
            async for _ in stream:
                heard += 1
                if heard in (2, 6, 15):
                    await hub.kill()
                    await hub.start()
            reply = stream.reply
            assert heard > 15 and reply.state is TaskState.COMPLETED
            assert len([task async for task in agent.list()]) == 1
    finally:
        await hub.kill()
    assert reply.task is not None and reply.task.status.message is not None
    assert reply.task.status.message.text == ANSWER
    said = {artifact.artifact_id.removeprefix(reply.task.id): artifact for artifact in reply.task.artifacts}
    assert said["-text-0"].text == f"Asking around.\n\nThey have looked.\n\n{ANSWER}"

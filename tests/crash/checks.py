"""What must be true of a story, however often its teller was killed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dragoman.model.ops import Scope
from dragoman.stores import open_store
from tests import raw
from tests.crash.reader import TERMINAL, Teller, state_of
from tests.raw import StreamEvent
from tests.serving import Server

OUTCOME = re.compile(r"chapter (\d): (\S+)")


def story_of(task: dict[str, Any]) -> dict[str, Any]:
    """What a story comes to, without what is different each time: ids, moments, outcomes of steps."""
    return {
        "state": task["status"]["state"],
        "said": task["status"].get("message"),
        "text": {a["artifactId"]: OUTCOME.sub(r"chapter \1: ...", text_of(a)) for a in task["artifacts"]},
        "data": [p["data"] for a in task["artifacts"] for p in a["parts"] if "data" in p],
        "history": [(m["role"], text_of(m)) for m in task["history"]],
    }


def whole_story(title: str) -> dict[str, Any]:
    """What a story comes to when nobody is killed."""
    user, agent = "ROLE_USER", "ROLE_AGENT"
    received = "chapter 1: ...\nchapter 2: ...\nthe hero is Ann\nchapter 3: ...\npage 1\npage 2\npage 3\n"
    return {
        "state": "TASK_STATE_COMPLETED",
        "said": None,
        "text": {"result": f"# {title}\n{received}", "cast": ""},
        "data": [{"hero": "Ann"}],
        "history": [
            (user, title),
            (agent, "chapter 1"),
            (agent, "chapter 2"),
            (agent, "Who is the hero?"),
            (user, "Ann"),
            (agent, "How many pages?"),
            (user, "3"),
        ],
    }


def text_of(holder: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in holder["parts"])


def folded(heard: list[StreamEvent]) -> dict[str, list[Any]]:
    """The artifacts that a reader of these events has in its hands."""
    artifacts: dict[str, list[Any]] = {}
    for event in heard:
        if (update := event.result.get("artifactUpdate")) is not None:
            artifact = update["artifact"]
            parts = [part for part in artifact["parts"] if part.get("text") != ""]
            known = artifacts.setdefault(artifact["artifactId"], [])
            if not update.get("append"):
                known.clear()
            known += parts
    return artifacts


def check_order(heard: list[StreamEvent]) -> None:
    numbers = [event.seq for event in heard]
    assert all(numbers)
    assert numbers == sorted(set(numbers))


async def check_readers(
    server: Server, teller: Teller, listened: list[StreamEvent], task: dict[str, Any]
) -> None:
    """Nobody lost an event, nor heard one twice, nor heard another one than the log holds."""
    replay = [
        event
        async for event in raw.stream(server.url, "SubscribeToTask", {"id": teller.task}, last_event_id="0")
    ]
    check_order(replay)
    assert state_of(replay[-1]) in TERMINAL
    assert listened == replay
    assert folded(listened) == {a["artifactId"]: a["parts"] for a in task["artifacts"]}
    known = {event.seq: event.result for event in replay}
    for heard in teller.heard:
        check_order(heard)
        first, *rest = heard
        assert "task" in first.result
        between = [seq for seq in known if first.seq < seq <= heard[-1].seq]
        assert [event.seq for event in rest] == between
        assert all(event.result == known[event.seq] for event in rest)


async def check_log(store: Path | str, task: str) -> None:
    """The numbers of the log, in a file or at a url, have no gap."""
    opened = open_store(store if isinstance(store, str) else f"sqlite:///{store}")
    await opened.open()
    try:
        records = await opened.scope(Scope("", "story", "")).read(task)
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
    finally:
        await opened.close()


def check_steps(steps: Path, task: dict[str, Any], deaths: int) -> None:
    """A step whose outcome is on record was not done again: the last one done is the one told."""
    done: dict[str, list[str]] = {}
    for line in steps.read_text().splitlines():
        name, key, outcome = line.split()
        if name == task["id"]:
            done.setdefault(key, []).append(outcome)
    text = "".join(text_of(artifact) for artifact in task["artifacts"])
    received = {f"chapter/{number}": outcome for number, outcome in OUTCOME.findall(text)}
    assert received == {key: outcomes[-1] for key, outcomes in done.items()}
    assert sum(len(outcomes) for outcomes in done.values()) <= len(received) + deaths


async def check_story(
    server: Server,
    store: Path | str,
    steps: Path,
    teller: Teller,
    listened: list[StreamEvent],
    task: dict[str, Any],
    deaths: int,
) -> None:
    assert story_of(task) == whole_story(teller.title)
    await check_readers(server, teller, listened, task)
    await check_log(store, teller.task)
    check_steps(steps, task, deaths)

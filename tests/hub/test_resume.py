"""A hub that dies in the middle of a turn, at every point there is, and goes on where it was."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from dragoman.engine.seams import LeaseLost, Log
from dragoman.errors import Unavailable
from dragoman.hub.constitution import Constitution
from dragoman.hub.model import Prompt
from dragoman.hub.models.scripted import ScriptedModel
from dragoman.hub.tool import Command, Session
from dragoman.hub.tools.files import WriteTool
from dragoman.model.ops import GetTask, ListTasks, Scope, SubscribeToTask
from dragoman.model.task import Task, TaskState
from dragoman.stores import open_store
from tests.hub.conftest import House

AGENTS = (Constitution(id="a", name="A"), Constitution(id="b", name="B"), Constitution(id="c", name="C"))


def think(prompt: Prompt) -> str:
    """A model whose every reply follows from what it was told."""
    who = next(line for line in prompt.system.splitlines() if line.startswith("NAME: "))[6:]
    step = sum(message.role == "assistant" for message in prompt.messages)
    return {
        "Index": [
            "First I look.\n/exec one\n/write plan.md\nthe plan\n/endwrite",
            "Now the others.\n/parallel\n/agent a part one\n/agent b part two\n/endparallel",
            "One more.\n/agent c part three",
            "All done.\nIn two lines.",
        ],
        "A": ["A works.\n/exec two", "A is done."],
        "B": ["B asks.\n/agent c part four", "B is done."],
        "C": ["C thinks.\n/exec three\n/write c.txt\nfrom c\n/endwrite", "C is done."],
    }[who][step]


class Once:
    """A tool that counts its runs."""

    names = ("/exec",)
    bundle = "exec"
    usage = "/exec <command>"

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def label(self, command: Command) -> str:
        return command.title

    async def run(self, command: Command, session: Session) -> str:
        self.ran[f"{session.turn.task_id} {session.key}"] += 1
        return f"did {command.args}"


class Dying:
    """A store that takes `life` appends and settlings, and then nothing more."""

    def __init__(self, store: Any, life: int) -> None:
        self._store, self.life, self.dead = store, life, asyncio.Event()
        self.writes = 0
        self.buried = False
        """Whoever still writes is told to stop."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def scope(self, scope: Scope) -> Any:
        return DyingLog(self._store.scope(scope), self)

    def breathe(self) -> None:
        self.writes += 1
        if self.writes > self.life:
            self.dead.set()
            raise LeaseLost("gone") if self.buried else Unavailable("gone")


class DyingLog:
    def __init__(self, log: Log, store: Dying) -> None:
        self._log, self._store = log, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, *args: Any, **options: Any) -> int:
        self._store.breathe()
        return await self._log.append(*args, **options)

    async def settle(self, *args: Any, **options: Any) -> int:
        self._store.breathe()
        return await self._log.settle(*args, **options)


async def open_house(store: Any, tool: Once) -> House:
    return await House(store, grace=0.01).open(ScriptedModel(think), *AGENTS, tools=[tool, WriteTool()])


async def finish(home: House, task: str) -> Task:
    async with asyncio.timeout(15):
        async for _ in home.engine.stream(home.call(reads_finished=True), SubscribeToTask(id=task)):
            pass
    done = await home.engine.call(home.call(), GetTask(id=task))
    assert isinstance(done, Task)
    return done


def shape(task: Task) -> dict[str, Any]:
    """What came of a task, without its id."""
    return {
        a.artifact_id.removeprefix(task.id): (a.name, a.text, a.data, [p.raw for p in a.parts if p.raw])
        for a in task.artifacts
    }


async def notes(home: House, task: str) -> list[str]:
    return sorted(f"{name} {data}" for name, data in await home.notes(task))


async def steps(home: House, task: str, agent: str = "index") -> dict[tuple[str, str], Any]:
    """Every recorded step of a task and of those it began. No key is there twice."""
    found: dict[tuple[str, str], Any] = {}
    for record in await home.records(task, agent):
        body: Any = record.body
        if record.kind == "step":
            assert (task, body.key) not in found, f"{body.key} is recorded twice"
            found[task, body.key] = bytes(body.value)
        elif record.kind == "child":
            found |= await steps(home, body.task, body.peer)
    return found


@pytest.fixture
def url(tmp_path: Any) -> Any:
    numbers = iter(range(1000))
    return lambda kind: "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/{next(numbers)}.db"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_defect_4_a_killed_hub_goes_on_without_asking_a_model_or_running_a_tool_twice(
    kind: str, url: Any
) -> None:
    whole = Dying(open_store(url(kind)), 10_000)
    home = await open_house(whole, Once())
    task = await home.ask("go")
    assert task.state is TaskState.COMPLETED
    expected, heard, every = shape(task), await notes(home, task.id), len(await steps(home, task.id))
    assert expected["-file-0"][3] == [b"the plan"] and "-sub-2001" in expected
    await home.close()
    assert whole.writes > 20
    for life in range(1, whole.writes, 1 if kind == "memory" else whole.writes // 8):
        store, tool = open_store(url(kind)), Once()
        dying = Dying(store, life)
        home = await open_house(dying, tool)
        begun = asyncio.create_task(home.ask("go"))
        await asyncio.wait_for(dying.dead.wait(), 10)
        root = (await store.scope(home.call().scope).find(ListTasks(), limit=1)).snapshots[0].task_id
        begun.cancel()
        dying.buried = True
        await home.close()
        await store.open()
        before, ran = await steps(home, root), Counter(tool.ran)
        await store.close()
        home = await open_house(store, tool)
        done = await finish(home, root)
        assert done.state is TaskState.COMPLETED, life
        assert shape(done) == expected, life
        assert await notes(home, root) == heard, life
        after = await steps(home, root)
        assert len(after) == every
        assert {key: after[key] for key in before} == before
        for (owner, key), _ in before.items():
            if key.startswith("tool/"):
                assert tool.ran[f"{owner} {key}"] == ran[f"{owner} {key}"], f"{key} ran again"
        assert len(home.model.prompts) == sum("model/" in key for _, key in after) - sum(
            "model/" in key for _, key in before
        ), life
        await home.close()


async def test_a_model_that_says_something_else_after_the_crash_replaces_what_it_had_begun_to_say() -> None:
    store, never, begun = open_store("memory:"), asyncio.Event(), asyncio.Event()

    class Speaking(asyncio.Event):
        async def wait(self) -> Any:
            begun.set()
            return await never.wait()

    home = await House(store).open(ScriptedModel([("Half an ans", Speaking())]))
    asking = asyncio.create_task(home.ask("go"))
    await asyncio.wait_for(begun.wait(), 10)
    root = (await store.scope(home.call().scope).find(ListTasks(), limit=1)).snapshots[0].task_id
    asking.cancel()
    await home.close()
    home = await House(store).open(ScriptedModel(["A whole one."]))
    done = await finish(home, root)
    assert done.artifacts[0].text == "A whole one."
    assert done.status.message is not None and done.status.message.text == "A whole one."
    await home.close()

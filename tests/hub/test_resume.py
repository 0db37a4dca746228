"""A hub that dies in the middle of a turn, at every point there is, and goes on where it was."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from dragoman.engine.protocols import LeaseLost, Log
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import Unavailable
from dragoman.hub.agents.constitution import COMMANDS, Advisor, Constitution
from dragoman.hub.agents.dispatch import INTERRUPTED
from dragoman.hub.conversations.events import HubEventReader
from dragoman.hub.models import ModelError, Prompt, ToolCall
from dragoman.hub.store.requests import StoredRequest
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.tools import Command, Session, Tool
from dragoman.hub.tools.advisor import AdviseTool
from dragoman.hub.tools.files import ExecTool
from dragoman.model.ops import GetTask, ListTasks, Scope, SubscribeToTask
from dragoman.model.task import ArtifactUpdate, Task, TaskState
from dragoman.stores import open_store
from tests.hub.conftest import House, write_tool
from tests.hub.house import store_of
from tests.hub.scripted import ScriptedModel

AGENTS = tuple(Constitution(id=name.lower(), name=name, capabilities=COMMANDS) for name in "ABC")


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


class Once(Tool):
    """A tool that counts its runs."""

    names = ("/exec",)
    usage = "/exec <command>"

    def __init__(self, *, repeatable: bool = True) -> None:
        self.ran: Counter[str] = Counter()
        self._repeatable = repeatable
        self.on_run: Callable[[int], object] = lambda count: None
        """Called after each run, with the number of runs so far."""

    def label(self, command: Command) -> str:
        return command.title

    async def repeatable(self, command: Command, session: Session) -> bool:
        return self._repeatable

    async def run(self, command: Command, session: Session) -> str:
        self.ran[f"{session.turn.task_id} {session.key}"] += 1
        self.on_run(self.ran.total())
        return f"did {command.args}"


class Dying:
    """A store that takes `life` appends and settlings, and then nothing more."""

    def __init__(self, store: Any, life: int) -> None:
        self.alive, self.life, self.dead = store, life, asyncio.Event()
        self.writes = 0
        self.buried = False
        """Whoever still writes is told to stop."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.alive, name)

    def scope(self, scope: Scope) -> Any:
        return DyingLog(self.alive.scope(scope), self)

    def breathe(self) -> None:
        self.writes += 1
        if self.writes > self.life:
            self.dead.set()
            raise LeaseLost("gone") if self.buried else Unavailable("gone")

    async def kill(self, home: House) -> str:
        """Ask, and stop the hub after `life` writes. Returns the task.

        What is ready together is one write, so a run may need a few writes less than the one before: then it ends alive.
        """
        begun = asyncio.create_task(home.ask("go"))
        dead = asyncio.create_task(self.dead.wait())
        async with asyncio.timeout(10):
            await asyncio.wait([begun, dead], return_when=asyncio.FIRST_COMPLETED)
        root = (await self.alive.scope(home.call().scope).find(ListTasks(), limit=1)).snapshots[0].task_id
        begun.cancel()
        dead.cancel()
        self.buried = True
        await home.close()
        return str(root)


class DyingLog:
    def __init__(self, log: Log, store: Dying) -> None:
        self._log, self._store = log, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, *args: Any, **options: Any) -> int:
        self._store.breathe()
        return await self._log.append(*args, **options)

    async def settle(self, *args: Any, **options: Any) -> Snapshot | None:
        self._store.breathe()
        return await self._log.settle(*args, **options)


async def open_house(store: Any, tool: Once) -> House:
    return await House(store, grace=0.01).open(ScriptedModel(think), *AGENTS, tools=[tool, write_tool()])


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
    """What was told, but for what replies used that were lost: those depend on when that was."""
    received = await home.notes(task)
    return sorted(f"{name} {data}" for name, data in received if not data.get("estimated"))


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
    return lambda kind: "memory:" if kind == "memory" else store_of(tmp_path, f"{next(numbers)}.db")


@pytest.mark.parametrize("kind", ["memory", "stored"])
async def test_a_killed_hub_goes_on_without_asking_a_model_or_running_a_tool_twice(
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
        root = await killed(store, tool, life)
        before, ran = await steps(House(store), root), Counter(tool.ran)
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


async def killed(store: Any, tool: Once, life: int) -> str:
    """Work that has stopped after `life` writes. Returns the task; the store is open."""
    dying = Dying(store, life)
    root = await dying.kill(await open_house(dying, tool))
    await store.open()
    return root


async def killed_at(home: House, reached: asyncio.Event) -> str:
    """Work that has stopped once it reached something. Returns the task."""
    asking = asyncio.create_task(home.ask("go"))
    await asyncio.wait_for(reached.wait(), 10)
    (snapshot,) = (await home.store.scope(home.call().scope).find(ListTasks(), limit=1)).snapshots
    asking.cancel()
    await home.close()
    return snapshot.task_id


async def test_a_command_that_must_not_run_twice_does_not_wherever_the_hub_is_killed(url: Any) -> None:
    whole = Dying(open_store(url("memory")), 10_000)
    home = await open_house(whole, Once(repeatable=False))
    task = await home.ask("go")
    calls, every = await tool_calls(home, task.id), len(await steps(home, task.id))
    await home.close()

    async def finish_after(dying: Dying, tool: Once) -> int:
        """Kill the hub, and let another finish. Returns how many commands were interrupted."""
        root = await dying.kill(await open_house(dying, tool))
        where = f"after {dying.life} writes and {tool.ran.total()} commands"
        await dying.open()
        home = await open_house(dying.alive, tool)
        done = await finish(home, root)
        assert done.state is TaskState.COMPLETED, where
        assert set(tool.ran.values()) == {1} and len(tool.ran) == 4, f"{where}: {tool.ran}"
        assert len(await steps(home, root)) == every, where
        received = await tool_calls(home, root)
        broken = [event for event in received if event.pop("interrupted", False)]
        assert all(not event.pop("ok") for event in broken)
        assert [{"ok": True, **event} for event in received] == calls, where
        prompts = [message.content for prompt in home.model.prompts for message in prompt.messages]
        asked = {content for content in prompts if INTERRUPTED in content}
        assert len(asked) == len(broken), "the model that asked for it is told, and no other"
        shown = [a for a in done.artifacts if a.parts and (a.parts[0].data or {}).get("interrupted")]
        assert len(shown) == len(broken)
        await home.close()
        return len(broken)

    for life in range(1, whole.writes):
        await finish_after(Dying(open_store(url("memory")), life), Once(repeatable=False))
    for last in range(1, 5):
        dying, tool = Dying(open_store(url("memory")), 10_000), Once(repeatable=False)

        def stop(count: int, dying: Dying = dying, last: int = last) -> None:
            if count == last:
                dying.life = dying.writes

        tool.on_run = stop
        assert await finish_after(dying, tool) >= 1, f"command {last} ran, and its result was not stored"


async def tool_calls(home: House, task: str) -> list[dict[str, Any]]:
    """What readers hear of commands that ran."""
    received = [{"ok": True, **data} for name, data in await home.notes(task) if name == "tool_call"]
    return sorted(received, key=lambda data: (data["stream_id"], data["tool"]))


class Speaking(asyncio.Event):
    """Holds a model in the middle of what it says, for good, and tells that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def wait(self) -> Any:
        self.begun.set()
        return await super().wait()


@pytest.mark.parametrize(
    "again",
    ["A whole one.", "Half an answer, it was.", "Half", ("/help\n", ModelError("provider_error", "gone"))],
    ids=["other", "longer", "shorter", "nothing"],
)
async def test_a_model_that_says_something_else_after_the_crash_replaces_what_it_had_begun_to_say(
    again: Any,
) -> None:
    store, here = open_store("memory:"), Speaking()
    home = await House(store).open(ScriptedModel([("Half an ans", here)]))
    root = await killed_at(home, here.begun)
    home = await House(store).open(ScriptedModel([again]))
    done = await finish(home, root)
    text = again if isinstance(again, str) else ""
    assert done.artifacts[0].text == text
    assert done.status.message is not None and done.status.message.text == (text or "gone")
    records = await home.records(root)
    last = [r.body for r in records if isinstance(r.body, ArtifactUpdate)][-1]
    assert last.last_chunk, "its text is said to be whole"
    tenant = Tenant(
        id=1,
        name="acme",
        disabled=False,
        max_running=None,
        per_minute=None,
        created_at=0,
        last_used_at=0,
    )
    reading = HubEventReader(tenant, StoredRequest(request_id=root, agent_id="index"))
    heard = [event for record in records for event in reading.read(record)]
    assert stream_text([(event.kind, event.payload) for event in heard], 0) == text
    await home.close()


@pytest.mark.parametrize(
    "again",
    [
        "North:\nit is\nquiet there.",
        "North:\nit is\nquite loud there.",
        "South:\nit is\nnot known.",
        "North:",
        "it is",
        ("/help\n", ModelError("provider_error", "gone")),
    ],
    ids=["same", "longer", "other", "shorter", "later", "nothing"],
)
async def test_different_text_of_a_delegated_agent_after_a_crash_replaces_its_earlier_text(
    again: Any,
) -> None:
    store, here = open_store("memory:"), Speaking()
    whole = "North:\nit is\nquiet there."
    parent = ["/agent a look", "/agent a look again", "Done."]
    scripts = {"Index": parent[:1], "A": [("North:\nit is\nqui", here)]}
    home = await House(store).open(scripts, *AGENTS)
    root = await killed_at(home, here.begun)
    received = stream_text(await home.notes(root), 1)
    assert received and whole.startswith(received)
    home = await House(store).open({"Index": parent[1:], "A": [again, whole]}, *AGENTS)
    done = await finish(home, root)
    assert done.state is TaskState.COMPLETED
    notes = await home.notes(root)
    assert stream_text(notes, 1) == (again if isinstance(again, str) else "")
    assert stream_text(notes, 2) == whole
    if again == whole:
        assert not any(data.get("replaces") for _, data in notes)
    await home.close()


async def test_a_command_that_runs_again_after_a_crash_is_reported_again() -> None:
    store, here, tool = open_store("memory:"), Speaking(), Once()
    home = await House(store).open(ScriptedModel(["/exec same", ("Again.", here)]), tools=[tool])
    root = await killed_at(home, here.begun)
    home = await House(store).open(ScriptedModel(["Again.\n/exec same", "Done."]), tools=[tool])
    done = await finish(home, root)
    assert [a.artifact_id.removeprefix(root) for a in done.artifacts] == ["-tool-0", "-text-0", "-tool-1"]
    assert [data["tool"] for kind, data in await home.notes(root) if kind == "tool_call"] == [
        "/exec same"
    ] * 2
    assert sum(tool.ran.values()) == 2
    await home.close()


class Stuck(Once):
    """A tool that never ends."""

    def __init__(self) -> None:
        super().__init__(repeatable=False)
        self.inside = asyncio.Event()

    async def run(self, command: Command, session: Session) -> str:
        self.inside.set()
        await super().run(command, session)
        return str(await asyncio.Event().wait())


async def test_a_tool_that_a_model_called_natively_is_not_run_again_either() -> None:
    store, tool = open_store("memory:"), Stuck()
    calls = [ToolCall(id=id, name="exec", arguments={"args": id}) for id in ("one", "two")]
    model = ScriptedModel([("Doing it.", *calls)], tools=True)
    home = await House(store).open(model, tools=[tool])
    root = await killed_at(home, tool.inside)
    after, other = ScriptedModel(["Done."], tools=True), Once(repeatable=False)
    home = await House(store).open(after, tools=[other])
    done = await finish(home, root)
    assert done.status.message is not None and done.status.message.text == "Done."
    assert sum(tool.ran.values()) == 1 and sum(other.ran.values()) == 1
    results = {m.tool_call_id: m.content for m in after.prompts[0].messages if m.role == "tool"}
    assert INTERRUPTED in results["one"] and "did two" in results["two"]
    assert len(after.prompts) == 1, "the model is not asked again for the reply that is on record"
    await home.close()


async def test_an_interrupted_command_is_reported_also_if_it_is_no_longer_granted() -> None:
    class Endless:
        inside = asyncio.Event()

        async def run(self, tenant: str, command: str, may_begin: object) -> None:
            self.inside.set()
            await asyncio.Event().wait()

    store, sandbox = open_store("memory:"), Endless()
    tools = [ExecTool(cast(Any, sandbox))]
    home = await House(store).open(ScriptedModel(["/exec one"]), tools=tools)
    root = await killed_at(home, sandbox.inside)
    model = ScriptedModel(["/exec two", "Done."])
    home = await House(store).open(model, tools=[ExecTool(None)])
    await finish(home, root)
    assert INTERRUPTED in model.prompts[0].messages[-1].content
    assert "disabled" in model.prompts[1].messages[-1].content
    await home.close()


@pytest.mark.parametrize("budget", [0, 20])
async def test_an_advisor_is_asked_once_and_tokens_count_once_wherever_the_hub_is_killed(budget: int) -> None:
    """What was spent of a budget before a crash is not there after it."""
    critic = Advisor(model="wise", mode="gate")
    careful = Constitution(id="a", name="A", advisor=critic, budget=budget, capabilities=COMMANDS)

    def think(prompt: Prompt) -> str:
        if "You review" in prompt.system:
            return "<signal>CONTINUE</signal>"
        if "You advise" in prompt.system:
            return "Look twice."
        who = next(line for line in prompt.system.splitlines() if line.startswith("NAME: "))[6:]
        step = sum(message.role == "assistant" for message in prompt.messages)
        return {"Index": ["/agent a look", "Done."], "A": ["/advise how?", "I looked twice."]}[who][step]

    async def begin(store: Any) -> House:
        model = ScriptedModel(think)
        return await House(store, grace=0.01).open(model, careful, tools=[AdviseTool(model)])

    whole = Dying(open_store("memory:"), 10_000)
    home = await begin(whole)
    task = await home.ask("go")
    expected, every = await notes(home, task.id), await steps(home, task.id)
    keys = sorted(key for _, key in every)
    assert "advise/tool/1/1" in keys
    assert ("gate/2" in keys) is (budget == 0), "the budget ends it before its second reply"
    await home.close()
    for life in range(1, whole.writes):
        store = open_store("memory:")
        dying = Dying(store, life)
        home = await begin(dying)
        root = await dying.kill(home)
        before = [key for _, key in await steps(home, root) if key.startswith(MODELS)]
        home = await begin(store)
        done = await finish(home, root)
        assert done.state is TaskState.COMPLETED, life
        assert await notes(home, root) == expected, life
        assert sorted(key for _, key in await steps(home, root)) == keys, life
        assert len(home.model.prompts) + len(before) == sum(key.startswith(MODELS) for key in keys), life
        assert done.metadata["x-arbiter.output_tokens"] == task.metadata["x-arbiter.output_tokens"], life
        await home.close()


MODELS = ("model/", "advise/", "gate/")
"""Steps that are a call of a model."""


def stream_text(events: list[tuple[str, dict[str, Any]]], stream: int) -> str:
    """What a reader has of a stream's text."""
    text = ""
    for kind, data in events:
        if kind == "text" and data["stream_id"] == stream:
            text = data["delta"] if data.get("replaces") else text + data["delta"]
    return text

"""What an advisor at the gate has not approved does not leave, whoever said it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.hub.agents.constitution import Advisor, Constitution, Intent
from dragoman.hub.agents.constitution_agent import MAX_REPLIES
from dragoman.model.ops import CancelTask, GetTask, ListTasks, SubscribeToTask
from dragoman.model.task import Task, TaskState
from dragoman.stores import open_store
from tests.hub.conftest import Begin, House, say
from tests.hub.scripted import ScriptedModel
from tests.hub.test_resume import Dying, shape

SCOUT = Constitution(id="scout", name="Scout", role="research-analyst", goal="find things out")
DESK = Constitution(
    id="desk",
    name="Desk",
    intent=Intent(mode="heuristic"),
    advisor=Advisor(model="big", mode="gate", max_redirects=1),
)
PASS, AGAIN, STOP = (
    "<signal>CONTINUE</signal>",
    "<signal>REDIRECT</signal> Be kind.",
    "<signal>HALT</signal> No.",
)


def playing(verdicts: list[str], **said: list[Any]) -> ScriptedModel:
    """A model that speaks for each agent, by its name, and for the advisor."""
    left = {name: iter(replies) for name, replies in said.items()} | {"advisor": iter(verdicts)}

    def choose(prompt: Any) -> Any:
        if prompt.model == "big":
            return next(left["advisor"])
        return next(left["Scout" if "NAME: Scout" in prompt.system else "Desk"])

    return ScriptedModel(choose)


def everything_sent(task: Task) -> str:
    """Everything that left: what was answered, and every artifact."""
    return repr((task.status.message, task.artifacts))


async def test_an_answer_that_was_handed_over_passes_the_gate_of_who_was_asked(house: Begin) -> None:
    home = await house(playing([PASS], Scout=["Found it."]), DESK, SCOUT)
    task = await home.ask("@scout look", "desk")
    assert task.status.message is not None and task.status.message.text == "Found it."
    assert task.metadata["x-arbiter.gate_approved"] is True
    judged = home.model.prompts[-1]
    assert "@scout look" in judged.messages[0].content and "Found it." in judged.messages[0].content
    kinds = [kind for kind, _ in await home.notes(task.id, "desk")]
    assert kinds.index("intent") < kinds.index("sub_agent_response") < kinds.index("advisor")
    assert [a.text for a in task.artifacts if a.artifact_id.endswith("-text-0")] == ["Found it."]


async def test_an_answer_that_was_handed_over_is_sent_back_to_who_was_asked(house: Begin) -> None:
    home = await house(playing([AGAIN, PASS], Scout=["Go away."], Desk=["Here you are."]), DESK, SCOUT)
    task = await home.ask("@scout look", "desk")
    assert task.status.message is not None and task.status.message.text == "Here you are."
    assert "Go away." not in everything_sent(task)
    notes = await home.notes(task.id, "desk")
    assert "Go away." not in repr(notes)
    assert [n["kind"] for kind, n in notes if kind == "advisor"] == ["gate_redirect", "gate_continue"]
    streams = [(kind, n["agent"]) for kind, n in notes if kind in ("stream_start", "stream_end")]
    assert streams == [
        ("stream_start", "desk"),
        ("stream_start", "scout"),
        ("stream_end", "scout"),
        ("stream_end", "desk"),
    ]
    asked = next(p for p in home.model.prompts if "NAME: Desk" in p.system)
    assert [m.content for m in asked.messages[-2:]] == ["Go away.", "[ADVISOR]\nBe kind."]


async def test_an_answer_that_was_handed_over_can_be_stopped(house: Begin) -> None:
    home = await house(playing([STOP], Scout=["Go away."]), DESK, SCOUT)
    task = await home.ask("@scout look", "desk")
    assert (task.state, task.metadata["x-arbiter.error_type"]) == (TaskState.FAILED, "advisor_halt")
    notes = await home.notes(task.id, "desk")
    assert "Go away." not in everything_sent(task) + repr(notes)
    assert [kind for kind, _ in notes][-2:] == ["escalation", "stream_end"]


async def test_a_request_that_is_canceled_while_another_agent_has_it_ends_every_stream(shed: Begin) -> None:
    thinking = asyncio.Event()

    def choose(prompt: Any) -> Any:
        thinking.set()
        return ("Hm.\n", asyncio.Event())

    home = await shed(ScriptedModel(choose), DESK, SCOUT)
    asking = asyncio.create_task(home.engine.call(home.call("desk"), say("@scout look")))
    await thinking.wait()
    (found,) = (await home.engine.call(home.call("desk"), ListTasks())).tasks
    await home.engine.call(home.call("desk"), CancelTask(id=found.id))
    task = await asking
    assert isinstance(task, Task) and task.state is TaskState.CANCELED
    assert [kind for kind, _ in await home.notes(task.id, "desk")][-1] == "stream_end"


async def test_a_redirected_answer_is_not_the_answer_of_an_empty_last_reply(house: Begin) -> None:
    home = await house(playing([AGAIN, PASS], Desk=["Go away.", " \n"]), DESK)
    task = await home.ask("hello", "desk")
    assert task.state is TaskState.COMPLETED and "Go away." not in everything_sent(task)


async def test_the_last_of_too_many_replies_passes_the_gate_like_any_answer(house: Begin) -> None:
    replies = [f"{n}\n/help" for n in range(MAX_REPLIES)]
    home = await house(playing([STOP], Desk=replies), DESK)
    task = await home.ask("hello", "desk")
    assert task.metadata["x-arbiter.error_type"] == "advisor_halt"
    assert str(MAX_REPLIES - 1) not in "".join(a.text for a in task.artifacts)


@pytest.mark.parametrize("verdicts", [[PASS], [AGAIN, PASS], [STOP]], ids=["passes", "again", "stopped"])
async def test_a_hub_killed_during_a_gate_check_sends_every_event_once(
    verdicts: list[str],
) -> None:
    def think(prompt: Any) -> Any:
        """Every reply follows from what was asked."""
        if prompt.model == "big":
            return verdicts[1 if "Here you are." in prompt.messages[0].content else 0]
        return "Go away.\nNow." if "NAME: Scout" in prompt.system else "Here you are."

    async def begin(store: Any) -> House:
        return await House(store, grace=0.01).open(ScriptedModel(think), DESK, SCOUT)

    async def outcome(home: House, task: str) -> tuple[Any, ...]:
        done = await home.engine.call(home.call("desk"), GetTask(id=task))
        notes = [(k, n) for k, n in await home.notes(task, "desk") if not n.get("estimated")]
        return done.state, shape(done), done.status.message.text, sorted(map(repr, notes))

    whole = Dying(open_store("memory:"), 10_000)
    home = await begin(whole)
    task = await home.ask("@scout look", "desk")
    expected = await outcome(home, task.id)
    await home.close()
    assert whole.writes > 5
    for life in range(1, whole.writes):
        store = open_store("memory:")
        dying = Dying(store, life)
        home = await begin(dying)
        asking = asyncio.create_task(home.ask("@scout look", "desk"))
        await asyncio.wait_for(dying.dead.wait(), 10)
        found = await store.scope(home.call("desk").scope).find(ListTasks(), limit=1)
        root = found.snapshots[0].task_id
        asking.cancel()
        dying.buried = True
        await home.close()
        await store.open()
        home = await begin(store)
        async with asyncio.timeout(10):
            call = home.call("desk", reads_finished=True)
            async for _ in home.engine.stream(call, SubscribeToTask(id=root)):
                pass
        assert await outcome(home, root) == expected, life
        await home.close()

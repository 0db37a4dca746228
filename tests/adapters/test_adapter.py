"""What is common to the agents of all frameworks: events become output, pauses become questions, and the log has the state.

The frameworks themselves are tested by `tests/interop/test_frameworks.py`."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Part, TaskState, Turn, connect, wrap
from dragoman.adapters import events
from dragoman.adapters.adapter import Instances, Start, work
from dragoman.client import TaskFailed
from dragoman.model.usage import USAGE, TokenUsage
from tests.serving import Server
from tests.waiting import until

Run = Callable[[Start], AsyncGenerator[events.AnyEvent, None]]


class Scripted:
    """An adapter that does what a function says."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def run(self, start: Start) -> AsyncGenerator[events.AnyEvent, None]:
        return self._run(start)


def agent_of(run: Run, show_tools: bool = True) -> Agent:
    agent = Agent("Scripted", input_modes=("text/plain", "application/json"))

    @agent.skill
    async def answer(turn: Turn) -> None:
        await work(Scripted(run), turn, options={}, show_tools=show_tools)

    return agent


async def tools(start: Start) -> AsyncGenerator[events.AnyEvent, None]:
    yield events.Text(text="Let me ", message="1")
    yield events.Text(text="look.", message="1")
    yield TokenUsage(input_tokens=3, output_tokens=1, model="m")
    yield events.ToolCall(id="a", name="look", arguments={"secret": 1})
    yield events.ToolResult(id="a", result="x" * 5000)
    yield events.Progress(text="Thinking", metadata={"n": 1})
    yield events.File(name="a.txt", raw=b"hello", media_type="text/plain")
    yield events.Text(text="Found ", message="2")
    yield events.Text(text="it.", message="2")
    yield events.Data(value={"found": True})
    yield TokenUsage(input_tokens=4, output_tokens=2, model="m")
    yield events.Finished(state=None)


async def test_the_last_message_is_the_answer_and_the_others_are_status() -> None:
    async with agent_of(tools).test() as client:
        stream = client.stream("go")
        statuses = [piece.status async for piece in stream if piece.status]
        task = await client.get(stream.reply.id)
    names = {artifact.name: artifact for artifact in task.artifacts}
    assert "".join(part.text or "" for part in names["result"].parts) == "Found it."
    assert names["a.txt"].parts[0].raw == b"hello"
    assert names["data"].parts[0].data == {"found": True}
    assert statuses == ["Calling look", "look answered", "Thinking", "Let me look."]
    used = {"calls": 2, "inputTokens": 7, "outputTokens": 3}
    assert task.metadata[USAGE] == {**used, "models": {"m": used}}
    assert len(task.metadata["toolResult"]["result"]) < 3000


async def test_a_call_that_is_told_again_is_shown_once_and_a_new_one_with_its_id_again() -> None:
    async def calls(start: Start) -> AsyncGenerator[events.AnyEvent, None]:
        for _ in range(2):
            yield events.ToolCall(id="0", name="look")
            yield events.ToolCall(id="0", name="look")
            yield events.ToolResult(id="0", result="seen")
        yield events.Finished(state=None)

    async with agent_of(calls).test() as client:
        statuses = [piece.status async for piece in client.stream("go") if piece.status]
    assert statuses == ["Calling look", "look answered"] * 2


async def test_tools_can_be_hidden() -> None:
    async with agent_of(tools, show_tools=False).test() as client:
        reply = await client("go")
    assert reply.task is not None
    assert not {"toolCall", "toolResult"} & reply.task.metadata.keys()
    assert "secret" not in str(reply.task)


async def pauses(start: Start) -> AsyncGenerator[events.AnyEvent, None]:
    if start.message is not None:
        yes = events.Question(id="pay", text="Pay 300?", approval=True)
        yield events.Paused(questions=(yes, events.Question(id="day", text="Which day?")), state={"n": 1})
        return
    assert start.state == {"n": 1}
    pay, day = start.answers["pay"], start.answers["day"]
    yield events.Text(text=f"{pay.value} {pay.reason!r} {day.value}")
    yield events.Finished(state=None)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("yes", "True ''"),
        ("no, too much", "False 'too much'"),
        ("No - too much", "False 'too much'"),
        ("Nein", "False ''"),
    ],
)
async def test_an_approval_is_read_as_people_give_it(said: str, read: str) -> None:
    async with agent_of(pauses).test() as client:
        reply = await client("go")
        assert (str(reply), reply.state) == ("Pay 300?", TaskState.INPUT_REQUIRED)
        reply = await reply.answer(said)
        assert str(reply) == "Which day?"
        assert str(await reply.answer("Monday")) == f"{read} Monday"


async def test_an_approval_that_is_neither_yes_nor_no_is_asked_for_again() -> None:
    async with agent_of(pauses).test() as client:
        reply = await (await client("go")).answer("a banana")
        assert str(reply) == "Pay 300? (Please answer yes or no.)"
        reply = await (await reply.answer("ok")).answer("Monday")
        assert str(reply) == "True '' Monday"


async def asks_for_a_long_call(start: Start) -> AsyncGenerator[events.AnyEvent, None]:
    if not start.answers:
        body = {"script": "x" * 20_000 + "; rm -rf /"}
        yield events.ToolCall(id="a", name="run", arguments=body)
        asked = events.Question(
            id="a", text=f"Allow run(script={body['script']!r})?", approval=True, details={"arguments": body}
        )
        yield events.Paused(questions=(asked,), state=1)
    else:
        yield events.Text(text="done")
        yield events.Finished(state=None)


async def test_an_approval_shows_all_that_it_approves() -> None:
    async with agent_of(asks_for_a_long_call).test() as client:
        reply = await client("go")
        (asked,) = reply.questions
        assert str(reply).endswith("; rm -rf /')?") and asked.details["arguments"]["script"].endswith(
            "; rm -rf /"
        )
        called = (await client.get(reply.id)).metadata["toolCall"]
        assert called["arguments"]["script"].endswith("; rm -rf /")


async def test_one_data_part_answers_several_questions() -> None:
    async with agent_of(pauses).test() as client:
        reply = await client("go")
        assert [(each.key, each.approval) for each in reply.questions] == [("pay", True), ("day", False)]
        answers = {"day": "Friday", "pay": {"approved": False, "comment": "broke"}}
        assert str(await reply.answer(Part(data=answers))) == "False 'broke' Friday"


async def counts(start: Start) -> AsyncGenerator[events.AnyEvent, None]:
    n = (start.state or 0) + 1
    if start.turn.text == "fail":
        raise RuntimeError("as it was told")
    yield events.Text(text=str(n))
    yield events.Finished(state=n, failed="It failed." if start.turn.text == "refuse" else "")


async def test_a_context_has_the_state_of_its_last_finished_run() -> None:
    async with agent_of(counts).test() as client:
        first = await client("go")
        with pytest.raises(TaskFailed):
            await client("fail", context=first.context_id)
        second = await client("go", context=first.context_id)
        other = await client("go")
        with pytest.raises(TaskFailed, match=r"It failed\."):
            await client("refuse")
    assert (str(first), str(second), str(other)) == ("1", "2", "1")


async def test_a_message_that_comes_during_a_turn_begins_with_the_state_of_that_turn() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(start: Start) -> AsyncGenerator[events.AnyEvent, None]:
        began.set()
        await go_on.wait()
        yield events.Text(text=f"{start.turn.text} after {start.state}")
        yield events.Finished(state=start.turn.text)

    async with agent_of(slow).test() as client:
        sent = await client.send("first", wait=False)
        await began.wait()
        second = asyncio.create_task(client.send("second", task=sent.id))
        await until(lambda: client.get(sent.id), lambda task: len(task.history) == 2)  # it is on record
        go_on.set()
        reply = await second
    assert reply.task is not None
    texts = ["".join(part.text or "" for part in each.parts) for each in reply.task.artifacts]
    assert texts == ["first after None", "second after first"]


async def test_an_adapter_that_does_not_say_how_it_ends_fails_the_task() -> None:
    async def silent(start: Start) -> AsyncGenerator[events.AnyEvent, None]:
        yield events.Text(text="hm")

    async with agent_of(silent).test() as client:
        with pytest.raises(TaskFailed) as failed:
            await client("go")
    assert "without Paused or Finished" in str(failed.value.__cause__)


CRASHES = """
import os
from pathlib import Path
from dragoman import Agent, Turn
from dragoman.adapters.adapter import work
from dragoman.adapters.events import Finished, Saved, Text, ToolCall, ToolResult
from dragoman.model.usage import TokenUsage

home = Path(os.environ["HOME_OF_TEST"])

class Crashes:
    async def run(self, start):
        if start.state is None:
            yield TokenUsage(input_tokens=1, output_tokens=1)
            yield ToolCall(id="a", name="pay")
            with (home / "paid").open("a") as file:
                file.write("paid ")
            yield ToolResult(id="a", result="paid")
            yield Saved(state={"paid": True})
            yield Text(text="half of ")
            await start.turn.status("soon")
            (home / "half").touch()
            os.kill(os.getpid(), 9)
        yield Text(text="half of the answer")
        yield TokenUsage(input_tokens=2, output_tokens=2)
        yield Finished(state=start.state)

agent = Agent("Crashes")

@agent.skill
async def answer(turn: Turn) -> None:
    await work(Crashes(), turn, options={}, show_tools=True)
"""


async def test_a_run_that_was_killed_continues_where_it_saved_its_state(tmp_path: Path) -> None:
    file = tmp_path / "crashes.py"
    file.write_text(CRASHES)
    server = Server(file, store=tmp_path / "tasks.db", env={"HOME_OF_TEST": str(tmp_path)})
    async with server:
        async with connect(server.url) as client:
            sent = await client.send("go", wait=False)
            await server.ended()
            await server.start()
            reply = await client.wait(sent.id)
            task = await client.get(sent.id)
    assert str(reply) == "half of the answer"
    assert (tmp_path / "paid").read_text() == "paid "
    assert task.metadata[USAGE]["inputTokens"] == 3  # also what was used before the kill


# -- wrap ----------------------------------------------------------------------------------------------------------


def foreign(module: str) -> Any:
    return type("Thing", (), {"__module__": module})()


def test_wrap_says_what_it_knows_when_it_does_not_know_an_object() -> None:
    with pytest.raises(TypeError, match=r"does not know builtins\.int; it knows .*langgraph"):
        wrap(3)
    with pytest.raises(TypeError, match="is an Agent already"):
        wrap(Agent("a"))


def test_wrap_says_which_extra_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dragoman\[langgraph\]'"):
        wrap(foreign("langgraph.graph.state"))


def test_wrap_refuses_a_class_and_an_option_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="takes an object"):
        wrap(type(foreign("langgraph.graph.state")))
    with pytest.raises(TypeError, match=r"no option 'descripton'; did you mean 'description'"):
        wrap(3, descripton="x")  # type: ignore[call-arg]


async def test_tasks_share_one_instance_one_after_the_other_or_get_one_each() -> None:
    alone = Instances("only")
    async with alone.acquire() as first:
        second = asyncio.create_task(_acquire(alone))
        await asyncio.sleep(0)
        assert first == "only" and not second.done()
    assert await second == "only"
    made = iter("abc")
    many = Instances(next(made), lambda: next(made))
    async with many.acquire() as one, many.acquire() as other:
        assert (one, other) == ("b", "c")


def test_an_instance_keeps_no_event_loop_that_is_closed() -> None:
    alone = Instances("only")
    loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    async def acquire_twice() -> None:
        loops.add(asyncio.get_running_loop())
        async with alone.acquire():
            second = asyncio.create_task(_acquire(alone))
            await asyncio.sleep(0)
        await second

    for _ in range(5):
        asyncio.run(acquire_twice())
    gc.collect()
    assert len(loops) <= 1


async def _acquire(instances: Instances) -> Any:
    async with instances.acquire() as acquired:
        return acquired


async def test_wrap_serves_an_executor() -> None:
    from dragoman.executor import AgentExecutor, EventQueue, RequestContext, new_agent_text_message

    class Echo(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            await event_queue.enqueue_event(new_agent_text_message(context.get_user_input().upper()))

    agent = wrap(lambda: Echo(), name="Echo", description="Repeats you")
    async with agent.test() as client:
        assert str(await client("hi")) == "HI"
        assert (client.card.name, client.card.description) == ("Echo", "Repeats you")
    with pytest.raises(TypeError, match="'show_tools' is not for"):
        wrap(Echo(), name="Echo", show_tools=False)

"""The operations, on the real engine and every store."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from dragoman import errors
from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from dragoman.model.card import Extension
from dragoman.model.content import Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.ops import CancelTask, GetTask, ListTasks, Scope, SendMessage, SubscribeToTask
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState
from tests.engine.conftest import Start, call, events, say


def echo() -> Agent:
    agent = Agent("a")

    @agent.skill
    async def echo(text: str) -> str:
        return text.upper()

    return agent


class Gate:
    """An agent that waits to be let through."""

    def __init__(self) -> None:
        self.agent = Agent("a")
        self.started, self.open = asyncio.Event(), asyncio.Event()
        self.ended: list[str] = []

        @self.agent.skill
        async def wait(turn: Turn) -> str:
            self.started.set()
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            return turn.text


async def test_a_blocking_send_returns_the_finished_task_with_its_artifact(start: Start) -> None:
    engine = await start(echo())
    task = await engine.call(call(), say("hello"))
    assert task.state is TaskState.COMPLETED
    assert task.text == "HELLO"
    assert [m.text for m in task.history] == ["hello"]
    assert task.context_id and task.id == task.history[0].task_id


async def test_return_immediately_returns_before_the_work_is_done(start: Start) -> None:
    gate = Gate()
    engine = await start(gate.agent)
    task = await engine.call(call(), say("x", return_immediately=True))
    assert not task.state.settled
    gate.open.set()
    stream = engine.stream(call(), SubscribeToTask(id=task.id))
    assert (await events(stream))[-1].event.status.state is TaskState.COMPLETED  # type: ignore[union-attr]


async def test_a_stream_is_the_task_then_its_updates_with_rising_numbers(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def chunks(turn: Turn):
        for word in turn.text.split():
            yield word

    engine = await start(agent)
    got = await events(engine.stream(call(), say("one two three")))
    assert isinstance(got[0].event, Task) and got[0].event.state is TaskState.SUBMITTED
    assert isinstance(got[1].event, StatusUpdate) and got[1].event.status.state is TaskState.WORKING
    updates = [r.event for r in got[2:-1]]
    assert all(isinstance(u, ArtifactUpdate) for u in updates)
    assert [u.append for u in updates] == [False, True, True]  # type: ignore[union-attr]
    assert [u.last_chunk for u in updates] == [False, False, True]  # type: ignore[union-attr]
    assert got[-1].event.status.state is TaskState.COMPLETED  # type: ignore[union-attr]
    assert [r.seq for r in got] == sorted({r.seq for r in got})
    task = await engine.call(call(), GetTask(id=got[0].event.id))
    assert [p.text for p in task.artifacts[0].parts] == ["one", "two", "three"]


async def test_several_subscribers_see_the_same_events_in_the_same_order(start: Start) -> None:
    gate = Gate()
    engine = await start(gate.agent)
    task = await engine.call(call(), say("x", return_immediately=True))
    readers = [
        asyncio.create_task(events(engine.stream(call(), SubscribeToTask(id=task.id)))) for _ in range(5)
    ]
    await gate.started.wait()
    gate.open.set()
    seen = [[(r.seq, r.event) for r in await reader][1:] for reader in readers]
    assert seen[0] and all(other == seen[0][-len(other) :] for other in seen)


async def test_closing_a_stream_does_not_stop_the_task(start: Start) -> None:
    gate = Gate()
    engine = await start(gate.agent)
    async with aclosing(engine.stream(call(), say("x"))) as stream:  # type: ignore[type-var]
        first = await anext(stream)
        await gate.started.wait()
    gate.open.set()
    task_id = first[0].event.id  # type: ignore[union-attr]
    await events(engine.stream(call(reads_finished=True), SubscribeToTask(id=task_id)))
    assert (await engine.call(call(), GetTask(id=task_id))).state is TaskState.COMPLETED


async def test_a_reader_that_comes_back_gets_only_what_it_missed(start: Start) -> None:
    engine = await start(echo())
    whole = await events(engine.stream(call(), say("hello")))
    task_id = whole[0].event.id  # type: ignore[union-attr]
    for i, response in enumerate(whole):
        again = await events(engine.stream(call(after=response.seq), SubscribeToTask(id=task_id)))
        assert [(r.seq, r.event) for r in again] == [(r.seq, r.event) for r in whole[i + 1 :]]


async def test_a_repeated_send_goes_on_after_the_event_that_its_sender_has(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def talk(turn: Turn) -> str:
        return await turn.ask("well?")

    engine = await start(agent)
    first = await events(engine.stream(call(idempotency_key="1"), say("hi")))
    task_id = first[0].event.id  # type: ignore[union-attr]
    second = await events(engine.stream(call(idempotency_key="2"), say("so", task=task_id)))
    assert [sent[-1].event.status.state.word for sent in (first, second)] == ["input-required", "completed"]  # type: ignore[union-attr]
    for key, sent in (("1", first), ("2", second)):
        for i, response in enumerate(sent):
            resumed = call(idempotency_key=key, after=response.seq)
            async with asyncio.timeout(10):
                again = await events(engine.stream(resumed, say("hi")))
            assert [(r.seq, r.event) for r in again] == [(r.seq, r.event) for r in sent[i + 1 :]]
        for unknown in (0, 99):
            async with asyncio.timeout(10):
                whole = await events(engine.stream(call(idempotency_key=key, after=unknown), say("hi")))
            assert [(r.seq, r.event) for r in whole] == [(r.seq, r.event) for r in sent]


async def test_subscribing_to_a_finished_task_is_an_error_unless_the_version_says_otherwise(
    start: Start,
) -> None:
    engine = await start(echo())
    task = await engine.call(call(), say("hello"))
    with pytest.raises(errors.UnsupportedOperation):
        await events(engine.stream(call(), SubscribeToTask(id=task.id)))
    got = await events(engine.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
    assert [r.event for r in got] == [task]


async def test_history_length_limits_the_history_and_zero_leaves_it_out(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def talk(turn: Turn) -> str:
        for i in range(4):
            await turn.status(f"step {i}")
        return "done"

    engine = await start(agent)
    task = await engine.call(call(), say("go"))
    assert [m.text for m in task.history] == ["go", "step 0", "step 1", "step 2", "step 3"]
    assert [m.text for m in (await engine.call(call(), GetTask(id=task.id, history_length=2))).history] == [
        "step 2",
        "step 3",
    ]
    assert (await engine.call(call(), GetTask(id=task.id, history_length=0))).history == ()


async def test_a_message_to_a_finished_task_is_refused_and_changes_nothing(start: Start) -> None:
    engine = await start(echo())
    task = await engine.call(call(), say("hello"))
    with pytest.raises(errors.TaskClosed):
        await engine.call(call(), say("more", task=task.id))
    assert await engine.call(call(), GetTask(id=task.id)) == task


async def test_an_unknown_task_and_a_wrong_context_are_refused(start: Start) -> None:
    gate = Gate()
    engine = await start(gate.agent)
    with pytest.raises(errors.TaskNotFound):
        await engine.call(call(), say("x", task="nope"))
    with pytest.raises(errors.TaskNotFound):
        await engine.call(call(), GetTask(id="nope"))
    with pytest.raises(errors.TaskNotFound):
        await events(engine.stream(call(), SubscribeToTask(id="nope")))
    with pytest.raises(errors.TaskNotFound):
        await engine.call(call(), CancelTask(id="nope"))
    task = await engine.call(call(), say("x", return_immediately=True, context="c1"))
    assert task.context_id == "c1"
    with pytest.raises(errors.InvalidParams):
        await engine.call(call(), say("y", task=task.id, context="c2"))
    gate.open.set()


async def test_a_task_of_another_owner_agent_or_tenant_is_not_found(start: Start) -> None:
    engine = await start(echo(), Agent("b"))
    task = await engine.call(call(), say("hello"))
    for scope in (Scope("", "a", "bob"), Scope("acme", "a", ""), Scope("", "b", "")):
        other = call()
        other = type(other)(scope=scope)
        with pytest.raises(errors.TaskNotFound):
            await engine.call(other, GetTask(id=task.id))
        with pytest.raises(errors.TaskNotFound):
            await engine.call(other, CancelTask(id=task.id))
        assert (await engine.call(other, ListTasks())).tasks == ()


async def test_the_caller_may_name_its_tasks_where_the_version_says_so(start: Start) -> None:
    gate = Gate()
    engine = await start(gate.agent)
    task = await engine.call(call(names_tasks=True), say("x", task="mine", return_immediately=True))
    assert task.id == "mine"
    await gate.started.wait()
    again = await engine.call(call(names_tasks=True), say("y", task="mine", return_immediately=True))
    assert [m.text for m in again.history] == ["x", "y"]
    gate.open.set()


async def test_cancel_cancels_the_function_and_is_final(start: Start) -> None:
    gate = Gate()
    engine = await start(gate.agent)
    task = await engine.call(call(), say("x", return_immediately=True))
    await gate.started.wait()
    canceled = await engine.call(call(), CancelTask(id=task.id))
    assert canceled.state is TaskState.CANCELED
    assert gate.ended == ["cancelled"]
    assert (await engine.call(call(), CancelTask(id=task.id))).state is TaskState.CANCELED
    with pytest.raises(errors.TaskNotCancelable):
        await engine.call(call(strict_cancel=True), CancelTask(id=task.id))


async def test_a_late_completion_never_overwrites_canceled(start: Start) -> None:
    agent, started, tidied = Agent("a"), asyncio.Event(), asyncio.Event()

    @agent.skill
    async def stubborn(turn: Turn) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            tidied.set()
        return "completed all the same"

    engine = await start(agent)
    task = await engine.call(call(), say("x", return_immediately=True))
    await started.wait()
    assert (await engine.call(call(), CancelTask(id=task.id))).state is TaskState.CANCELED
    assert tidied.is_set()
    assert (await engine.call(call(), GetTask(id=task.id))).state is TaskState.CANCELED


async def test_a_function_that_ignores_cancel_is_canceled_without_it(start: Start) -> None:
    agent, started, leave = Agent("a"), asyncio.Event(), asyncio.Event()

    @agent.skill
    async def stuck(turn: Turn) -> str:
        started.set()
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue
        await turn.artifact("late").write("too late")
        return "late"

    engine = await start(agent, grace=0.05)
    task = await engine.call(call(), say("x", return_immediately=True))
    await started.wait()
    canceled = await engine.call(call(), CancelTask(id=task.id))
    assert canceled.state is TaskState.CANCELED
    leave.set()
    await asyncio.sleep(0)
    assert await engine.call(call(), GetTask(id=task.id)) == canceled


async def test_cancel_of_a_task_that_waits_for_input_needs_no_run(start: Start) -> None:
    agent, runs = Agent("a"), []

    @agent.skill
    async def ask(turn: Turn) -> str:
        runs.append(1)
        return await turn.ask("well?")

    engine = await start(agent)
    task = await engine.call(call(), say("x"))
    assert task.state is TaskState.INPUT_REQUIRED
    assert (await engine.call(call(), CancelTask(id=task.id))).state is TaskState.CANCELED
    assert runs == [1]


async def test_a_message_that_lands_mid_turn_is_answered_by_another_turn(start: Start) -> None:
    gate = Gate()
    engine = await start(gate.agent)
    task = await engine.call(call(), say("one", return_immediately=True))
    await gate.started.wait()
    second = asyncio.create_task(engine.call(call(), say("two", task=task.id)))
    while len((await engine.call(call(), GetTask(id=task.id))).history) < 2:
        await asyncio.sleep(0)
    gate.open.set()
    done = await second
    assert done.state is TaskState.COMPLETED
    assert [a.text for a in done.artifacts] == ["one", "two"]


async def test_a_turn_does_not_read_what_waits_for_the_next_one(start: Start) -> None:
    agent, began, go = Agent("a"), asyncio.Event(), asyncio.Event()

    @agent.skill
    async def work(turn: Turn) -> str:
        began.set()
        await go.wait()
        return ",".join(message.text for message in turn.history)

    engine = await start(agent)
    task = await engine.call(call(), say("one", return_immediately=True))
    await began.wait()
    second = asyncio.create_task(engine.call(call(), say("two", task=task.id)))
    while len((await engine.call(call(), GetTask(id=task.id))).history) < 2:
        await asyncio.sleep(0)
    go.set()
    assert [artifact.text for artifact in (await second).artifacts] == ["one", "one,two"]


async def test_a_question_parks_the_task_and_the_answer_resumes_it_without_repeating_anything(
    start: Start,
) -> None:
    agent, quotes = Agent("a"), []

    @agent.skill
    async def book(turn: Turn) -> str:
        await turn.status("looking")
        price = await turn.step("quote", quote)
        await turn.artifact("offer").write(f"for {price}")
        day = await turn.ask("Which day?")
        people = await turn.ask("How many?", int)
        return f"{turn.text} on {day} for {people} at {price}"

    async def quote() -> int:
        quotes.append(1)
        return 100

    engine = await start(agent)
    task = await engine.call(call(), say("Rome"))
    assert task.state is TaskState.INPUT_REQUIRED and task.status.message.text == "Which day?"
    task = await engine.call(call(), say("Friday", task=task.id))
    assert task.status.message.text == "How many?"
    task = await engine.call(call(), say("many", task=task.id))
    assert task.state is TaskState.INPUT_REQUIRED and "How many?" in task.status.message.text
    task = await engine.call(call(), say("2", task=task.id))
    assert task.state is TaskState.COMPLETED
    assert task.artifacts[-1].text == "Rome on Friday for 2 at 100"
    assert quotes == [1]
    assert [m.text for m in task.history if m.role is Role.AGENT].count("looking") == 1
    assert task.artifacts[0].text == "for 100"
    assert len({m.message_id for m in task.history}) == len(task.history)


async def test_need_auth_is_auth_required_and_the_next_message_resumes(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def pay(turn: Turn) -> str:
        done = await turn.need_auth("Log in at the bank", metadata={"url": "https://bank.example"})
        return f"paid ({done.text})"

    engine = await start(agent)
    task = await engine.call(call(), say("pay"))
    assert task.state is TaskState.AUTH_REQUIRED and task.metadata == {"url": "https://bank.example"}
    task = await engine.call(call(), say("done", task=task.id))
    assert task.text == "paid (done)"


async def test_reject_is_rejected_with_the_reason(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def no(turn: Turn) -> None:
        turn.reject("not today")

    task = await (await start(agent)).call(call(), say("x"))
    assert task.state is TaskState.REJECTED and task.status.message.text == "not today"


async def test_a_skill_that_raises_fails_the_task_safely_and_logs_once(start: Start, caplog) -> None:
    agent = Agent("a")

    @agent.skill
    async def broken(turn: Turn) -> None:
        raise RuntimeError("the password is hunter2")

    task = await (await start(agent)).call(call(), say("x"))
    assert task.state is TaskState.FAILED
    assert "hunter2" not in task.status.message.text
    assert caplog.text.count("RuntimeError: the password") == 1


async def test_a_reply_skill_answers_with_a_bare_message_and_leaves_no_task(start: Start) -> None:
    agent = Agent("a")

    @agent.skill(reply=True)
    async def ping(turn: Turn) -> str:
        return "pong"

    engine = await start(agent)
    answer = await engine.call(call(), say("ping"))
    assert isinstance(answer, Message) and answer.text == "pong" and not answer.task_id and answer.context_id
    got = await events(engine.stream(call(), say("ping")))
    assert [type(r.event) for r in got] == [Message]
    page = await engine.call(call(), ListTasks())
    assert (page.tasks, page.total_size) == ((), 0)


async def test_a_reply_skill_that_shows_a_task_returns_immediately_when_asked_to(start: Start) -> None:
    agent, gate = Agent("a"), asyncio.Event()

    @agent.skill(reply=True)
    async def slow(turn: Turn) -> str:
        await turn.status("it takes a while")
        await gate.wait()
        return "done"

    engine = await start(agent)
    task = await engine.call(call(), say("go", return_immediately=True))
    assert isinstance(task, Task) and task.state is TaskState.WORKING
    gate.set()


async def test_a_reply_skill_that_asks_becomes_a_task(start: Start) -> None:
    agent = Agent("a")

    @agent.skill(reply=True)
    async def ping(turn: Turn) -> str:
        return await turn.ask("really?")

    engine = await start(agent)
    task = await engine.call(call(), say("ping"))
    assert isinstance(task, Task) and task.state is TaskState.INPUT_REQUIRED
    got = await events(engine.stream(call(), say("yes", task=task.id)))
    assert isinstance(got[0].event, Task) and got[-1].event.status.state is TaskState.COMPLETED  # type: ignore[union-attr]


async def test_the_same_idempotency_key_gives_the_first_task_and_runs_nothing(start: Start) -> None:
    agent, runs = Agent("a"), []

    @agent.skill
    async def once(turn: Turn) -> str:
        runs.append(turn.text)
        return "ok"

    engine = await start(agent)
    keyed = call(idempotency_key="k1")
    first, second = await asyncio.gather(engine.call(keyed, say("x")), engine.call(keyed, say("x")))
    third = await engine.call(keyed, say("x"))
    assert first.id == second.id == third.id
    fold = Fold()
    for response in await events(
        engine.stream(keyed, say("x"))
    ):  # told from the message on, as the first time
        fold.apply(response.event)
    assert fold.task == third
    assert runs == ["x"]
    assert (await engine.call(call(idempotency_key="k2"), say("x"))).id != first.id


async def test_list_filters_sorts_and_pages_without_repeating_or_losing_a_task(start: Start) -> None:
    engine = await start(echo())
    tasks = [
        await engine.call(call(), say(f"t{i}", context="even" if i % 2 == 0 else "odd")) for i in range(7)
    ]
    seen, token = [], ""
    while True:
        page = await engine.call(call(), ListTasks(page_size=3, page_token=token))
        assert (page.page_size, page.total_size) == (3, 7)
        assert all(not task.artifacts for task in page.tasks)
        seen += page.tasks
        token = page.next_page_token
        if not token:
            break
    assert sorted(t.id for t in seen) == sorted(t.id for t in tasks)
    stamps = [t.status.timestamp for t in seen]
    assert stamps == sorted(stamps, reverse=True)
    page = await engine.call(call(), ListTasks(context_id="odd", include_artifacts=True, history_length=0))
    assert page.total_size == 3 and all(t.artifacts and not t.history for t in page.tasks)
    assert (await engine.call(call(), ListTasks(status=TaskState.FAILED))).total_size == 0
    for bad in (ListTasks(page_size=0), ListTasks(page_size=101), ListTasks(page_token="nonsense")):
        with pytest.raises(errors.InvalidParams):
            await engine.call(call(), bad)


async def test_media_types_that_do_not_fit_are_refused(start: Start) -> None:
    engine = await start(echo())
    image = Message(message_id="m", role=Role.USER, parts=(Part(raw=b"x", media_type="image/png"),))
    with pytest.raises(errors.ContentTypeNotSupported):
        await engine.call(call(), SendMessage(message=image))
    with pytest.raises(errors.ContentTypeNotSupported):
        await engine.call(call(), say("x", accepted_output_modes=("image/png",)))
    for fine in ("text", "text/*", "*/*", "text/plain; charset=utf-8"):
        assert (await engine.call(call(), say("x", accepted_output_modes=(fine, "image/png")))).text == "X"


async def test_capabilities_are_enforced(start: Start) -> None:
    quiet = Agent("a", streaming=False)

    @quiet.skill
    async def one(text: str) -> str:
        return text

    needs = Agent("b", extensions=[Extension(uri="https://example.com/x", required=True)])

    @needs.skill
    async def two(text: str) -> str:
        return text

    engine = await start(quiet, needs)
    with pytest.raises(errors.StreamingNotSupported):
        await events(engine.stream(call(), say("x")))
    with pytest.raises(errors.ExtensionRequired):
        await engine.call(call("b"), say("x"))
    assert (await engine.call(call("b", extensions=("https://example.com/x",)), say("x"))).text == "x"


async def test_several_skills_are_chosen_by_metadata_or_default_or_named_in_the_error(start: Start) -> None:
    agent = Agent("a")

    @agent.skill
    async def upper(text: str) -> str:
        return text.upper()

    @agent.skill
    async def lower(text: str) -> str:
        return text.lower()

    engine = await start(agent)
    with pytest.raises(errors.InvalidParams, match=r"'upper', 'lower'") as missing:
        await engine.call(call(), say("Hi"))
    with pytest.raises(errors.InvalidParams, match="no skill 'sing'") as unknown:
        await engine.call(call(), SendMessage(message=say("Hi").message, metadata={"skillId": "sing"}))
    for caught in (missing, unknown):
        assert [field for field, _ in caught.value.fields] == ["message.metadata.skillId"]
    chosen = SendMessage(message=say("Hi").message, metadata={"skillId": "lower"})
    assert (await engine.call(call(), chosen)).text == "hi"

    @agent.skill(default=True)
    async def same(text: str) -> str:
        return text

    assert (await engine.call(call(), say("Hi"))).text == "Hi"


async def test_notes_are_recorded_once_in_any_order_after_an_interruption(start: Start) -> None:
    agent, tries = Agent("a"), []

    @agent.skill
    async def work(turn: Turn) -> str:
        tries.append(turn.attempt)
        for name in ("x", "y", "y") if len(tries) == 1 else ("y", "x", "y", "z"):
            await turn.note(name)
        events = turn.artifact("events")
        kept = events.keep()
        await events.write("more" if kept else "first")
        if len(tries) == 1:
            await turn.step("there", lambda: 1)
            await asyncio.Event().wait()
        return turn.scope.agent

    engine = await start(agent)
    task = await engine.call(call(), say("x", return_immediately=True))
    log = engine._store.scope(call().scope)
    async with asyncio.timeout(10):
        while not (await log.load(task.id)).steps:
            await asyncio.sleep(0)
    await engine.stop(drain=0)
    again = await start(agent)
    async with asyncio.timeout(10):
        async for _ in again.stream(call(reads_finished=True), SubscribeToTask(id=task.id)):
            pass
    done = await again.call(call(), GetTask(id=task.id))
    assert [part.text for part in done.artifacts[0].parts] == ["first", "more"]
    records = await again._store.scope(call().scope).read(task.id)
    assert [r.body.name for r in records if r.kind == "note"] == ["x", "y", "y", "z"]  # type: ignore[union-attr]

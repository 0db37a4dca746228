"""A turn that was interrupted runs again: the same is not said twice, more is added, and what differs replaces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from dragoman.agent.agent import Agent
from dragoman.engine.records import Differs
from dragoman.engine.turn import Turn
from dragoman.model.content import Part, Role
from dragoman.model.fold import Fold
from dragoman.model.ops import GetTask, SubscribeToTask
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task, TaskState
from tests.engine.conftest import Start, call, events, say

Run = Callable[[Turn], Awaitable[None]]


class Twice:
    """An agent whose first run is interrupted after `first`; the second one does `second` and returns."""

    def __init__(self, first: Run, second: Run) -> None:
        self.agent = Agent("a")
        self.runs = 0

        @self.agent.skill
        async def work(turn: Turn) -> None:
            self.runs += 1
            if self.runs == 1:
                await first(turn)
                await turn.step("said", int)  # all of it is on disk
                self.interrupted.set()
                await asyncio.Event().wait()
            await second(turn)

    async def play(self, start: Start) -> tuple[Task, list[Any]]:
        """The task at its end, and everything peers were told about it."""
        self.interrupted = asyncio.Event()
        engine = await start(self.agent)
        task = await engine.call(call(), say("go", return_immediately=True))
        await self.interrupted.wait()
        await engine.stop(drain=0)
        engine = await start(self.agent)
        async with asyncio.timeout(20):
            await events(engine.stream(call(reads_finished=True), SubscribeToTask(id=task.id)))
        received = [r.event for r in await events(engine.stream(call(after=0), SubscribeToTask(id=task.id)))]
        done = await engine.call(call(), GetTask(id=task.id))
        assert done.state is TaskState.COMPLETED and self.runs == 2
        fold = Fold()
        for event in received:
            fold.apply(event)
        assert (
            fold.task is not None and fold.task.artifacts == done.artifacts
        )  # whoever listened has the same
        return done, received


def writing(*chunks: str | Part, last: bool = False) -> Run:
    async def run(turn: Turn) -> None:
        writer = turn.artifact("a")
        for n, chunk in enumerate(chunks, 1):
            await writer.write(chunk, last=last and n == len(chunks))

    return run


def chunks_of(received: Sequence[Any]) -> list[tuple[bool, list[str | None]]]:
    """Each chunk that peers were told: whether it adds to the others, and its texts."""
    return [
        (event.append, [part.text for part in event.artifact.parts])
        for event in received
        if isinstance(event, ArtifactUpdate)
    ]


@pytest.mark.parametrize(
    ("first", "second", "received"),
    [
        pytest.param(["a", "b"], ["a", "b"], [(False, ["a"]), (True, ["b"])], id="the same"),
        pytest.param(
            ["a", "b"], ["a", "b", "c"], [(False, ["a"]), (True, ["b"]), (True, ["c"])], id="more"
        ),
        pytest.param(["a", "b"], ["abc"], [(False, ["a"]), (True, ["b"]), (True, ["c"])], id="in one piece"),
        pytest.param(
            ["abc"], ["a", "b", "c", "d"], [(False, ["abc"]), (True, ["d"])], id="in smaller pieces"
        ),
        pytest.param(
            ["ab", "cd"], ["a", "bc", "de"], [(False, ["ab"]), (True, ["cd"]), (True, ["e"])], id="in other pieces"
        ),
        pytest.param(["a", "b"], ["x", "y"], [(False, ["a"]), (True, ["b"]), (False, ["x"]), (True, ["y"])],
                     id="another beginning"),
        pytest.param(["a", "b"], ["a", "x"], [(False, ["a"]), (True, ["b"]), (False, ["a", "x"])], id="another end"),
        pytest.param(["abc"], ["ab", "x"], [(False, ["abc"]), (False, ["ab", "x"])], id="another end of a piece"),
        pytest.param(["a", "b"], ["a"], [(False, ["a"]), (True, ["b"]), (False, ["a"])], id="less"),
        pytest.param([], ["a"], [(False, ["a"])], id="nothing before"),
        pytest.param(["a"], [], [(False, ["a"])], id="nothing again"),
    ],
)  # fmt: skip
async def test_a_rerun_does_not_write_recorded_text_again(
    start: Start, first: list[str], second: list[str], received: Any
) -> None:
    task, heard = await Twice(writing(*first), writing(*second)).play(start)
    assert chunks_of(heard) == received
    assert task.artifacts[0].text == "".join(second or first)


async def test_an_artifact_that_was_whole_is_not_closed_again(start: Start) -> None:
    _, heard = await Twice(writing("a", "b", last=True), writing("a", "b", last=True)).play(start)
    assert [e.last_chunk for e in heard if isinstance(e, ArtifactUpdate)] == [False, True]


async def test_an_artifact_that_was_not_closed_yet_is_closed_in_the_end(start: Start) -> None:
    task, heard = await Twice(writing("a", "b"), writing("a", "b", last=True)).play(start)
    assert [e.last_chunk for e in heard if isinstance(e, ArtifactUpdate)] == [False, False, True]
    assert task.artifacts[0].text == "ab"


@pytest.mark.parametrize("same", [True, False])
async def test_files_and_data_are_compared_whole(start: Start, same: bool) -> None:
    before = [Part(raw=b"\x00", media_type="image/png"), Part(data={"n": [1, 2]})]
    after = [before[0], before[1] if same else Part(data={"n": [1]})]
    task, heard = await Twice(writing(*before), writing(*after)).play(start)
    assert task.artifacts[0].parts == tuple(after)
    assert len(chunks_of(heard)) == (2 if same else 3)


async def test_text_of_another_kind_is_not_the_same_text(start: Start) -> None:
    plain, marked = Part(text="a"), Part(text="a", media_type="text/markdown")
    task, _ = await Twice(writing(plain), writing(marked)).play(start)
    assert task.artifacts[0].parts == (marked,)


def saying(*texts: str) -> Run:
    async def run(turn: Turn) -> None:
        for text in texts:
            await turn.status(text)

    return run


@pytest.mark.parametrize(
    ("first", "second", "history"),
    [
        (["a", "b"], ["a", "b"], ["a", "b"]),
        (["a", "b"], ["a", "b", "c"], ["a", "b", "c"]),
        (["a", "b"], ["x", "b"], ["a", "b", "x", "b"]),
        (["a", "b"], ["a"], ["a", "b"]),
        (["a", "a"], ["a", "a", "a"], ["a", "a", "a"]),
    ],
)
async def test_a_rerun_does_not_report_recorded_progress_again(
    start: Start, first: list[str], second: list[str], history: list[str]
) -> None:
    task, heard = await Twice(saying(*first), saying(*second)).play(start)
    assert [m.text for m in task.history if m.role is Role.AGENT] == history
    assert len({m.message_id for m in task.history}) == len(task.history)
    states = [event.status.state for event in heard if isinstance(event, StatusUpdate)]
    assert states[-1] is TaskState.COMPLETED and TaskState.SUBMITTED not in states


# What steps give back


@dataclass
class Quote:
    price: int
    tags: list[str]


class Struct(msgspec.Struct):
    price: int


class Model(pydantic.BaseModel):
    price: int


def quote() -> Quote:
    return Quote(3, ["a"])


async def struct() -> Struct:
    return Struct(3)


def model() -> Model:
    return Model(price=3)


async def models() -> list[Model]:
    return [Model(price=1), Model(price=2)]


def maybe() -> Model | None:
    return None


def raw() -> bytes:
    return b"\x00\xff"


def untyped():
    return {"a": [1, None, "x"]}


def nothing() -> None:
    return None


@pytest.mark.parametrize(
    "work", [quote, struct, model, models, maybe, raw, untyped, nothing], ids=lambda f: f.__name__
)
async def test_a_step_on_record_gives_back_what_it_gave(start: Start, work: Callable[[], Any]) -> None:
    got, runs = [], []

    def counted() -> Any:
        runs.append(1)
        return work()

    counted.__annotations__ = dict(work.__annotations__)

    async def run(turn: Turn) -> None:
        got.append(await turn.step("x", counted))

    await Twice(run, run).play(start)
    assert runs == [1]
    assert got[0] == got[1] and type(got[0]) is type(got[1])


async def test_steps_of_one_turn_with_the_same_key_are_reported(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("a")

    @agent.skill
    async def work(turn: Turn) -> list[int]:
        prices = [await turn.step("price", len, city) for city in ("Rome", "Oslo!", "Nice!!")]
        await turn.ask("Fine?")
        return prices

    engine = await start(agent)
    task = await engine.call(call(), say("go"))
    done = await engine.call(call(), say("yes", task=task.id))
    assert done.artifacts[0].parts[0].data == [4, 4, 4]
    warned = [record.getMessage() for record in caplog.records if "used twice" in record.getMessage()]
    assert len(warned) == 2, "once in each run"
    assert "step 'price' is used twice in a turn and returns the first result" in warned[0]


async def test_a_step_of_a_type_that_is_no_data_still_gives_back_its_value(start: Start) -> None:
    def odd() -> Callable[[], int]:
        return {"not": "callable"}  # type: ignore[return-value]

    got: list[Any] = []

    async def run(turn: Turn) -> None:
        got.append(await turn.step("x", odd))

    await Twice(run, run).play(start)
    assert got == [{"not": "callable"}] * 2


async def test_the_same_step_key_in_two_turns_is_two_steps(start: Start) -> None:
    agent, begun, go, runs = Agent("a"), asyncio.Event(), asyncio.Event(), list[str]()

    def noted(text: str) -> str:
        runs.append(text)
        return text

    @agent.skill
    async def work(turn: Turn) -> str:
        value = await turn.step("same key", noted, turn.text)
        begun.set()
        await go.wait()
        return value

    engine = await start(agent)
    task = await engine.call(call(), say("one", return_immediately=True))
    await begun.wait()
    second = asyncio.create_task(engine.call(call(), say("two", task=task.id)))
    while len((await engine.call(call(), GetTask(id=task.id))).history) < 2:
        await asyncio.sleep(0)
    go.set()
    assert [a.text for a in (await second).artifacts] == ["one", "two"]
    assert runs == ["one", "two"]


# -- questions and steps keep what belongs to them when the function has changed ---------------------------------------


class Redeployed:
    """A task that goes on with another function than it began with, as after an upgrade."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.task = ""
        self.engine: Any = None

    async def deploy(self, work: Callable[[Turn], Awaitable[Any]]) -> None:
        if self.engine is not None:
            await self.engine.stop(drain=0)
        agent = Agent("a")
        agent.skill(id="work")(work)
        self.engine = await self._start(agent)

    async def say(self, text: str) -> Task:
        async with asyncio.timeout(20):
            task = await self.engine.call(call(), say(text, task=self.task))
        self.task = task.id
        return task

    async def differences(self) -> list[Differs]:
        log = self.engine._store.scope(call().scope)
        return [r.body for r in await log.read(self.task) if isinstance(r.body, Differs)]


async def city(turn: Turn) -> str:
    return f"city={await turn.ask('Which city?')}"


async def day_then_city(turn: Turn) -> str:
    day = await turn.ask("Which day?")
    return f"day={day} city={await turn.ask('Which city?')}"


async def test_an_answer_does_not_go_to_a_question_that_was_put_before_its_own(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    it = Redeployed(start)
    await it.deploy(city)
    assert (await it.say("go")).status.message.text == "Which city?"  # type: ignore[union-attr]
    await it.deploy(day_then_city)
    assert (await it.say("Oslo")).status.message.text == "Which day?"  # type: ignore[union-attr]
    assert (await it.say("Monday")).text == "day=Monday city=Oslo"
    assert await it.differences() == [Differs(what="question", recorded="Which city?", now="Which day?")]
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 1 and "'Which city?'" in warned[0] and it.task in warned[0] and "key=" in warned[0]


async def test_an_answer_that_was_given_long_ago_does_not_go_to_another_question(start: Start) -> None:
    async def two(turn: Turn) -> str:
        return f"{await turn.ask('One?')} {await turn.ask('Two?')}"

    async def three(turn: Turn) -> str:
        return f"{await turn.ask('Zero?')} {await turn.ask('Two?')} {await turn.ask('One?')}"

    it = Redeployed(start)
    await it.deploy(two)
    await it.say("go")
    await it.say("1")
    await it.deploy(three)
    assert (await it.say("2")).status.message.text == "Zero?"  # type: ignore[union-attr]
    assert (await it.say("0")).text == "0 2 1"


async def test_more_than_one_message_to_a_question_goes_to_no_other(start: Start) -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    async def held(turn: Turn) -> str:
        began.set()
        await gate.wait()
        return await day_then_city(turn)

    it = Redeployed(start)
    await it.deploy(city)
    await it.say("go")
    await it.deploy(held)
    await it.engine.call(call(), say("Oslo", task=it.task, return_immediately=True))
    await began.wait()
    await it.engine.call(call(), say("in Norway", task=it.task, return_immediately=True))
    gate.set()
    async with asyncio.timeout(20):
        async for batch in it.engine.stream(call(), SubscribeToTask(id=it.task)):
            if any(response.event.status.state is TaskState.INPUT_REQUIRED for response in batch):
                break
    asked = await it.engine.call(call(), GetTask(id=it.task))
    assert asked.status.message.text == "Which day?"
    assert (await it.say("Monday")).text == "day=Monday city=Oslo"


async def test_the_answer_to_a_question_that_is_not_asked_any_more_is_no_new_request(start: Start) -> None:
    runs = []

    async def no_question(turn: Turn) -> str:
        runs.append(turn.text)
        return "done"

    it = Redeployed(start)
    await it.deploy(city)
    await it.say("go")
    await it.deploy(no_question)
    assert (await it.say("Oslo")).text == "done"
    assert runs == ["go"]
    assert await it.differences() == [Differs(what="question", recorded="Which city?")]


async def test_a_question_with_a_key_is_identified_by_the_key(start: Start) -> None:
    async def polite(turn: Turn) -> str:
        return await turn.ask("Which city, please?", key="city")

    async def short(turn: Turn) -> str:
        return await turn.ask("City?", key="city")

    it = Redeployed(start)
    await it.deploy(polite)
    await it.say("go")
    await it.deploy(short)
    assert (await it.say("Oslo")).text == "Oslo"
    assert await it.differences() == []


async def test_the_same_question_may_be_asked_more_than_once(start: Start) -> None:
    async def again(turn: Turn) -> str:
        said = []
        while "stop" not in said:
            said.append(await turn.ask("More?"))
        return " ".join(said)

    it = Redeployed(start)
    await it.deploy(again)
    for text in ("go", "one", "two"):
        assert (await it.say(text)).state is TaskState.INPUT_REQUIRED
    assert (await it.say("stop")).text == "one two stop"
    assert await it.differences() == []


async def test_a_recorded_step_that_another_function_finds_is_reported_and_not_done_twice(
    start: Start,
) -> None:
    done = []

    def pay() -> str:
        done.append("pay")
        return "paid"

    def refund() -> str:
        done.append("refund")
        return "refunded"

    def skill(work: Callable[[], str]) -> Callable[[Turn], Awaitable[str]]:
        async def run(turn: Turn) -> str:
            return f"{await turn.step('money', work)} {await turn.ask('Ok?')}"

        return run

    it = Redeployed(start)
    await it.deploy(skill(pay))
    await it.say("go")
    await it.deploy(skill(refund))
    assert (await it.say("fine")).text == "paid fine"
    assert done == ["pay"]
    (found,) = await it.differences()
    assert found.what == "step" and "pay" in found.recorded and "refund" in found.now


async def test_concurrent_questions_get_their_own_answers_in_any_order(
    start: Start,
) -> None:
    runs = 0

    async def both(turn: Turn) -> str:
        nonlocal runs
        runs += 1
        questions = ["One?", "Two?"] if runs % 2 else ["Two?", "One?"]
        said = await asyncio.gather(*(turn.ask(question) for question in questions))
        return " ".join(f"{q}{a}" for q, a in sorted(zip(questions, said, strict=True)))

    it = Redeployed(start)
    await it.deploy(both)
    assert (await it.say("go")).status.message.text == "One?"  # type: ignore[union-attr]
    assert (await it.say("1")).status.message.text == "Two?"  # type: ignore[union-attr]
    assert (await it.say("2")).text == "One?1 Two?2"
    assert await it.differences() == []


async def test_output_from_before_the_server_stops_is_stored(start: Start) -> None:
    agent, said = Agent("a"), asyncio.Event()

    @agent.skill
    async def talk(turn: Turn) -> None:
        for word in ("one ", "two ", "three"):
            await turn.artifact("a").write(word)
            await asyncio.sleep(0)
        said.set()
        await asyncio.Event().wait()

    engine = await start(agent)
    task = await engine.call(call(), say("go", return_immediately=True))
    await said.wait()
    await engine.stop(drain=0)
    store = engine._store
    await store.open()
    known = await store.scope(call().scope).load(task.id)
    await store.close()
    assert [artifact.text for artifact in known.task.artifacts] == ["one two three"]

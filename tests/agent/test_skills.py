"""What a function says about itself, what it is given, and what its answer becomes."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from dragoman import Agent, Artifact, ArtifactUpdate, Message, Part, Role, Task, TaskState, Turn, errors
from dragoman.client import Reply, TaskFailed
from tests.waiting import forever


def task_of(reply: Reply) -> Task:
    assert reply.task is not None
    return reply.task


def message_of(reply: Reply) -> Message:
    assert reply.message is not None
    return reply.message


@dataclass
class Trip:
    city: str
    days: int = 3


class Order(msgspec.Struct):
    item: str
    count: int


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_name_docstring_and_hints_make_the_card() -> None:
    agent = Agent("My Agent!", description="Does things", version="2.0")

    @agent.skill(tags=["a"], examples=["do it"])
    async def do_the_thing(text: str) -> str:
        """Does the thing."""
        return text

    @agent.skill
    async def plan(trip: Trip) -> Trip:
        """Plans."""
        return trip

    card = agent.card
    assert agent.id == "my-agent"
    assert (card.name, card.description, card.version) == ("My Agent!", "Does things", "2.0")
    thing, plan_skill = card.skills
    assert (thing.id, thing.name, thing.description) == ("do_the_thing", "Do the thing", "Does the thing.")
    assert (thing.tags, thing.examples) == (("a",), ("do it",))
    assert "application/json" in plan_skill.input_modes and "application/json" in plan_skill.output_modes
    assert "application/json" in card.default_input_modes


def test_the_decorator_returns_the_function_unchanged() -> None:
    agent = Agent("A")

    def plain(text: str) -> str:
        return text

    assert agent.skill(plain) is plain
    assert agent.skill(id="other")(plain) is plain


def test_two_skills_of_one_name_and_functions_that_fit_no_message_are_refused() -> None:
    agent = Agent("A")

    @agent.skill
    async def one(text: str) -> str:
        return text

    with pytest.raises(TypeError, match="has a skill 'one' already"):
        agent.skill(one)
    with pytest.raises(TypeError, match="no place in a message"):

        @agent.skill
        async def two(*words: str) -> None: ...


@pytest.mark.parametrize("versions", ["7", (), ("0.3.0",), ("2.0", "1.0")])
def test_unknown_versions_are_refused(versions: Any) -> None:
    with pytest.raises(ValueError, match=r"some of 1\.0, 0\.3, 0\.2, 0\.1"):
        Agent("A", versions=versions)
    assert Agent("A", versions=["0.1", "1.0"]).versions == ("1.0", "0.1")
    assert Agent("A", versions="1.0").versions == ("1.0",)


async def ask(function: Any, *content: Any, **options: Any) -> Any:
    """What a single-skill agent answers."""
    agent = Agent("A")
    agent.skill(function)
    async with agent.test() as client:
        return await client(*content, **options)


async def test_a_str_parameter_gets_the_text() -> None:
    async def skill(words: str) -> str:
        return words[::-1]

    assert await ask(skill, "abc") == "cba"


@pytest.mark.parametrize(
    ("kind", "data"),
    [(Trip, {"city": "Rome"}), (Order, {"item": "x", "count": 2}), (Person, {"name": "Ada", "age": 36})],
)
async def test_a_model_parameter_gets_validated_data_also_from_json_text(kind: Any, data: Any) -> None:
    async def skill(value):
        assert isinstance(value, kind)
        return value

    skill.__annotations__ = {"value": kind, "return": kind}
    expected = {"city": "Rome", "days": 3} if kind is Trip else data
    assert (await ask(skill, data=data)).data == expected
    assert (await ask(skill, msgspec.json.encode(data).decode())).data == expected


async def test_data_that_does_not_fit_is_refused_with_the_reason_and_makes_no_task() -> None:
    agent = Agent("A")

    @agent.skill
    async def plan(trip: Trip) -> str:
        return trip.city

    async with agent.test() as client:
        with pytest.raises(errors.InvalidParams, match="city"):
            await client(data={"days": 2})
        with pytest.raises(
            errors.InvalidParams, match="'trip' is missing: send it as data, or as JSON, with city, days"
        ):
            await client("no data at all")
        assert [task async for task in client.list()] == []


async def test_pydantic_says_what_is_wrong_in_its_own_words() -> None:
    async def skill(person: Person) -> str:
        return person.name

    with pytest.raises(errors.InvalidParams, match="age"):
        await ask(skill, data={"name": "Ada", "age": "old"})


async def test_several_simple_parameters_are_members_of_the_data() -> None:
    async def convert(amount: float, source: str, target: str = "EUR") -> str:
        return f"{amount:g} {source} {target}"

    assert await ask(convert, data={"amount": "10", "source": "USD"}) == "10 USD EUR"
    with pytest.raises(errors.InvalidParams, match="'source' is missing"):
        await ask(convert, data={"amount": 1})


async def test_an_optional_parameter_gets_the_value_of_the_message() -> None:
    async def skill(trip: Trip | None = None, file: Part | None = None, turn: Turn | None = None) -> str:
        assert turn is not None
        return f"{trip.city if trip else '-'} {file.filename if file else '-'}"

    assert await ask(skill, "neither") == "- -"
    assert await ask(skill, data={"city": "Rome"}) == "Rome -"
    assert await ask(skill, "look", files=[Part(raw=b"x", filename="a", media_type="text/plain")]) == "- a"


async def test_a_lone_number_is_taken_from_the_text() -> None:
    async def double(n: int) -> str:
        return str(n * 2)

    assert await ask(double, "21") == "42"
    with pytest.raises(errors.InvalidParams):
        await ask(double, "many")


async def test_files_messages_and_the_turn_are_given_by_annotation() -> None:
    agent = Agent("A", input_modes=["*/*"])

    @agent.skill
    async def skill(files: list[Part], message: Message, turn: Turn) -> str:
        assert turn.message is message and turn.files == tuple(files)
        return ",".join(f"{part.filename}:{len(part.raw or b'')}" for part in files)

    async with agent.test() as client:
        assert await client("look", files=[Part(raw=b"abc", filename="a.bin")]) == "a.bin:3"


async def test_a_missing_file_is_a_content_type_error() -> None:
    async def skill(file: Part) -> str:
        return file.filename

    with pytest.raises(errors.ContentTypeNotSupported):
        await ask(skill, "no file here")


async def test_plain_functions_and_plain_generators_are_skills_too() -> None:
    def shout(text: str) -> str:
        return text.upper()

    def spell(text: str) -> Iterator[str]:
        yield from text

    assert await ask(shout, "abc") == "ABC"
    assert [part.text for part in (await ask(spell, "abc")).task.artifacts[0].parts] == ["a", "b", "c"]


async def test_a_returned_value_becomes_a_part_of_its_kind() -> None:
    async def returns(turn: Turn):
        return {
            "text": "words",
            "data": {"a": 1},
            "list": [1, 2],
            "bytes": b"raw",
            "part": Part(url="https://example.com/x"),
            "parts": [Part(text="a"), Part(text="b")],
            "none": None,
            "artifact": Artifact(
                artifact_id="mine",
                name="Mine",
                parts=(Part(text="x"),),
                metadata={"a": 1},
                extensions=("urn:e",),
            ),
        }[turn.text]

    async def task(kind: str) -> Any:
        return (await ask(returns, kind)).task

    assert (await task("text")).text == "words"
    assert (await task("data")).data == {"a": 1}
    assert (await task("list")).data == [1, 2]
    assert (await task("bytes")).files[0].raw == b"raw"
    assert (await task("part")).files[0].url == "https://example.com/x"
    assert [part.text for part in (await task("parts")).artifacts[0].parts] == ["a", "b"]
    assert (await task("none")).artifacts == ()
    mine = (await task("artifact")).artifacts[0]
    assert (mine.artifact_id, mine.name, mine.text) == ("mine", "Mine", "x")
    assert (mine.metadata, mine.extensions) == ({"a": 1}, ("urn:e",))


async def test_a_turn_reports_status_writes_artifacts_and_files() -> None:
    agent = Agent("A")

    @agent.skill
    async def work(turn: Turn) -> None:
        assert turn.text == "go" and turn.metadata["colour"] == "red"
        assert not turn.cancelled and turn.attempt == 1 and turn.principal == ""
        await turn.status("thinking")
        report = turn.artifact("report", description="All of it")
        await report.write("one ")
        await report.write("two", last=True)
        await turn.file(b"%PDF", name="a.pdf")
        await turn.data(Trip("Rome"), name="trip")

    async with agent.test() as client:
        task = task_of(await client("go", metadata={"colour": "red"}))
    report, pdf, trip = task.artifacts
    assert (report.name, report.description, report.text) == ("report", "All of it", "one two")
    assert (pdf.files[0].filename, pdf.files[0].media_type) == ("a.pdf", "application/pdf")
    assert trip.data == {"city": "Rome", "days": 3}
    assert "thinking" in [message.text for message in task.history]


async def test_the_message_of_an_a2a_error_is_sent_and_of_any_other_error_is_not() -> None:
    agent = Agent("A")

    @agent.skill
    async def fail(turn: Turn) -> None:
        if turn.text == "tell":
            raise errors.Unavailable("the archive is closed on Sundays")
        raise ValueError("secret detail")

    async with agent.test() as client:
        with pytest.raises(TaskFailed, match="closed on Sundays"):
            await client("tell")
        with pytest.raises(TaskFailed) as failed:
            await client("hide")
        assert "secret" not in str(failed.value)


async def test_typed_answers_are_asked_for_until_they_fit() -> None:
    agent = Agent("A")

    @agent.skill
    async def book(turn: Turn) -> str:
        trip = await turn.ask("Which trip?", Trip)
        sure = await turn.ask("Sure?", bool)
        return f"{trip.city} {trip.days} {sure}"

    async with agent.test() as client:
        reply = await client("go")
        reply = await client(data={"days": 1}, task=reply.id)
        assert reply.state is TaskState.INPUT_REQUIRED and "Which trip?" in reply.text
        reply = await client(data={"city": "Oslo"}, task=reply.id)
        assert reply.text == "Sure?"
        assert (await client("yes", task=reply.id)).text == "Oslo 3 True"


async def test_a_hint_is_one_plain_sentence_however_often_it_is_needed() -> None:
    agent = Agent("A")

    @agent.skill
    async def sure(turn: Turn) -> str:
        return str(await turn.ask("Sure?", bool))

    async with agent.test() as client:
        reply = await client("go")
        for answer in ("maybe", "perhaps", "what?"):
            reply = await client(answer, task=reply.id)
            assert reply.text == "Sure? (Please answer yes or no.)"
        assert (await client("Ok!", task=reply.id)).text == "True"


async def test_a_hint_about_data_names_the_member_that_does_not_fit() -> None:
    agent = Agent("A")

    @agent.skill
    async def book(turn: Turn) -> str:
        return (await turn.ask(Message(role=Role.AGENT, parts=(Part(text="Which trip?"),)), Trip)).city

    async with agent.test() as client:
        reply = await client(data={}, task=(await client("go")).id)
        assert reply.text == "Which trip? (Please send data with city, days: city is missing.)"
        reply = await client(data={"city": "Oslo", "days": "many"}, task=reply.id)
        assert reply.text == "Which trip? (Please send data with city, days: days does not fit.)"
        assert (await client(data={"city": "Oslo"}, task=reply.id)).text == "Oslo"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


async def test_whole_numbers_may_be_written_as_floats() -> None:
    """As peers write them that keep data in protobuf."""
    agent = Agent("A")

    @agent.skill
    async def level(level: Level, size: Literal[1, 2], many: list[Literal[1, 2]], ratio: float) -> str:
        return f"{level!r} {size!r} {many!r} {ratio!r}"

    async with agent.test() as client:
        reply = await client(data={"level": 2.0, "size": 2.0, "many": [1.0, 2.0], "ratio": 2.0})
        assert reply.text == "<Level.HIGH: 2> 2 [1, 2] 2.0"
        with pytest.raises(errors.InvalidParams):
            await client(data={"level": 2.5, "size": 2.0, "many": [], "ratio": 2.0})


async def test_an_agent_of_one_version_speaks_only_that() -> None:
    agent = Agent("A", versions=("1.0",))

    @agent.skill
    async def hello(text: str) -> str:
        return text

    async with agent.test() as client:
        assert client.version == "1.0"
        assert {each.protocol_version for each in client.card.supported_interfaces} == {"1.0"}
    with pytest.raises(errors.A2AError):
        async with agent.test(version="0.3") as client:
            await client("x")


async def test_yields_stream_as_they_come() -> None:
    agent = Agent("A")

    @agent.skill
    async def count(n: int) -> AsyncIterator[str]:
        for i in range(n):
            yield str(i)

    async with agent.test() as client:
        assert [piece.text async for piece in client.stream("3") if piece.text] == ["0", "1", "2"]


async def test_an_artifact_named_by_its_id_is_the_same_in_every_turn() -> None:
    agent = Agent("A")

    @agent.skill
    async def draft(turn: Turn) -> None:
        await turn.artifact("Draft", id="draft").write(f"version {turn.n}", last=True)
        await turn.artifact("log").write(turn.text, last=True)
        turn.finish(TaskState.INPUT_REQUIRED if turn.n == 1 else TaskState.COMPLETED, "Better?")

    async with agent.test() as client:
        task = task_of(await (await client("one")).answer("two"))
    assert {each.artifact_id: each.text for each in task.artifacts} == {
        "draft": "version 2",
        "log": "one",
        "log-2": "two",
    }


async def test_returned_messages_parts_and_artifacts_are_sent_as_they_are() -> None:
    async def returns(turn: Turn):
        one, two = (Artifact(artifact_id=name, parts=(Part(text=name),)) for name in ("one", "two"))
        if turn.text == "a question":
            return turn.ask("which?")
        return {
            "message": Message(message_id="m", role=Role.AGENT, parts=(Part(text="that was it"),)),
            "artifacts": [one, two],
            "mixed": ["words", Part(url="https://example.com/x"), {"a": 1}],
            "bytearray": bytearray(b"raw"),
        }[turn.text]

    def agent(reply: bool) -> Agent:
        agent = Agent("A")
        agent.skill(reply=reply)(returns)
        return agent

    async with agent(reply=False).test() as client:
        task = task_of(await client("message"))
        assert task.status.message is not None
        assert (task.status.message.text, task.artifacts) == ("that was it", ())
        assert [a.artifact_id for a in (await client("artifacts")).artifacts] == ["one", "two"]
        words, link, data = (await client("mixed")).artifacts[0].parts
        assert (words.text, link.url, data.data) == ("words", "https://example.com/x", {"a": 1})
        assert (await client("bytearray")).files[0].raw == b"raw"
        assert (await client("a question")).asks
    async with agent(reply=True).test() as client:
        assert message_of(await client("message")).text == "that was it"
        assert message_of(await client("artifacts")).text == "onetwo"
        assert message_of(await client("mixed")).parts == (words, link, data)


async def test_a_reply_can_be_set_without_returning_it() -> None:
    agent = Agent("A", description="x")

    @agent.skill(reply=True)
    async def bare(turn: Turn) -> None:
        turn.reply("set")

    @agent.skill(reply=True)
    async def returned(turn: Turn) -> str:
        turn.reply("set")
        return "returned"

    async with agent.test() as client:
        assert message_of(await client("go", skill="bare")).text == "set"
        assert message_of(await client("go", skill="returned")).text == "returned"


async def test_the_reply_of_a_task_is_the_message_of_its_end() -> None:
    agent = Agent("A", description="x")

    @agent.skill
    async def task(turn: Turn) -> None:
        turn.reply("set")

    @agent.skill(reply=True)
    async def shown(turn: Turn) -> None:
        turn.reply("set")
        await turn.status("working")

    @agent.skill
    async def finished(turn: Turn) -> None:
        turn.reply("set")
        turn.finish(TaskState.REJECTED, "no")

    async with agent.test() as client:
        for skill, text in (("task", "set"), ("shown", "set"), ("finished", "no")):
            ended = task_of(await client.send("go", skill=skill))
            assert ended.status.message is not None
            assert (ended.status.message.text, ended.status.message.task_id) == (text, ended.id)


@pytest.mark.parametrize("reply", [True, False])
async def test_a_message_without_parts_has_an_empty_text(reply: bool) -> None:
    agent = Agent("A", description="x")

    @agent.skill(reply=reply)
    async def nothing(turn: Turn) -> Message:
        return Message(message_id="m", role=Role.AGENT, parts=())

    @agent.skill(reply=reply)
    async def finished(turn: Turn) -> None:
        turn.finish(TaskState.FAILED, Message(message_id="m", role=Role.AGENT, parts=()))
        turn.show()

    async with agent.test() as client:
        answer = await client.send("go", skill="nothing")
        ended = task_of(await client.send("go", skill="finished"))
        said = message_of(answer) if reply else task_of(answer).status.message
        for message in (said, ended.status.message):
            assert message is not None and message.parts == (Part(text=""),)


async def test_a_reply_that_is_yielded_is_one_message() -> None:
    agent = Agent("A")

    @agent.skill(reply=True)
    async def spell(turn: Turn) -> AsyncIterator[Any]:
        for letter in turn.text:
            yield letter
            yield None
        if turn.text == "data":
            yield {"a": 1}

    async with agent.test() as client:
        assert [part.text for part in message_of(await client("abc")).parts] == ["abc"]
        assert message_of(await client("data")).data == {"a": 1}
        assert message_of(await client(Part(text=""))).text == ""


async def test_content_of_a_status_becomes_parts_or_is_refused_at_the_call() -> None:
    agent, refused = Agent("A"), []

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.status({"done": 1})  # type: ignore[arg-type]
        await turn.artifact("numbers").write([1, 2])
        await turn.artifact("raw").write(b"raw")
        for broken in (Part(), Part(text="a", url="b"), Part(text=5), Part(raw="text")):  # type: ignore[arg-type]
            try:
                await turn.artifact("broken").write(broken)
            except TypeError as error:
                refused.append(str(error))
        for wrong in (
            lambda: turn.artifact(5),  # type: ignore[arg-type]
            lambda: turn.artifact("a", metadata=[1]),  # type: ignore[arg-type]
            lambda: turn.artifact("b").put(Part(text="x", filename=5)),  # type: ignore[arg-type]
            lambda: turn.say("x", [1]),  # type: ignore[arg-type]
            lambda: turn.say(Message(message_id=5, role=Role.AGENT, parts=())),  # type: ignore[arg-type]
        ):
            try:
                wrong()
            except TypeError as error:
                refused.append(str(error))
        try:
            await turn.step(5, lambda: 1)  # type: ignore[call-overload]
        except TypeError as error:
            refused.append(str(error))
        work = asyncio.sleep(0)
        try:
            await turn.step("now", work)  # type: ignore[call-overload]
        except TypeError as error:
            refused.append(str(error))
        work.close()

    async with agent.test() as client:
        task = task_of(await client("go"))
    assert [message.data for message in task.history][-1] == {"done": 1}
    assert [artifact.artifact_id for artifact in task.artifacts] == ["numbers", "raw"]
    assert (task.data, task.files[0].raw) == ([1, 2], b"raw")
    assert [error[:16] for error in refused] == [
        *["a part has one o"] * 2,
        *["a part's content"] * 2,
        *["this is no Artif"] * 2,
        "a part's media t",
        "metadata is a di",
        "this is no Messa",
        "a step's key is ",
        "turn.step('now',",
    ]


def test_a_wrong_option_name_is_refused_with_a_suggestion_before_the_address_is_announced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = Agent("A")
    with pytest.raises(TypeError, match="serve: there is no option 'prot'; did you mean 'port'"):
        agent.run(prot=8000, store="memory:")  # type: ignore[call-arg]
    assert capsys.readouterr().out == ""
    with pytest.raises(TypeError, match="there is no option 'stor'; did you mean 'store'"):
        agent.app(stor="memory:")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="a skill: there is no option 'tag'; did you mean 'tags'"):
        agent.skill(tag="x")(lambda text: text)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="there is no option 'zzz'; options are "):
        agent.app(zzz=1)  # type: ignore[call-arg]


async def test_a_wrong_option_of_a_call_is_refused_with_a_suggestion() -> None:
    agent = Agent("A")

    @agent.skill
    async def ask(turn: Turn) -> None:
        await turn.call("b", "hello", skil="greet")  # type: ignore[call-arg]

    async with agent.test() as client:
        with pytest.raises(TaskFailed) as failed:
            await client("hello")
    assert "there is no option 'skil'; did you mean 'skill'?" in str(failed.value.__cause__)


def test_the_typed_options_are_the_parameters_of_what_they_are_passed_to() -> None:
    """`AppOptions` and the others repeat names and types for editors. They must not drift."""
    from dragoman.agent.skill import SkillOptions, declare
    from dragoman.engine.delegate import CallOptions, make_request
    from dragoman.engine.runner import NodeOptions, Runner
    from dragoman.server.options import AppOptions, AppSettings, ServeOptions
    from dragoman.server.runtime import serve

    def names(function: Any) -> set[str]:
        kinds = (inspect.Parameter.KEYWORD_ONLY,)
        return {p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds}

    def keys(options: Any) -> set[str]:
        return set(options.__optional_keys__)

    assert keys(AppOptions) == names(AppSettings) | keys(NodeOptions)
    assert keys(ServeOptions) == names(serve) | keys(AppOptions)
    assert keys(NodeOptions) == names(Runner) - {"queue", "load", "peers", "observer"}
    assert keys(CallOptions) == names(make_request) | {"wait", "extensions"}
    assert keys(SkillOptions) == names(declare)


async def test_run_says_that_it_cannot_be_called_where_an_event_loop_runs() -> None:
    with pytest.raises(RuntimeError, match="call it from code that is not async"):
        Agent("A").run(port=0, store="memory:")


async def test_a_file_can_be_asked_for() -> None:
    agent = Agent("A")

    @agent.skill(input_modes=["text/plain", "image/png"])
    async def look(turn: Turn) -> str:
        picture = await turn.ask("Which picture?", Part)
        again = await turn.ask("Once more?", bytes)
        return f"{picture.filename} {again!r}"

    png = Part(raw=b"png", filename="a.png", media_type="image/png")
    async with agent.test() as client:
        reply = await client("go")
        reply = await reply.answer("this one")
        assert reply.text == "Which picture? (Please send a file.)"
        reply = await reply.answer(files=[png])
        reply = await reply.answer(files=[Part(url="https://example.com/a.png", media_type="image/png")])
        assert reply.text == "Once more? (Please send the file itself, not a link to it.)"
        assert (await reply.answer(files=[png])).text == "a.png b'png'"


async def test_questions_asked_side_by_side_are_asked_one_after_the_other() -> None:
    agent = Agent("A")

    @agent.skill
    async def both(turn: Turn) -> str:
        return " and ".join(await asyncio.gather(turn.ask("This?"), turn.ask("That?")))

    async with agent.test() as client:
        reply = await client("go")
        assert reply.text == "This?"
        reply = await reply.answer("this")
        assert reply.text == "That?"
        assert (await reply.answer("that")).text == "this and that"


async def test_a_task_is_rejected_whatever_the_function_catches() -> None:
    agent = Agent("A")

    @agent.skill
    async def work(turn: Turn) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(forever())
                if turn.text == "in a group":
                    turn.reject("not in a group")
                try:
                    turn.reject("not at all")
                except Exception:
                    await turn.status("something went wrong")
        except Exception:
            return "all is well"
        return "done"

    async with agent.test() as client:
        with pytest.raises(TaskFailed, match="rejected: not in a group"):
            await client("in a group")
        with pytest.raises(TaskFailed, match="rejected: not at all"):
            await client("go")


async def test_steps_that_are_done_side_by_side_need_keys_of_their_own() -> None:
    agent = Agent("A")

    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    @agent.skill
    async def work(turn: Turn) -> list[int]:
        key = "step/{}" if turn.text == "apart" else "step"
        return await asyncio.gather(*(turn.step(key.format(n), double, n) for n in (1, 2)))

    async with agent.test() as client:
        assert (await client("apart")).data == [2, 4]
        with pytest.raises(TaskFailed):
            await client("together")


async def test_several_returned_parts_are_one_chunk() -> None:
    agent, parts = Agent("A"), (Part(text="a"), Part(data={"b": 1}))

    @agent.skill
    async def both(turn: Turn) -> Any:
        return list(parts) if turn.text == "parts" else Artifact(artifact_id="mine", parts=parts)

    async with agent.test() as client:
        for kind, id in (("parts", "result"), ("artifact", "mine")):
            events = [piece.event async for piece in client.stream(kind)]
            [update] = [event for event in events if isinstance(event, ArtifactUpdate)]
            assert (update.artifact.artifact_id, update.artifact.parts, update.last_chunk) == (
                id,
                parts,
                True,
            )


async def test_the_repeated_question_says_which_answers_are_possible(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent("A")

    @agent.skill(default=True)
    async def give(text: str) -> Any:
        return object() if text == "one" else [object()]

    @agent.skill(reply=True)
    async def say(text: str) -> Any:
        return object()

    async with agent.test() as client:
        for text, skill in (("one", "give"), ("several", "give"), ("one", "say")):
            with pytest.raises(TaskFailed, match=r"^task \S+ failed: The agent could not complete"):
                await client(text, skill=skill)
            raised = caplog.records[-1].exc_info
            assert raised is not None
            assert re.search("an answer is text, .* or a Message: object has no JSON form", str(raised[1]))

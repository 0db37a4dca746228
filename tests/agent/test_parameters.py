"""What a skill's parameters get from a message, and which functions cannot be skills."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from dragoman import Agent, Message, Part, Turn, errors

if TYPE_CHECKING:
    from collections.abc import Mapping as OnlyForTypeCheckers


@dataclass
class Trip:
    city: str
    days: int = 3


class Order(msgspec.Struct):
    item: str = "tea"


class Person(pydantic.BaseModel):
    name: str
    trips: list[Trip] = []


@pydantic.dataclasses.dataclass
class Seat:
    row: Annotated[int, pydantic.Field(gt=0)]


class Place(TypedDict):
    city: str


class Point(NamedTuple):
    x: int
    y: int


class Colour(Enum):
    RED = "red"


File = Part(raw=b"abc", filename="a.bin", media_type="application/x-anything")


def taking(hint: Any, default: Any = ...) -> Callable[..., Any]:
    """A skill with one parameter, `x`, that answers with what it got."""

    def take(x): ...

    take.__annotations__["x"] = hint
    if default is not ...:
        take.__defaults__ = (default,)
    return take


async def arguments_of(function: Callable[..., Any], *content: Any, **options: Any) -> Any:
    """What the only skill of an agent was called with."""
    agent, calls = Agent("A"), []

    @functools.wraps(function)
    def watched(*args: Any, **given: Any) -> None:
        calls.append(given)

    agent.skill(watched)
    async with agent.test() as client:
        await client(*content, **options)
    return calls[0]


def data(value: Any) -> dict[str, Any]:
    return {"data": value}


@pytest.mark.parametrize(
    ("hint", "sent", "value"),
    [
        pytest.param(Trip, data({"city": "Rome"}), Trip("Rome"), id="dataclass"),
        pytest.param(Annotated[Trip, "a note"], data({"city": "Rome"}), Trip("Rome"), id="annotated"),
        pytest.param(Place, data({"city": "Rome"}), {"city": "Rome"}, id="typed-dict"),
        pytest.param(Point, data([1, 2]), Point(1, 2), id="named-tuple"),
        pytest.param(dict[str, int], data({"a": 1}), {"a": 1}, id="dict"),
        pytest.param(list[Trip], data([{"city": "Rome"}]), [Trip("Rome")], id="list"),
        pytest.param(list[Trip], data({"x": [{"city": "Rome"}]}), [Trip("Rome")], id="list-by-name"),
        pytest.param(Sequence[int], data([1, 2]), [1, 2], id="sequence"),
        pytest.param(set[int], data([1, 1]), {1}, id="set"),
        pytest.param(tuple[int, str], data([1, "a"]), (1, "a"), id="tuple"),
        pytest.param(list[Person], data([{"name": "Ada"}]), [Person(name="Ada")], id="models-in-a-list"),
        pytest.param(str | Trip, data({"city": "Rome"}), Trip("Rome"), id="text-or-data"),
        pytest.param(int | str, data(5), 5, id="number-or-text"),
        pytest.param(int, data(5), 5, id="number"),
        pytest.param(int, data({"x": 5}), 5, id="number-by-name"),
        pytest.param(bool, data(True), True, id="bool"),
        pytest.param(Literal["a", "b"], data("b"), "b", id="literal"),
        pytest.param(Colour, data("red"), Colour.RED, id="enum"),
        pytest.param(Any, data({"a": 1}), {"a": 1}, id="any"),
        pytest.param(object, data([1]), [1], id="object"),
        pytest.param(bytes, {"files": [File]}, b"abc", id="bytes"),
        pytest.param(list[bytes], {"files": [File, File]}, [b"abc", b"abc"], id="bytes-of-files"),
        pytest.param(Part, {"files": [File]}, File, id="file"),
        pytest.param(Sequence[Part], {"files": [File]}, [File], id="files"),
        pytest.param(tuple[Part, ...], {"files": [File]}, (File,), id="tuple-of-files"),
    ],
)
async def test_a_parameter_gets_data_or_files_as_its_hint_says(
    hint: Any, sent: dict[str, Any], value: Any
) -> None:
    assert await arguments_of(taking(hint), **sent) == {"x": value}


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        pytest.param(str | Trip, "Rome", "Rome", id="text-or-data"),
        pytest.param(Trip, '{"city": "Rome"}', Trip("Rome"), id="json"),
        pytest.param(list[int], "[1, 2]", [1, 2], id="json-list"),
        pytest.param(int, " -5 ", -5, id="number"),
        pytest.param(float, "1e3", 1000.0, id="float"),
        pytest.param(bool, "yes", True, id="yes"),
        pytest.param(date, "2026-11-15", date(2026, 11, 15), id="date"),
        pytest.param(Colour, "red", Colour.RED, id="enum"),
        pytest.param(Any, "{not json", "{not json", id="any"),
        pytest.param(Annotated[str, "a note"], "hi", "hi", id="annotated"),
    ],
)
async def test_a_parameter_gets_what_a_text_says(hint: Any, text: str, value: Any) -> None:
    assert await arguments_of(taking(hint), text) == {"x": value}


@pytest.mark.parametrize("hint", [int, Trip, Part, bytes, list[int], str | Trip])
async def test_an_optional_parameter_gets_none_or_its_default(hint: Any) -> None:
    assert await arguments_of(taking(hint | None), Part(text="")) == {"x": None}
    assert await arguments_of(taking(hint, "the default"), Part(text="")) == {"x": "the default"}


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        pytest.param(("hi",), {"text": "hi", "words": 100}, id="text"),
        pytest.param(('{"text": "hi", "words": 5}',), {"text": "hi", "words": 5}, id="json"),
        pytest.param(('{"other": 1}',), {"text": '{"other": 1}', "words": 100}, id="text-that-is-json"),
        pytest.param(({"text": "hi"},), {"text": "hi", "words": 100}, id="data"),
        pytest.param(("hi", {"words": 5}), {"text": "hi", "words": 5}, id="both"),
    ],
)
async def test_text_goes_to_the_only_parameter_that_can_hold_it(
    sent: tuple[Any, ...], value: dict[str, Any]
) -> None:
    def summarize(text: str, words: int = 100) -> None: ...

    assert await arguments_of(summarize, *sent) == value


async def test_several_parameters_take_the_members_of_their_names_models_included() -> None:
    def book(trip: Trip, person: Person, seats: int = 1, order: Order | None = None) -> None: ...

    by_name = {"trip": {"city": "Rome"}, "person": {"name": "Ada"}, "seats": 2}
    expected = {"trip": Trip("Rome"), "person": Person(name="Ada"), "seats": 2, "order": None}
    assert await arguments_of(book, data=by_name) == expected
    assert await arguments_of(book, data={"city": "Rome", "name": "Ada", "seats": 2}) == expected


async def test_text_and_data_go_where_they_belong() -> None:
    def plan(wish: str, trip: Trip) -> None: ...

    assert await arguments_of(plan, "by the sea", data={"city": "Rome"}) == {
        "wish": "by the sea",
        "trip": Trip("Rome"),
    }
    assert await arguments_of(plan, data={"city": "Rome"}) == {"wish": "", "trip": Trip("Rome")}


@pytest.mark.parametrize(
    ("function", "content", "why"),
    [
        (taking(int), "many", "x: Expected `int`, got `str`"),
        (taking(list[Person]), {"x": [{}]}, r"x: name: Field required - at `\$\[0\]`"),
        (taking(Annotated[int, msgspec.Meta(le=5)]), "9", "x: Expected `int` <= 5"),
        (taking(Annotated[int, pydantic.Field(le=5)]), "9", "x: Expected `int` <= 5"),
        (taking(Seat), {"row": -1}, "x: row: Input should be greater than 0"),
        (taking(Annotated[str, msgspec.Meta(max_length=3)]), "four", "x: Expected `str` of length <= 3"),
        (taking(list[str]), "hello", "'x' is missing: send it as data, or as JSON$"),
        (taking(Person), "hello", "'x' is missing: send it as data, or as JSON, with name, trips$"),
        (taking(Seat), "hello", "'x' is missing: send it as data, or as JSON, with row$"),
        (lambda a, b: None, "text", "'a' is missing: send data with a, b"),
    ],
    ids=[
        "number",
        "model-in-a-list",
        "too-much",
        "too-much-for-pydantic",
        "pydantic-dataclass",
        "too-long",
        "no-list",
        "no-model",
        "no-dataclass",
        "two-texts",
    ],
)
async def test_a_message_that_does_not_fit_is_refused_before_a_task_is_created(
    function: Callable[..., Any], content: Any, why: str
) -> None:
    agent = Agent("A")
    agent.skill(id="it")(function)
    async with agent.test() as client:
        with pytest.raises(errors.InvalidParams, match=why):
            await client(content)
        assert [task async for task in client.list()] == []


async def test_a_link_is_not_the_content_of_a_file() -> None:
    link = Part(url="https://example.com/a.bin", media_type="application/x-anything")
    assert await arguments_of(taking(Part), files=[link]) == {"x": link}
    with pytest.raises(errors.ContentTypeNotSupported, match="not a link"):
        await arguments_of(taking(bytes), files=[link])


async def test_the_turn_is_known_by_its_hint_or_by_its_name_alone() -> None:
    agent = Agent("A")

    @agent.skill(id="named")
    async def named(turn):
        return turn.text

    @agent.skill
    async def hinted(text: str, it: Annotated[Turn | None, "a note"]) -> str:
        assert it is not None
        return it.text

    async with agent.test() as client:
        assert await client("hi", skill="named") == "hi"
        assert await client("hi", skill="hinted") == "hi"


async def test_types_of_a_functions_body_and_types_for_type_checkers_do_no_harm() -> None:
    agent = Agent("A")

    @dataclass
    class Local:
        city: str

    @agent.skill
    async def plan(it: Local) -> OnlyForTypeCheckers[str, str]:
        return {"city": it.city}

    async with agent.test() as client:
        assert (await client(data={"city": "Rome"})).data == {"city": "Rome"}


async def test_methods_lambdas_with_an_id_and_wrapped_functions_are_skills() -> None:
    class Greeter:
        async def greet(self, name: str) -> str:
            return f"Hello, {name}!"

        @classmethod
        def wave(cls, name: str) -> str:
            return f"* to {name}"

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **given)

        return call

    agent = Agent("A")

    @agent.skill
    @logged
    async def shout(text: str, turn: Turn) -> AsyncIterator[str]:
        """Says it louder."""
        await turn.status("...")
        yield text.upper()

    agent.skill(Greeter().greet)
    agent.skill(Greeter.wave)
    agent.skill(id="reverse")(lambda text: text[::-1])
    described = {skill.id: skill.description for skill in agent.card.skills}
    assert described == {
        "shout": "Says it louder.",
        "greet": "greet",
        "wave": "wave",
        "reverse": "reverse",
    }
    async with agent.test() as client:
        assert await client("Ada", skill="shout") == "ADA"
        assert await client("Ada", skill="greet") == "Hello, Ada!"
        assert await client("Ada", skill="wave") == "* to Ada"
        assert await client("Ada", skill="reverse") == "adA"


class Strange:
    def method(self, text: str) -> None: ...

    def __call__(self, text: str) -> None: ...


def positional_only(text: str, /) -> None: ...
def anything(**words: str) -> None: ...
def misspelt(trip: Tirp) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (taking(asyncio.Queue), "skill take: x: Queue is nothing that a message could hold"),
        (taking(Path), "skill take: x: Path is nothing"),
        (taking(dict[str, Strange]), "skill take: x: Strange is nothing"),
        (taking(Trip | Person), "skill take: x: Type unions"),
        (misspelt, "skill misspelt: trip: name 'Tirp' is not defined"),
        (positional_only, "text is given by name"),
        (anything, "no place in a message"),
        (Strange.method, "a method needs its object"),
        (Strange(), "a skill is a function or a method"),
        (Strange, "a skill is a function or a method"),
        ("text", "a skill is a function or a method, not 'text'"),
        (lambda text: text, "a lambda has no name"),
    ],
    ids=[
        "queue",
        "path",
        "inside-a-dict",
        "two-kinds-of-data",
        "misspelt",
        "positional-only",
        "any-words",
        "method-without-object",
        "object",
        "class",
        "text",
        "lambda",
    ],
)
def test_a_function_that_cannot_be_a_skill_is_refused_where_it_is_declared(function: Any, why: str) -> None:
    agent = Agent("A")
    with pytest.raises(TypeError, match=why):
        agent.skill(function)
    assert agent.card.skills == ()


def test_the_card_says_what_a_skill_takes_and_gives() -> None:
    agent = Agent("A")

    @agent.skill
    def text(text: str) -> str:
        return text

    @agent.skill
    async def data(trip: Trip) -> AsyncIterator[Trip]:
        yield trip

    @agent.skill
    def file(file: Part) -> bytes:
        return b""

    @agent.skill(input_modes="image/png", output_modes="image/png", tags="one word", examples="so")
    def given(file: Part, message: Message) -> list[Part]:
        return [file]

    shown = {each.id: (each.input_modes, each.output_modes) for each in agent.card.skills}
    assert shown == {
        "text": ((), ()),
        "data": (("application/json", "text/plain"), ("application/json", "text/plain")),
        "file": (("text/plain", "*/*"), ("application/octet-stream",)),
        "given": (("image/png",), ("image/png",)),
    }
    assert (agent.card.skills[3].tags, agent.card.skills[3].examples) == (("one word",), ("so",))


def test_a_second_default_skill_is_refused() -> None:
    agent = Agent("A")
    agent.skill(default=True, id="one")(lambda text: text)
    with pytest.raises(TypeError, match="has a default skill already: 'one'"):
        agent.skill(default=True, id="two")(lambda text: text)


@pytest.mark.parametrize(
    ("name", "id"), [("Crème, brûlée!", "creme-brulee"), ("Ünï 2", "uni-2"), ("你好", "agent")]
)
def test_an_agents_id_can_stand_in_a_url(name: str, id: str) -> None:
    assert Agent(name).id == id


@pytest.mark.parametrize("options", [{"name": ""}, {"name": None}, {"name": "A", "id": "a/b"}])
def test_an_agent_without_a_name_or_with_an_id_that_is_a_path_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"needs a name|part of a URL"):
        Agent(**options)


async def test_a_message_without_a_word_is_refused_by_a_skill_that_takes_only_text() -> None:
    nameless = Part(raw=b"abc")

    def look(text: str, file: Part | None) -> None: ...

    with pytest.raises(errors.ContentTypeNotSupported, match="'x' is missing: send text"):
        await arguments_of(taking(str), nameless)
    assert await arguments_of(taking(str, "nobody"), nameless) == {"x": "nobody"}
    assert await arguments_of(look, nameless) == {"text": "", "file": nameless}

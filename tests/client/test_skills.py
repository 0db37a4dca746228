"""Typed skills: their schemas are on the card, and the client calls them like functions."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import pydantic
import pytest

from dragoman import Agent, Message, Part, Turn, connect_sync
from dragoman.client import connect
from dragoman.model.schema import SKILL_SCHEMAS, schemas_on


@dataclass
class Trip:
    city: str
    days: int = 3


class Hotel(pydantic.BaseModel):
    name: str
    stars: int = 3


def travel() -> Agent:
    agent = Agent("Travel", description="Books trips")

    @agent.skill
    async def book(trip: Trip, turn: Turn) -> Hotel:
        """Books a trip."""
        return Hotel(name=f"{trip.city} for {trip.days}")

    @agent.skill(id="rate-hotel")
    async def rate(
        hotel: Hotel, stars: Annotated[int, msgspec.Meta(ge=1, le=5)], note: str = "fine"
    ) -> dict[str, int]:
        return {hotel.name: stars}

    @agent.skill
    async def store(name: str, file: Part) -> str:
        return f"{name}: {len(file.raw or b'')}"

    @agent.skill
    async def chat(text: str) -> str:
        return text

    @agent.skill
    async def anything(message: Message) -> str:
        return "?"

    return agent


async def test_the_card_has_the_schemas_of_skills_that_take_or_return_data() -> None:
    schemas = schemas_on(travel().card)
    assert set(schemas) == {"book", "rate-hotel", "store"}
    assert schemas["book"].input == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
        "required": ["city"],
    }
    assert (
        schemas["book"].output is not None and schemas["book"].output["properties"]["stars"]["default"] == 3
    )
    rate = schemas["rate-hotel"].input
    assert rate is not None and rate["required"] == ["hotel", "stars"]
    assert rate["properties"]["stars"] == {"type": "integer", "minimum": 1, "maximum": 5}
    assert rate["properties"]["note"] == {"type": "string", "default": "fine"}
    assert schemas["rate-hotel"].output == {"type": "object", "additionalProperties": {"type": "integer"}}


async def test_a_card_with_text_skills_only_has_no_such_extension() -> None:
    agent = Agent("Chat")

    @agent.skill
    async def chat(text: str) -> str:
        return text

    assert not any(each.uri == SKILL_SCHEMAS for each in agent.card.capabilities.extensions)


@pytest.mark.parametrize("version", ["0.3", "1.0"])
async def test_skills_are_called_like_functions_in_each_version(version: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"12345")
    async with travel().test(version=version) as agent:
        assert list(agent.skills) == ["book", "rate-hotel", "store", "chat", "anything"]
        reply = await agent.skills.book(city="Rome")
        assert reply.to(Hotel) == Hotel(name="Rome for 3")
        rated = await agent.skills.rate_hotel(hotel=Hotel(name="Ritz"), stars=5)
        assert rated.data == {"Ritz": 5}
        assert (await agent.skills["store"](name="x", file=tmp_path / "a.txt")).text == "x: 5"
        assert (await agent.skills.chat("hello")).text == "hello"
        stream = agent.skills.chat.stream("piece by piece")
        assert [piece.text async for piece in stream if piece.text] == ["piece by piece"]
        again = await agent.skills.book.with_options(context=reply, timeout=5)(city="Oslo", days=1)
        assert again.context_id == reply.context_id and again.data["name"] == "Oslo for 1"


async def test_a_wrong_argument_is_an_error_before_anything_is_sent() -> None:
    async with travel().test() as agent:
        book = agent.skills.book
        with pytest.raises(TypeError, match=r"book\(\) has no argument 'cty': did you mean 'city'\?"):
            await book(cty="Rome")
        with pytest.raises(TypeError, match=r"book\(\) needs city"):
            await book(days=2)
        with pytest.raises(AttributeError, match="no skill 'boook': did you mean 'book'"):
            agent.skills.boook
        assert str(inspect.signature(book)) == "(*, city, days=3)"
        assert book.description == "Books a trip." and "book" in dir(agent.skills)
        assert [task async for task in agent.list()] == []


def test_the_client_without_await_calls_them_too() -> None:
    with connect_sync(travel().app(store="memory:")) as agent:
        assert agent.skills.book(city="Rome").data["name"] == "Rome for 3"


async def test_a_skill_without_a_schema_takes_any_arguments() -> None:
    agent = Agent("Loose")

    @agent.skill(input_modes=["application/json"])
    async def echo(message: Message) -> str:
        return str(message.data)

    async with connect(agent.app(store="memory:")) as client:
        assert (await client.skills.echo(a=1)).text == "{'a': 1}"

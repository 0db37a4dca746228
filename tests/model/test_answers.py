"""Answers are read as people give them, and what is wrong with one is said in one plain sentence."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import pydantic
import pytest
from msgspec import Meta, Struct

from dragoman.model.answers import hint, yes_or_no
from dragoman.model.values import Unfit, convert, convert_text


class Colour(Enum):
    RED = "Red"
    BLUE = "Blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Trip(Struct):
    city: str
    days: int = 3


class Order(pydantic.BaseModel):
    item: str
    count: int


@pytest.mark.parametrize(
    "text", ["y", "Y", "yes", "Yes.", "ok", "OK!", "okay", "yep", "sure", "true", "1", " yes, please ", "yes yes", "of course",
             "ja", "Ja, bitte!", "oui", "d’accord", "Sí", "sim", "да", "tak", "はい", "是的", "네", "हाँ", "👍", "👍🏽"],
)  # fmt: skip
def test_words_for_yes_in_many_languages_are_true(text: str) -> None:
    assert convert_text(text, bool) is True


@pytest.mark.parametrize(
    "text", ["n", "N.", "no", "No!", "nope", "false", "0", "no thanks", "No, thank you.", "no no", "not now", "nein danke", "non",
             "não", "нет", "いいえ", "不是", "아니요", "नहीं", "👎", "❌"],
)  # fmt: skip
def test_words_for_no_in_many_languages_are_false(text: str) -> None:
    assert convert_text(text, bool) is False


@pytest.mark.parametrize(
    "text", ["", "maybe", "no problem", "yes no", "not sure", "ok but not today", "?", "please", "y" * 100_000, "yes " * 50_000,
             "ok?", "yes please?", "はい？", "نعم؟", "ναι;", "no?", "-1", "\u22121", "!yes"],
)  # fmt: skip
def test_an_answer_that_is_neither_yes_nor_no_is_not_guessed(text: str) -> None:
    assert yes_or_no(text) is None
    with pytest.raises(Unfit):
        convert_text(text, bool)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("42", int, 42),
        ("42.", int, 42),
        (" 3.5 ", float, 3.5),
        ("red", Colour, Colour.RED),
        ("Blue!", Colour, Colour.BLUE),
        ("high", Level, Level.HIGH),
        ("2", Level, Level.HIGH),
        ("2.0", Level, Level.HIGH),
        ("2", Literal["1", "2"], "2"),
        ("Small.", Literal["small", "large"], "small"),
        ("2", Literal[1, 2], 2),
        ("yes", bool | None, True),
    ],
)
def test_answers_of_other_types_are_understood(text: str, kind: Any, value: Any) -> None:
    assert convert_text(text, kind) == value


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (bool, "Please answer yes or no."),
        (bool | None, "Please answer yes or no."),
        (int, "Please answer with a whole number."),
        (Annotated[int, Meta(ge=1, le=5)], "Please answer with a whole number from 1 to 5."),
        (Annotated[float, Meta(gt=0)], "Please answer with a number above 0."),
        (Colour, "Please answer with one of: Red, Blue."),
        (Level, "Please answer with one of: low, high."),
        (Literal["a", "b"], "Please answer with one of: a, b."),
        (date, "Please answer with a date, such as 2026-12-24."),
        (Trip, "Please send data with city, days."),
        (Order, "Please send data with item, count."),
        (list[int], "Please send a JSON array."),
        (int | date, "Please answer in another form."),
    ],
)
def test_a_question_asked_again_says_which_answers_fit(kind: Any, sentence: str) -> None:
    assert hint(kind) == sentence


class Flight(pydantic.BaseModel):
    city: str

    @pydantic.field_validator("city")
    @classmethod
    def known(cls, city: str) -> str:
        if city != "Oslo":
            raise ValueError(f"we do not fly to {city}")
        return city


@dataclass
class Walk:
    hours: int

    def __post_init__(self) -> None:
        if self.hours > 9:
            raise ValueError("that is too far.")


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (Trip, {}, "Please send data with city, days: city is missing."),
        (Trip, {"city": "Oslo", "days": []}, "Please send data with city, days: days does not fit."),
        (Trip, [], "Please send data with city, days."),
        (Order, {"item": "x"}, "Please send data with item, count: count is missing."),
        (Order, {"item": "x", "count": "y"}, "Please send data with item, count: count does not fit."),
        (Flight, {"city": "Rome"}, "Please send data with city: we do not fly to Rome."),
        (Walk, {"hours": 10}, "Please send data with hours: that is too far."),
        (Walk, {"hours": "x"}, "Please send data with hours: hours does not fit."),
    ],
)
def test_a_hint_says_which_member_does_not_fit_or_what_the_author_says(
    kind: Any, value: Any, sentence: str
) -> None:
    with pytest.raises(Unfit) as unfit:
        convert(value, kind)
    assert hint(kind, str(unfit.value)) == sentence


@pytest.mark.parametrize("kind", [bool, int, Colour, Level, Literal["a"], Trip, Order, Flight])
@pytest.mark.parametrize("text", ["no ", "\u0301", "; x", "at `$.", "1", "(", '{"city": "'])
def test_reading_an_answer_takes_no_longer_than_it_is_long(kind: Any, text: str) -> None:
    def cost(n: int) -> float:
        answer = text * n
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            with suppress(Unfit):
                convert_text(answer, kind)
            hint(kind, answer)
            best = min(best, time.process_time() - began)
        return best

    assert cost(200_000 // len(text)) <= 3 * cost(100_000 // len(text)) + 0.005

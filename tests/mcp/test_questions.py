"""The forms of MCP servers, and the answers that fit them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mcp")

from dragoman.mcp.questions import ElicitAnswer, form_of
from dragoman.model.content import Message, Part
from dragoman.model.schema import json_schema
from dragoman.model.values import Unfit, answer_as

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
AGREE = {"type": "object", "properties": {"agree": {"type": "boolean"}}, "required": ["agree"]}
TRIP = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "class": {"type": "string", "enum": ["first", "second"]},
    },
    "required": ["city", "days"],
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("schema", "said", "content"),
    [
        (CITY, "Rome", {"city": "Rome"}),
        (CITY, "12345", {"city": "12345"}),
        (CITY, {"city": "Rome"}, {"city": "Rome"}),
        (CITY, '{"city": "Rome"}', {"city": "Rome"}),
        (AGREE, "yes, please", {"agree": True}),
        (AGREE, "nein", {"agree": False}),
        (TRIP, {"city": "Rome", "days": 3}, {"city": "Rome", "days": 3}),
        (TRIP, {"city": "Rome", "days": 3, "class": "first"}, {"city": "Rome", "days": 3, "class": "first"}),
        (NOTHING, "yes", {}),
    ],
)
def test_an_answer_that_fits_is_the_content_of_the_form(schema: Any, said: Any, content: Any) -> None:
    assert answer_as(form_of(schema), _message(said)) == ElicitAnswer(action="accept", content=content)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (CITY, {"city": 7}),
        (CITY, {}),
        (AGREE, "perhaps"),
        (TRIP, "Rome"),
        (TRIP, {"city": "Rome", "days": 0}),
        (TRIP, {"city": "Rome", "days": 1, "class": "third"}),
        (NOTHING, "no"),
    ],
)
def test_an_answer_that_does_not_fit_is_asked_for_again(schema: Any, said: Any) -> None:
    with pytest.raises(Unfit):
        answer_as(form_of(schema), _message(said))


@pytest.mark.parametrize("schema", [CITY, AGREE, TRIP, NOTHING])
@pytest.mark.parametrize(
    ("said", "action"), [("decline", "decline"), ("Cancel", "cancel"), ({"action": "decline"}, "decline")]
)
def test_every_form_can_be_declined(schema: Any, said: Any, action: str) -> None:
    assert answer_as(form_of(schema), _message(said)).action == action


def test_the_question_has_the_schema_of_the_form() -> None:
    assert json_schema(form_of(TRIP)) == TRIP


def _message(said: Any) -> Message:
    return Message(parts=[Part(text=said) if isinstance(said, str) else Part(data=said)])

"""Arguments and results are checked against schemas that servers chose."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mcp")

from dragoman.mcp.schema import check_value

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/Age"}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"Age": {"type": "integer", "minimum": 0}},
}


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"name": "Ada", "age": 36}, ""),
        ({"name": "Ada", "age": 36.0}, ""),
        ({"age": 36}, "'name' is a required property"),
        ({"name": "Ada", "age": -1}, "age: -1 is less than the minimum of 0"),
        ({"name": "Ada", "nmae": "x"}, "Additional properties are not allowed"),
        ({"name": "\x1b[31m"}, ""),
        ([], "[] is not of type 'object'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(value: Any, wrong: str) -> None:
    assert check_value(PERSON, value)[: len(wrong) or None] == wrong


def test_what_is_wrong_is_short_and_has_no_escape_sequences() -> None:
    said = check_value(PERSON, {"name": 7, "age": "\x1b[31m" + "x" * 5000})
    assert said and len(said) <= 300 and said.isprintable()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no type"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/Nothing"},
        {"minimum": "x"},
    ],
)
def test_a_schema_that_cannot_be_used_fits_nothing_and_fetches_nothing(schema: dict[str, Any]) -> None:
    assert "its schema" in check_value(schema, {})


def test_regular_expressions_of_servers_are_not_evaluated() -> None:
    evil = {"type": "string", "pattern": "^(a+)+$"}
    assert check_value(evil, "a" * 60 + "!") == ""
    named = {"type": "object", "patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}
    assert check_value(named, {"a" * 60 + "!": 1}) == ""
    assert check_value({**named, "unevaluatedProperties": False}, {"a" * 60 + "!": 1}) == ""
    assert check_value({"type": "object", "properties": {"pattern": {"type": "integer"}}}, {"pattern": "x"})

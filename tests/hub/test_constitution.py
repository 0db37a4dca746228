"""Constitutions: read with reasons, shown as cards."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import InvalidParams
from dragoman.hub.agents.constitution import (
    BUNDLES,
    COMMANDS,
    INDEX,
    Constitution,
    build_card,
    constitution_schema,
    read_constitution,
)


def test_a_document_with_only_an_id_takes_the_defaults() -> None:
    assert read_constitution({"id": "scout", "colour": "red"}) == Constitution(id="scout")
    assert read_constitution({"id": "scout"}).max_tokens == 4096
    assert read_constitution({}, id="scout").id == "scout"


def test_an_advisor_may_be_a_name_or_an_object_and_the_object_wins() -> None:
    for doc in (
        {"advisor": "big"},
        {"advisor_model": "big"},
        {"advisor": {"model": "big"}, "advisor_model": "x"},
    ):
        advisor = read_constitution({"id": "a", **doc}).advisor
        assert advisor is not None and (advisor.model, advisor.mode) == ("big", "consult")


def test_a_capability_that_nobody_knows_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidParams) as caught:
        read_constitution({"id": "a", "capabilities": ["/fecth", "research"]})
    assert caught.value.fields == (
        ("capabilities[0]", "'/fecth' is not known: did you mean '/fetch'?"),
        ("capabilities[1]", "'research' is not known: did you mean '/search'?"),
    )


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(InvalidParams) as caught:
        read_constitution(
            {"temperature": 9, "mode": "loud", "rules": ["fine", 3], "advisor": {"mode": "gate"}}
        )
    assert {field for field, _ in caught.value.fields} == {
        "id",
        "temperature",
        "mode",
        "rules[1]",
        "advisor.model",
    }


def test_every_wrong_member_of_a_nested_object_is_reported() -> None:
    with pytest.raises(InvalidParams) as caught:
        read_constitution(
            {
                "id": "a",
                "memory": {"age_floor": 5, "age_half_life_days": 0, "age_decay": "y", "intent_routing": None},
                "intent": {"mode": "maybe", "min_confidence": 2},
                "advisor": {"mode": "court", "max_redirects": -1},
            }
        )
    assert dict(caught.value.fields).keys() == {
        "memory.age_floor",
        "memory.age_half_life_days",
        "memory.age_decay",
        "intent.mode",
        "intent.min_confidence",
        "advisor.mode",
        "advisor.max_redirects",
        "advisor.model",
    }
    assert dict(caught.value.fields)["advisor.mode"] == "is one of 'consult', 'gate'"


def test_a_constitution_without_capabilities_may_only_read_and_ask_its_advisor() -> None:
    assert (
        Constitution(id="a").bundles
        == {"read", "advise"}
        == read_constitution({"id": "a", "capabilities": []}).bundles
    )
    assert INDEX.bundles == set(BUNDLES), "the orchestrator may use everything that the operator allows"


def test_bundles_and_bare_words_become_commands() -> None:
    constitution = read_constitution({"id": "a", "capabilities": ["web", "exec", "/Search"]})
    assert constitution.capabilities == ("/search", "/fetch", "/browse", "/exec")
    assert constitution.bundles == {"web", "exec"}


def test_a_card_has_chat_first_and_a_skill_for_each_capability() -> None:
    shown = build_card(
        read_constitution(
            {
                "id": "r",
                "name": "Researcher",
                "role": "analyst",
                "goal": "find out",
                "capabilities": ["/search", "/fetch", "/a2a"],
            }
        ),
        version="177",
    )
    assert [skill.id for skill in shown.skills] == ["chat", "web-search", "fetch-url", "a2a"]
    assert shown.skills[1].tags == ("/search",)
    assert (shown.name, shown.description, shown.version) == ("Researcher", "analyst — find out", "177")
    assert build_card(INDEX).version == "index"


def test_the_schema_says_what_each_member_is() -> None:
    definition = constitution_schema()["$defs"]["Constitution"]
    assert definition["properties"]["max_tokens"]["maximum"] == 1_000_000
    assert "allow-list" in definition["properties"]["capabilities"]["description"]


@pytest.mark.parametrize(
    ("doc", "good"),
    [
        ({"id": "a"}, True),
        ({"id": "a", "advisor": "p/m"}, True),
        ({"id": "a", "advisor": {"model": "p/m", "mode": "gate"}}, True),
        ({"goal": "x"}, False),
        ({"id": "a", "advisor": {"mode": "gate"}}, False),
        ({"id": "a", "advisor": {"model": ""}}, False),
    ],
    ids=["least", "advisor by name", "advisor", "no id", "no model", "empty model"],
)
def test_the_schema_takes_what_the_hub_takes(doc: Any, good: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert jsonschema.Draft202012Validator(constitution_schema()).is_valid(doc) is good
    with nullcontext() if good else pytest.raises(InvalidParams):
        read_constitution(doc)


def test_the_reference_names_every_member_and_the_schema_beside_it_is_current() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "constitutions.md").read_text()
    for field in Constitution.__struct_fields__:
        assert f"`{field}`" in text, field
    for command in COMMANDS:
        assert command in text, command
    written = json.loads((docs / "constitution.schema.json").read_text())
    written.pop("$schema")
    assert written == json.loads(json.dumps(constitution_schema()))


def test_a_constitution_that_is_too_large_in_all_is_refused() -> None:
    assert len(read_constitution({"id": "wordy", "rules": ["x" * 20_000] * 13}).rules) == 13
    with pytest.raises(InvalidParams, match="more than 262144 bytes in all"):
        read_constitution({"id": "wordy", "rules": ["x" * 20_000] * 14})

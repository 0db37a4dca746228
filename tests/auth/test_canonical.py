"""The bytes that a signature covers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.auth.canonical import MAX_DEPTH, Unsignable, canonical, sdk_ascii, sdk_form, spec_form
from dragoman.dialects.cards import read_card, superset_card, write_card
from dragoman.model.card import AgentCard
from tests.dialects.strategies import cards

INTERFACE = {"url": "https://a.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
CARD: dict[str, Any] = {
    "name": "Example",
    "description": "",
    "supportedInterfaces": [INTERFACE],
    "version": "1.0.0",
    "capabilities": {"streaming": False, "extensions": []},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [],
}


def form(**more: Any) -> dict[str, Any]:
    return spec_form({**CARD, **more})


def test_required_members_stay_even_when_they_are_empty_or_missing() -> None:
    assert form()["description"] == "" and form()["skills"] == []
    assert spec_form({"name": "x"}) == {
        "name": "x",
        "description": "",
        "supportedInterfaces": [],
        "version": "",
        "capabilities": {},
        "defaultInputModes": [],
        "defaultOutputModes": [],
        "skills": [],
    }


def test_optional_members_stay_if_they_are_there_even_with_their_default() -> None:
    assert form()["capabilities"] == {"streaming": False}
    assert form(documentationUrl="")["documentationUrl"] == ""
    assert "documentationUrl" not in form() and "iconUrl" not in form(iconUrl=None)


def test_other_members_that_hold_their_default_are_left_out() -> None:
    assert "securityRequirements" not in form(securityRequirements=[], securitySchemes={})
    interface = {**INTERFACE, "tenant": ""}
    assert form(supportedInterfaces=[interface])["supportedInterfaces"] == [INTERFACE]
    extension = {
        "uri": "https://e.example",
        "required": False,
        "description": "",
        "params": {"a": "", "b": []},
    }
    kept = form(capabilities={"extensions": [extension]})["capabilities"]["extensions"]
    assert kept == [{"uri": "https://e.example", "params": {"a": "", "b": []}}]


def test_an_empty_security_scheme_stays_in_the_canonical_form() -> None:
    schemes = {"tls": {"mtlsSecurityScheme": {}}, "basic": {"httpAuthSecurityScheme": {"scheme": ""}}}
    assert form(securitySchemes=schemes)["securitySchemes"] == schemes


def test_a_requirement_without_scopes_is_still_a_requirement() -> None:
    wanted: Any = [{"schemes": {"bearer": {"list": []}}}]
    assert form(securityRequirements=wanted)["securityRequirements"] == [{"schemes": {"bearer": {}}}]
    assert "securityRequirements" not in sdk_form({**CARD, "securityRequirements": wanted})


def test_signatures_and_members_of_other_versions_are_no_part_of_it() -> None:
    legacy = {"url": "https://evil.example", "protocolVersion": "0.3.0", "signatures": [{}], "x": 1}
    assert form(**legacy) == form()


def test_the_names_of_the_definition_are_as_good_as_those_of_its_json() -> None:
    snake = {
        "name": "Example",
        "description": "",
        "supported_interfaces": [
            {"url": "https://a.example/", "protocol_binding": "JSONRPC", "protocol_version": "1.0"}
        ],
        "version": "1.0.0",
        "capabilities": {"streaming": False},
        "default_input_modes": ["text/plain"],
        "default_output_modes": ["text/plain"],
        "skills": [],
    }
    assert spec_form(snake) == form()


def test_the_bytes_are_those_of_rfc_8785() -> None:
    given = {"\u00e9": 1.0, "b": [1e21, 0.000001, -0.0], "a": '\u20ac$\n"\\', "\U0001f600": 1, "\ufb33": 2}
    # Keys are ordered by their UTF-16, where the face comes before the Hebrew letter.
    wanted = '{"a":"\u20ac$\\n\\"\\\\","b":[1e+21,0.000001,0],"\u00e9":1,"\U0001f600":1,"\ufb33":2}'
    assert canonical(given) == wanted.encode()


def params(value: Any) -> dict[str, Any]:
    return form(capabilities={"extensions": [{"uri": "x", "params": {"n": value}}]})


def test_numbers_are_doubles_however_they_are_written() -> None:
    assert canonical(params(10**16)) == canonical(params(1e16))
    assert canonical(params(7)) == canonical(params(7.0))


def test_a_value_without_a_canonical_form_is_refused() -> None:
    for value in (10**400, float("nan"), float("inf"), "\ud800"):
        with pytest.raises(Unsignable):
            canonical(params(value))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 7},
        {"skills": {}},
        {"skills": "abc"},
        {"skills": ["abc"]},
        {"capabilities": []},
        {"capabilities": {"streaming": "false"}},
        {"securitySchemes": []},
        {"defaultInputModes": [7]},
    ],
)
def test_a_document_that_is_not_a_card_cannot_be_signed(wrong: dict[str, Any]) -> None:
    with pytest.raises(Unsignable):
        form(**wrong)


def test_a_card_nested_beyond_reason_is_refused_and_not_followed() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(Unsignable, match=str(MAX_DEPTH)):
        form(capabilities={"extensions": [{"uri": "x", "params": deep}]})


@given(cards("1.0"))
@settings(max_examples=40)
def test_a_card_has_one_form_however_it_was_written(card: AgentCard) -> None:
    written = write_card(card, "1.0")
    once = canonical(spec_form(written))
    assert canonical(spec_form(json.loads(once))) == once
    shuffled = json.loads(json.dumps(written, sort_keys=True))
    assert canonical(spec_form(shuffled)) == once
    assert canonical(spec_form(superset_card(card))) == once
    again, _ = read_card(written)
    assert canonical(spec_form(write_card(again, "1.0"))) == once


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)
def test_no_document_does_more_than_be_refused(document: Any) -> None:
    for value in (document, {"name": document}, {**CARD, "skills": [document], "capabilities": document}):
        if isinstance(value, dict):
            try:
                sdk_ascii(sdk_form(value))
            except Unsignable:
                pass

"""Cards: one document for everybody, and every version's own."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from dragoman.dialects import cards
from dragoman.errors import InvalidAgentResponse
from dragoman.model.card import (
    AgentCard,
    Capabilities,
    HttpAuthScheme,
    Interface,
    SecurityRequirement,
    SecurityScheme,
    Signature,
    Skill,
    StringList,
)
from tests.requirements import older

URL = "https://agents.example/echo"
BARE = AgentCard(
    name="Echo Agent",
    supported_interfaces=(Interface(url=URL, protocol_binding="JSONRPC", protocol_version="1.0"),),
)
BEARER = SecurityScheme(http_auth_security_scheme=HttpAuthScheme(scheme="bearer"))
GUARDED = AgentCard(
    name="Echo Agent",
    description="Repeats you",
    version="2",
    supported_interfaces=(
        Interface(url=URL, protocol_binding="JSONRPC", protocol_version="1.0"),
        Interface(url=f"{URL}/rest", protocol_binding="HTTP+JSON", protocol_version="1.0"),
        Interface(url=URL, protocol_binding="JSONRPC", protocol_version="0.3"),
        Interface(url=f"{URL}/v1", protocol_binding="HTTP+JSON", protocol_version="0.3"),
    ),
    capabilities=Capabilities(streaming=True, push_notifications=True, extended_agent_card=True),
    security_schemes={"bearer": BEARER},
    security_requirements=(SecurityRequirement(schemes={"bearer": StringList(list=("read",))}),),
    default_input_modes=("text/plain",),
    default_output_modes=("text/plain",),
    skills=(Skill(id="echo", name="Echo", description="Repeats", tags=("text",)),),
    signatures=(Signature(protected="p", signature="s"),),
)


def test_a_1_0_card_has_every_required_member_even_when_empty() -> None:
    document = cards.write_card(BARE, "1.0")
    required = {
        "name",
        "description",
        "supportedInterfaces",
        "version",
        "capabilities",
        "defaultInputModes",
        "defaultOutputModes",
        "skills",
    }
    assert document.keys() == required
    assert document["skills"][0].keys() == {"id", "name", "description", "tags"}


@pytest.mark.parametrize("name", ["1.0", "0.3", "0.2", "0.2-type", "0.1", "draft", "arbiter"])
def test_no_card_is_without_a_skill_or_a_mode(name: str) -> None:
    document = cards.write_card(BARE, name)
    assert document["skills"][0]["id"] == "echo-agent"
    assert document["defaultInputModes"] == document["defaultOutputModes"] == ["text/plain"]


@pytest.mark.parametrize(
    ("versions", "there"), [(None, True), (("1.0", "0.1"), True), (("1.0", "0.3"), False), (("0.2",), False)]
)
def test_authentication_is_for_the_version_that_has_it(versions: tuple[str, ...] | None, there: bool) -> None:
    assert ("authentication" in cards.superset_card(GUARDED, versions=versions)) is there


def test_the_superset_card_speaks_to_every_version() -> None:
    document = cards.superset_card(GUARDED)
    assert document["supportedInterfaces"][0]["protocolVersion"] == "1.0"
    assert (document["url"], document["preferredTransport"], document["protocolVersion"]) == (
        URL,
        "JSONRPC",
        "0.3.0",
    )
    assert document["additionalInterfaces"] == [
        {"url": URL, "transport": "JSONRPC"},
        {"url": f"{URL}/v1", "transport": "HTTP+JSON"},
    ]
    assert document["securitySchemes"]["bearer"] == {
        "type": "http",
        "scheme": "bearer",
        "httpAuthSecurityScheme": {"scheme": "bearer"},
    }
    assert document["security"] == [{"bearer": ["read"]}]
    assert document["securityRequirements"] == [{"schemes": {"bearer": {"list": ["read"]}}}]
    assert document["supportsAuthenticatedExtendedCard"] is True
    assert document["capabilities"]["extendedAgentCard"] is True
    assert document["authentication"] == {"schemes": ["Bearer"]}


def test_a_signature_is_in_the_shapes_it_can_be_true_of() -> None:
    signed = [{"protected": "p", "signature": "s"}]
    assert cards.write_card(GUARDED, "1.0")["signatures"] == signed
    assert cards.write_card(GUARDED, "0.3")["signatures"] == signed
    for document in (cards.superset_card(GUARDED), cards.write_card(GUARDED, "0.2")):
        assert "signatures" not in document


def test_the_draft_always_says_how_to_authenticate() -> None:
    assert cards.write_card(BARE, "draft")["authentication"] == {"schemes": []}
    assert "authentication" not in cards.write_card(BARE, "0.1")
    assert cards.write_card(GUARDED, "0.1")["authentication"] == {"schemes": ["Bearer"]}


@older("X19")
def test_an_arbiter_card_has_the_three_capabilities_and_the_label_1_0() -> None:
    document = cards.write_card(GUARDED, "arbiter")
    assert document["protocolVersion"] == "1.0"
    assert document["capabilities"].keys() == {"streaming", "pushNotifications", "stateTransitionHistory"}
    assert document.keys().isdisjoint({"supportedInterfaces", "additionalInterfaces", "signatures"})
    card, era = cards.read_card(document)
    assert era == "arbiter"
    assert card.supported_interfaces[0].protocol_version == "arbiter"


@older("X33")
def test_an_old_scheme_with_two_flows_becomes_two_and_either_will_do() -> None:
    flows = {
        "clientCredentials": {"tokenUrl": "https://t", "scopes": {}},
        "authorizationCode": {"authorizationUrl": "https://a", "tokenUrl": "https://t", "scopes": {"x": "y"}},
    }
    card, _ = cards.read_card(
        {
            "name": "x",
            "url": URL,
            "protocolVersion": "0.3.0",
            "securitySchemes": {"google": {"type": "oauth2", "flows": flows}},
            "security": [{"google": ["x"]}],
            "skills": [{"id": "s", "name": "s", "security": [{"google": []}]}],
        }
    )
    assert set(card.security_schemes) == {"google", "google#2"}
    assert [set(each.schemes) for each in card.security_requirements] == [{"google"}, {"google#2"}]
    assert [set(each.schemes) for each in card.skills[0].security_requirements] == [{"google"}, {"google#2"}]


@pytest.mark.parametrize("schemes", ["OAuth2", ["OAuth2"]])
def test_the_words_of_the_draft_are_schemes(schemes: Any) -> None:
    where = '{"tokenUrl": "https://t", "scopes": {}}'
    authentication = {"schemes": schemes, "credentials": where}
    card, _ = cards.read_card({"name": "x", "url": URL, "authentication": authentication})
    oauth = card.security_schemes["oauth2"].oauth2_security_scheme
    assert oauth is not None
    assert oauth.flows.client_credentials is not None
    assert oauth.flows.client_credentials.token_url == "https://t"


def test_a_public_agent_of_the_quickstart_needs_no_credentials() -> None:
    card, _ = cards.read_card({"name": "x", "url": URL, "authentication": {"schemes": ["public"]}})
    assert card.security_schemes == {}
    assert card.security_requirements == ()


def test_a_card_is_read_leniently() -> None:
    card, era = cards.read_card(
        {
            "name": "x",
            "description": None,
            "supported_interfaces": [{"url": URL, "protocol_binding": "GRPC"}],
            "security_schemes": {"api_key": {"api_key_security_scheme": {"location": "header", "name": "K"}}},
            "skills": [{"name": "only a name"}],
            "capabilities": {"push_notifications": True, "extensions": [{"description": "no uri"}]},
            "provider": {"url": "https://p"},
            "flavour": "vanilla",
        }
    )
    assert era == "1.0"
    assert card.supported_interfaces == (Interface(url=URL, protocol_binding="GRPC", protocol_version="1.0"),)
    assert card.security_schemes["api_key"].api_key_security_scheme is not None
    assert card.skills == (Skill(id="skill-1", name="only a name"),)
    assert card.capabilities.push_notifications is True


@pytest.mark.parametrize("document", [None, [], "x", {}, {"name": 3}, {"name": "x", "skills": [3]}])
def test_nonsense_is_an_invalid_response(document: Any) -> None:
    with pytest.raises(InvalidAgentResponse):
        cards.read_card(document)


@pytest.mark.parametrize(
    ("label", "version"),
    [
        ("1", "1.0"),
        ("1.0.1", "1.0"),
        ("0.3.0", "0.3"),
        ("v0.3", "0.3"),
        (" 0.2.5 ", "0.2"),
        ("1.x", "1.0"),
        ("", ""),
        ("x", "x"),
    ],
)
def test_a_version_is_its_first_two_numbers(label: str, version: str) -> None:
    assert cards.version_of(label) == version


def test_members_of_the_wrong_kind_are_passed_over_or_named() -> None:
    card, _ = cards.read_card({"name": "x", "url": URL, "securitySchemes": {"a": {"type": []}, "b": 3}})
    assert card.security_schemes == {}
    with pytest.raises(InvalidAgentResponse, match="extensions"):
        cards.read_card({"name": "x", "url": URL, "capabilities": {"extensions": [3]}})


def test_long_texts_in_place_of_versions_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for n in range(50):
            assert cards.version_of(f"{n}" + "x" * 100_000) not in ("", "1.0")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000

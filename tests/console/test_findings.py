"""Every rule about cards, broken once."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent
from dragoman.console import findings
from dragoman.console.findings import FetchedCard, Finding, check_card
from dragoman.dialects.cards import read_card, write_card
from dragoman.model.card import AgentCard, Interface

URL = "https://agent.example.com/.well-known/agent-card.json"
HEADERS = {"content-type": "application/json", "cache-control": "max-age=300", "etag": '"1"'}


def good(era: str = "1.0") -> dict[str, Any]:
    """A card of a version without a finding worse than `info`."""
    agent = Agent("Good", description="Does it well")

    @agent.skill(tags=["good"])
    async def work(text: str) -> str:
        """Works."""
        return text

    interface = Interface(
        url="https://agent.example.com/a2a", protocol_binding="JSONRPC", protocol_version=era
    )
    about: AgentCard = agent.card
    from msgspec.structs import replace

    return write_card(replace(about, supported_interfaces=(interface,)), era)


def check(
    document: Any, era: str = "1.0", url: str = URL, headers: dict[str, str] | None = None
) -> list[Finding]:
    return check_card(
        FetchedCard(
            document=document, era=era, url=url, headers=HEADERS if headers is None else headers, size=1000
        )
    )


def rules(found: list[Finding], *severities: str) -> set[str]:
    return {each.rule for each in found if not severities or each.severity in severities}


@pytest.mark.parametrize("era", ["1.0", "0.3", "0.2", "0.1", "arbiter"])
def test_a_good_card_of_every_version_has_no_errors_and_no_warnings(era: str) -> None:
    url = URL if era not in ("0.2", "0.1") else "https://agent.example.com/.well-known/agent.json"
    document = good(era)
    if era == "0.1":
        document["authentication"] = {"schemes": ["Bearer"]}
    assert read_card(document, found_at=url)[1] == era
    assert rules(check(document, era, url), "error", "warning") == set()


@pytest.mark.parametrize("era", list(findings.REQUIRED))
def test_every_required_member_of_every_version_is_missed(era: str) -> None:
    for name in findings.REQUIRED[era]:
        document = good(era)
        document.pop(name, None)
        missed = [each.pointer for each in check(document, era) if each.rule == "card.required"]
        assert missed == [f"/{name}"]


def change(path: str, value: Any) -> Any:
    """A function that sets a member of a card; `...` removes it."""

    def apply(card: dict[str, Any]) -> None:
        *above, last = path.split("/")
        place: Any = card
        for name in above:
            place = place[int(name)] if name.isdigit() else place.setdefault(name, {})
        if value is ...:
            del place[last]
        elif isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value

    return apply


def header(**members: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(members).encode()).rstrip(b"=").decode()


SCHEME = "securitySchemes/s"
OAUTH = f"{SCHEME}/oauth2SecurityScheme/flows"
TOKEN_URL = {"tokenUrl": "https://agent.example.com/token", "scopes": {}}
BROKEN: list[tuple[str, str, Any]] = [
    ("card.type", "/name", change("name", 1)),
    ("card.empty", "/description", change("description", "")),
    ("card.camel-case", "/default_input_modes", change("default_input_modes", [])),
    ("card.media-type", "/defaultInputModes/0", change("defaultInputModes", ["text"])),
    ("card.url", "/iconUrl", change("iconUrl", "javascript:alert(1)")),
    ("card.secret", "/description", change("description", "use Bearer abcdefghijklmnop1234")),
    ("text.html", "/description", change("description", "<script>alert(1)</script>")),
    ("text.control", "/name", change("name", "Good\x1b[31m")),
    ("provider.required", "/provider/url", change("provider", {"organization": "x"})),
    ("interface.none", "/supportedInterfaces", change("supportedInterfaces", [])),
    ("interface.type", "/supportedInterfaces/0", change("supportedInterfaces", ["x"])),
    ("interface.required", "/supportedInterfaces/0/protocolVersion", change("supportedInterfaces/0/protocolVersion", ...)),
    ("interface.url", "/supportedInterfaces/0/url", change("supportedInterfaces/0/url", "/a2a")),
    ("interface.tls", "/supportedInterfaces/0/url", change("supportedInterfaces/0/url", "http://a.example.com")),
    ("interface.private", "/supportedInterfaces/0/url", change("supportedInterfaces/0/url", "http://10.0.0.1/a2a")),
    ("interface.credentials", "/supportedInterfaces/0/url", change("supportedInterfaces/0/url", "https://me:pw@a.example.com")),
    ("interface.misspelt-binding", "/supportedInterfaces/0/protocolBinding", change("supportedInterfaces/0/protocolBinding", "json-rpc")),
    (
        "interface.binding",
        "/supportedInterfaces/0/protocolBinding",
        change("supportedInterfaces/0/protocolBinding", "pigeon"),
    ),
    ("interface.patch-version", "/supportedInterfaces/0/protocolVersion", change("supportedInterfaces/0/protocolVersion", "1.0.1")),
    ("interface.unknown-version", "/supportedInterfaces/0/protocolVersion", change("supportedInterfaces/0/protocolVersion", "7.3")),
    ("interface.grpc-address", "/supportedInterfaces/0/url", change("supportedInterfaces", [{"url": "host", "protocolBinding": "GRPC", "protocolVersion": "1.0"}])),
    ("interface.twice", "/supportedInterfaces/1", lambda card: card["supportedInterfaces"].append(card["supportedInterfaces"][0])),
    ("skill.none", "/skills", change("skills", [])),
    ("skill.type", "/skills/0", change("skills", [1])),
    ("skill.required", "/skills/0/name", change("skills/0/name", ...)),
    ("skill.tags", "/skills/0/tags", change("skills/0/tags", [])),
    ("skill.same-id", "/skills/1/id", lambda card: card["skills"].append(card["skills"][0])),
    ("skill.media-type", "/skills/0/inputModes/0", change("skills/0/inputModes", ["picture"])),
    ("capability.type", "/capabilities/streaming", change("capabilities/streaming", "yes")),
    ("capability.streaming", "/capabilities", change("capabilities", {})),
    ("capability.removed", "/capabilities/stateTransitionHistory", change("capabilities/stateTransitionHistory", True)),
    ("capability.extended-card", "/capabilities", change("capabilities/extendedAgentCard", True)),
    ("extension.uri", "/capabilities/extensions/0", change("capabilities/extensions", [{"uri": "x"}])),
    ("extension.required", "/capabilities/extensions/0", change("capabilities/extensions", [{"uri": "https://x.test/e", "required": True}])),
    ("security.unknown-scheme", "/securityRequirements/0", change("securityRequirements", [{"schemes": {"x": {"list": []}}}])),
    ("security.renamed", "/security", change("security", [])),
    ("security.not-required", "/securitySchemes", change(f"{SCHEME}/httpAuthSecurityScheme", {"scheme": "bearer"})),
    ("security.credentials", "/authentication/credentials", change("authentication", {"schemes": ["x"], "credentials": "abc"})),
    ("scheme.type", "/securitySchemes/s", change(SCHEME, 1)),
    ("scheme.kind", "/securitySchemes/s", change(SCHEME, {"type": "http", "scheme": "bearer"})),
    ("scheme.required", "/securitySchemes/s/httpAuthSecurityScheme/scheme", change(f"{SCHEME}/httpAuthSecurityScheme", {})),
    ("scheme.api-key", "/securitySchemes/s/apiKeySecurityScheme", change(f"{SCHEME}/apiKeySecurityScheme", {"location": "body", "name": "k"})),
    ("scheme.key-in-query", "/securitySchemes/s/apiKeySecurityScheme", change(f"{SCHEME}/apiKeySecurityScheme", {"location": "query", "name": "k"})),
    ("scheme.flows", "/securitySchemes/s/oauth2SecurityScheme/flows", change(OAUTH, {})),
    ("scheme.one-flow", "/securitySchemes/s/oauth2SecurityScheme/flows", change(OAUTH, {"clientCredentials": TOKEN_URL, "password": TOKEN_URL})),
    ("scheme.flow", "/securitySchemes/s/oauth2SecurityScheme/flows/magic", change(OAUTH, {"magic": {}})),
    ("scheme.deprecated-flow", "/securitySchemes/s/oauth2SecurityScheme/flows/password", change(OAUTH, {"password": TOKEN_URL})),
    ("scheme.url", "/securitySchemes/s/oauth2SecurityScheme/flows/clientCredentials/tokenUrl", change(OAUTH, {"clientCredentials": {"scopes": {}}})),
    ("scheme.tls", "/securitySchemes/s/openIdConnectSecurityScheme/openIdConnectUrl", change(f"{SCHEME}/openIdConnectSecurityScheme", {"openIdConnectUrl": "http://a.example.com"})),
    ("scheme.pkce", "/securitySchemes/s/oauth2SecurityScheme/flows/authorizationCode", change(OAUTH, {"authorizationCode": {**TOKEN_URL, "authorizationUrl": "https://a.example.com"}})),
    ("signature.members", "/signatures/0", change("signatures", [{}])),
    ("signature.header-member", "/signatures/0/protected", change("signatures", [{"protected": header(alg="ES256"), "signature": "x"}])),
    ("signature.header", "/signatures/0/protected", change("signatures", [{"protected": "%", "signature": "x"}])),
    ("signature.algorithm", "/signatures/0/protected", change("signatures", [{"protected": header(alg="HS256", kid="k", typ="JOSE"), "signature": "x"}])),
    ("signature.typ", "/signatures/0/protected", change("signatures", [{"protected": header(alg="ES256", kid="k"), "signature": "x"}])),
    ("card.older-members", "", change("protocolVersion", "0.3.0")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "pointer", "spoil"), BROKEN, ids=[f"{n}-{each[0]}" for n, each in enumerate(BROKEN)]
)
def test_a_broken_rule_is_found_with_its_place_and_what_to_change(
    rule: str, pointer: str, spoil: Any
) -> None:
    document = good()
    before = rules(check(document))
    spoil(document)
    found = [each for each in check(document) if each.rule == rule]
    assert found and rule not in before
    assert pointer in {each.pointer for each in found}
    assert all(each.message.endswith((".", '"')) and each.fix for each in found)


def test_an_older_card_is_checked_by_the_rules_of_its_version() -> None:
    document = good("0.3")
    document["additionalInterfaces"] = [
        {"url": document["url"], "transport": "GRPC"},
        {"url": "https://a.example.com"},
    ]
    document["preferredTransport"] = "jsonrpc"
    document["securitySchemes"] = {"s": {"type": "magic"}, "t": {"type": "apiKey", "in": "header"}}
    found = rules(check(document, "0.3"))
    assert {
        "interface.preferred",
        "interface.misspelt-binding",
        "interface.required",
        "scheme.kind",
        "scheme.required",
    } <= found
    assert "security.schemes" in rules(check({**good("0.1"), "authentication": {}}, "0.1"))
    document = good("0.3")
    del document["preferredTransport"]
    assert rules(check(document, "0.3"), "error", "warning") == {"card.transport"}


@pytest.mark.parametrize(
    ("rule", "url", "headers"),
    [
        ("http.tls", "http://agent.example.com/.well-known/agent-card.json", HEADERS),
        ("http.old-path", "https://agent.example.com/.well-known/agent.json", HEADERS),
        ("http.content-type", URL, {**HEADERS, "content-type": "text/html"}),
        ("http.cache-control", URL, {**HEADERS, "cache-control": "public"}),
        ("http.etag", URL, {"content-type": "application/json", "cache-control": "max-age=1"}),
    ],
)
def test_how_a_card_is_served_is_checked(rule: str, url: str, headers: dict[str, str]) -> None:
    assert rule in rules(check(good(), url=url, headers=headers), "error", "warning")


def test_a_card_at_a_path_of_its_own_is_worth_a_remark() -> None:
    assert "http.path" in rules(
        check(good(), url="https://agent.example.com/agents/good/agent-card.json"), "info"
    )


def test_a_card_on_loopback_needs_no_tls() -> None:
    document = good()
    document["supportedInterfaces"][0]["url"] = "http://127.0.0.1:8000/"
    found = rules(check(document, url="http://127.0.0.1:8000/.well-known/agent-card.json"))
    assert not {"http.tls", "interface.tls", "interface.private"} & found


def test_a_large_card_and_one_that_is_no_object_are_found() -> None:
    large = FetchedCard(document=good(), era="1.0", url=URL, headers=HEADERS, size=300 << 10)
    assert "http.size" in rules(check_card(large))
    assert rules(check([])) == {"card.object"}


def test_a_card_with_a_thousand_mistakes_has_a_bounded_list() -> None:
    document = {**good(), "skills": [{}] * 10_000}
    assert len(check(document)) == findings.MAX_FINDINGS


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [[]], [None], {"a": {"b": [1]}}, [{}], {"x": None}])
def test_nothing_in_a_card_breaks_the_check(value: Any) -> None:
    for name in {*good(), *findings.TYPES, "authentication", "capabilities"}:
        check({**good(), name: value})
        check({**good("0.3"), name: value}, "0.3")


def test_every_rule_is_broken_by_a_test() -> None:
    assert {rule for rule in findings.RULES if f'"{rule}"' not in Path(__file__).read_text()} == set()

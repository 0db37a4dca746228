"""Signed cards, from the server that signs to the client that requires a signature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, connect
from dragoman.auth import Bearer, hashed, jose
from dragoman.auth.keys import KeyRing, new_key
from dragoman.auth.signing import SPEC, Trust, Verified
from dragoman.dialects.cards import write_card
from dragoman.errors import InvalidAgentResponse
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.auth.issuer import Pages
from tests.auth.people import People, secure_agent
from tests.requirements import requirement
from tests.server.wire import Answer, request, rpc

URL = "https://agents.example"
CARD, KEYS = "/.well-known/agent-card.json", "/.well-known/jwks.json"
V1 = {"A2A-Version": "1.0"}


def signing(directory: Path, *agents: Agent, **more: Any) -> Any:
    if not directory.exists():
        KeyRing(directory).add()
    return application(
        *(agents or (secure_agent(),)), store="memory:", keys=directory, public_url=URL, **more
    )


async def verify(document: Any, keys: Any) -> Verified:
    return await Trust(keys, strict=True).verify(document, Pages())


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


async def test_a_request_for_1_0_gets_a_signed_card_with_the_url_of_the_keys(keys: Path) -> None:
    app = signing(keys)
    published = await request(app, "GET", KEYS)
    assert published.status == 200 and published.json == KeyRing(keys).public()
    card = await request(app, "GET", CARD, headers=V1)
    found = await verify(card.json, published.json)
    assert found.form == SPEC and found.kid == published.json["keys"][0]["kid"]
    assert not {"url", "protocolVersion"} & set(card.json)


@pytest.mark.parametrize("path", [CARD, "/.well-known/agent.json", "/agent-card.json"])
async def test_the_card_for_everybody_is_signed_too_and_says_where_the_keys_are(
    keys: Path, path: str
) -> None:
    app = signing(keys)
    answer = await request(app, "GET", path)
    assert answer.json["url"] == f"{URL}/" and answer.json["securitySchemes"]
    found = await verify(answer.json, KeyRing(keys).public())
    assert found.form == SPEC and found.document["supportedInterfaces"][0]["url"] == f"{URL}/"
    headers = [json.loads(jose.decode(each["protected"])) for each in answer.json["signatures"]]
    assert {header["jku"] for header in headers} == {URL + KEYS}
    again = await request(app, "GET", path, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status == 304


async def test_an_agent_of_1_0_alone_is_always_signed(keys: Path) -> None:
    app = signing(keys, secure_agent(versions=("1.0",)))
    card = (await request(app, "GET", CARD)).json
    assert (await verify(card, KeyRing(keys).public())).form == SPEC


async def test_a_client_cannot_have_its_own_address_signed(keys: Path) -> None:
    """`Host` is the client's to choose, and a signature on what it chose would be a gift to a forger."""
    app = signing(keys)
    for headers in (
        {"Host": "evil.example"},
        {"Forwarded": "host=evil.example"},
        {"X-Forwarded-Host": "evil.example"},
    ):
        answer = await request(app, "GET", CARD, headers={**V1, **headers})
        assert b"evil" not in answer.body and answer.json["supportedInterfaces"][0]["url"] == f"{URL}/"
    with pytest.raises(ValueError, match="public_url"):
        application(secure_agent(), store="memory:", keys=keys)


def test_signing_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keys new"):
        application(secure_agent(), store="memory:", keys=tmp_path / "none", public_url=URL)


async def test_every_agent_has_its_own_card_and_the_keys_are_at_the_root_as_well(keys: Path) -> None:
    app = signing(keys, Agent("One"), Agent("Two"))
    published = (await request(app, "GET", KEYS)).json
    for name in ("one", "two"):
        assert (await request(app, "GET", f"/{name}{KEYS}")).json == published
        card = (await request(app, "GET", f"/{name}{CARD}", headers=V1)).json
        found = await verify(card, published)
        assert found.document["supportedInterfaces"][0]["url"] == f"{URL}/{name}"


async def test_an_agent_without_signatures_publishes_no_keys() -> None:
    assert (await request(application(Agent("A"), store="memory:"), "GET", KEYS)).status == 404


async def test_a_signed_card_keeps_its_tag_until_the_keys_change(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = secure_agent()
    first = await request(signing(keys, agent), "GET", CARD, headers=V1)
    second = await request(
        signing(keys, agent), "GET", CARD, headers=V1
    )  # another process, another signature
    assert first.headers["etag"] == second.headers["etag"] and first.body != second.body
    app = signing(keys, agent)
    held = {**V1, "If-None-Match": first.headers["etag"]}
    assert (await request(app, "GET", CARD, headers=held)).status == 304
    monkeypatch.setattr("dragoman.auth.keys._RELOAD_SECONDS", 0.0)
    new = KeyRing(keys).rotate()
    after: Answer = await request(app, "GET", CARD, headers=held)
    assert after.status == 200 and after.headers["etag"] != first.headers["etag"]
    assert (await verify(after.json, (await request(app, "GET", KEYS)).json)).kid == new.kid


async def test_the_extended_card_is_signed_for_those_who_speak_1_0(keys: Path) -> None:
    app, token = signing(keys), {"Authorization": f"Bearer {People().alice}"}
    card = (await rpc(app, "GetExtendedAgentCard", headers={**V1, **token})).json["result"]
    found = await verify(card, KeyRing(keys).public())
    assert found.document["skills"][-1]["name"] == "For alice-0"
    old = (await rpc(app, "agent/getAuthenticatedExtendedCard", headers=token)).json["result"]
    assert "signatures" not in old


async def test_the_extended_card_is_signed_over_every_binding(keys: Path) -> None:
    app = signing(keys, grpc_port=0)
    async with running(app) as url:
        document = (await request(app, "GET", CARD)).json
        for binding, address in (
            ("JSONRPC", url),
            ("HTTP+JSON", url),
            ("GRPC", f"127.0.0.1:{_port(document)}"),
        ):
            here = {"url": address, "protocolBinding": binding, "protocolVersion": "1.0"}
            card = {**document, "supportedInterfaces": [here]}
            async with connect(card, credentials=People().alice, binding=binding) as agent:
                extended = await agent.extended_card()
            assert (await verify(write_card(extended, "1.0"), KeyRing(keys).public())).form == SPEC


def _port(document: Any) -> str:
    [port] = {
        each["url"].rpartition(":")[2]
        for each in document["supportedInterfaces"]
        if each["protocolBinding"] == "GRPC"
    }
    return str(port)


# --- the client


def hello(keys: Path) -> Any:
    if not keys.exists():
        KeyRing(keys).add()
    agent = Agent("Hello", auth=[Bearer({"alice": hashed("t")})])

    @agent.skill
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    return application(agent, store="memory:", keys=keys, public_url="http://localhost")


@requirement(33)
async def test_a_client_may_insist_on_a_signature(keys: Path, tmp_path: Path) -> None:
    hello(keys)
    public = KeyRing(keys).public()
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(public))
    for signed_by in (public, file, str(file), Trust(public, strict=True), f"http://localhost{KEYS}"):
        async with connect(hello(keys), credentials="t", signed_by=signed_by) as agent:
            assert (await agent("Ada")).text == "Hello, Ada!"
            assert agent.version == "1.0" and agent.link.found.verified is not None


async def test_a_client_that_requires_a_signature_refuses_other_cards(keys: Path) -> None:
    stranger = KeyRing((new_key(),)).public()
    with pytest.raises(InvalidAgentResponse, match="by a trusted key"):
        async with connect(hello(keys), credentials="t", signed_by=stranger):
            pass
    with pytest.raises(InvalidAgentResponse, match="not signed"):
        async with connect(Agent("A").app(store="memory:"), signed_by=stranger):
            pass
    with pytest.raises(ValueError, match="no keys to trust"):
        async with connect(hello(keys), signed_by="missing.json"):
            pass


async def test_members_added_to_a_signed_card_are_not_used(keys: Path) -> None:
    KeyRing(keys).add()
    document = json.loads((await request(signing(keys), "GET", CARD, headers=V1)).body)
    document |= {"url": "https://evil.example", "preferredTransport": "JSONRPC", "protocolVersion": "0.3.0"}
    async with connect(document, signed_by=KeyRing(keys).public()) as agent:
        assert agent.url == f"{URL}/" and agent.version == "1.0"


async def test_over_the_network_keys_are_fetched_from_where_they_are(keys: Path) -> None:
    KeyRing(keys).add()
    async with running(application(Agent("Keys"), store="memory:", keys=keys, public_url=URL)) as there:
        app = application(Agent("Hello"), store="memory:", keys=keys, public_url=URL)
        async with running(app) as url, connect(url, signed_by=there + KEYS) as agent:
            assert agent.card.name == "Hello"

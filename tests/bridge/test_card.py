"""The card that a bridge shows, and who may do what with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import Principal, Skill
from dragoman.auth import Bearer, hashed
from dragoman.auth.keys import KeyRing
from dragoman.bridge.settings import BRIDGE
from dragoman.catalogue import AgentCatalogue
from dragoman.client import connect
from dragoman.client.transport.network import HttpTransport
from dragoman.errors import Forbidden, Unauthenticated
from dragoman.model.card import AgentCard
from dragoman.server.runtime import running
from tests.bridge.bridging import Crew, bridged, crew_app
from tests.ports import free_port

INITIALIZE = json.dumps({
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}).encode()  # fmt: skip
"""The first request of an MCP client."""


def about(card: AgentCard) -> dict[str, Any]:
    (params,) = [each.params for each in card.capabilities.extensions if each.uri == BRIDGE]
    return params


@pytest.fixture
def keys(tmp_path: Path) -> Any:
    def make(name: str) -> KeyRing:
        ring = KeyRing(tmp_path / name)
        ring.add()
        return ring

    return make


@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_a_card_has_our_interfaces_and_says_that_a_bridge_is_there(mode: str) -> None:
    async with running(crew_app(Crew(versions=("0.3",)))) as direct, bridged(direct, mode=mode) as (url, _):
        async with connect(direct) as there, connect(url) as here:
            assert {i.protocol_version for i in there.card.supported_interfaces} == {"0.3"}
            assert {i.protocol_version for i in here.card.supported_interfaces} >= {"1.0", "0.3"}
            assert all(i.url.startswith(url) for i in here.card.supported_interfaces)
            assert [s.id for s in here.card.skills] == [s.id for s in there.card.skills]
            assert here.card.name == "Crew"
            assert about(here.card) == {"mode": mode, "signature": {"state": "unsigned"}}


async def test_versions_limits_what_is_shown() -> None:
    async with bridged(crew_app(Crew()), versions=["1.0"]) as (url, _), connect(url) as client:
        assert {each.protocol_version for each in client.card.supported_interfaces} == {"1.0"}


async def test_a_signed_card_is_signed_again_and_keeps_the_verdict(keys: Any, tmp_path: Path) -> None:
    theirs, ours = keys("theirs"), keys("ours")
    port, here = free_port(), free_port()
    there = f"http://127.0.0.1:{port}"
    (tmp_path / "trusted.json").write_text(json.dumps(theirs.public()))
    app = crew_app(Crew(), keys=theirs, public_url=there)
    server = {"keys": ours, "public_url": f"http://127.0.0.1:{here}"}
    async with running(app, port=port):
        for signed_by, expected in (("", "unchecked"), (str(tmp_path / "trusted.json"), "verified")):
            async with bridged(there, server=server, signed_by=signed_by) as (url, _):
                async with connect(url, signed_by=ours.public()) as client:
                    assert about(client.card)["signature"]["state"] == expected
                    assert client.link.found.verified is not None


async def test_a_card_that_no_trusted_key_has_signed_is_not_taken(keys: Any, tmp_path: Path) -> None:
    (tmp_path / "trusted.json").write_text(json.dumps(keys("others").public()))
    signed_by = str(tmp_path / "trusted.json")
    async with bridged(crew_app(Crew()), signed_by=signed_by) as (_, bridge):
        assert bridge.routes[0].upstream.known_card is None
        assert "not signed" in bridge.routes[0].upstream.health().error


TOKENS = {
    "alice": {"secret": "a-secret", "scopes": ["greeting"]},
    "bob": {"secret": "b-secret"},
}


@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_a_skill_needs_its_scopes_and_so_does_a_message_that_names_none(mode: str) -> None:
    settings: dict[str, Any] = {
        "mode": mode,
        "shared_tasks": True,
        "auth": {"tokens": TOKENS},
        "skills": {"greet": {"scopes": ["greeting"]}, "fail": {"hidden": True}},
    }
    crew = Crew()
    async with bridged(crew_app(crew), **settings) as (url, _):
        async with connect(url, credentials="a-secret") as alice, connect(url, credentials="b-secret") as bob:
            assert (await alice("hi", skill="greet")).text
            assert (await alice("hi")).text == "HI"
            assert (await bob("hi", skill="echo")).text == "HI"
            before = len(crew.seen)
            with pytest.raises(Forbidden, match="greeting"):
                await bob("hi", skill="greet")
            with pytest.raises(Forbidden, match="greeting"):
                await bob("hi")
            assert "fail" not in [skill.id for skill in bob.card.skills]
            assert len(crew.seen) == before
        with pytest.raises(Unauthenticated):
            async with connect(url) as stranger:
                await stranger("hi")


@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_only_the_callers_that_are_listed_may_call(mode: str) -> None:
    settings: dict[str, Any] = {"mode": mode, "auth": {"tokens": TOKENS}, "callers": ["bob"]}
    settings["shared_tasks"] = True
    async with bridged(crew_app(Crew()), **settings) as (url, _):
        async with connect(url, credentials="a-secret") as alice, connect(url, credentials="b-secret") as bob:
            assert (await bob("hi", skill="echo")).text == "HI"
            with pytest.raises(Forbidden):
                await alice("hi", skill="echo")


async def test_a_private_card_is_only_for_the_callers_that_are_listed() -> None:
    settings: dict[str, Any] = {"auth": {"tokens": TOKENS}, "callers": ["bob"], "private_card": True}
    transport = HttpTransport()
    server = {"catalogue": AgentCatalogue(), "mcp": True}
    async with bridged(crew_app(Crew()), server=server, **settings) as (url, _):

        async def read(path: str, token: str) -> tuple[int, bytes]:
            response = await transport.request("GET", url + path, {"Authorization": f"Bearer {token}"})
            return response.status, await response.read()

        for path in ("/.well-known/agent-card.json", "/openapi.json", "/docs"):
            assert [(await read(path, token))[0] for token in ("a-secret", "b-secret")] == [403, 200], path
        for token, status in (("a-secret", 403), ("b-secret", 200)):
            headers = {
                "Authorization": f"Bearer {token}", "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
            }  # fmt: skip
            asked = await transport.request("POST", f"{url}/mcp", headers, INITIALIZE)
            assert asked.status == status
            await asked.read()
        for path in ("/.well-known/ai-catalog.json", "/.well-known/ard.json", "/catalogue/agents"):
            assert b'"health":"up"' not in (await read(path, "a-secret"))[1], path
            assert b'"health":"up"' in (await read(path, "b-secret"))[1], path
    await transport.close()


@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_an_extended_card_has_the_skills_that_its_caller_may_use(mode: str) -> None:
    secret = Skill(id="secret", name="Secret", description="For few")

    def extended(principal: Principal) -> list[Skill]:
        return [secret]

    crew = Crew(auth=Bearer({"bridge": hashed("right")}), extended_card=extended)
    settings: dict[str, Any] = {
        "mode": mode,
        "shared_tasks": True,
        "credentials": "right",
        "auth": {"tokens": TOKENS},
        "skills": {"secret": {"scopes": ["greeting"]}},
    }
    async with bridged(crew_app(crew), **settings) as (url, _):
        async with connect(url, credentials="a-secret") as alice, connect(url, credentials="b-secret") as bob:
            assert "secret" in [skill.id for skill in (await alice.extended_card()).skills]
            card = await bob.extended_card()
            assert "secret" not in [skill.id for skill in card.skills]
            assert all(each.url.startswith(url) for each in card.supported_interfaces)
            assert list(card.security_schemes) == ["bearer"]

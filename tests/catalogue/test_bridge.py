"""Agents behind a bridge in its catalogue: what their cards say, and how they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dragoman.auth import Bearer, hashed
from dragoman.bridge.application import Bridge, make_bridge
from dragoman.bridge.settings import make_one_route
from dragoman.catalogue import AgentCatalogue, sources
from dragoman.cli import parser
from dragoman.client import connect
from dragoman.client.catalogue import ListedAgent, RemoteCatalogue
from dragoman.client.transport.network import HttpTransport
from dragoman.console import AgentConsole
from dragoman.errors import A2AError
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.bridge.bridging import Crew, crew_app
from tests.console.conftest import TOKEN
from tests.ports import free_port

ADA = "token-of-ada-0123456789"


@asynccontextmanager
async def bridge_at(bridge: Bridge, **more: Any) -> AsyncIterator[str]:
    app = bridge.app(store="memory:", catalogue=AgentCatalogue(), console=AgentConsole(TOKEN), **more)
    async with running(app) as url:
        yield url


async def listed(url: str, text: str = "") -> list[ListedAgent]:
    transport = HttpTransport()
    catalogue = RemoteCatalogue(url, transport)
    try:
        return list(await (catalogue.search(text) if text else catalogue.list()))
    finally:
        await transport.close()


async def test_an_agent_behind_a_bridge_is_found_and_called() -> None:
    crew = Crew(version="7.1")
    async with running(crew_app(crew)) as there, bridge_at(make_bridge(make_one_route(there))) as url:
        (found,) = await listed(url, "does what it is told")
        assert (found.kind, found.title, found.version) == ("bridge", "Crew", "7.1")
        assert (found.health, found.signature) == ("up", "unsigned")
        assert found.url.startswith(url) and there not in msgspec.json.encode(found).decode()
        async with connect(f"catalogue://{url.removeprefix('http://')}/{found.name}") as agent:
            assert (await agent("hello")).text == "HELLO"


@pytest.mark.parametrize("mode", ["durable", "pass"])
async def test_an_agent_that_went_away_is_down_and_still_found(mode: str) -> None:
    crew = Crew()
    async with running(crew_app(crew)) as there:
        bridge = make_bridge(make_one_route(there, mode=mode, retries=0))
        stack = bridge_at(bridge)
        url = await stack.__aenter__()
    try:
        with pytest.raises(A2AError):
            await bridge.routes[0].upstream.call(*_a_read())
        (found,) = await listed(url, "does what it is told")
        assert (found.health, found.title) == ("down", "Crew")
        transport = HttpTransport()
        response = await transport.request(
            "GET", f"{url}/console/api/catalogue", {"Authorization": f"Bearer {TOKEN}"}
        )
        shown = msgspec.json.decode(await response.read())["agents"][0]
        await transport.close()
        assert shown["health"]["state"] == "down" and shown["health"]["error"]
    finally:
        await stack.__aexit__(None, None, None)


def _a_read() -> Any:
    from dragoman.model.ops import Call, GetTask

    return Call(), GetTask(id="x")


async def test_an_agent_that_was_never_reached_is_listed_by_its_name() -> None:
    bridge = make_bridge(make_one_route(f"http://127.0.0.1:{free_port()}", retries=0))
    async with bridge_at(bridge) as url:
        (found,) = await listed(url)
        assert found.health == "down" and found.kind == "bridge"
        assert found.name == bridge.agents[0].id


async def test_a_private_route_is_only_for_its_callers(tmp_path: Any) -> None:
    (tmp_path / "tokens.json").write_bytes(msgspec.json.encode({"ada": hashed(ADA)}))
    async with running(crew_app(Crew())) as there:
        auth = {"tokens": str(tmp_path / "tokens.json")}
        bridge = make_bridge(make_one_route(there, auth=auth, private_card=True))
        async with bridge_at(bridge) as url:
            assert await listed(url) == []
            async with connect(
                f"catalogue://{url.removeprefix('http://')}/{bridge.agents[0].id}", credentials=ADA
            ) as agent:
                assert agent.card.name == "Crew"


async def test_an_extended_card_that_hangs_elsewhere_does_not_hold_up_a_search(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_ASK_SECONDS", 0.1)
    (tmp_path / "tokens.json").write_bytes(msgspec.json.encode({"ada": hashed(ADA)}))

    gate = asyncio.Event()

    async def never(principal: Any) -> Any:
        await gate.wait()
        return []

    crew = Crew(auth=Bearer({"bridge": hashed("token-of-the-bridge-01")}), extended_card=never)
    async with running(crew_app(crew)) as there:
        auth = {"tokens": str(tmp_path / "tokens.json")}
        bridge = make_bridge(make_one_route(there, auth=auth, credentials="token-of-the-bridge-01"))
        async with bridge_at(bridge) as url:
            transport = HttpTransport()
            body = msgspec.json.encode({"query": {"text": "told"}})
            headers = {"Authorization": f"Bearer {ADA}", "Content-Type": "application/json"}
            async with asyncio.timeout(10):
                response = await transport.request("POST", f"{url}/catalogue/search", headers, body)
                assert len(msgspec.json.decode(await response.read())["results"]) == 1
            await transport.close()
            gate.set()


async def test_agents_of_the_server_are_not_those_of_a_bridge() -> None:
    crew = Crew()
    own = application(crew.agent, store="memory:", catalogue=AgentCatalogue())
    async with running(own) as url:
        (found,) = await listed(url)
        assert found.kind == "agent"


def test_a_bridge_has_the_options_of_the_catalogue() -> None:
    args = parser().parse_args(["bridge", "http://127.0.0.1:9", "--catalogue", "--catalogue-allow-private"])
    assert args.catalogue and args.catalogue_allow_private

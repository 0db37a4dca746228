"""Hubs that call each other over A2A, each with a token for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dragoman.hub.store.tenants import Tenant, Tenants
from dragoman.server.runtime import running
from tests.hub.house import SCOUT, Caller, events, house, message, tables_of
from tests.hub.scripted import Scripted, by_agent
from tests.ports import free_port
from tests.waiting import until


def register(folder: Path, url: str, agent: str, **auth: str) -> None:
    entry = {"url": f"{url}/v1/a2a/agents/{agent}", "auth": {"type": "bearer", **auth}, "allow_private": True}
    folder.mkdir(exist_ok=True)
    (folder / "a2a_agents.json").write_bytes(msgspec.json.encode({"agents": {"neighbour": entry}}))


async def settled(folder: Path, name: str) -> tuple[Tenant, str]:
    """A tenant of a hub that is not running yet, and its token."""
    folder.mkdir()
    database = await tables_of(folder).open()
    try:
        return await Tenants(database).add(name)
    finally:
        await database.close()


async def test_hubs_ask_each_other(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    one, two = free_port(), free_port()
    _, acme = await settled(here, "acme")
    tenant, token = await settled(there, "umbrella")
    register(here, f"http://127.0.0.1:{two}", "scout", token=token)
    register(there, f"http://127.0.0.1:{one}", "index", token=acme)
    near_scripts: dict[str, Iterable[Scripted]] = {
        "Index": ["/a2a call neighbour look outside", "Over there it rains."]
    }
    far_scripts: dict[str, Iterable[Scripted]] = {
        "Index": ["/a2a call neighbour how is it?", "They know it rains."],
        "Scout": ["It rains."],
    }
    async with (
        house(by_agent(near_scripts), folder=here) as near,
        house(by_agent(far_scripts), folder=there) as far,
        running(near.app, port=one),
        running(far.app, port=two),
    ):
        umbrella = Caller(far.app, token, tenant)
        await umbrella("POST", "/v1/agents", SCOUT)
        received = await umbrella.ask("how are the neighbours?")
        assert received[-1][1]["content"] == "They know it rains."
        assert "Over there it rains." in far.model.prompts[-1].messages[-1].content
        assert "It rains." in near.model.prompts[-1].messages[-1].content
        assert far.model.prompts[1].messages[-1].content == "look outside", (
            "only the words of the message leave"
        )
        via = {
            request["agent_id"]: request["via"]
            for request in (await umbrella("GET", "/v1/requests")).json["requests"]
        }
        assert via == {"index": "native", "scout": "a2a"}


async def test_a_neighbour_that_is_not_there_is_a_failed_command_and_no_failed_request(
    tmp_path: Path,
) -> None:
    register(tmp_path, "http://127.0.0.1:9", "index", token="none")
    async with house(["/a2a call neighbour hello?", "Nobody is there."], folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        received = await acme.ask("hello")
        (call,) = [payload for kind, payload in received if kind == "tool_call"]
        assert call["ok"] is False and received[-1][1]["content"] == "Nobody is there."


async def test_canceling_here_cancels_there(tmp_path: Path) -> None:
    hold = asyncio.Event()
    here = tmp_path / "here"
    async with house([("hmm", hold)]) as far, running(far.app) as far_url:
        umbrella = await far.tenant("umbrella")
        register(here, far_url, "index", token=umbrella.token)
        async with house(["/a2a call neighbour think hard"], folder=here) as near:
            acme = await near.tenant("acme")
            live = acme.open_rpc("index", "message/stream", message("go"))
            async with asyncio.timeout(10):
                await until(lambda: far.model.prompts)
            await live.until(lambda: bool(live.frames()))
            id = live.results()[0]["taskId"]
            await acme.rpc("index", "tasks/cancel", {"id": id})
            assert (await live.end()).results()[-1]["status"]["state"] == "canceled"
            (request,) = (await umbrella("GET", "/v1/requests")).json["requests"]
            received = events(await umbrella("GET", f"/v1/requests/{request['request_id']}/events"))
            assert received[-1][1]["error_code"] == "cancelled"

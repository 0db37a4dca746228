"""A hub between the libraries of others: called by their clients, calling their servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from dragoman.hub.tools.remote_agents import RemoteAgent, RemoteAgents
from dragoman.model.content import Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.ops import Call, Scope, SendMessage
from dragoman.push.guard import Guard
from dragoman.server.runtime import running
from tests.hub.house import house
from tests.interop.environments import command, install
from tests.interop.running import serving

pytestmark = pytest.mark.interop

CALLERS = [
    ("a2a-sdk-1.3.0", "a2a_sdk_1_hub.py", "1.0", "JSONRPC"),
    ("a2a-sdk-1.3.0", "a2a_sdk_1_hub.py", "1.0", "HTTP+JSON"),
    ("a2a-sdk-1.3.0", "a2a_sdk_1_hub.py", "0.3", "JSONRPC"),
    ("a2a-sdk-0.3.26", "a2a_sdk_0_3_hub.py", "0.3", "JSONRPC"),
    ("a2a-sdk-0.3.26", "a2a_sdk_0_3_hub.py", "0.3", "HTTP+JSON"),
]


@pytest.mark.parametrize(("library", "script", "version", "binding"), CALLERS)
async def test_their_clients_talk_to_an_agent_of_a_hub(
    library: str, script: str, version: str, binding: str
) -> None:
    await asyncio.to_thread(install, library)
    async with house(["It streams.", "It answers."]) as hub, running(hub.app) as url:
        acme = await hub.tenant("acme")
        home = f"{url}/v1/a2a/agents/index/"
        arguments = command(library, script, home, acme.token, version, binding, "hello")
        client = await asyncio.create_subprocess_exec(
            *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, errors = await client.communicate()
        assert out.decode().splitlines() == ["It streams.", "It answers."], errors.decode()[-2000:]


@pytest.mark.parametrize("library", ["a2a-sdk-1.3.0", "a2a-sdk-0.3.26"])
async def test_an_agent_of_a_hub_asks_their_servers(library: str, tmp_path: Path) -> None:
    await asyncio.to_thread(install, library)
    server = serving(library)
    url = await asyncio.to_thread(server.__enter__)
    try:
        entry = {"url": url, "allow_private": True}
        (tmp_path / "a2a_agents.json").write_bytes(msgspec.json.encode({"agents": {"theirs": entry}}))
        async with house(["/a2a call theirs hello", "They answered."], folder=tmp_path) as hub:
            acme = await hub.tenant("acme")
            received = await acme.ask("ask them")
            (call,) = [payload for kind, payload in received if kind == "tool_call"]
            assert call["ok"] is True, hub.model.prompts[-1].messages[-1].content
            assert received[-1][1]["content"] == "They answered."
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


@pytest.mark.parametrize("library", ["a2a-sdk-1.3.0", "a2a-js-1.3.0"])
async def test_the_task_that_their_server_has_for_a_message_is_found(library: str) -> None:
    await asyncio.to_thread(install, library)
    server = serving(library)
    url = await asyncio.to_thread(server.__enter__)
    try:
        remotes = RemoteAgents({"theirs": RemoteAgent(url=url, allow_private=True)}, guard=Guard())
        service, _ = await remotes.find("a2a:theirs", Scope())
        message = Message(message_id="ours-1", role=Role.USER, parts=(Part(text="hello"),))
        tasks = Fold()
        async for batch in service.stream(Call(), SendMessage(message=message)):
            for response in batch:
                tasks.apply(response.event)
        assert await remotes.find_task("theirs", "ours-1") == tasks.task_id != ""
        assert await remotes.find_task("theirs", "another") == ""
        await remotes.close()
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)

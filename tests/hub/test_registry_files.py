"""`a2a_agents.json` and `mcp_servers.json` change while a hub runs."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import InvalidParams
from dragoman.hub.store.database import Database
from dragoman.hub.tools.mcp import McpServers
from dragoman.hub.tools.mcp import read_registry as read_servers
from dragoman.hub.tools.registry_file import RegistryFile
from dragoman.hub.tools.remote_agents import RemoteAgent, RemoteAgents, read_registry
from dragoman.mcp.connection import McpServer
from dragoman.push.guard import Guard
from tests.hub.conftest import Begin, toolbox
from tests.hub.house import house as opened_hub
from tests.hub.scripted import ScriptedModel
from tests.hub.test_tools import database, fed, neighbour, served, slow
from tests.waiting import until

__all__ = ["database"]


def write(path: Path, content: Any) -> None:
    """As an editor does: a new file in the place of the old one."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content if isinstance(content, bytes) else msgspec.json.encode(content))
    os.replace(fresh, path)


async def test_a_running_hub_follows_its_registries(tmp_path: Path) -> None:
    def reply(prompt: Any) -> str:
        return "Ok." if len(prompt.messages) > 1 else "/a2a list\n/mcp call nobody x {}\n/browse https://x/"

    async with served(neighbour().app(store="memory:")) as url, opened_hub(reply, folder=tmp_path) as hub:
        acme = await hub.tenant("acme")

        async def last_prompt() -> str:
            await acme.ask("go")
            content: str = hub.model.prompts[-1].messages[-1].content
            return content

        first = await last_prompt()
        assert "A2A unavailable" in first and "this hub has no MCP servers" in first
        write(tmp_path / "a2a_agents.json", {"agents": {"weather": {"url": url, "allow_private": True}}})
        write(tmp_path / "mcp_servers.json", {"servers": {"playwright": {"command": "/nowhere"}}})
        async with asyncio.timeout(60):
            await until(
                last_prompt, lambda text: "weather — Knows" in text and "Available: playwright" in text
            )
            # The files may have been read in the middle of the last message, after its first prompt: so one more.
            await last_prompt()
            assert "/browse <url>" in hub.model.prompts[-1].system, "a browser that comes later is offered"
            assert "| weather — Knows" in hub.model.prompts[-2].messages[0].content, "also in the roster"
            write(tmp_path / "a2a_agents.json", {"agents": {}})
            await until(last_prompt, lambda text: "A2A unavailable" in text)


async def test_a_broken_registry_changes_nothing_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used: list[list[str]] = []

    async def use(agents: dict[str, RemoteAgent]) -> None:
        used.append(list(agents))

    path = tmp_path / "a2a_agents.json"
    file = RegistryFile(path, read_registry, use)
    assert file.load() == {}
    write(path, {"agents": {"a": {"url": "https://a.example"}}})
    await file.check()
    await file.check()
    assert used == [["a"]], "and an unchanged file is not read again"
    write(path, b'{"agents": {"b"')
    await file.check()
    await file.check()
    received = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert used == [["a"]] and len(received) == 1 and "The content from before stays in use" in received[0]
    with pytest.raises(InvalidParams, match="is not a valid registry of agents"):
        read_registry(path)  # what `dragoman doctor` prints
    write(path, {"agents": {"b": {"url": "https://b.example"}}})
    await file.check()
    path.unlink()
    await file.check()
    assert used == [["a"], ["b"]], "it may be on its way"
    await file.check()
    assert used == [["a"], ["b"], []]


async def test_a_remote_that_leaves_the_registry_finishes_its_call_and_takes_no_other(
    shed: Begin, database: Database
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    async with (
        served(slow(begun, go).app(store="memory:")) as old,
        served(neighbour().app(store="memory:")) as new,
    ):
        remotes = RemoteAgents({"it": RemoteAgent(url=old, allow_private=True)}, guard=Guard())
        tools = toolbox(database, model=ScriptedModel([]), remotes=remotes)
        home = await shed(ScriptedModel([]), tools=tools, peers=remotes)
        asking = asyncio.create_task(fed(home, "/a2a call it now"))
        await asyncio.wait_for(begun.wait(), 30)
        await remotes.change({"it": RemoteAgent(url=new, allow_private=True)})
        go.set()
        assert "at last" in await asking
        assert (await remotes.fetch_lines())[0].startswith("it — Knows the weather.")
        assert "Sunny" in await fed(home, "/a2a call it Rome?"), "the same name is another agent now"
        await remotes.change({})
        assert "A2A unavailable" in await fed(home, "/a2a call it Rome?")
        await remotes.close()


async def test_a_changed_mcp_server_is_started_anew_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    script = str(Path(__file__).with_name("mcp_server.py"))

    def server(level: str) -> McpServer:
        return McpServer(command=sys.executable, args=(script,), env={"LEVEL": level})

    servers = McpServers({"adder": server("1")})
    asked = ("1", "adder", "environment", {"name": "LEVEL"})
    assert await servers.call(*asked) == (True, "1")
    before = servers._pool._open.copy()
    await servers.change({"adder": server("1")})
    assert await servers.call(*asked) == (True, "1") and servers._pool._open == before
    await servers.change({"adder": server("2")})
    assert await servers.call(*asked) == (True, "2")
    await servers.change({})
    with pytest.raises(InvalidParams, match="no MCP server 'adder'"):
        await servers.call(*asked)
    assert read_servers(tmp_path / "none.json") == {} and servers.servers == {}
    await servers.close()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"mcpServers": {}}', "unknown member 'mcpServers': did you mean 'servers'"),
        (
            b'{"servers": {"a": {"command": "x", "argz": []}}}',
            "server 'a' has an unknown member 'argz': did you mean 'args'",
        ),
        (b'{"servers": {"a": {"url": "https://x", "headrs": {}}}}', "did you mean 'headers'"),
        (b'{"servers": {"a": {"command": "x", "colour": 1}}}', "members are command, args"),
        (b'{"servers": {"a": {}}}', "needs either a command or a url"),
        (
            b'{"servers": {"a": {"url": "ftp://x/mcp"}}}',
            "server 'a': 'ftp://x/mcp' is not an http or https URL",
        ),
        (b'{"servers": {"a": {"url": "https://"}}}', "is not an http or https URL"),
        (b'{"servers": {"a": {"url": "https://x:port/"}}}', "is not an http or https URL"),
        (b'{"servers": {"a b": {"command": "x"}}}', "is not a valid name"),
        (b'{"servers": {"": {"command": "x"}}}', "is not a valid name"),
        (
            b'{"servers": {"a": {"command": "x", "call_timeout_ms": 0}}}',
            "server 'a': call_timeout_ms: expected int >= 1",
        ),
        (b'{"servers": {"a": {"command": "x", "env": {"N": 1}}}}', "server 'a': env: expected str, got int"),
        (
            b'{"servers": {"a": {"command": "x", "args": [1]}}}',
            r"server 'a': args\[0\]: expected str, got int",
        ),
        (b'{"servers": {"a": "x"}}', "server 'a': expected object, got str"),
        (
            b'{"servers": {"a": {"command": "x", "headers": {"A": "b"}}}}',
            "server 'a': headers do not go with a command",
        ),
        (b'{"servers": {"a": {"url": "https://x", "env": {"A": "b"}}}}', "'a': env does not go with a url"),
        (b'{"servers": []}', "not a valid registry of MCP servers: servers: expected object, got array"),
        (b"\xff", "not a valid registry of MCP servers"),
        (b"[", "not a valid registry of MCP servers"),
        (b"[]", "not a valid registry of MCP servers"),
    ],
)
def test_a_registry_of_mcp_servers_that_is_wrong_says_where(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "mcp_servers.json"
    file.write_bytes(content)
    with pytest.raises(InvalidParams, match=why):
        read_servers(file)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"agent": {}}', "a2a_agents.json has an unknown member 'agent': did you mean 'agents'"),
        (b'{"agents": {"a": {"url": "https://x", "alow_private": true}}}', "did you mean 'allow_private'"),
        (b'{"agents": {"a": {"url": "https://x", "colour": 1}}}', "members are url, auth, timeout"),
        (
            b'{"agents": {"a": {"url": "https://x", "auth": {"tokenEnv": "T"}}}}',
            "agent 'a': auth has an unknown member 'tokenEnv': did you mean 'token_env'",
        ),
        (b'{"agents": {"a": {"url": "ftp://x"}}}', "agent 'a': 'ftp://x' is not an http or https URL"),
        (b'{"agents": {"a": {"url": "https://x:99999"}}}', "is not an http or https URL"),
        (b'{"agents": {"a": {"url": "https://x", "auth": {"type": "basic"}}}}', r"auth\.type 'basic'"),
        (b'{"agents": {"a": {"url": "https://x", "timeout": 0}}}', "agent 'a': timeout: expected float > 0"),
        (b'{"agents": {"a": {"auth": {"token": "x"}}}}', "agent 'a': url is missing"),
        (b'{"agents": {"a": {"urI": "https://x"}}}', "did you mean 'url'"),
        (b'{"agents": {"a b": {"url": "https://x"}}}', "is not a valid name"),
        (b"\xff", "not a valid registry of agents"),
    ],
)
def test_a_registry_of_agents_that_is_wrong_says_where(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "a2a_agents.json"
    file.write_bytes(content)
    with pytest.raises(InvalidParams, match=why):
        read_registry(file)

"""Agents on libraries of other projects, as MCP servers, driven by the official MCP clients."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman import Agent, Turn, connect
from dragoman.mcp.http_server import HttpEndpoint
from dragoman.model.task import TaskState
from tests.interop.environments import command, install
from tests.interop.running import SERVERS, serving
from tests.mcp.driving import (
    ERAS,
    Progress,
    User,
    agent_server,
    client_of,
    serve_endpoint,
    served,
    task_id,
    texts,
)
from tests.waiting import until

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", SERVERS)
async def test_an_agent_of_another_project_is_an_mcp_server(name: str, era: str) -> None:
    user, progress = User({"answer": "this one"}), Progress()
    with serving(name) as url:
        async with client_of(url, "http", era, elicitation_callback=user) as client:
            tool = (await client.list_tools()).tools[0].name
            assert texts(await client.call_tool(tool, {"text": "hello"}))[0] == "hello"
            ticks = await client.call_tool(tool, {"text": "ticks:3"}, progress_callback=progress)
            assert not ticks.is_error
            answered = await client.call_tool(tool, {"text": "ask"})
            if name not in WITHOUT_ANSWERS:
                assert texts(answered)[0] == "You said: this one"
                assert [each.message for each in user.asked] == ["Which one?"]
            assert len(user.asked) == 1
            assert (await client.call_tool(tool, {"text": "fail"})).is_error
            if name not in WITHOUT_MESSAGES:
                assert texts(await client.call_tool(tool, {"text": "message"}))[0] == "just a message"
            assert "tick 1" in progress.said


@pytest.mark.parametrize("name", SERVERS)
async def test_long_work_of_another_project_goes_on_after_a_restart_and_is_canceled(name: str) -> None:
    with serving(name) as url:
        async with client_of(url, "http", "legacy", "--wait", "0.3") as client:
            tool = (await client.list_tools()).tools[0].name
            begun = await client.call_tool(tool, {"text": "ticks:1000"})
            assert "check_task" in texts(begun)[-1]
        async with client_of(url, "http", ERAS[1]) as client:
            still = await client.call_tool("check_task", {"task_id": task_id(begun), "wait_seconds": 0})
            assert "not finished" in texts(still)[-1]
            await client.call_tool("cancel_task", {"task_id": task_id(begun)})
            async with connect(url) as agent:
                states = (TaskState.CANCELED,)
                await until(lambda: agent.get(task_id(begun)), lambda task: task.state in states)


WITHOUT_ANSWERS = WITHOUT_MESSAGES = ("fasta2a-2.1.1",)
"""See `peers/fasta2a_server.py`: each message is a task of its own there, and a task has no bare message."""


def peer() -> Agent:
    """The agent of `peers/README.md`, as far as the client needs it."""
    agent = Agent("Peer", "An agent.")

    @agent.skill
    async def work(turn: Turn) -> str:
        if turn.text == "ask":
            return f"You said: {await turn.ask('Which one?')}"
        if turn.text == "fail":
            turn.reject("no")
        if turn.text.startswith("ticks:"):
            for n in range(int(turn.text[6:])):
                await turn.status(f"tick {n}")
                await asyncio.sleep(0.05)
        return turn.text

    return agent


@asynccontextmanager
async def way(transport: str, url: str) -> AsyncIterator[list[str]]:
    """The arguments of the JavaScript client."""
    if transport == "stdio":
        yield [sys.executable, "-m", "dragoman.cli", "mcp", url]
    elif transport == "http":
        async with serve_endpoint(HttpEndpoint(agent_server(url))) as where:
            yield [where]
    else:
        yield [f"{url}/mcp"]


@pytest.mark.parametrize("transport", ["stdio", "http", "beside"])
async def test_the_official_client_for_javascript_drives_an_agent(transport: str) -> None:
    install("mcp-sdk-js")
    async with served(peer(), mcp=transport == "beside") as url, way(transport, url) as words:
        process = await asyncio.create_subprocess_exec(
            *command("mcp-sdk-js", "mcp_js_client.mjs", *words), stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            printed, _ = await process.communicate()
        assert process.returncode == 0
        found: dict[str, Any] = {}
        for line in printed.decode().splitlines():
            found |= json.loads(line)
        # This client forgets progress that it reads together with the result: the last words may be missing.
        progress = found.pop("progress")
        assert progress[:2] == ["tick 0", "tick 1"]
        assert progress == ["tick 0", "tick 1", "tick 2", "result"][: len(progress)]
        assert found == {
            "tool": "work",
            "echo": "hello",
            "answer": "You said: this one",
            "forms": ["Which one?"],
            "failed": True,
            "canceled": True,
        }
        async with connect(url) as agent:
            canceled = [each async for each in agent.list() if each.state is TaskState.CANCELED]
            assert len(canceled) == 1

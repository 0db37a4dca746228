"""The reference servers of MCP as tools of an agent, and as agents."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, StatusUpdate, Task, TaskState, Turn, connect
from dragoman.client import Client
from dragoman.errors import ToolFailed
from dragoman.mcp import McpTools, mcp
from tests.interop.environments import install, program
from tests.serving import Server
from tests.waiting import until

pytestmark = pytest.mark.interop

NODE, PYTHON = "mcp-servers-node", "mcp-servers-python"


def reference(environment: str, script: str, *arguments: str, **options: Any) -> McpTools:
    install(environment)
    return mcp([program(environment, script), *arguments], **options)


@asynccontextmanager
async def agent_with(*servers: McpTools) -> AsyncIterator[Client]:
    agent = Agent("User", tools=list(servers))

    @agent.skill(default=True)
    async def use(turn: Turn, call: dict[str, Any]) -> dict[str, Any]:
        try:
            result = await turn.tool(call["tool"], call.get("arguments"))
        except ToolFailed as error:
            return {"why": error.why, "text": error.text}
        files = [[file.media_type, file.url or len(file.raw or b"")] for file in result.files]
        return {"text": result.text, "data": result.data, "files": files}

    @agent.skill
    async def names(turn: Turn) -> list[str]:
        return [tool.name for tool in await turn.tools()]

    async with agent.test(timeout=60.0) as client:
        yield client


async def use(client: Client, tool: str, **arguments: Any) -> Any:
    return (await client({"tool": tool, "arguments": arguments})).data


async def test_the_server_that_has_everything() -> None:
    async with agent_with(reference(NODE, "mcp-server-everything")) as client:
        assert (await use(client, "echo", message="hello"))["text"] == "Echo: hello"
        assert "42" in (await use(client, "get-sum", a=40, b=2))["text"]
        weather = await use(client, "get-structured-content", location="Chicago")
        assert set(weather["data"]) == {"temperature", "conditions", "humidity"}
        wrong = await use(client, "get-structured-content", location="Atlantis")
        assert wrong["why"] == "arguments" and "Atlantis" in wrong["text"]
        ((kind, size),) = (await use(client, "get-tiny-image"))["files"]
        assert kind == "image/png" and size > 100
        assert "resource" in (await use(client, "get-resource-links", count=3))["text"]
        assert (await use(client, "get-resource-reference", resourceType="Text", resourceId=1))["files"]
        names = (await client("which", skill="names")).data
        assert "trigger-elicitation-request" in names and "trigger-sampling-request" not in names


async def test_progress_and_a_cancel_of_the_server_that_has_everything() -> None:
    async with agent_with(reference(NODE, "mcp-server-everything")) as client:
        said: list[str] = []
        slow = {"tool": "trigger-long-running-operation", "arguments": {"duration": 2, "steps": 4}}
        async for piece in client.stream(slow):
            event = piece.event
            if isinstance(event, StatusUpdate) and event.status.message is not None:
                said.append(event.status.message.text)
        assert said and all(text.startswith("trigger-long-running-operation: ") for text in said)
        slow["arguments"] = {"duration": 600, "steps": 600}
        task = await client.send(slow, wait=False)
        await until(lambda: client.get(task.id), lambda found: found.status.message is not None)
        assert (await client.cancel(task.id)).state is TaskState.CANCELED
        assert (await use(client, "echo", message="still here"))["text"] == "Echo: still here"


async def test_a_question_of_the_server_that_has_everything() -> None:
    async with agent_with(reference(NODE, "mcp-server-everything")) as client:
        reply = await client({"tool": "trigger-elicitation-request"})
        assert reply.state is TaskState.INPUT_REQUIRED
        (question,) = reply.questions
        assert question.schema is not None and "name" in question.schema["properties"]
        answered = await client({"name": "Ada"}, task=reply.id)
        assert answered.state is TaskState.COMPLETED and "Ada" in answered.data["text"]
        reply = await client({"tool": "trigger-elicitation-request"})
        declined = await client("decline", task=reply.id)
        assert declined.state is TaskState.COMPLETED and "declined" in declined.data["text"]


async def test_an_agent_uses_the_reference_server_of_memories(tmp_path: Path) -> None:
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    async with agent_with(reference(NODE, "mcp-server-memory", env=env)) as client:
        ada = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
        assert (await use(client, "create_entities", entities=[ada]))["data"] == {"entities": [ada]}
        found = await use(client, "search_nodes", query="programs")
        assert found["data"]["entities"][0]["name"] == "Ada"
        assert (await use(client, "create_entities", entities=["Ada"]))["why"] == "arguments"


async def test_an_agent_uses_the_reference_server_of_files_with_approvals(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    async with agent_with(
        reference(NODE, "mcp-server-filesystem", str(folder), approve="destructive")
    ) as client:
        path = str(folder / "note.txt")
        reply = await client({"tool": "write_file", "arguments": {"path": path, "content": "hello"}})
        assert reply.asks and not (folder / "note.txt").exists()
        assert (await client("yes", task=reply.id)).state is TaskState.COMPLETED
        assert (folder / "note.txt").read_text() == "hello"
        assert (await use(client, "read_text_file", path=path))["text"] == "hello"
        outside = await use(client, "read_text_file", path=str(tmp_path / "other.txt"))
        assert outside["why"] == "error" and "denied" in outside["text"].lower()


async def test_servers_of_another_language_side_by_side(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "a.txt").write_text("a")
    time, git = reference(PYTHON, "mcp-server-time"), reference(PYTHON, "mcp-server-git")
    async with agent_with(time, git) as client:
        names = (await client("which", skill="names")).data
        assert {"time_get_current_time", "git_git_status"} <= set(names)
        received = await use(
            client, "convert_time", source_timezone="UTC", time="12:00", target_timezone="Europe/Berlin"
        )
        assert "Europe/Berlin" in received["text"]
        assert "a.txt" in (await use(client, "git_status", repo_path=str(tmp_path)))["text"]
        assert (await use(client, "get_current_time", timezone="Nowhere/None"))["why"] == "error"


async def test_a_reference_server_is_an_agent_that_survives_a_crash(tmp_path: Path) -> None:
    install(NODE)
    options = ["--mcp-env", "MEMORY_FILE_PATH", "--mcp-approve", "destructive"]
    options += ["--mcp-server", shlex.join([program(NODE, "mcp-server-memory")])]
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    ada: dict[str, Any] = {"name": "Ada", "entityType": "person", "observations": []}
    async with Server(store=tmp_path / "tasks.db", options=options, env=env, start_seconds=60) as server:
        for version in ("1.0", "0.3", "0.1"):
            async with connect(server.url, version=version) as client:
                found = await client({"query": "Ada"}, skill="search_nodes")
                assert found.data == {"entities": [], "relations": []}
        async with connect(server.url) as client:
            await client({"entities": [ada]}, skill="create_entities")
            reply = await client({"entityNames": ["Ada"]}, skill="delete_entities")
            assert reply.asks and isinstance(reply.task, Task)
            await server.kill()
            await server.start()
            assert (await client("yes", task=reply.id)).state is TaskState.COMPLETED
            assert (await client({}, skill="read_graph")).data == {"entities": [], "relations": []}

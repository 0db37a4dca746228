"""An MCP server as an agent: `wrap(mcp(...))` and `dragoman serve --mcp-server`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

pytest.importorskip("mcp")

from dragoman import Agent, TaskState, connect, wrap
from dragoman.client import Client, TaskFailed
from dragoman.errors import InvalidParams
from dragoman.mcp import mcp
from dragoman.model.schema import schemas_on
from tests.serving import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = Path(__file__).with_name("tool_server.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def agent(folder: Path) -> Agent:
    return wrap(mcp([sys.executable, str(SCRIPT), str(folder)], name="tools"), name="Tools", scopes=[])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(agent: Agent) -> AsyncIterator[Client]:
    async with agent.test(timeout=30.0) as client:
        yield client


async def test_every_tool_is_a_skill_with_its_schemas(agent: Agent) -> None:
    skills = {skill.id: skill for skill in agent.card.skills}
    assert {"add", "pay", "book", "picture"} <= set(skills)
    assert (skills["slow_pay"].name, skills["add"].description) == ("Slow pay", "Adds two numbers.")
    schema = schemas_on(agent.card)["add"]
    assert schema.input is not None and schema.input["required"] == ["a", "b"]
    assert schema.output is not None and schema.output["properties"]["sum"]["type"] == "integer"


async def test_data_comes_in_and_data_goes_out(client: Client) -> None:
    assert (await client({"a": 2, "b": 3}, skill="add")).data == {"sum": 5}
    assert (await client({"a": 2.0, "b": 3}, skill="add")).data == {"sum": 5}


async def test_one_text_is_the_one_argument(client: Client) -> None:
    reply = await client("5", skill="pay")
    assert reply.text == "paid 5" and reply.data == {"result": "paid 5"}
    assert (await client('{"amount": 6}', skill="pay")).text == "paid 6"


async def test_files_go_out(client: Client) -> None:
    reply = await client("look", skill="picture")
    assert [file.media_type for file in reply.files] == ["image/png", "", "text/plain"]


async def test_what_does_not_fit_the_schema_makes_no_task(client: Client, folder: Path) -> None:
    with pytest.raises(InvalidParams, match="'b' is a required property"):
        await client({"a": 1}, skill="add")
    with pytest.raises(InvalidParams, match="send data with a, b"):
        await client("1 and 2", skill="add")


async def test_a_tool_that_fails_fails_the_task_with_what_it_says(client: Client) -> None:
    with pytest.raises(TaskFailed, match="no: never mind"):
        await client("never mind", skill="fail")


async def test_a_question_of_the_server_is_a_question_of_the_agent(client: Client) -> None:
    reply = await client("go", skill="book")
    assert reply.state is TaskState.INPUT_REQUIRED
    assert (await client("Rome", task=reply.id)).text == "booked Rome"


async def test_a_server_that_does_not_start_makes_no_agent() -> None:
    with pytest.raises(ValueError, match="the MCP server 'all' could not be started"):
        wrap(mcp("/nowhere/at/all"))


async def test_the_command_serves_mcp_servers(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, str(SCRIPT), str(tmp_path)])
    options = ["--mcp-server", command, "--mcp-approve", "destructive", "--mcp-env", "GIVEN"]
    async with Server(options=options, env={"GIVEN": "yes"}) as server, connect(server.url) as client:
        assert client.card.name == "tool_server"
        assert (await client({"a": 1, "b": 1}, skill="add")).data == {"sum": 2}
        assert (await client("GIVEN", skill="environment")).text == "yes"
        reply = await client("5", skill="pay")
        assert reply.asks and "the tool 'pay'" in reply.text
        assert (await client("yes", task=reply.id)).text == "paid 5"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "Give a FILE or a MODULE, or --mcp-server"),
        (["--mcp-server", "/nowhere/at/all"], "could not be started"),
        (["--mcp-server", "x", "--mcp-env", "NOT_THERE_AT_ALL"], "there is no variable NOT_THERE_AT_ALL"),
        (
            ["--mcp-server", "http://127.0.0.1:1", "--mcp-server", "http://127.0.0.1:2", "--mcp-bearer", "x"],
            "two servers never share a token",
        ),
    ],
)
async def test_the_command_says_what_is_missing(options: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman.cli", "serve", *options], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and said in done.stderr

"""The tools of an MCP server inside a turn: `Agent(tools=[mcp(...)])`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("mcp")

from dragoman import Agent, Part, StatusUpdate, Task, TaskState, Turn
from dragoman.client import Client, Headers, TaskFailed
from dragoman.errors import ToolFailed
from dragoman.mcp import McpTools, mcp
from dragoman.model.questions import questions_in
from tests.serving import is_alive
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = Path(__file__).with_name("tool_server.py")


def tools_of(folder: Path, **options: Any) -> McpTools:
    return mcp([sys.executable, str(SCRIPT), str(folder)], **{"name": "tools", **options})


async def send(client: Client, content: Any, **options: Any) -> Task:
    """The task after a message."""
    reply = await client.send(content, **options)
    assert reply.task is not None
    return reply.task


def agent_with(*servers: McpTools) -> Agent:
    """An agent that calls the tool that it is told to, and says how that ended."""
    agent = Agent("User", tools=list(servers))

    @agent.skill(default=True)
    async def use(turn: Turn, call: dict[str, Any]) -> dict[str, Any]:
        result = await turn.tool(call["tool"], call.get("arguments"))
        return {"data": result.data, "text": result.text, "truncated": result.truncated}

    @agent.skill
    async def parts(turn: Turn, call: dict[str, Any]) -> list[Part]:
        return list((await turn.tool(call["tool"], call.get("arguments"))).parts)

    @agent.skill
    async def handle(turn: Turn, call: dict[str, Any]) -> dict[str, Any]:
        """Does not fail if the tool does."""
        try:
            result = await turn.tool(call["tool"], call.get("arguments"))
        except ToolFailed as error:
            return {"why": error.why, "message": error.message, "text": error.text}
        return {"why": "", "text": result.text}

    @agent.skill
    async def names(turn: Turn) -> list[str]:
        return [tool.name for tool in await turn.tools()]

    @agent.skill
    async def functions(turn: Turn) -> list[dict[str, Any]]:
        return [tool.function for tool in await turn.tools() if tool.name == "add"]

    return agent


@asynccontextmanager
async def connected(*servers: McpTools) -> AsyncIterator[Client]:
    async with agent_with(*servers).test(timeout=30.0) as client:
        yield client


class Shared:
    """One agent with one MCP server, for the tests that leave it as it is."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.folder = client, folder

    async def use(self, tool: str, **arguments: Any) -> Any:
        reply = await self.client({"tool": tool, "arguments": arguments}, skill="use")
        return reply.data

    async def handle(self, tool: str, **arguments: Any) -> Any:
        return (await self.client({"tool": tool, "arguments": arguments}, skill="handle")).data

    def calls(self, tool: str) -> int:
        file = self.folder / tool
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[False, True], ids=["2026", "legacy"])
async def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Shared]:
    folder = tmp_path_factory.mktemp("tools")
    async with connected(tools_of(folder, legacy=request.param, max_result=5000)) as client:
        yield Shared(client, folder)


async def test_a_tool_returns_data_that_fits_its_schema(shared: Shared) -> None:
    assert await shared.use("add", a=2, b=3) == {
        "data": {"sum": 5},
        "text": '{\n  "sum": 5\n}',
        "truncated": False,
    }


async def test_the_tools_are_listed_as_functions_for_a_model(shared: Shared) -> None:
    (function,) = (await shared.client("which", skill="functions")).data
    about = function["function"]
    assert (function["type"], about["name"], about["description"]) == ("function", "add", "Adds two numbers.")
    assert about["parameters"]["properties"]["a"]["type"] == "integer"


async def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(shared: Shared) -> None:
    before = shared.calls("pay")
    wrong = await shared.handle("pay", amount="much")
    assert wrong["why"] == "arguments" and "amount: 'much' is not of type 'integer'" in wrong["message"]
    missing = await shared.handle("pay")
    assert "'amount' is a required property" in missing["message"]
    assert shared.calls("pay") == before


async def test_a_tool_that_fails_tells_the_agent_why_and_not_the_caller(shared: Shared) -> None:
    failed = await shared.handle("fail", secret="the password")
    assert failed["why"] == "error" and "the password" in failed["text"]
    with pytest.raises(TaskFailed) as caught:
        await shared.use("fail", secret="the password")
    assert "the tool 'fail' of 'tools' failed" in str(caught.value) and "password" not in str(caught.value)


async def test_a_result_that_does_not_fit_its_schema_is_refused(shared: Shared) -> None:
    lied = await shared.handle("lie")
    assert lied["why"] == "result" and "do not fit their schema" in lied["message"]


async def test_an_unknown_tool_is_refused_with_the_names_of_those_there_are(shared: Shared) -> None:
    unknown = await shared.handle("subtract")
    assert unknown["why"] == "unknown-tool" and "add, pay" in unknown["text"]


async def test_pictures_links_and_resources_become_parts(shared: Shared) -> None:
    reply = await shared.client({"tool": "picture"}, skill="parts")
    assert reply.task is not None
    text, image, link, inner, resource = reply.task.artifacts[0].parts
    assert text.text == "look" and (image.raw, image.media_type) == (b"hello", "image/png")
    assert (link.url, link.filename) == ("https://example.com/a.pdf", "a.pdf")
    assert inner.text == "[resource b: inner://b]"
    assert (resource.raw, resource.filename, resource.media_type) == (b"c", "c.txt", "text/plain")


async def test_a_result_that_is_too_long_is_cut(shared: Shared) -> None:
    assert len((await shared.use("long", characters=4000))["text"]) == 4000
    cut = await shared.use("long", characters=50_000)
    assert cut["truncated"] and len(cut["text"]) < 6000 and "[cut: 50000 characters in all]" in cut["text"]


async def test_progress_becomes_status_updates_without_escape_sequences(shared: Shared) -> None:
    said: list[str] = []
    async for piece in shared.client.stream({"tool": "count", "arguments": {"to": 2}}, skill="use"):
        event = piece.event
        if isinstance(event, StatusUpdate) and event.status.message is not None:
            said.append(event.status.message.text)
            (shared.folder / "counted 1").touch()
            (shared.folder / "counted 2").touch()
    assert said[0] == "count: counted 1"


async def test_a_server_gets_no_secrets_of_the_environment(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await shared.use("environment", name="DRAGOMAN_STORE"))["text"] in ("(unset)",)
    assert (await shared.use("environment", name="PATH"))["text"] != "(unset)"


async def test_a_server_may_not_use_a_model_of_ours(shared: Shared) -> None:
    refused = await shared.handle("think")
    assert refused["why"] in ("error", "refused") and "thought" not in refused["text"]


async def test_calls_share_one_process_and_a_dead_one_is_started_again(shared: Shared) -> None:
    first, second = [(await shared.use("process"))["text"] for _ in range(2)]
    assert first == second
    os.kill(int(first), signal.SIGKILL)
    await until(lambda: not is_alive(int(first)))
    third = (await shared.use("process"))["text"]
    assert third not in (first, "")


async def test_a_call_whose_server_died_is_not_repeated(shared: Shared) -> None:
    before = shared.calls("die")
    died = await shared.handle("die")
    assert died["why"] == "unknown" and "may have run, and is not called again" in died["message"]
    assert shared.calls("die") == before + 1
    assert (await shared.use("add", a=1, b=1))["data"] == {"sum": 2}


async def test_a_question_of_the_server_goes_to_the_caller_and_its_answer_to_the_server(
    shared: Shared,
) -> None:
    before = shared.calls("book")
    task = await send(shared.client, {"tool": "book"}, skill="use")
    assert task.state is TaskState.INPUT_REQUIRED and task.status.message is not None
    assert task.status.message.text == "Which city?"
    (question,) = questions_in(task.status.message.metadata)
    assert question.schema is not None and question.schema["required"] == ["city"]
    task = await send(shared.client, {"city": 7}, task=task.id)
    assert task.state is TaskState.INPUT_REQUIRED
    task = await send(shared.client, "Rome", task=task.id)
    assert task.state is TaskState.COMPLETED and "booked Rome" in str(data_of(task))
    assert shared.calls("book") == before + 1


async def test_a_question_may_be_declined(shared: Shared) -> None:
    task = await send(shared.client, {"tool": "book"}, skill="handle")
    before = shared.calls("book")
    task = await send(shared.client, "decline", task=task.id)
    assert task.state is TaskState.COMPLETED and data_of(task)["why"] == "error"
    assert shared.calls("book") == before


# -- servers of their own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_cancel_reaches_the_tool(tmp_path: Path, legacy: bool) -> None:
    async with connected(tools_of(tmp_path, legacy=legacy)) as client:
        task = await send(client, {"tool": "slow_look"}, skill="use", wait=False)
        await until(lambda: (tmp_path / "slow_look").exists())
        await client.cancel(task.id)
        await until(lambda: (tmp_path / "cancelled").exists())


async def test_a_call_stays_open_while_the_caller_is_asked_in_the_middle_of_it(tmp_path: Path) -> None:
    async with connected(tools_of(tmp_path, legacy=True)) as client:
        task = await send(client, {"tool": "book_now"}, skill="use")
        assert task.state is TaskState.INPUT_REQUIRED
        task = await send(client, {"city": "Oslo"}, task=task.id)
        assert task.state is TaskState.COMPLETED and "booked Oslo" in str(data_of(task))
    assert (tmp_path / "book_now").read_text() == "called\n"


async def test_a_call_that_nobody_answers_for_goes_on_without_an_answer(tmp_path: Path) -> None:
    async with connected(tools_of(tmp_path, legacy=True, answer_timeout=0.5)) as client:
        task = await send(client, {"tool": "book_now"}, skill="use")
        assert task.state is TaskState.INPUT_REQUIRED
        await until(lambda: (tmp_path / "answered").exists())
        task = await send(client, {"city": "Oslo"}, task=task.id)
        assert task.state is TaskState.COMPLETED and "not booked: cancel" in str(data_of(task))


async def test_a_question_that_may_belong_to_two_callers_is_asked_of_neither(tmp_path: Path) -> None:
    async with connected(tools_of(tmp_path, legacy=True)) as client:
        first = await send(client, {"tool": "slow_pay"}, skill="use", wait=False)
        await until(lambda: (tmp_path / "slow_pay").exists())
        task = await send(client, {"tool": "book_now"}, skill="use")
        assert task.state is TaskState.COMPLETED and "not booked: cancel" in str(data_of(task))
        (tmp_path / "go").touch()
        await until(lambda: client.get(first.id), lambda task: task.state is TaskState.COMPLETED)


async def test_a_page_to_visit_is_a_task_that_waits_for_authorization(tmp_path: Path) -> None:
    async with connected(tools_of(tmp_path, legacy=True)) as client:
        task = await send(client, {"tool": "login"}, skill="use")
        assert task.state is TaskState.AUTH_REQUIRED and task.status.message is not None
        assert task.status.message.text == "Please log in\nhttps://example.com/login"
        task = await send(client, "done", task=task.id)
        assert task.state is TaskState.COMPLETED and "logged in" in str(data_of(task))


async def test_a_call_belongs_to_the_trace_of_its_task(tmp_path: Path) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    agent = agent_with(tools_of(tmp_path))
    async with agent.test(timeout=30.0, credentials=Headers({"traceparent": trace})) as client:
        assert (await client({"tool": "trace"}, skill="use")).data["text"] == trace


@pytest.mark.parametrize(
    ("approve", "asked"),
    [
        (True, {"add", "pay"}),
        ("destructive", {"pay"}),
        (lambda tool, given: given.get("amount", 0) > 10, {"pay"}),
    ],
)
async def test_calls_are_approved_by_the_caller_where_the_operator_wants_it(
    tmp_path: Path, approve: Any, asked: set[str]
) -> None:
    async with connected(tools_of(tmp_path, approve=approve)) as client:
        for tool, arguments in (("add", {"a": 1, "b": 2}), ("pay", {"amount": 300})):
            task = await send(client, {"tool": tool, "arguments": arguments}, skill="handle")
            if tool not in asked:
                assert task.state is TaskState.COMPLETED
                continue
            assert task.state is TaskState.INPUT_REQUIRED and task.status.message is not None
            assert f"the tool {tool!r}" in task.status.message.text
            assert task.status.message.data["arguments"] == arguments
            assert not (tmp_path / tool).exists()
            task = await send(client, "no, too expensive", task=task.id)
            assert data_of(task)["why"] == "declined" and "too expensive" in data_of(task)["text"]
            assert not (tmp_path / tool).exists()
            task = await send(client, {"tool": tool, "arguments": arguments}, skill="handle")
            task = await send(client, "yes", task=task.id)
            assert data_of(task)["why"] == "" and (tmp_path / tool).read_text() == "called\n"


async def test_a_call_goes_on_while_another_part_of_the_turn_asks(tmp_path: Path) -> None:
    agent = Agent("User", tools=[tools_of(tmp_path, approve=lambda tool, given: "amount" in given)])

    @agent.skill
    async def both(turn: Turn) -> str:
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(turn.tool("slow_pay"))
            await until((tmp_path / "slow_pay").exists)
            asked = group.create_task(turn.tool("pay", amount=1))
        return f"{slow.result().text}, {asked.result().text}"

    async with agent.test(timeout=30.0) as client:
        task = await send(client, "go")
        assert task.state is TaskState.INPUT_REQUIRED
        (tmp_path / "go").touch()
        task = await send(client, "yes", task=task.id)
        assert task.state is TaskState.COMPLETED and task.text == "paid, paid 1"
    assert (tmp_path / "slow_pay").read_text() == "called\n"


async def test_a_call_that_takes_too_long_ends_and_others_go_on(tmp_path: Path) -> None:
    async with connected(tools_of(tmp_path, timeout=0.3)) as client:
        slow = (await client({"tool": "slow_pay"}, skill="handle")).data
        assert slow["why"] == "timeout" and "may have run" in slow["message"]
        assert (await client({"tool": "add", "arguments": {"a": 1, "b": 1}}, skill="use")).data["data"] == {
            "sum": 2
        }


async def test_tools_of_several_servers_have_the_names_of_their_servers_before_them(tmp_path: Path) -> None:
    here, there = (
        tools_of(tmp_path, name="here", only="add"),
        tools_of(tmp_path, name="there", only=["a*", "pay"]),
    )
    async with connected(here, there) as client:
        assert (await client("which", skill="names")).data == ["here_add", "there_add", "there_pay"]
        assert (await client({"tool": "there_add", "arguments": {"a": 1, "b": 1}}, skill="use")).data["data"]
        assert (await client({"tool": "pay", "arguments": {"amount": 1}}, skill="use")).data[
            "text"
        ] == "paid 1"
        both = (await client({"tool": "add", "arguments": {"a": 1, "b": 1}}, skill="handle")).data
        assert both["message"] == "several tools are called 'add': use here_add and there_add"


async def test_a_tool_is_not_looked_for_elsewhere_when_its_server_is_away(tmp_path: Path) -> None:
    away, here = mcp("/nowhere/at/all", name="away"), tools_of(tmp_path, name="here")
    async with connected(away, here) as client:
        assert "here_pay" in (await client("which", skill="names")).data
        bare = (await client({"tool": "pay", "arguments": {"amount": 1}}, skill="handle")).data
        assert bare["why"] == "unreachable" and not (tmp_path / "pay").exists()
        named = (await client({"tool": "here_pay", "arguments": {"amount": 1}}, skill="handle")).data
        assert named["text"] == "paid 1"


async def test_two_agents_use_one_process_which_ends_with_the_last_of_them(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(tools_of(tmp_path))) for _ in range(2)]
        found = {(await client({"tool": "process"}, skill="use")).data["text"] for client in clients}
        (pid,) = map(int, found)
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_servers_of_the_same_name_and_other_nonsense_are_refused() -> None:
    with pytest.raises(ValueError, match="two servers of tools have the name 'tool-x'"):
        Agent("A", tools=[mcp("tool-x"), mcp("tool-x")])
    with pytest.raises(TypeError, match=r"tools= takes servers of tools, such as dragoman\.mcp\.mcp"):
        Agent("A", tools=["npx x"])  # type: ignore[list-item]
    for wrong in ("", "ftp://example.com"):
        with pytest.raises(ValueError, match="a command line, or an http or https URL"):
            mcp(wrong)
    with pytest.raises(ValueError, match="approve="):
        mcp("x", approve="sometimes")
    with pytest.raises(ValueError, match="env= is for a command"):
        mcp("https://example.com", env={"A": "b"})


async def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.mcp.tools.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dragoman\[mcp\]'"):
        mcp("npx some-server")


async def test_an_agent_without_tools_says_so() -> None:
    agent = Agent("A")

    @agent.skill
    async def use(turn: Turn) -> str:
        assert await turn.tools() == []
        await turn.tool("add", a=1)
        return "never"

    async with agent.test() as client:
        with pytest.raises(TaskFailed, match="this agent has no tools"):
            await client("go")


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("npx -y @modelcontextprotocol/server-memory@1.2", "memory"),
        ("uvx mcp-server-time --local-timezone UTC", "time"),
        ("python /opt/tools/files.py", "files"),
        ("https://mcp.github.example.com/mcp", "github"),
        ("http://127.0.0.1:9000/mcp", "mcp"),
    ],
)
async def test_a_server_is_named_after_what_it_is(server: str, name: str) -> None:
    assert mcp(server).name == name


def data_of(task: Task) -> Any:
    return task.artifacts[0].parts[0].data

"""The official MCP client drives an A2A agent through `dragoman mcp`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client
from mcp.client import streamable_http
from mcp.shared.exceptions import MCPError

from dragoman import Agent, Turn, connect
from dragoman.auth import Bearer, hashed
from dragoman.client.discover import AgentCache
from dragoman.mcp import server
from dragoman.mcp.clients import Clients
from dragoman.mcp.http_server import HttpEndpoint, forward_headers
from dragoman.mcp.server import AgentServer
from dragoman.model.task import TaskState
from dragoman.server.runtime import running
from tests.mcp.driving import (
    ACCEPT,
    ERAS,
    INITIALIZE,
    LIST_TOOLS,
    Desk,
    Progress,
    User,
    agent_server,
    client_of,
    command,
    names,
    serve_endpoint,
    served,
    task_id,
    texts,
)
from tests.ports import free_port
from tests.waiting import until

WAYS = [(transport, era) for transport in ("stdio", "http") for era in ERAS]


@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_a_client_lists_calls_hears_progress_and_answers_forms(transport: str, era: str) -> None:
    desk, progress = Desk(), Progress()
    user = User({"answer": 2}, {"approved": True})
    async with (
        served(desk.agent()) as url,
        client_of(url, transport, era, elicitation_callback=user) as client,
    ):
        listed = await client.list_tools()
        assert names(listed) == [
            "book",
            "chat",
            "plan",
            "ticket",
            "visa",
            "check_task",
            "answer_task",
            "cancel_task",
        ]
        book = listed.tools[0]
        assert book.input_schema["properties"]["days"] == {"type": "integer", "default": 1}
        result = await client.call_tool("book", {"city": "Rome", "days": 3}, progress_callback=progress)
        assert result.structured_content["result"] == {"city": "Rome", "days": 3, "people": 2}
        assert not result.is_error
        assert "looking for a hotel in Rome" in progress.said
        assert [each.message for each in user.asked] == ["How many people?", "Pay 300 EUR?"]
        assert user.asked[0].requested_schema["properties"]["answer"]["type"] == "integer"
        assert (await client.call_tool("chat", {"text": "hi"})).content[0].text == "you said hi"
    assert desk.booked == [{"city": "Rome", "days": 3, "people": 2}]


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_without_forms_is_told_how_to_answer(era: str) -> None:
    desk = Desk()
    async with served(desk.agent()) as url, client_of(url, "http", era) as client:
        asked = await client.call_tool("book", {"city": "Oslo"})
        assert texts(asked)[0] == "How many people?"
        assert "answer_task" in texts(asked)[1] and task_id(asked) in texts(asked)[1]
        assert '"integer"' in texts(asked)[1]
        assert asked.structured_content["state"] == "input-required" and not asked.is_error
        paid = await client.call_tool("answer_task", {"task_id": task_id(asked), "data": 4})
        assert texts(paid)[0] == "Pay 300 EUR?"
        done = await client.call_tool("answer_task", {"task_id": task_id(asked), "text": "yes"})
        assert '"people":4' in texts(done)[0]
        late = await client.call_tool("answer_task", {"task_id": task_id(asked), "text": "yes"})
        assert late.is_error and re.search("completed|finished", texts(late)[0])
    assert len(desk.booked) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_form_that_the_user_declines_leaves_the_task_waiting(era: str) -> None:
    desk, user = Desk(), User(None)
    async with served(desk.agent()) as url, client_of(url, "http", era, elicitation_callback=user) as client:
        result = await client.call_tool("book", {"city": "Oslo"})
        assert "did not answer" in texts(result)[-1] and task_id(result) in texts(result)[-1]
        async with connect(url) as agent:
            assert (await agent.get(task_id(result))).state is TaskState.INPUT_REQUIRED


@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_a_canceled_call_cancels_the_task(transport: str, era: str) -> None:
    desk, progress = Desk(), Progress()
    async with served(desk.agent()) as url, client_of(url, transport, era) as client:
        call = asyncio.create_task(client.call_tool("plan", {"text": "far"}, progress_callback=progress))
        await progress.wait_for("reading maps")
        call.cancel()
        await desk.stopped.wait()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with connect(url) as agent:
            tasks = [each async for each in agent.list()]
            await until(lambda: agent.get(tasks[0].id), lambda task: task.state is TaskState.CANCELED)


@pytest.mark.parametrize("era", ERAS)
async def test_a_canceled_check_cancels_no_task(era: str) -> None:
    desk, progress = Desk(), Progress()
    async with served(desk.agent()) as url, client_of(url, "http", era, "--wait", "0.1") as client:
        begun = await client.call_tool("plan", {"text": "far"})
        check = {"task_id": task_id(begun), "wait_seconds": 60}
        call = asyncio.create_task(client.call_tool("check_task", check, progress_callback=progress))
        await progress.wait_for("reading maps")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        desk.go_on.set()
        done = await client.call_tool("check_task", check)
        assert texts(done)[0] == "the plan is ready" and not desk.stopped.is_set()


async def test_a_check_of_a_task_that_asks_shows_the_form() -> None:
    desk, user = Desk(), User(None, {"answer": 2}, {"approved": True})
    async with (
        served(desk.agent()) as url,
        client_of(url, "http", "legacy", elicitation_callback=user) as client,
    ):
        asked = await client.call_tool("book", {"city": "Rome"})
        done = await client.call_tool("check_task", {"task_id": task_id(asked)})
        assert '"people":2' in texts(done)[0] and len(user.asked) == 3


@pytest.mark.parametrize("era", ERAS)
async def test_long_work_goes_on_while_the_mcp_server_is_started_again(era: str) -> None:
    desk = Desk()
    async with served(desk.agent()) as url:
        async with Client(command(url, "--wait", "200ms"), mode=era) as client:
            begun = await client.call_tool("plan", {"text": "far"})
            assert "check_task" in texts(begun)[-1] and not begun.is_error
        async with Client(command(url), mode=era) as client:
            still = await client.call_tool("check_task", {"task_id": task_id(begun), "wait_seconds": 0})
            assert texts(still)[0] == "reading maps" and "not finished: working" in texts(still)[1]
            desk.go_on.set()
            done = await client.call_tool("check_task", {"task_id": task_id(begun)})
            assert texts(done)[0] == "the plan is ready"
    assert desk.runs == 1 and not desk.stopped.is_set()


async def test_a_server_that_ends_in_the_middle_of_a_call_cancels_nothing() -> None:
    desk, progress = Desk(), Progress()
    async with served(desk.agent()) as url:
        async with Client(command(url), mode="legacy") as client:
            call = asyncio.create_task(client.call_tool("plan", {"text": "far"}, progress_callback=progress))
            await progress.wait_for("reading maps")
        with pytest.raises(MCPError):
            await call
        desk.go_on.set()
        async with connect(url) as agent:
            tasks = [each async for each in agent.list()]
            assert str(await agent.wait(tasks[0].id)) == "the plan is ready"


async def test_a_client_of_the_old_era_that_loses_its_connection_cancels_nothing(caplog: Any) -> None:
    """It sends the same request again, as it may: the call goes on, and is the same task."""
    desk = Desk()
    meta = {"progressToken": 1}
    params = {"name": "plan", "arguments": {"text": "far"}, "_meta": meta}
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    async with (
        served(desk.agent()) as url,
        serve_endpoint(HttpEndpoint(agent_server(url))) as where,
        streamable_http.create_mcp_http_client() as http,
    ):
        opened = await http.post(where, json=INITIALIZE, headers=ACCEPT)
        session = {"mcp-session-id": opened.headers["mcp-session-id"], **ACCEPT}
        began = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await http.post(where, json=began, headers=session)).status_code == 202
        async with http.stream("POST", where, json=call, headers=session) as answer:
            async for line in answer.aiter_lines():
                if "reading maps" in line:
                    break
        again = asyncio.create_task(http.post(where, json=call, headers=session))
        async with connect(url) as agent:
            await until(lambda: _count(agent))
            desk.go_on.set()
            assert "the plan is ready" in (await again).text
            assert await _count(agent) == 1
    assert desk.runs == 1 and not desk.stopped.is_set()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def _count(agent: Any) -> int:
    return len([each async for each in agent.list()])


async def test_a_form_of_the_new_era_is_answered_after_a_restart_and_once() -> None:
    desk = Desk()
    user = User({"answer": 2})
    async with served(desk.agent()) as url:
        async with client_of(url, "http", ERAS[1], elicitation_callback=user) as client:
            first = await client.session.call_tool("book", {"city": "Bern"}, allow_input_required=True)
        answer = {"answer": await user(None, first.input_requests["answer"].params)}
        async with client_of(url, "http", ERAS[1], elicitation_callback=user) as client:
            for _ in range(2):
                again = await client.session.call_tool(
                    "book",
                    {"city": "Bern"},
                    input_responses=answer,
                    request_state=first.request_state,
                    allow_input_required=True,
                )
                assert again.input_requests["answer"].params.message == "Pay 300 EUR?"
    assert not desk.booked


async def test_a_call_that_is_sent_twice_with_one_key_runs_once() -> None:
    desk = Desk()
    async with served(desk.agent()) as url, client_of(url, "http", "legacy", "--wait", "0.2") as client:
        meta: Any = {"dragoman/idempotencyKey": "k1"}
        first = await client.call_tool("plan", {"text": "far"}, meta=meta)
        second = await client.call_tool("plan", {"text": "far"}, meta=meta)
        other = await client.call_tool("plan", {"text": "far"})
        assert task_id(first) == task_id(second) != task_id(other)
        desk.go_on.set()
    assert desk.runs == 2


async def test_an_answer_that_is_sent_twice_with_one_key_answers_one_question() -> None:
    desk = Desk()
    async with served(desk.agent()) as url, client_of(url, "http", "legacy") as client:
        asked = await client.call_tool("book", {"city": "Rome"})
        answer = {"task_id": task_id(asked), "text": "1"}  # which the next question would take for yes
        for _ in range(2):
            paid = await client.call_tool("answer_task", answer, meta={"dragoman/idempotencyKey": "k2"})
            assert texts(paid)[0] == "Pay 300 EUR?"
        for _ in range(2):
            answer = {"task_id": task_id(asked), "text": "yes"}
            done = await client.call_tool("answer_task", answer, meta={"dragoman/idempotencyKey": "k3"})
            assert '"people":1' in texts(done)[0]
    assert len(desk.booked) == 1


async def test_a_skill_that_the_agent_gets_later_can_be_called() -> None:
    agent = Agent("Learns", "Learns.")

    @agent.skill
    async def first(turn: Turn) -> str:
        return "1"

    front = AgentServer(Clients(lambda headers: connect(agent, cache=AgentCache()), refresh=0.0))
    async with Client(front.server, mode="legacy") as client:
        assert "first" in names(await client.list_tools())

        @agent.skill
        async def second(turn: Turn) -> str:
            return "2"

        assert texts(await client.call_tool("second", {"text": "x"}))[0] == "2"
    await front.close()


async def test_an_agent_that_says_a_lot_is_heard_now_and_then() -> None:
    agent, progress = Agent("Talks", "Talks."), Progress()

    @agent.skill
    async def work(turn: Turn) -> str:
        for n in range(1_000):
            await turn.status(f"step {n}")
        return "done"

    async with served(agent) as url, client_of(url, "http", "legacy") as client:
        result = await client.call_tool("work", {"text": "x"}, progress_callback=progress)
        assert texts(result)[0] == "done"
    assert "step 0" in progress.said and len(progress.said) < 500
    assert progress.numbers == sorted(set(progress.numbers))


async def test_an_agent_that_never_ends_its_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_ANSWER_BYTES", 1 << 20)
    agent, stopped = Agent("Endless", "Endless."), asyncio.Event()

    @agent.skill
    async def work(turn: Turn) -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * 100_000
        finally:
            stopped.set()

    async with served(agent) as url, client_of(url, "http", "legacy") as client:
        result = await client.call_tool("work", {"text": "x"})
        assert result.is_error and "MiB" in texts(result)[0]
        async with connect(url) as other:
            (task,) = [each async for each in other.list()]
            await other.cancel(task.id)
        await stopped.wait()


@pytest.mark.parametrize("era", ERAS)
async def test_an_agent_that_does_not_stream_asks_goes_on_and_is_canceled(era: str) -> None:
    desk, progress = Desk(), Progress()
    user = User({"answer": 2}, {"approved": True})
    async with (
        served(desk.agent(streaming=False)) as url,
        client_of(url, "http", era, "--wait", "0.2", elicitation_callback=user) as client,
    ):
        assert '"people":2' in texts(await client.call_tool("book", {"city": "Rome"}))[0]
        begun = await client.call_tool("plan", {"text": "far"})
        assert "check_task" in texts(begun)[-1]
        call = asyncio.create_task(
            client.call_tool(
                "check_task", {"task_id": task_id(begun), "wait_seconds": 60}, progress_callback=progress
            )
        )
        desk.go_on.set()
        assert texts(await call)[0] == "the plan is ready"


async def test_files_are_in_the_result_or_resources() -> None:
    desk = Desk()
    async with served(desk.agent()) as url, client_of(url, "http", ERAS[1]) as client:
        result = await client.call_tool("ticket", {"text": "print"})
        kinds = {block.type: block for block in result.content}
        assert kinds["image"].mime_type == "image/png"
        link = kinds["resource_link"]
        assert link.size == 2_000_000 and link.name == "map.bin"
        read = await client.read_resource(link.uri)
        assert len(read.contents[0].blob) > 2_000_000
        listed = await client.list_resources()
        assert link.uri in [each.uri for each in listed.resources]
        assert (await client.list_resource_templates()).resource_templates
        for uri in ("a2a://tasks/nope/artifacts/x", f"{link.uri}9", "file:///etc/passwd"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)


async def test_auth_required_is_said_clearly() -> None:
    desk = Desk()
    async with served(desk.agent()) as url, client_of(url, "http", "legacy") as client:
        result = await client.call_tool("visa", {"text": "please"})
        assert "https://consulate.example/allow" in texts(result)[0]
        assert "AUTHORIZATION REQUIRED" in texts(result)[1]
        done = await client.call_tool("answer_task", {"task_id": task_id(result), "text": "done"})
        assert texts(done)[0] == "granted"


async def test_wrong_arguments_are_a_result_that_says_so_and_no_task() -> None:
    desk = Desk()
    async with served(desk.agent()) as url, client_of(url, "http", "legacy") as client:
        for name, arguments, why in (
            ("book", {}, "needs city"),
            ("chat", {"words": "hi"}, "no argument 'words'"),
            ("check_task", {}, "task_id is missing"),
            ("check_task", {"task_id": "nope"}, "nope"),
            ("answer_task", {"task_id": "nope"}, "no answer"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error and why in texts(result)[0]
        with pytest.raises(MCPError, match="no tool"):
            await client.call_tool("sing", {})
        async with connect(url) as agent:
            assert [each async for each in agent.list()] == []


async def test_a_failed_task_is_an_error_with_what_the_agent_said() -> None:
    agent = Agent("Fails", "Fails.")

    @agent.skill
    async def work(turn: Turn) -> None:
        turn.finish(TaskState.FAILED, "out of paper")

    async with served(agent) as url, client_of(url, "http", "legacy") as client:
        assert names(await client.list_tools())[0] == "work"
        result = await client.call_tool("work", {"text": "go"})
        assert result.is_error and texts(result)[0] == "out of paper"


async def test_a_conversation_is_continued() -> None:
    agent = Agent("Counter", "Counts messages.")

    @agent.skill
    async def work(turn: Turn) -> str:
        return turn.context_id

    async with served(agent) as url, client_of(url, "http", "legacy") as client:
        first = await client.call_tool("work", {"text": "one"})
        context = first.content[0].text
        assert context in texts(first)[1]
        second = await client.call_tool("work", {"text": "two", "context_id": context})
        assert second.content[0].text == context


async def test_an_answer_without_a_task_is_a_result() -> None:
    agent = Agent("Talks", "Talks.")

    @agent.skill(reply=True)
    async def work(turn: Turn) -> str:
        return "just words"

    async with served(agent) as url, client_of(url, "http", "legacy") as client:
        result = await client.call_tool("work", {"text": "go"})
        assert texts(result)[0] == "just words"


# -- who may call ----------------------------------------------------------------------------------------------------


async def test_the_token_of_a_caller_goes_to_the_agent_only_if_that_is_wanted() -> None:
    agent = Agent(
        "Private", "Knows its callers.", auth=[Bearer({"ann": hashed("t-ann"), "bob": hashed("t-bob")})]
    )

    @agent.skill
    async def work(turn: Turn) -> str:
        return f"for {turn.principal}"

    def caller(token: str) -> Any:
        return streamable_http.create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})

    def transport(url: str, token: str) -> Any:
        return streamable_http.streamable_http_client(url, http_client=caller(token))

    async with served(agent) as url:
        forwarding = agent_server(url, headers=forward_headers(["authorization"]))
        async with serve_endpoint(HttpEndpoint(forwarding, forward=["authorization"])) as where:
            for name in ("ann", "bob"):
                async with Client(transport(where, f"t-{name}"), mode="legacy") as client:
                    assert texts(await client.call_tool("work", {"text": "hi"}))[0] == f"for {name}"
            async with Client(transport(where, "t-eve"), mode="legacy") as client:
                refused = await client.call_tool("work", {"text": "hi"})
                assert refused.is_error and "NOT AUTHORIZED" in texts(refused)[0]
            async with caller("t-ann") as http:
                opened = await http.post(where, json=INITIALIZE, headers=ACCEPT)
                session = {"mcp-session-id": opened.headers["mcp-session-id"], **ACCEPT}
            async with caller("t-bob") as http:
                stolen = await http.post(where, json=LIST_TOOLS, headers=session)
                assert stolen.status_code == 404
            async with streamable_http.create_mcp_http_client() as http:
                assert (await http.post(where, json=LIST_TOOLS, headers=ACCEPT)).status_code == 401
        async with serve_endpoint(HttpEndpoint(agent_server(url), token="s3cret")) as where:
            async with Client(transport(where, "s3cret"), mode="legacy") as client:
                result = await client.call_tool("work", {"text": "hi"})
                assert result.is_error and "NOT AUTHORIZED" in texts(result)[0]
            async with caller("t-ann") as http:
                assert (await http.post(where, json=LIST_TOOLS, headers=ACCEPT)).status_code == 401


async def test_without_a_token_a_page_in_a_browser_cannot_call() -> None:
    async with served(Desk().agent()) as url, serve_endpoint(HttpEndpoint(agent_server(url))) as where:
        async with streamable_http.create_mcp_http_client() as http:
            foreign = {**ACCEPT, "origin": "https://evil.example"}
            assert (await http.post(where, json=INITIALIZE, headers=foreign)).status_code == 403
            rebound = {**ACCEPT, "host": "evil.example"}
            assert (await http.post(where, json=INITIALIZE, headers=rebound)).status_code == 421


async def test_the_server_starts_before_its_agent() -> None:
    desk, port = Desk(), free_port()
    async with Client(command(f"http://127.0.0.1:{port}"), mode="legacy") as client:
        with pytest.raises(MCPError):
            await client.list_tools()
        async with running(desk.agent().app(store="memory:"), port=port):
            assert "chat" in names(await client.list_tools())


async def test_the_command_serves_http_for_callers_with_the_token_until_it_is_stopped() -> None:
    desk = Desk()
    async with served(desk.agent()) as url:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "dragoman.cli",
                "mcp",
                url,
                "--http",
                "--port",
                "0",
                "--token",
                "env:DESK_TOKEN",
            ),
            env={**os.environ, "DESK_TOKEN": "s3cret"},
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        where = (await process.stdout.readline()).decode().removeprefix("MCP: ").strip()
        headers = {"Authorization": "Bearer s3cret"}
        http = streamable_http.create_mcp_http_client(headers=headers)
        async with Client(streamable_http.streamable_http_client(where, http_client=http)) as client:
            assert texts(await client.call_tool("chat", {"text": "hi"}))[0] == "you said hi"
        async with streamable_http.create_mcp_http_client() as stranger:
            assert (await stranger.post(where, json=LIST_TOOLS, headers=ACCEPT)).status_code == 401
            assert (await stranger.get(where.removesuffix("/mcp") + "/healthz")).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0

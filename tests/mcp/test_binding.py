"""MCP beside A2A, on the port of the agent, with its authentication, limits and audit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import Client
from mcp.client import streamable_http
from mcp.client.auth.utils import extract_resource_metadata_from_www_auth
from mcp.shared.auth import ProtectedResourceMetadata

from dragoman import Agent, Turn, application, connect
from dragoman.auth import OIDC, ApiKey, Bearer, Holder, hashed
from dragoman.model.task import TaskState
from dragoman.observe.limit import Quota
from dragoman.server.runtime import running
from dragoman.stores import open_store
from tests.mcp.driving import (
    ACCEPT,
    ERAS,
    INITIALIZE,
    LIST_TOOLS,
    Desk,
    Progress,
    User,
    names,
    task_id,
    texts,
)


def transport(url: str, **headers: str) -> Any:
    http = streamable_http.create_mcp_http_client(headers=headers)
    return streamable_http.streamable_http_client(url, http_client=http)


def bearer(url: str, token: str) -> Any:
    return transport(url, Authorization=f"Bearer {token}")


@pytest.mark.parametrize("era", ERAS)
async def test_an_agent_answers_mcp_and_a2a_on_one_port(era: str) -> None:
    desk, progress, user = Desk(), Progress(), User({"answer": 2}, {"approved": True})
    async with running(desk.agent().app(store="memory:", mcp=True)) as url:
        async with Client(f"{url}/mcp", mode=era, elicitation_callback=user) as client:
            assert "book" in names(await client.list_tools())
            result = await client.call_tool("book", {"city": "Rome"}, progress_callback=progress)
            assert result.structured_content["result"]["people"] == 2
            assert "looking for a hotel in Rome" in progress.said
        async with connect(url) as agent:
            assert (await agent.get(task_id(result))).state is TaskState.COMPLETED
            assert str(await agent("hi", skill="chat")) == "you said hi"


@pytest.mark.parametrize("era", ERAS)
async def test_a_canceled_call_cancels_the_task_of_the_same_server(era: str) -> None:
    desk, progress = Desk(), Progress()
    async with running(desk.agent().app(store="memory:", mcp=True)) as url:
        async with Client(f"{url}/mcp", mode=era) as client:
            call = asyncio.create_task(client.call_tool("plan", {"text": "x"}, progress_callback=progress))
            await progress.wait_for("reading maps")
            call.cancel()
            await desk.stopped.wait()
            with pytest.raises(asyncio.CancelledError):
                await call


async def test_clients_that_come_at_once_are_all_served() -> None:
    async with (
        running(Desk().agent().app(store="memory:", mcp=True)) as url,
        streamable_http.create_mcp_http_client() as http,
    ):
        posts = [http.post(f"{url}/mcp", json=INITIALIZE, headers=ACCEPT) for _ in range(8)]
        assert [each.status_code for each in await asyncio.gather(*posts)] == [200] * 8


async def test_without_the_option_there_is_no_mcp() -> None:
    async with running(Desk().agent().app(store="memory:")) as url:
        async with streamable_http.create_mcp_http_client() as http:
            assert (await http.post(f"{url}/mcp", json={})).status_code == 404


async def test_several_agents_have_each_their_own() -> None:
    first, second = Desk().agent(), Agent("Other", "Other.")

    @second.skill
    async def sing(turn: Turn) -> str:
        return "la"

    async with running(application(first, second, store="memory:", mcp=True)) as url:
        async with Client(f"{url}/other/mcp", mode="legacy") as client:
            assert names(await client.list_tools())[0] == "sing"
            assert texts(await client.call_tool("sing", {"text": "x"}))[0] == "la"
        async with Client(f"{url}/travel-desk/mcp", mode="legacy") as client:
            assert names(await client.list_tools())[0] == "book"


def private() -> Agent:
    holders = {
        "ann": Holder(secret=hashed("t-ann"), scopes=["pay"]),
        "bob": Holder(secret=hashed("t-bob")),
    }
    agent = Agent("Private", "Knows its callers.", auth=[Bearer(holders)], private_card=True)

    @agent.skill
    async def whoami(turn: Turn) -> str:
        return turn.principal

    @agent.skill(scopes=["pay"])
    async def pay(turn: Turn) -> str:
        return "paid"

    return agent


@pytest.mark.parametrize("era", ERAS)
async def test_callers_are_those_of_the_agent_with_their_scopes_and_tasks(era: str) -> None:
    async with running(private().app(store="memory:", mcp=True)) as url:
        async with Client(bearer(f"{url}/mcp", "t-ann"), mode=era) as client:
            mine = await client.call_tool("whoami", {"text": "?"})
            assert texts(mine)[0] == "ann"
            assert texts(await client.call_tool("pay", {"text": "go"}))[0] == "paid"
        async with Client(bearer(f"{url}/mcp", "t-bob"), mode=era) as client:
            assert texts(await client.call_tool("whoami", {"text": "?"}))[0] == "bob"
            refused = await client.call_tool("pay", {"text": "go"})
            assert refused.is_error and "NOT AUTHORIZED" in texts(refused)[0]
            other = await client.call_tool("check_task", {"task_id": task_id(mine)})
            assert other.is_error and "not found" in texts(other)[0]


async def test_a_caller_without_credentials_is_refused_as_everywhere() -> None:
    async with running(private().app(store="memory:", mcp=True)) as url:
        async with streamable_http.create_mcp_http_client() as http:
            for path in ("/mcp", "/mcp/"):
                answer = await http.post(f"{url}{path}", json=INITIALIZE, headers=ACCEPT)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Bearer")
        async with streamable_http.create_mcp_http_client(headers={"Authorization": "Bearer t-ann"}) as http:
            opened = await http.post(f"{url}/mcp", json=INITIALIZE, headers=ACCEPT)
            session = {"mcp-session-id": opened.headers["mcp-session-id"], **ACCEPT}
        async with streamable_http.create_mcp_http_client(headers={"Authorization": "Bearer t-bob"}) as http:
            assert (await http.post(f"{url}/mcp", json=LIST_TOOLS, headers=session)).status_code == 404


@pytest.mark.parametrize("path", ["/", "/desk"])
async def test_a_client_learns_who_gives_out_tokens(path: str) -> None:
    agent = Agent(
        "Private", "Private.", auth=[OIDC("https://login.example", audience="desk", scopes=["trips"])]
    )

    @agent.skill
    async def work(turn: Turn) -> str:
        return "x"

    async with (
        running(agent.app(store="memory:", mcp=True, path=path)) as url,
        streamable_http.create_mcp_http_client() as http,
    ):
        where = f"{url}{path.rstrip('/')}/mcp"
        refused = await http.post(where, json=INITIALIZE, headers=ACCEPT)
        assert refused.status_code == 401
        metadata = extract_resource_metadata_from_www_auth(refused)
        assert metadata is not None
        described = ProtectedResourceMetadata.model_validate_json((await http.get(metadata)).content)
        assert str(described.resource) == where
        assert [str(each) for each in described.authorization_servers] == ["https://login.example"]
        assert described.scopes_supported == ["trips"]


async def test_an_agent_whose_tokens_come_from_nowhere_names_nobody() -> None:
    async with (
        running(private().app(store="memory:", mcp=True)) as url,
        streamable_http.create_mcp_http_client() as http,
    ):
        assert "resource_metadata" not in (await http.post(f"{url}/mcp")).headers["www-authenticate"]
        assert (await http.get(f"{url}/.well-known/oauth-protected-resource/mcp")).status_code == 404


@pytest.mark.parametrize("location", ["header", "query"])
async def test_a_key_in_a_header_or_the_query_is_enough(location: str) -> None:
    agent = Agent(
        "Keys", "Keys.", auth=[ApiKey({"ann": hashed("k-ann")}, parameter="Desk-Key", location=location)]
    )

    @agent.skill
    async def whoami(turn: Turn) -> str:
        return turn.principal

    async with running(agent.app(store="memory:", mcp=True)) as url:
        where = (
            transport(f"{url}/mcp", **{"Desk-Key": "k-ann"})
            if location == "header"
            else transport(f"{url}/mcp?Desk-Key=k-ann")
        )
        async with Client(where, mode="legacy") as client:
            assert texts(await client.call_tool("whoami", {"text": "?"}))[0] == "ann"


async def test_calls_over_mcp_count_against_the_limits_and_are_audited(tmp_path: Any) -> None:
    app = private().app(
        store=f"sqlite:///{tmp_path}/t.db", mcp=True, quota=Quota(rate=0.001, burst=4), metrics_token="m"
    )
    async with running(app) as url:
        async with Client(bearer(f"{url}/mcp", "t-ann"), mode="legacy") as client:
            results = [await client.call_tool("whoami", {"text": "?"}) for _ in range(8)]
            assert not results[0].is_error
            assert results[-1].is_error and "too many" in texts(results[-1])[0].lower()
        async with streamable_http.create_mcp_http_client(headers={"Authorization": "Bearer m"}) as http:
            numbers = (await http.get(f"{url}/metrics")).text
            assert 'agent="private"' in numbers
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    await store.open()
    entries = await store.audit.entries(principal="ann")
    await store.close()
    assert "SendStreamingMessage" in {entry.operation for entry in entries}


async def test_a_page_from_elsewhere_cannot_call_unless_it_was_named() -> None:
    foreign = {**ACCEPT, "origin": "https://evil.example"}
    async with (
        running(Desk().agent().app(store="memory:", mcp=True)) as url,
        streamable_http.create_mcp_http_client() as http,
    ):
        assert (await http.post(f"{url}/mcp", json=INITIALIZE, headers=foreign)).status_code == 403
        local = {**ACCEPT, "origin": "http://localhost:6274"}
        assert (await http.post(f"{url}/mcp", json=INITIALIZE, headers=local)).status_code == 200
    named = Desk().agent().app(store="memory:", mcp=True, cors_origins=["https://evil.example"])
    async with running(named) as url, streamable_http.create_mcp_http_client() as http:
        answer = await http.post(f"{url}/mcp", json=INITIALIZE, headers=foreign)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://evil.example"


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_returns_when_the_server_stops_and_its_task_goes_on(era: str, tmp_path: Any) -> None:
    desk, progress = Desk(), Progress()
    store = f"sqlite:///{tmp_path}/t.db"
    client = None
    async with running(desk.agent().app(store=store, mcp=True, drain=0.1)) as url:
        client = Client(f"{url}/mcp", mode=era)
        await client.__aenter__()
        await client.list_tools()
        call = asyncio.create_task(client.call_tool("plan", {"text": "x"}, progress_callback=progress))
        await progress.wait_for("reading maps")
    result = await call
    assert "not finished: working" in texts(result)[-1]
    await client.__aexit__(None, None, None)
    desk.go_on.set()
    async with running(desk.agent().app(store=store, mcp=True)) as url:
        async with Client(f"{url}/mcp", mode=era) as client:
            done = await client.call_tool("check_task", {"task_id": task_id(result)})
            assert texts(done)[0] == "the plan is ready"


async def test_several_processes_need_no_sessions() -> None:
    desk = Desk()
    async with running(desk.agent().app(store="memory:", mcp=True, shared=True)) as url:
        async with streamable_http.create_mcp_http_client() as http:
            opened = await http.post(f"{url}/mcp", json=INITIALIZE, headers=ACCEPT)
            assert "mcp-session-id" not in opened.headers
        user = User()
        async with Client(f"{url}/mcp", mode="legacy", elicitation_callback=user) as client:
            asked = await client.call_tool("book", {"city": "Rome"})
            assert "answer_task" in texts(asked)[1] and not user.asked

"""An agent inside other people's applications, and many agents in one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from dragoman import Agent, Turn, connect
from dragoman.client import Client, TaskFailed
from dragoman.errors import A2AError, TaskNotFound
from dragoman.server.application import application
from tests.server.wire import HELLO, request, rpc

V1 = {"A2A-Version": "1.0"}


def counter(name: str = "Counter", **options: Any) -> Agent:
    agent = Agent(name, description="Counts", **options)

    @agent.skill
    async def count(turn: Turn) -> AsyncIterator[str]:
        """Counts, and asks how far."""
        far = int(await turn.ask("How far?") if "ask" in turn.text else 3)
        for n in range(1, far + 1):
            yield f"{n} "

    return agent


def in_starlette(mounted: Any) -> Any:
    home = Route("/", lambda _: PlainTextResponse("home"))
    return Starlette(routes=[home, Mount("/agents/counter", app=mounted)])


def in_fastapi(mounted: Any) -> Any:
    app = FastAPI()
    app.get("/")(lambda: "home")
    app.mount("/agents/counter", mounted)
    return app


@pytest.mark.parametrize("framework", [in_starlette, in_fastapi])
async def test_an_agent_works_where_it_is_mounted(framework: Any) -> None:
    mounted = counter().app(store="memory:")
    app = framework(mounted)
    assert b"home" in (await request(app, "GET", "/")).body
    card = (await request(app, "GET", "/agents/counter/.well-known/agent-card.json", headers=V1)).json
    assert {i["url"].rstrip("/") for i in card["supportedInterfaces"]} == {
        "http://agents.example/agents/counter"
    }
    for path in ("/agents/counter/", "/agents/counter"):
        answer = await rpc(app, "SendMessage", HELLO, path=path, headers=V1)
        if answer.status == 307:  # frameworks send those who forget the slash to it
            continue
        assert answer.json["result"]["task"]["artifacts"][0]["parts"][0]["text"] == "1 "
    streamed = await rpc(app, "SendStreamingMessage", HELLO, path="/agents/counter/", headers=V1)
    results = streamed.results()
    assert "task" in results[0] and "TASK_STATE_COMPLETED" in str(results[-1])
    await mounted.stop()


async def test_a_mounted_agent_makes_no_file_until_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mounted = counter().app(store="sqlite:///dragoman.db")
    app = in_starlette(mounted)
    assert b"home" in (await request(app, "GET", "/")).body
    assert not list(tmp_path.iterdir())
    assert (await rpc(app, "SendMessage", HELLO, path="/agents/counter/", headers=V1)).status == 200
    assert (tmp_path / "dragoman.db").exists()
    await mounted.stop()


@pytest.mark.parametrize("framework", [in_starlette, in_fastapi])
async def test_a_mounted_agent_leaves_no_file_in_a_test(
    framework: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAGOMAN_STORE", raising=False)
    mounted = counter().app()
    app = framework(mounted)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=V1) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": HELLO}
        answer = await client.post("/agents/counter/", json=body)
    assert "task" in answer.json()["result"]
    await mounted.stop()
    await asyncio.to_thread(_call_with_test_client, framework(counter().app()), body)
    assert not list(tmp_path.iterdir())


def _call_with_test_client(app: Any, body: Any) -> None:
    with TestClient(app) as client:
        assert "task" in client.post("/agents/counter/", json=body, headers=V1).json()["result"]


PROGRAM = """
import unittest
from dragoman import Agent
from tests.server.wire import HELLO, rpc

agent = Agent("A")

@agent.skill
def a(x: str) -> str:
    return x

async def call():
    app = agent.app()
    assert (await rpc(app, "SendMessage", HELLO, headers={"A2A-Version": "1.0"})).status == 200
    await app.stop()

class Called(unittest.IsolatedAsyncioTestCase):
    async def test_call(self):
        await call()

if __name__ == "__main__":
    import asyncio
    asyncio.run(call())
"""


@pytest.mark.parametrize(("how", "leaves"), [(["-m", "unittest", "test_a"], False), (["test_a.py"], True)])
def test_a_process_that_a_test_starts_is_no_test_unless_it_runs_some(
    how: list[str], leaves: bool, tmp_path: Path
) -> None:
    (tmp_path / "test_a.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "DRAGOMAN_STORE"}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    subprocess.run([sys.executable, *how], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "dragoman.db").exists() is leaves


async def test_the_environment_names_the_store_of_an_agent_that_is_given_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORE", "memory:")
    mounted = counter().app()
    answer = await rpc(in_starlette(mounted), "SendMessage", HELLO, path="/agents/counter/", headers=V1)
    assert "task" in answer.json["result"]
    assert not list(tmp_path.iterdir())
    await mounted.stop()


@pytest.mark.parametrize("root", ["", "/proxy"])
@pytest.mark.parametrize("framework", [Starlette, FastAPI])
async def test_an_agent_answers_at_its_exact_path(framework: Any, root: str) -> None:
    mounted, inner = counter().app(store="memory:"), framework()
    inner.add_route("/", lambda _: PlainTextResponse("home"))
    inner.add_route("/a2able", lambda _: PlainTextResponse("another"))
    whole = mounted.mounted_in(inner, "/a2a/")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole({**scope, "root_path": root}, receive, send)

    heard = asyncio.Queue[str]()
    received = asyncio.Queue[Any]()

    async def say() -> Any:
        return {"type": f"lifespan.{await heard.get()}"}

    life = asyncio.ensure_future(whole({"type": "lifespan", "asgi": {}, "state": {}}, say, received.put))
    await heard.put("startup")
    assert (await received.get())["type"] == "lifespan.startup.complete" and mounted.started
    for path in ("/a2a", "/a2a/", f"{root}/a2a"):
        answer = await rpc(app, "SendMessage", HELLO, path=path, headers=V1)
        assert answer.json["result"]["task"]["artifacts"][0]["parts"][0]["text"] == "1 ", path
    card = (await request(app, "GET", "/a2a/.well-known/agent-card.json", headers=V1)).json
    assert card["supportedInterfaces"][0]["url"].rstrip("/") == f"http://agents.example{root}/a2a"
    assert (await request(app, "GET", f"{root}/")).body == b"home"
    assert (await request(app, "GET", f"{root}/a2able")).body == b"another"
    await heard.put("shutdown")
    assert (await received.get())["type"] == "lifespan.shutdown.complete" and mounted.stopped
    await life


@pytest.mark.parametrize("prefix", ["", "/proxy"])
async def test_a_proxy_may_take_its_prefix_off_or_leave_it(prefix: str) -> None:
    mounted = counter().app(store="memory:")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await in_starlette(mounted)({**scope, "root_path": "/proxy"}, receive, send)

    card = await request(app, "GET", f"{prefix}/agents/counter/agent-card.json")
    assert card.json["url"].rstrip("/") == "http://agents.example/proxy/agents/counter"
    answer = await rpc(app, "ListTasks", {}, path=f"{prefix}/agents/counter/", headers=V1)
    assert answer.json["result"]["totalSize"] == 0
    await mounted.stop()


async def test_a_slash_too_many_after_the_address_of_an_agent_does_no_harm() -> None:
    several = application(counter("One"), counter("Two"), store="memory:")
    mounted = in_starlette(several)
    for app, path in (
        (several, "/two//"),
        (mounted, "/agents/counter/two//"),
        (mounted, "/agents/counter//two"),
    ):
        assert (await rpc(app, "ListTasks", {}, path=path, headers=V1)).json["result"]["totalSize"] == 0, path
        for below in ("/.well-known/agent-card.json", "/agent-card.json", "/tasks"):
            assert (await request(app, "GET", path.rstrip("/") + "/" + below)).status == 200, path + below
    await several.stop()


async def test_a_framework_that_runs_a_lifespan_starts_and_stops_the_agent() -> None:
    mounted = counter().app(store="memory:", drain=0)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        await mounted.start()
        yield
        await mounted.stop()

    app = Starlette(routes=[Mount("/a", app=mounted)], lifespan=lifespan)
    async with app.router.lifespan_context(app):
        answer = await rpc(app, "SendMessage", HELLO, path="/a/", headers=V1)
        assert answer.json["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    answer = await rpc(app, "SendMessage", HELLO, path="/a/", headers=V1)
    assert answer.status == 503


async def test_our_own_client_talks_to_an_agent_in_a_framework() -> None:
    mounted = counter().app(store="memory:")
    app = Starlette(routes=[Mount("/", app=mounted)])
    async with connect(app) as client:
        reply = await client("ask me")
        assert reply.asks
        assert await reply.answer("2") == "1 2 "
    await mounted.stop()


async def test_many_agents_in_one_process_keep_to_themselves() -> None:
    agents = [counter(f"Counter {n}") for n in range(20)]
    app = application(*agents, store="memory:")

    async def use(agent: Agent) -> str:
        path = f"/{agent.id}"
        card = (await request(app, "GET", f"{path}/agent-card.json", headers=V1)).json
        assert card["name"] == agent.name
        answer = await rpc(app, "SendMessage", HELLO, path=path, headers=V1)
        task: str = answer.json["result"]["task"]["id"]
        return task

    tasks = await asyncio.gather(*(use(agent) for agent in agents))
    assert len(set(tasks)) == 20
    mine = await rpc(app, "ListTasks", {}, path="/counter-3", headers=V1)
    assert [task["id"] for task in mine.json["result"]["tasks"]] == [tasks[3]]
    others = await rpc(app, "GetTask", {"id": tasks[4]}, path="/counter-3", headers=V1)
    assert others.json["error"]["code"] == TaskNotFound.rpc
    root = (await request(app, "GET", "/.well-known/agent-card.json", headers=V1)).json
    assert root["name"] == "Counter 0"  # the first one answers for the house
    await app.stop()


def test_two_agents_at_one_path_are_refused() -> None:
    with pytest.raises(ValueError, match="two agents have the id 'counter'"):
        application(counter(), counter(), store="memory:")
    with pytest.raises(ValueError, match="no agent"):
        application(store="memory:")


async def test_an_agent_that_speaks_only_1_0_has_a_pure_card_and_refuses_the_others() -> None:
    app = counter(versions=("1.0",)).app(store="memory:")
    card = (await request(app, "GET", "/.well-known/agent-card.json")).json
    assert {interface["protocolVersion"] for interface in card["supportedInterfaces"]} == {"1.0"}
    assert "url" not in card and "protocolVersion" not in card
    assert (await rpc(app, "SendMessage", HELLO, headers=V1)).json["result"]["task"]
    legacy = {"message": {"role": "user", "messageId": "m", "parts": [{"kind": "text", "text": "hi"}]}}
    old = {"id": "t", "message": {"role": "user", "parts": [{"type": "text", "text": "hi"}]}}
    for method, params in (("message/send", legacy), ("tasks/send", old)):
        refused = (await rpc(app, method, params)).json["error"]
        assert "not supported" in refused["message"]
    listed = (await rpc(app, "ListTasks", {}, headers=V1)).json["result"]
    assert listed["totalSize"] == 1
    await app.stop()


async def test_an_agent_that_speaks_only_an_old_version_refuses_the_new_one() -> None:
    app = counter(versions=("0.3",)).app(store="memory:")
    refused = (await rpc(app, "SendMessage", HELLO, headers=V1)).json["error"]
    assert "not supported" in refused["message"]
    async with counter(versions=("0.3",)).test() as client:
        assert client.version == "0.3" and await client("go") == "1 2 3 "
    await app.stop()


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.2", "0.2-type", "0.1", "draft", "arbiter"])
async def test_the_testing_kit_speaks_every_version(version: str) -> None:
    async with counter().test(version=version) as client:
        assert isinstance(client, Client)
        async with client.stream("go") as stream:
            text = "".join([piece.text async for piece in stream])
        assert text == "1 2 3 "
        with pytest.raises(A2AError):
            await client.get("nobody")


async def test_a_test_sees_what_the_skill_raised() -> None:
    agent = Agent("Broken")

    @agent.skill
    async def fail() -> str:
        raise ZeroDivisionError("by zero")

    async with agent.test() as client:
        with pytest.raises(TaskFailed) as failed:
            await client("go")
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert "by zero" not in str(failed.value), "callers elsewhere are told no more than before"

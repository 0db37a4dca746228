"""A whole bridge with token exchange: callers with JWTs on one side, an agent that takes only its own on the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dragoman.client import AgentCache, connect
from dragoman.errors import A2AError, TaskNotFound, Unauthenticated
from dragoman.server.application import application
from tests.bridge.bridging import bridged
from tests.bridge.oauth_server import OAuthServer
from tests.bridge.test_token_exchange import BRIDGE, SECRET, UPSTREAM, Crew, exchange_settings
from tests.waiting import until

MODES = ["durable", "pass"]


class World(NamedTuple):
    oauth: OAuthServer
    crew: Crew
    url: str
    store: Path


@asynccontextmanager
async def world(folder: Path, mode: str, **credentials: Any) -> AsyncIterator[World]:
    oauth = OAuthServer()
    async with oauth.running():
        crew = Crew(oauth)
        table = exchange_settings(oauth, **credentials)
        auth = {"jwt": {"issuer": oauth.issuer, "audience": BRIDGE, "jwks_url": f"{oauth.url}/keys"}}
        store = f"sqlite:///{folder / 'bridge.db'}"
        app = application(crew.agent, store="memory:")
        async with bridged(app, store=store, mode=mode, auth=auth, credentials=table) as (url, _):
            yield World(oauth, crew, url, folder)


def as_(url: str, token: str, **more: Any) -> Any:
    return connect(url, credentials=token, agents={}, cache=AgentCache(), **more)


@pytest.mark.parametrize("mode", MODES)
async def test_the_agent_sees_the_caller_and_the_bridge_and_callers_do_not_see_each_other(
    tmp_path: Path, mode: str
) -> None:
    async with world(tmp_path, mode) as it:
        tasks = {}
        for who in ("ada", "bob"):
            async with as_(it.url, it.oauth.token(who, BRIDGE)) as client:
                reply = await client(f"from {who}")
                assert reply.text == f"from {who}"
                tasks[who] = reply.task.id
        async with as_(it.url, it.oauth.token("ada", BRIDGE)) as ada:
            with pytest.raises(TaskNotFound):
                await ada.get(tasks["bob"])
            assert [task.id async for task in ada.list()] == [tasks["ada"]]
        # One for each token, not for each call. Both tokens of ada may be the same, if they were made in one second.
        subjects = [form["subject_token"] for form in it.oauth.exchanges()]
        assert len(subjects) == len(set(subjects))
    assert {(each["sub"], each["act"]["sub"]) for each in it.crew.seen} == {
        ("ada", "bridge"),
        ("bob", "bridge"),
    }


@pytest.mark.parametrize("mode", MODES)
async def test_a_token_for_the_agent_is_not_one_for_the_bridge(tmp_path: Path, mode: str) -> None:
    async with world(tmp_path, mode) as it:
        async with as_(it.url, it.oauth.token("ada", UPSTREAM)) as client:
            with pytest.raises(Unauthenticated):
                await client("hello")
    assert not it.crew.seen and not it.oauth.exchanges()


@pytest.mark.parametrize("mode", MODES)
async def test_callers_learn_nothing_of_a_mistake_of_the_operator(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, mode, audience="wrong", actor=False) as it:
        token = it.oauth.token("ada", BRIDGE)
        async with as_(it.url, token, timeout=20) as client:
            if mode == "pass":
                with pytest.raises(A2AError) as raised:
                    await client("hello")
                said = str(raised.value)
            else:
                sent = await client.send("hello", wait=False)
                await until(lambda: "invalid_target" in caplog.text)
                said = str(await client.get(sent.task.id))
        assert it.oauth.url not in said and "invalid_target" not in said
    assert "invalid_target" in caplog.text and token not in caplog.text and SECRET not in caplog.text


async def test_no_token_is_in_the_store(tmp_path: Path) -> None:
    async with world(tmp_path, "durable") as it:
        token = it.oauth.token("ada", BRIDGE)
        async with as_(it.url, token) as client:
            await client("a message that is stored")
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert b"a message that is stored" in stored
    assert token.encode() not in stored and b"eyJ" not in stored and SECRET.encode() not in stored

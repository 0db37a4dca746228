"""Ways around the limit of unfinished tasks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman import Agent, Turn
from dragoman.observe.limit import Quota
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests import raw


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    agent = Agent("Asks")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return await turn.ask("what?")

    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with running(application(agent, store=store, quota=Quota(open_tasks=2))) as url:
        yield url


async def outcomes(*asked: object) -> Counter[str]:
    said: Counter[str] = Counter()
    for each in asked:
        if isinstance(each, raw.Refused):
            said[str(each.status)] += 1
        else:
            assert isinstance(each, dict), each
            said["error" if "error" in each else "ok"] += 1
    return said


async def test_many_at_once_are_no_more_than_many_in_turn(url: str) -> None:
    sends = [
        raw.call(
            url,
            "SendMessage",
            {"message": {"messageId": str(n), "role": "ROLE_USER", "parts": [{"text": "x"}]}},
        )
        for n in range(12)
    ]
    said = await outcomes(*await asyncio.gather(*sends, return_exceptions=True))
    assert said == {"ok": 2, "429": 10}


async def test_a_name_of_ones_own_does_not_make_a_task_an_old_one(url: str) -> None:
    async def send(name: str) -> object:
        message = {"role": "user", "parts": [{"type": "text", "text": "x"}]}
        try:
            return await raw.call(url, "tasks/send", {"id": name, "message": message}, a2a_version="")
        except raw.Refused as refused:
            return refused

    assert await outcomes(await send("a"), await send("b"), await send("c")) == {"ok": 2, "429": 1}
    assert await outcomes(await send("a")) == {"ok": 1}  # it goes on with what it began, and is done
    assert await outcomes(await send("c"), await send("d")) == {"ok": 1, "429": 1}

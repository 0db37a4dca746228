"""What a hub forgets, and what it does not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from dragoman.agent.agent import Agent
from dragoman.engine.turn import Turn
from dragoman.hub.conversations.retention import Retention
from tests.hub.house import SCOUT, Caller, House, house, message

LATER = 10 * 86_400.0


def retention(hub: House, seconds: float = 3600.0) -> Retention:
    """As it will look in ten days."""
    return Retention(hub.hub, seconds, clock=lambda: time.time() + LATER)


async def rows(hub: House, table: str) -> list[dict[str, Any]]:
    return [dict(row) for row in await hub.hub.database.all(f"select * from {table}")]


async def request_of(caller: Caller, **body: Any) -> str:
    received = await caller.ask("hello", **body)
    assert received[-1][0] == "done" and received[-1][1]["ok"], received[-1]
    id: str = received[-1][1]["request_id"]
    return id


async def test_requests_and_the_agents_that_came_with_them_are_forgotten_with_their_tasks(
    tmp_path: Path,
) -> None:
    async with house(lambda prompt: "hi", folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        plain = await request_of(acme)
        inline = await request_of(acme, agent_def={"id": "once", "goal": "be there once"})
        over = (await acme.rpc("index", "message/send", message("hi"))).json["result"]["id"]
        await acme("POST", "/v1/agents", SCOUT)
        assert {row["request_id"] for row in await rows(hub, "requests")} == {plain, inline, over}

        assert not await retention(hub, seconds=2 * LATER).delete_batch()
        assert len(await rows(hub, "requests")) == 3 and len(await rows(hub, "agent_versions")) == 2

        assert not await retention(hub).delete_batch()
        assert await rows(hub, "requests") == []
        assert [row["agent_id"] for row in await rows(hub, "agent_versions")] == ["scout"]
        assert (await acme("GET", f"/v1/requests/{inline}")).status == 404
        assert (await acme("GET", "/v1/requests")).json == {"requests": []}
        assert (await acme("GET", f"/v1/requests/{plain}/events")).status == 404
        assert (await acme.rpc("index", "tasks/get", {"id": over})).json["error"]["code"] == -32001


async def test_a_request_that_waits_for_an_answer_too_long_is_canceled_and_then_deleted(
    tmp_path: Path,
) -> None:
    asker = Agent("asker", description="asks")

    @asker.skill
    async def ask(text: str, turn: Turn) -> str:
        return str(await turn.ask("which one?"))

    async with house(lambda prompt: "hi", folder=tmp_path, code=[asker]) as hub:
        acme = await hub.tenant("acme")
        received = await acme.ask("go", agent="asker")
        assert received[-1][1]["error_code"] == "input-required"
        await request_of(acme)
        waits: str = received[-1][1]["request_id"]
        patient, strict = retention(hub, LATER + 60), retention(hub)
        await patient.delete_batch()
        assert (await acme("GET", f"/v1/requests/{waits}")).json["request"]["state"] == "input-required"
        await strict.delete_batch()
        assert [row["request_id"] for row in await rows(hub, "requests")] == [waits]
        assert (await acme("GET", f"/v1/requests/{waits}")).json["request"]["state"] == "canceled"
        await strict.delete_batch()
        assert await rows(hub, "requests") == []


async def test_a_request_that_runs_is_not_deleted_however_old_it_is() -> None:
    hold = asyncio.Event()
    async with house([("word\n", hold)]) as hub:
        acme = await hub.tenant("acme")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        await retention(hub).delete_batch()
        await retention(hub).delete_batch()
        assert len(await rows(hub, "requests")) == 1
        hold.set()
        assert b'"ok":true' in (await live.end()).body


async def test_an_unread_answer_is_stored_in_its_conversation_before_its_task_is_deleted() -> None:
    async with house(lambda prompt: "the answer") as hub:
        acme = await hub.tenant("acme")
        id = (await acme("POST", "/v1/conversations", {})).json["id"]
        await acme.ask("hello", f"/v1/conversations/{id}/messages")

        await hub.hub.database.change("update messages set settled = 0")
        await hub.hub.database.change("delete from messages where role = 'assistant'")
        await retention(hub).delete_batch()
        assert await rows(hub, "requests") == []
        said = (await acme("GET", f"/v1/conversations/{id}/messages")).json["messages"]
        assert [each["content"] for each in said] == ["hello", "the answer"]


async def test_versions_that_others_took_the_place_of_go_unless_a_request_needs_them() -> None:
    async with house(lambda prompt: "hi") as hub:
        acme = await hub.tenant("acme")
        for n in range(1, 5):
            await acme("PUT", "/v1/agents/scout", {**SCOUT, "goal": f"goal {n}"})
            if n == 2:
                asked = await request_of(acme, agent="scout")

        async def versions() -> list[int]:
            return [row["version"] for row in await rows(hub, "agent_versions")]

        catalogue, later = hub.hub.catalogue, int(time.time() + LATER)
        assert await catalogue.delete_unused(0, 500) == 0, "none of them is old"
        assert await catalogue.delete_unused(later, 500) == 2 and await versions() == [2, 4]
        await hub.hub.requests.delete([(acme.tenant.id, asked, "scout")])
        assert await catalogue.delete_unused(later, 500) == 1 and await versions() == [4]
        assert (await acme("GET", "/v1/agents/scout")).json["goal"] == "goal 4"
        await acme("DELETE", "/v1/agents/scout")
        assert await catalogue.delete_unused(later, 500) == 0, "tasks of an agent that is gone stay readable"


async def test_a_key_whose_request_is_forgotten_begins_a_new_one() -> None:
    async with house(lambda prompt: "hi") as hub:
        acme = await hub.tenant("acme")

        async def keyed() -> str:
            answer = await acme("POST", "/v1/orchestrate", {"message": "hi"}, idempotency_key="k")
            return answer.headers["x-request-id"]

        first = await keyed()
        assert await keyed() == first
        await retention(hub).delete_batch()
        assert await keyed() != first


async def test_a_refused_request_leaves_no_inline_agent() -> None:
    async with house(lambda prompt: "hi", rate_per_min=1) as hub:
        acme = await hub.tenant("acme")
        once = {"message": "hi", "agent_def": {"id": "once"}}
        assert (await acme("POST", "/v1/orchestrate", {**once, "message": ""})).status == 400
        for _ in range(3):
            assert (await acme("POST", "/v1/orchestrate", once)).status == 429
        assert await rows(hub, "agent_versions") == []


async def test_an_agent_that_comes_along_cannot_take_the_name_of_one_that_is_code() -> None:
    async with house(code=[Agent("billing", description="bills")]) as hub:
        acme = await hub.tenant("acme")
        body = {"message": "hi", "agent_def": {"id": "billing"}}
        for path in ("/v1/orchestrate", "/v1/conversations"):
            answer = await acme("POST", path, body)
            assert answer.status == 400 and "is code" in answer.json["error"], path


async def test_sums_of_tokens_are_deleted_after_their_days_and_requests_need_not_be() -> None:
    async with house(["ok"]) as hub:
        acme = await hub.tenant("acme")
        await acme.ask("hi")
        assert (await acme("GET", "/v1/usage")).json["count"] == 1

        async def rows() -> list[int]:
            tables = ("usage", "spending", "budget_alerts", "requests")
            return [len(await hub.hub.database.all(f"select 1 from {table}", ())) for table in tables]

        await hub.hub.spending.add(acme.tenant.id, 10**9, 0.0)  # raises both alerts
        before = await rows()
        assert before == [1, 1, 2, 1]
        day = 86_400
        young = Retention(hub.hub, 0, 400, clock=lambda: time.time() + 399 * day)
        assert not await young.delete_batch() and await rows() == before
        old = Retention(hub.hub, 0, 400, clock=lambda: time.time() + 402 * day)
        assert not await old.delete_batch() and await rows() == [0, 0, 0, 1]

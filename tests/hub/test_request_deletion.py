"""A tenant deletes requests that have ended, and has the room again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.hub.store.requests import Requests
from tests.hub.house import SCOUT, Caller, House, house, message


async def ended(caller: Caller, **body: Any) -> str:
    received = await caller.ask("hello", **body)
    assert received[-1][1]["ok"], received[-1]
    id: str = received[-1][1]["request_id"]
    return id


async def count(hub: House, table: str) -> int:
    return len(await hub.hub.database.all(f"select * from {table}"))


async def test_a_deleted_request_is_not_found_over_either_api_and_others_stay() -> None:
    async with house(lambda prompt: "hi") as hub:
        acme = await hub.tenant("acme")
        native, kept = await ended(acme), await ended(acme)
        over = (await acme.rpc("index", "message/send", message("hi"))).json["result"]["id"]
        for id in (native, over):
            assert (await acme("DELETE", f"/v1/requests/{id}")).status == 204
            for path in ("", "/events"):
                assert (await acme("GET", f"/v1/requests/{id}{path}")).status == 404
            assert (await acme.rpc("index", "tasks/get", {"id": id})).json["error"]["code"] == -32001
            assert (await acme("DELETE", f"/v1/requests/{id}")).status == 404
        listed = (await acme("GET", "/v1/requests")).json["requests"]
        assert [each["request_id"] for each in listed] == [kept]


async def test_a_request_of_another_tenant_is_not_found_and_stays() -> None:
    async with house(lambda prompt: "hi") as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        id = await ended(acme)
        refused = await other("DELETE", f"/v1/requests/{id}")
        unknown = await other("DELETE", "/v1/requests/0123456789abcdef")
        assert refused.status == unknown.status == 404
        assert refused.json["error"].replace(id, "0123456789abcdef") == unknown.json["error"]
        assert (await acme("GET", f"/v1/requests/{id}")).status == 200


async def test_a_request_that_runs_is_refused_until_it_is_canceled() -> None:
    hold = asyncio.Event()
    async with house([("word\n", hold)]) as hub:
        acme = await hub.tenant("acme")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        path = f"/v1/requests/{live.headers['x-request-id']}"
        refused = await acme("DELETE", path)
        assert refused.status == 409 and "has not ended: cancel it first" in refused.json["error"]
        assert (await acme("POST", f"{path}/cancel")).status == 200
        await live.end()
        assert (await acme("DELETE", path)).status == 204


async def test_the_tasks_of_delegated_agents_go_with_the_request_and_no_others() -> None:
    async with house(["/agent scout look", "found", "Done.", "mine"]) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        id = await ended(acme)
        own = await ended(acme, agent="scout")
        assert await hub.hub.store.index.size(acme.tenant.key) > 0
        assert (await acme("DELETE", f"/v1/requests/{id}")).status == 204
        found = await acme.rpc("scout", "ListTasks", {}, a2a_version="1.0")
        assert [each["id"] for each in found.json["result"]["tasks"]] == [own]
        assert (await acme("DELETE", f"/v1/requests/{own}")).status == 204
        assert await hub.hub.store.index.size(acme.tenant.key) == 0


async def test_a_tenant_that_stores_as_much_as_it_may_deletes_a_request_and_goes_on_at_once() -> None:
    async with house(lambda prompt: "hi", max_request_mb=1) as hub:
        acme = await hub.tenant("acme")
        received = await acme.ask("x" * 300_000)
        id = received[-1][1]["request_id"]
        refused = await acme("POST", "/v1/orchestrate", {"message": "x" * 300_000})
        assert refused.status == 413 and refused.json["reason"] == "storage_limit"
        assert "DELETE /v1/requests/{id}" in refused.json["error"]
        assert (await acme("DELETE", f"/v1/requests/{id}")).status == 204
        assert (await acme.ask("x" * 300_000))[-1][1]["ok"]


async def test_messages_stay_in_their_conversation() -> None:
    async with house(lambda prompt: "the answer") as hub:
        acme = await hub.tenant("acme")
        path = f"/v1/conversations/{(await acme('POST', '/v1/conversations', {})).json['id']}/messages"
        id = (await acme.ask("hello", path))[-1][1]["request_id"]
        await hub.hub.database.change("update messages set settled = 0")
        await hub.hub.database.change("delete from messages where role = 'assistant'")
        assert (await acme("DELETE", f"/v1/requests/{id}")).status == 204
        assert [each["content"] for each in (await acme("GET", path)).json["messages"]] == [
            "hello",
            "the answer",
        ]
        assert (await acme.ask("again", path))[-1][1]["ok"]


async def test_a_token_that_may_only_read_deletes_nothing() -> None:
    async with house(lambda prompt: "hi") as hub:
        acme = await hub.tenant("acme")
        id = await ended(acme)
        secret = (await acme("POST", "/v1/tokens", {"name": "see", "scope": "read"})).json["secret"]
        refused = await Caller(acme.app, secret)("DELETE", f"/v1/requests/{id}")
        assert refused.status == 403 and refused.json["reason"] == "scope"


async def test_a_deletion_that_dies_in_the_middle_leaves_no_request_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: Any) -> None:
        raise RuntimeError("killed")

    async with house(lambda prompt: "hi", folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        id = await ended(acme)
        with monkeypatch.context() as patch:
            patch.setattr(Requests, "delete", dies)
            assert (await acme.open("DELETE", f"/v1/requests/{id}").end()).status == 500
    async with house(lambda prompt: "hi", folder=tmp_path) as hub:
        acme = Caller(hub.app, acme.token, acme.tenant)
        assert (await acme("GET", "/v1/requests")).json == {"requests": []}
        assert (await acme("GET", f"/v1/requests/{id}")).status == 404
        assert await count(hub, "requests") == 1
        assert (await acme("DELETE", f"/v1/requests/{id}")).status == 204
        assert await count(hub, "requests") == 0

"""Tenants, tokens and limits."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.hub.asking import respond
from dragoman.hub.model import Prompt
from dragoman.hub.residents import Stoppable, speaking_for
from tests.hub.house import SCOUT, Caller, events, house, message


async def test_a_tenant_is_made_with_a_token_that_is_shown_once_and_kept_as_a_hash() -> None:
    async with house(["hi"]) as hub:
        made = await hub.admin("POST", "/v1/admin/tenants", {"name": "acme"})
        token = made.json["token"]
        assert made.status == 201 and token.startswith("atr_") and len(token) == 68
        acme = Caller(hub.app, token)
        assert (await acme("GET", "/v1/agents")).status == 200
        listed = await hub.admin("GET", "/v1/admin/tenants")
        assert token[4:] not in listed.body.decode()
        assert listed.json["tenants"][0]["last_used_at"] > 0
        rows = await hub.hub.database.read(lambda db: db.execute("select token_hash from tenants").fetchall())
        assert [row[0] for row in rows] == [hashlib.sha256(token.encode()).hexdigest()]
        assert (await hub.admin("POST", "/v1/admin/tenants", {"name": "acme"})).status == 409
        assert (await hub.admin("POST", "/v1/admin/tenants", {"name": ""})).status == 400
        assert (await hub.admin("GET", "/v1/admin/tenants/77")).status == 404


async def test_disabling_a_tenant_stops_what_runs_and_shuts_it_out() -> None:
    hold = asyncio.Event()
    async with house([("thinking", hold), "back"]) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"thinking" in live.body)
        changed = await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"disabled": True})
        assert changed.json["tenant"]["disabled"] is True and changed.json["cancelled"] == 1
        done = events(await live.end())[-1]
        assert done[0] == "done" and done[1]["error_code"] == "cancelled"
        assert (await acme("GET", "/v1/agents")).status == 401
        assert (await acme.rpc("index", "message/send", message("hi"))).status == 401
        assert (await other("GET", "/v1/agents")).status == 200
        await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"disabled": False})
        assert (await acme.ask("again"))[-1][1]["content"] == "back"


async def test_another_token_ends_the_one_before_and_what_runs_under_it() -> None:
    hold = asyncio.Event()
    async with house([("thinking", hold)]) as hub:
        acme = await hub.tenant("acme")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"thinking" in live.body)
        rotated = await hub.admin("POST", f"/v1/admin/tenants/{acme.tenant.id}/rotate-token")
        assert events(await live.end())[-1][1]["ok"] is False
        assert (await acme("GET", "/v1/agents")).status == 401
        assert (await Caller(hub.app, rotated.json["token"])("GET", "/v1/agents")).status == 200


@pytest.mark.parametrize("verb", ["disable", "rotate"])
async def test_a_tenant_shut_out_from_the_shell_is_stopped_though_its_model_says_nothing(
    verb: str, tmp_path: Path
) -> None:
    async with house([("word\n", asyncio.Event()), "fine"], folder=tmp_path) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"word" in live.body)
        assert await asyncio.to_thread(main, ["tenant", verb, "acme", "--data", str(tmp_path)]) == 0
        done = events(await live.end())[-1][1]
        assert done["error_code"] == "cancelled" and len(hub.model.prompts) == 1
        assert (await acme("GET", "/v1/agents")).status == 401
        assert (await other.ask("go"))[-1][1]["content"] == "fine"


async def test_a_model_says_no_more_for_a_tenant_that_is_shut_out() -> None:
    async with house(["never said"]) as hub:
        acme = await hub.tenant("acme")
        model = Stoppable(hub.model, hub.hub.tenants)
        await hub.hub.tenants.disable(acme.tenant, True)
        with speaking_for(acme.tenant):
            reply = await respond(model, Prompt(model="", system="", messages=()))
        assert reply.error_code == "unauthorized" and hub.model.prompts == []


async def test_work_for_a_disabled_tenant_does_not_begin() -> None:
    async with house(["never said"]) as hub:
        acme = await hub.tenant("acme")
        await hub.hub.tenants.disable(acme.tenant, True)
        assert (await acme("POST", "/v1/orchestrate", {"message": "go"})).status == 401
        assert hub.model.prompts == []


async def test_a_tenant_has_so_much_running_and_no_more() -> None:
    hold = asyncio.Event()
    async with house([("one", hold), "two"], max_concurrent=1) as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"stream_start" in live.body)
        refused = await acme("POST", "/v1/orchestrate", {"message": "more"})
        assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
        assert (
            refused.json["reason"] == "concurrent_request_limit" and refused.json["retry_after_seconds"] >= 1
        )
        over = await acme.rpc("index", "message/send", message("more"))
        assert over.status == 429 and "retry-after" in over.headers
        assert (await other.ask("hello"))[-1][0] == "done"
        hold.set()
        await live.end()
        assert "concurrent_request_limit" in (await hub.nobody("GET", "/v1/metrics")).body.decode()


async def test_agents_that_an_agent_asks_do_not_count_against_the_tenant() -> None:
    replies = ["/agent scout look", "A tree.", "Done."]
    async with house(replies, max_concurrent=1) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        assert (await acme.ask("go"))[-1][1]["content"] == "Done."


async def test_a_tenant_asks_so_often_and_no_more() -> None:
    async with house(["one", "two", "three"], rate_per_min=60, rate_burst=2) as hub:
        acme = await hub.tenant("acme")
        for text in ("one", "two"):
            assert (await acme.ask("go"))[-1][1]["content"] == text
        refused = await acme("POST", "/v1/orchestrate", {"message": "go"})
        assert refused.status == 429 and refused.json["reason"] == "rate_limit"
        await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"rate_per_min": 0})
        assert (await acme.ask("go"))[-1][1]["content"] == "three"


async def test_what_administrators_do_is_on_record() -> None:
    async with house() as hub:
        id = (await hub.admin("POST", "/v1/admin/tenants", {"name": "acme"})).json["tenant"]["id"]
        await hub.admin("PATCH", f"/v1/admin/tenants/{id}", {"disabled": True})
        await hub.admin("POST", f"/v1/admin/tenants/{id}/rotate-token")
        entries = (await hub.admin("GET", "/v1/admin/audit")).json["entries"]
        assert [entry["action"] for entry in entries] == [
            "tenant.rotate_token",
            "tenant.disable",
            "tenant.create",
        ]
        older = await hub.admin("GET", f"/v1/admin/audit?before_id={entries[0]['id']}&limit=1")
        assert [entry["action"] for entry in older.json["entries"]] == ["tenant.disable"]
        assert (await hub.admin("PATCH", f"/v1/admin/tenants/{id}", {"name": "x"})).status == 400


async def test_a_tenant_is_not_called_by_a_number_which_is_anothers() -> None:
    async with house() as hub:
        await hub.tenant("acme")
        refused = await hub.admin("POST", "/v1/admin/tenants", {"name": "1"})
        assert refused.status == 400 and "is no number" in refused.json["error"]
        assert (await hub.admin("POST", "/v1/admin/tenants", {"name": "1 and only"})).status == 201

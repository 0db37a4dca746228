"""Several tokens of a tenant: scopes, expiry, rotation with an overlap, and what runs under each."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import msgspec
import pytest

from dragoman import connect
from dragoman.catalogue.sources import CatalogueViewer
from dragoman.cli import main
from dragoman.errors import Forbidden
from dragoman.hub.api import ADMIN, ANYBODY, scope_of
from dragoman.hub.api.published import HubSource
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.site import Site
from dragoman.hub.store import tokens
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.store.tokens import MANAGE, MAX_TOKENS, READ, RUN, SCOPES
from dragoman.model.card import AgentCard, Interface
from dragoman.server.routes import Table
from tests.hub.house import SCOUT, Caller, House, events, house, message
from tests.push.webhook import Receiver
from tests.waiting import until

ROUTES = {
    READ: """
        GET /v1/agents
        GET /v1/agents/{id}
        GET /v1/agents/{id}/versions
        GET /v1/agents/{id}/versions/{version}
        GET /v1/artifacts
        GET /v1/artifacts/{aid}
        GET /v1/artifacts/{aid}/raw
        GET /v1/conversations
        GET /v1/conversations/{id}
        GET /v1/conversations/{id}/artifacts
        GET /v1/conversations/{id}/artifacts/{aid}
        GET /v1/conversations/{id}/artifacts/{aid}/raw
        GET /v1/conversations/{id}/messages
        GET /v1/memory
        GET /v1/memory/entries
        GET /v1/memory/entries/{id}
        GET /v1/memory/graph
        GET /v1/memory/relations
        GET /v1/memory/{agent_id}
        GET /v1/models
        GET /v1/notifications/stream
        GET /v1/policy
        GET /v1/requests
        GET /v1/requests/{id}
        GET /v1/requests/{id}/events
        GET /v1/runs
        GET /v1/runs/{id}
        GET /v1/schedules
        GET /v1/schedules/{id}
        GET /v1/schedules/{id}/runs
        GET /v1/todos
        GET /v1/todos/{id}
        GET /v1/usage
        GET /v1/whoami
        POST /v1/constitutions/validate
    """,
    RUN: """
        DELETE /v1/artifacts/{aid}
        DELETE /v1/conversations/{id}
        DELETE /v1/conversations/{id}/artifacts/{aid}
        DELETE /v1/memory/entries/{id}
        DELETE /v1/memory/relations/{id}
        DELETE /v1/requests/{id}
        DELETE /v1/schedules/{id}
        DELETE /v1/todos/{id}
        PATCH /v1/conversations/{id}
        PATCH /v1/memory/entries/{id}
        PATCH /v1/schedules/{id}
        PATCH /v1/todos/{id}
        POST /v1/advise/gate
        POST /v1/agents/{id}/chat
        POST /v1/conversations
        POST /v1/conversations/{id}/artifacts
        POST /v1/conversations/{id}/messages
        POST /v1/events
        POST /v1/memory/entries
        POST /v1/memory/entries/{id}/invalidate
        POST /v1/memory/relations
        POST /v1/orchestrate
        POST /v1/requests/{id}/answer
        POST /v1/requests/{id}/cancel
        POST /v1/schedules
        POST /v1/todos
        PUT /v1/conversations/{id}/artifacts
    """,
    MANAGE: """
        DELETE /v1/agents/{id}
        DELETE /v1/tokens/{id}
        GET /v1/export
        GET /v1/tokens
        GET /v1/tokens/{id}
        PATCH /v1/agents/{id}
        PATCH /v1/tokens/{id}
        POST /v1/agents
        POST /v1/tokens
        POST /v1/tokens/{id}/rotate
        PUT /v1/agents/{id}
    """,
}
SCOPE_OF = {
    line.strip(): scope for scope, lines in ROUTES.items() for line in lines.splitlines() if line.strip()
}
SOON = 4_000_000_000
"""A time after this test."""


async def token(
    hub: House, acme: Caller, scope: str, name: str = "", **more: Any
) -> tuple[dict[str, Any], Caller]:
    """A token of a tenant, and somebody who has it."""
    made = await acme("POST", "/v1/tokens", {"name": name or scope, "scope": scope, **more})
    assert made.status == 201, made.body
    return made.json["token"], Caller(hub.app, made.json["secret"], acme.tenant)


def native(hub: House) -> Table:
    site = hub.app._elsewhere
    assert isinstance(site, Site)
    return site.table


async def test_every_route_of_the_native_api_is_open_for_its_scope_and_no_less() -> None:
    async with house(lambda prompt: "ok") as hub:
        acme = await hub.tenant("acme")
        callers = {scope: (await token(hub, acme, scope))[1] for scope in SCOPES}
        checked = 0
        for route in native(hub).routes:
            if route.access in (ANYBODY, ADMIN):
                continue
            needed = SCOPES.index(scope_of(route))
            path = route.path.replace("{", "").replace("}", "")  # of something that does not exist
            if route.path == "/v1/notifications/stream":
                continue  # it does not end; below
            for n, (scope, caller) in enumerate(callers.items()):
                answer = await caller(route.method, path, {} if route.body is None else b"{")
                refused = answer.status == 403 and answer.json.get("reason") == "scope"
                assert refused == (n < needed), (scope, route.method, route.path, answer.body)
                checked += 1
        assert checked == 3 * (len(SCOPE_OF) - 1)
        live = callers["read"].open("GET", "/v1/notifications/stream")
        await live.until(lambda: b"event: open" in live.body)
        live.gone.set()


async def test_routes_of_administrators_take_no_token_of_a_tenant() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        for route in native(hub).routes:
            if route.access == ADMIN:
                answer = await acme(route.method, route.path.replace("{", "").replace("}", ""), {})
                assert answer.status == 401, route.path


async def test_every_route_for_tenants_needs_the_scope_that_is_written_here() -> None:
    async with house() as hub:
        needed = {f"{route.method} {route.path}": scope_of(route) for route in native(hub).routes}
        assert {name: scope for name, scope in needed.items() if scope} == SCOPE_OF


A2A_READS = {
    "GetTask": {"id": "t"},
    "ListTasks": {},
    "SubscribeToTask": {"id": "t"},
    "GetExtendedAgentCard": {},
}
A2A_CHANGES = {
    "SendMessage": message("hi"),
    "SendStreamingMessage": message("hi"),
    "CancelTask": {"id": "t"},
    "CreateTaskPushNotificationConfig": {
        "taskId": "t",
        "url": "https://example.com/hook",
        "parent": "tasks/t",
        "config": {"url": "https://example.com/hook"},
    },
    "GetTaskPushNotificationConfig": {"taskId": "t", "id": "c"},
    "ListTaskPushNotificationConfigs": {"taskId": "t"},
    "DeleteTaskPushNotificationConfig": {"taskId": "t", "id": "c"},
}


@pytest.mark.parametrize("method", [*A2A_READS, *A2A_CHANGES])
async def test_a_token_that_reads_changes_nothing_over_json_rpc(method: str) -> None:
    async with house(lambda prompt: "ok", push=True) as hub:
        acme = await hub.tenant("acme")
        _, reader = await token(hub, acme, "read")
        _, runner = await token(hub, acme, "run")
        params = {**A2A_READS, **A2A_CHANGES}[method]
        if "message" in params:
            params = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
        for caller, refused in ((reader, method in A2A_CHANGES), (runner, False)):
            answer = await caller.rpc("index", method, params, a2a_version="1.0")
            assert (b"scope run" in answer.body) == refused, answer.body


@pytest.mark.parametrize(
    ("method", "path", "refused"),
    [
        ("GET", "tasks", False),
        ("GET", "tasks/t", False),
        ("POST", "tasks/t:subscribe", False),
        ("POST", "message:send", True),
        ("POST", "message:stream", True),
        ("POST", "tasks/t:cancel", True),
        ("POST", "tasks/t/pushNotificationConfigs", True),
        ("GET", "tasks/t/pushNotificationConfigs", True),
        ("DELETE", "tasks/t/pushNotificationConfigs/c", True),
    ],
)
async def test_a_token_that_reads_changes_nothing_over_http_json(
    method: str, path: str, refused: bool
) -> None:
    async with house(lambda prompt: "ok", push=True) as hub:
        acme = await hub.tenant("acme")
        _, reader = await token(hub, acme, "read")
        body: Any = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
        if "push" in path:
            body = {"url": "https://example.com/hook"}
        answer = await reader(
            method, f"/v1/a2a/agents/index/{path}", body if method == "POST" else None, a2a_version="1.0"
        )
        assert (answer.status == 403 and b"scope run" in answer.body) == refused, answer.body


async def test_a_token_that_reads_changes_nothing_over_grpc() -> None:
    pytest.importorskip("grpc")
    async with house(lambda prompt: "ok", grpc_port=0, public_url="http://127.0.0.1") as hub:
        acme = await hub.tenant("acme")
        _, reader = await token(hub, acme, "read")
        card = (await acme("GET", "/v1/a2a/agents/index/agent-card.json", a2a_version="1.0")).json
        (way,) = [each for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"]
        where = Interface(url=way["url"], protocol_binding="GRPC", protocol_version="1.0", tenant="index")
        index = AgentCard(name="index", supported_interfaces=(where,))
        async with connect(index, credentials=acme.token) as agent:
            reply = await agent.send("hi")
            assert reply.task is not None
        async with connect(index, credentials=reader.token) as agent:
            assert (await agent.get(reply.task.id)).id == reply.task.id, "the tasks are the tenant's"
            with pytest.raises(Forbidden, match="scope run"):
                await agent.send("hi")
            with pytest.raises(Forbidden, match="scope run"):
                await agent.cancel(reply.task.id)


async def test_a_token_that_runs_brings_no_agent_of_its_own() -> None:
    async with house(["fine"]) as hub:
        acme = await hub.tenant("acme")
        _, runner = await token(hub, acme, "run")
        body = {"message": "hi", "agent_def": SCOUT}
        assert (await runner("POST", "/v1/orchestrate", body)).status == 403
        assert (await runner("POST", "/v1/conversations", {"agent_def": SCOUT})).status == 403
        talk = (await acme("POST", "/v1/conversations", {"agent_def": SCOUT})).json["id"]
        said = await runner.ask("hi", f"/v1/conversations/{talk}/messages")
        assert said[-1][1]["content"] == "fine", "an administrator of the tenant made it"


async def test_tokens_are_listed_without_secrets_and_have_names_of_their_own() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        made, runner = await token(hub, acme, "run", "ci", expires_at=SOON)
        assert made["scope"] == "run" and made["expires_at"] == SOON and made["created_by"] == "1/default"
        listed = await acme("GET", "/v1/tokens")
        assert [each["name"] for each in listed.json["tokens"]] == ["default", "ci"]
        assert runner.token[4:] not in listed.body.decode() and "hash" not in listed.body.decode()
        again = await acme("POST", "/v1/tokens", {"name": "ci", "scope": "read"})
        assert again.status == 409 and again.json["existing"]["id"] == made["id"]
        for body in (
            {"name": "", "scope": "read"},
            {"name": "x", "scope": "root"},
            {"name": "x"},
            {"name": "x", "scope": "read", "expires_at": 1},
            {"name": "x", "scope": "read", "expires_at": SOON, "expires_in": 60},
            {"name": "x", "scope": "read", "colour": "blue"},
        ):
            assert (await acme("POST", "/v1/tokens", body)).status == 400, body
        assert (await acme("GET", "/v1/tokens/77")).status == 404
        about = (await runner("GET", "/v1/whoami")).json
        assert about["tenant"]["name"] == "acme" and about["name"] == "ci" and about["scope"] == "run"


async def test_a_token_of_another_tenant_cannot_be_seen_or_revoked() -> None:
    async with house() as hub:
        acme, other = await hub.tenant("acme"), await hub.tenant("other")
        made, runner = await token(hub, acme, "run")
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
            assert (await other(method, f"/v1/tokens/{made['id']}{path}", {})).status == 404
        assert (await runner("GET", "/v1/agents")).status == 200


async def test_revoking_one_token_stops_its_work_and_leaves_that_of_others() -> None:
    hold = asyncio.Event()
    async with house([("one", hold, " done"), ("two", hold, " done")]) as hub:
        acme = await hub.tenant("acme")
        first, one = await token(hub, acme, "run", "one")
        _, two = await token(hub, acme, "run", "two")
        live = one.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"one" in live.body)
        other = two.open("POST", "/v1/orchestrate", {"message": "go"})
        await other.until(lambda: b"two" in other.body)
        gone = await acme("DELETE", f"/v1/tokens/{first['id']}")
        assert gone.json["cancelled"] == 1 and gone.json["token"]["revoked"] is True
        assert events(await live.end())[-1][1]["error_code"] == "cancelled"
        assert (await one("GET", "/v1/agents")).status == 401
        hold.set()
        assert events(await other.end())[-1][1]["content"] == "two done"
        assert [t["name"] for t in (await acme("GET", "/v1/tokens")).json["tokens"]] == ["default", "two"]
        every = (await acme("GET", "/v1/tokens?revoked=true")).json["tokens"]
        assert [t["name"] for t in every] == ["default", "one", "two"]


async def test_a_reader_whose_token_is_revoked_sees_no_more_of_what_another_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.hub.tenants.admission.READER_CHECK_SECONDS", 0.0)
    hold = asyncio.Event()
    async with house([("one", hold, " secret")]) as hub:
        acme = await hub.tenant("acme")
        made, reader = await token(hub, acme, "read")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"one" in live.body)
        task = live.headers["x-request-id"]
        native = reader.open("GET", f"/v1/requests/{task}/events")
        a2a = reader.open_rpc("index", "SubscribeToTask", {"id": task}, a2a_version="1.0")
        await native.until(lambda: b"one" in native.body)
        await a2a.until(lambda: bool(a2a.body))
        await acme("DELETE", f"/v1/tokens/{made['id']}")
        hold.set()
        assert b"secret" in (await live.end()).body
        for follower in (native, a2a):
            assert b"secret" not in (await follower.end()).body


async def test_a_webhook_hears_no_more_when_the_token_that_set_it_is_revoked() -> None:
    hold = asyncio.Event()
    async with (
        Receiver() as kept,
        Receiver() as gone,
        house([("one", hold, " secret")], push=True, allow_private=True) as hub,
    ):
        acme = await hub.tenant("acme")
        made, thief = await token(hub, acme, "run", "thief")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"one" in live.body)
        task = live.headers["x-request-id"]
        for caller, hook in ((thief, gone), (acme, kept)):
            config = {"taskId": task, "pushNotificationConfig": {"url": hook.url}}
            set_it = await caller.rpc("index", "tasks/pushNotificationConfig/set", config)
            assert "result" in set_it.json
        await acme("DELETE", f"/v1/tokens/{made['id']}")
        hold.set()
        await kept.until(lambda: any(b"secret" in each.body for each in kept.notifications))
        (given_up,) = await until(partial(hub.hub.store.push_queue.find, dead=True, limit=9))
        assert "revoked" in given_up.error
        assert gone.notifications == []


def _has_begun(stream: Any) -> bool:
    return bool(stream.body)


@pytest.mark.parametrize("how", ["revoked", "disabled"])
async def test_a_stream_on_which_nothing_happens_ends_with_the_token_of_its_reader(how: str) -> None:
    hold = asyncio.Event()
    async with house([("one", hold, " done")]) as hub:
        acme = await hub.tenant("acme")
        made, reader = await token(hub, acme, "read")
        live = acme.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"one" in live.body)
        task = live.headers["x-request-id"]
        idle = [
            reader.open("GET", f"/v1/requests/{task}/events"),
            reader.open_rpc("index", "SubscribeToTask", {"id": task}, a2a_version="1.0"),
            reader.open("GET", "/v1/notifications/stream"),
        ]
        for follower in idle:
            await follower.until(partial(_has_begun, follower))
        if how == "revoked":
            await acme("DELETE", f"/v1/tokens/{made['id']}")
        else:
            await hub.admin("PATCH", f"/v1/admin/tenants/{acme.tenant.id}", {"disabled": True})
        for follower in idle:
            await follower.end()
        if how == "revoked":
            why = "the token is not valid any more"
            *_, error, (kind, done) = events(idle[0])
            assert error == ("error", {"message": why, "reason": "unauthorized"})
            assert kind == "done" and done["error_code"] == "unauthorized" and done["error"] == why
            assert events(idle[2])[-1] == error
        hold.set()
        await live.end()


async def test_an_expired_token_is_refused_and_what_it_began_may_finish() -> None:
    hold = asyncio.Event()
    async with house([("one", hold, " done")]) as hub:
        acme = await hub.tenant("acme")
        made, runner = await token(hub, acme, "run", expires_in=3600)
        live = runner.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"one" in live.body)
        await hub.hub.database.change("update tokens set expires_at = 1 where id = ?", (made["id"],))
        assert (await runner("GET", "/v1/agents")).status == 401
        assert (await runner.rpc("index", "message/send", message("hi"))).status == 401
        hold.set()
        assert events(await live.end())[-1][1]["content"] == "one done"


async def test_a_token_is_rotated_with_an_overlap_and_its_work_and_schedules_go_on() -> None:
    hold = asyncio.Event()
    async with house([("one", hold, " done"), "later"]) as hub:
        acme = await hub.tenant("acme")
        made, old = await token(hub, acme, "run", "ci")
        await old("POST", "/v1/schedules", {"schedule": "every day at 09:00", "message": "look"})
        live = old.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"one" in live.body)
        rotated = await acme("POST", f"/v1/tokens/{made['id']}/rotate", {"overlap_seconds": 3600})
        assert rotated.json["cancelled"] == 0 and rotated.json["token"]["name"] == "ci"
        new = Caller(hub.app, rotated.json["secret"])
        for caller in (old, new):
            assert (await caller("GET", "/v1/whoami")).json["name"] == "ci"
        (kept,) = [t for t in (await acme("GET", "/v1/tokens")).json["tokens"] if t["id"] == made["id"]]
        assert kept["replaced"] is True and 3500 < kept["expires_at"] - time.time() <= 3600
        twice = await acme("POST", f"/v1/tokens/{made['id']}/rotate", {})
        assert twice.status == 409, "it was replaced before"
        await hub.hub.database.change("update tokens set expires_at = 1 where id = ?", (made["id"],))
        assert (await old("GET", "/v1/whoami")).status == 401
        hold.set()
        assert events(await live.end())[-1][1]["content"] == "one done"
        await Scheduler(hub.hub, Schedules(hub.hub.database)).run_due()
        (schedule,) = (await new("GET", "/v1/schedules")).json["schedules"]
        assert schedule["status"] == "active"


async def test_a_token_that_expires_is_replaced_by_one_that_lives_as_long() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        made, _ = await token(hub, acme, "run", expires_in=3600)
        rotated = await acme("POST", f"/v1/tokens/{made['id']}/rotate", {"overlap_seconds": 60})
        assert 3500 < rotated.json["token"]["expires_at"] - time.time() <= 3600
        path = f"/v1/tokens/{rotated.json['token']['id']}/rotate"
        again = (await acme("POST", path, {"expires_in": 60})).json["token"]
        assert again["expires_at"] - time.time() <= 60
        (first,) = [
            each for each in (await acme("GET", "/v1/tokens")).json["tokens"] if each["name"] == "default"
        ]
        unlimited = (await acme("POST", f"/v1/tokens/{first['id']}/rotate", {"overlap_seconds": 60})).json[
            "token"
        ]
        assert unlimited["expires_at"] is None


async def test_a_token_is_rotated_at_once_and_its_work_stops() -> None:
    async with house([("one", asyncio.Event())]) as hub:
        acme = await hub.tenant("acme")
        made, old = await token(hub, acme, "run", "ci")
        await old("POST", "/v1/schedules", {"schedule": "every day at 09:00", "message": "look"})
        live = old.open("POST", "/v1/orchestrate", {"message": "go"})
        await live.until(lambda: b"one" in live.body)
        rotated = await acme("POST", f"/v1/tokens/{made['id']}/rotate", {})
        assert rotated.json["cancelled"] == 1
        assert events(await live.end())[-1][1]["ok"] is False
        assert (await old("GET", "/v1/whoami")).status == 401
        (schedule,) = (await acme("GET", "/v1/schedules")).json["schedules"]
        assert schedule["status"] == "paused"


async def test_schedules_of_an_expired_token_are_paused() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        made, runner = await token(hub, acme, "run", expires_in=3600)
        await runner("POST", "/v1/schedules", {"schedule": "every day at 09:00", "message": "look"})
        await acme("POST", "/v1/schedules", {"schedule": "every day at 10:00", "message": "look"})
        await hub.hub.database.change("update tokens set expires_at = 1 where id = ?", (made["id"],))
        await Scheduler(hub.hub, Schedules(hub.hub.database)).run_due()
        found = (await acme("GET", "/v1/schedules")).json["schedules"]
        states = {each["schedule_phrase"]: each["status"] for each in found}
        assert states == {"every day at 09:00": "paused", "every day at 10:00": "active"}
        (paused,) = [each["id"] for each in found if each["status"] == "paused"]
        again = await acme("PATCH", f"/v1/schedules/{paused}", {"status": "active"})
        assert again.json["scheduled_task"]["status"] == "active"


async def test_a_tenant_cannot_revoke_its_last_token_with_the_scope_admin() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        (own,) = (await acme("GET", "/v1/tokens")).json["tokens"]
        refused = await acme("DELETE", f"/v1/tokens/{own['id']}")
        assert refused.status == 409 and "last token with the scope admin" in refused.json["error"]
        await token(hub, acme, "admin", "second")
        assert (await acme("DELETE", f"/v1/tokens/{own['id']}")).status == 200
        assert (await acme("GET", "/v1/agents")).status == 401


async def test_the_operator_manages_the_tokens_of_every_tenant() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        path = "/v1/admin/tenants/acme/tokens"
        made = await hub.admin("POST", path, {"name": "ops", "scope": "read"})
        assert made.status == 201 and made.json["token"]["created_by"] == "admin"
        (own, ops) = (await hub.admin("GET", path)).json["tokens"]
        assert (await hub.admin("DELETE", f"{path}/{own['id']}")).status == 200, "the last one, too"
        assert (await acme("GET", "/v1/agents")).status == 401
        rotated = await hub.admin("POST", f"{path}/{ops['id']}/rotate", {"overlap_seconds": 60})
        assert (await Caller(hub.app, rotated.json["secret"])("GET", "/v1/agents")).status == 200
        actions = [e["action"] for e in (await hub.admin("GET", "/v1/admin/audit")).json["entries"]]
        assert actions[:3] == ["token.rotate", "token.revoke", "token.create"]


async def test_all_tokens_of_a_tenant_are_replaced_at_once_or_with_an_overlap() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        _, reader = await token(hub, acme, "read")
        path = f"/v1/admin/tenants/{acme.tenant.id}/rotate-token"
        second = Caller(hub.app, (await hub.admin("POST", path, {"overlap_seconds": 60})).json["token"])
        for caller in (acme, reader, second):
            assert (await caller("GET", "/v1/agents")).status == 200
        third = Caller(hub.app, (await hub.admin("POST", path)).json["token"])
        states = [(await caller("GET", "/v1/agents")).status for caller in (acme, reader, second, third)]
        assert states == [401, 401, 401, 200], (
            "those of the first overlap, too: any of them may be the one that leaked"
        )


async def test_a_token_that_is_rotated_with_overlaps_counts_as_many_times_as_it_is_valid() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        made, _ = await token(hub, acme, "read")
        for _ in range(MAX_TOKENS - 2):
            answer = await acme("POST", f"/v1/tokens/{made['id']}/rotate", {"overlap_seconds": 60})
            made = answer.json["token"]
        for overlap, status in ((60, 409), (0, 200)):
            answer = await acme("POST", f"/v1/tokens/{made['id']}/rotate", {"overlap_seconds": overlap})
            assert answer.status == status, answer.body


async def test_old_tokens_that_are_not_valid_any_more_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_STORED_TOKENS", 3)
    async with house() as hub:
        acme = await hub.tenant("acme")
        _, ci = await token(hub, acme, "read", "ci")
        for n in range(6):
            made, _ = await token(hub, acme, "read", f"t{n}")
            await acme("DELETE", f"/v1/tokens/{made['id']}")
        await token(hub, acme, "read", "last")
        names = [each["name"] for each in (await acme("GET", "/v1/tokens?revoked=true")).json["tokens"]]
        assert names == ["default", "ci", "t3", "t4", "t5", "last"]
        assert (await ci("GET", "/v1/whoami")).status == 200


@pytest.mark.parametrize("when", [{"expires_at": 2**53}, {"expires_in": 2**53}])
async def test_a_token_expires_in_a_year_that_can_be_shown_or_never(when: dict[str, int]) -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        made = await acme("POST", "/v1/tokens", {"name": "ci", "scope": "read", **when})
        assert made.status == 400 and made.json["fields"], made.body


async def test_a_tenant_is_renamed_and_keeps_what_it_has() -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        await hub.tenant("other")
        await acme("POST", "/v1/agents", SCOUT)
        path = f"/v1/admin/tenants/{acme.tenant.id}"
        assert (await hub.admin("PATCH", path, {"name": "other"})).status == 409
        assert (await hub.admin("PATCH", path, {"name": "7"})).status == 400
        assert (await hub.admin("PATCH", path, {"name": "apex"})).json["tenant"]["name"] == "apex"
        assert (await acme("GET", "/v1/agents/scout")).status == 200
        assert (await acme("GET", "/v1/whoami")).json["tenant"] == {"id": acme.tenant.id, "name": "apex"}
        assert (await hub.admin("GET", "/v1/admin/tenants/acme")).status == 404
        (entry, *_) = (await hub.admin("GET", "/v1/admin/audit")).json["entries"]
        assert entry["action"] == "tenant.rename" and entry["detail"] == "acme is now apex"


async def test_a_token_that_reads_finds_the_agents_of_its_tenant_in_the_catalogue() -> None:
    async with house(catalogue=True) as hub:
        acme = await hub.tenant("acme")
        await acme("POST", "/v1/agents", SCOUT)
        _, reader = await token(hub, acme, "read")
        found = await reader("GET", "/.well-known/ai-catalog.json")
        assert b"scout" in found.body
        assert await HubSource(hub.hub).entries(CatalogueViewer(tenant_key="77")) == ()


async def test_the_audit_names_the_token() -> None:
    async with house(["one", "two"]) as hub:
        acme = await hub.tenant("acme")
        _, runner = await token(hub, acme, "run", "ci")
        await runner.rpc("index", "message/send", message("hello"))
        await runner.ask("hello")
        entries = await hub.hub.store.audit.entries()
        assert [entry.principal for entry in entries] == ["1/ci", "1/ci"]


async def test_tokens_are_managed_from_the_shell(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    async def run(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["tenant", *words, "--data", str(tmp_path)])
        return code, capsys.readouterr().out.strip()

    async with house(folder=tmp_path) as hub:
        acme = await hub.tenant("acme")
        capsys.readouterr()
        code, secret = await run("add-token", "acme", "ci", "--scope", "read", "--expires", "90d")
        assert code == 0
        reader = Caller(hub.app, secret)
        assert (await reader("GET", "/v1/whoami")).json["scope"] == "read"
        code, listed = await run("tokens", "acme")
        assert "ci" in listed and secret[4:] not in listed
        (id,) = [t["id"] for t in (await acme("GET", "/v1/tokens")).json["tokens"] if t["name"] == "ci"]
        code, second = await run("rotate-token", "acme", str(id), "--overlap", "1h")
        for each in (secret, second):
            assert (await Caller(hub.app, each)("GET", "/v1/whoami")).status == 200
        assert (await run("revoke-token", "acme", str(id)))[0] == 0
        assert (await reader("GET", "/v1/whoami")).status == 401
        assert (await run("rename", "acme", "apex"))[0] == 0
        assert (await acme("GET", "/v1/whoami")).json["tenant"]["name"] == "apex"
        assert (await run("revoke-token", "apex", "99"))[0] == 1
        with pytest.raises(SystemExit):
            await run("add-token", "apex", "x", "--expires", "soon")


async def test_the_openapi_document_names_the_scope_of_each_operation() -> None:
    async with house() as hub:
        described = msgspec.json.decode((await hub.nobody("GET", "/v1/openapi.json")).body)
        assert described["paths"]["/v1/agents"]["get"]["security"] == [{"tenant": ["read"]}]
        assert described["paths"]["/v1/agents"]["post"]["security"] == [{"tenant": ["admin"]}]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/tokens", {"name": "again", "scope": "admin"}),
        ("POST", "/v1/tokens/{other}/rotate", {}),
        ("PATCH", "/v1/tokens/{user}", {"revoked": False}),
    ],
)
async def test_a_request_of_a_token_that_is_revoked_meanwhile_makes_no_token(
    method: str, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house() as hub:
        acme = await hub.tenant("acme")
        tenants = hub.hub.tenants
        other, _ = await tenants.tokens.create(acme.tenant.id, "other", "admin", actor="test")
        user = await tenants.tokens.user(acme.tenant.id, "https://login.example#ada", "admin")
        assert user is not None
        await tenants.tokens.revoke(acme.tenant.id, user.id, actor="test")
        for name in ("create", "rotate", "unblock"):
            work = getattr(tenants.tokens, name)

            async def rotate_first(*values: Any, work: Any = work, **options: Any) -> Any:
                await tenants.rotate(acme.tenant)
                return await work(*values, **options)

            monkeypatch.setattr(tenants.tokens, name, rotate_first)
        answer = await acme(method, path.format(other=other.id, user=user.id), body)
        assert answer.status == 401
        assert [t.name for t in await tenants.tokens.list(acme.tenant.id)] == ["default"]


class CountingTransaction:
    """Counts the statements of a transaction."""

    def __init__(self, transaction: Any) -> None:
        self._transaction, self.statements = transaction, 0

    def __getattr__(self, name: str) -> Any:
        self.statements += name in ("one", "all", "change", "change_many")
        return getattr(self._transaction, name)


async def test_a_tenant_with_many_users_is_disabled_with_as_few_statements_as_one_with_few() -> None:
    async with house() as hub:
        counts, tenants = list[int](), hub.hub.tenants
        for name, users in (("small", 2), ("large", 60)):
            tenant = (await hub.tenant(name)).tenant
            for number in range(users):
                await tenants.tokens.user(tenant.id, f"https://login.example#{number}", "run")
            schedules = Schedules(hub.hub.database)
            planned, _ = await schedules.add(
                tenant.id, "index", "every hour", "look", generation=tenant.generation
            )
            before = await tenants.generations(tenant.id)

            async def renew(db: Any, id: int = tenant.id) -> int:
                counting = CountingTransaction(db)
                await tokens.renew_generations(counting, id)
                return counting.statements

            counts.append(await hub.hub.database.run(renew, tenant=tenant.id))
            after = await tenants.generations(tenant.id)
            assert len(after) == users + 1 and min(after) > max(before)
            moved = await schedules.get(tenant.id, planned.id)
            (default, *_) = await tenants.tokens.list(tenant.id)
            assert moved is not None and moved.generation == default.generation
            ada = await tenants.tokens.user(tenant.id, "https://login.example#ada", "run")
            assert ada is not None and ada.generation > max(after)
        assert counts[0] == counts[1]

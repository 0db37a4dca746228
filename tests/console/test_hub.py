"""The console of a hub: an administrator sees every tenant, and a tenant sees itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman import Agent, Turn
from dragoman.console import access, feeds
from dragoman.console import hub as console_hub
from dragoman.console.hub import HubConsole
from dragoman.hub.assembly import application
from dragoman.hub.hub import Hub
from dragoman.hub.models.local import EchoModel
from dragoman.hub.settings import Settings
from dragoman.hub.store.tokens import Tokens
from dragoman.hub.tenants.users import Users
from dragoman.model.ops import Scope
from dragoman.model.usage import TokenUsage
from dragoman.server.app import App
from tests.auth.issuer import ISSUER, PUBLISHED, Pages, claims, mint
from tests.console.conftest import HOST, Operator
from tests.hub.test_users import CONFIGURATION, KEYS, RULES
from tests.server.wire import envelope, request
from tests.waiting import until

ADMIN = "adm_" + "0" * 64
OURS = {"origin": f"http://{HOST}", "sec_fetch_site": "same-origin"}


@asynccontextmanager
async def hub_app(admin_token: str = ADMIN) -> AsyncIterator[tuple[Hub, App, HubConsole]]:
    agent = Agent("Echo")

    @agent.skill
    async def echo(turn: Turn) -> str:
        return turn.text

    console = HubConsole(None)
    hub, app = application(
        Settings(admin_token=admin_token, drain=0.0, data="/nonexistent/dragoman"),
        model=EchoModel(),
        code=[agent],
        store="memory:",
        console=console.open,
    )
    await app.start()
    try:
        yield hub, app, console
    finally:
        async with asyncio.timeout(10):
            await app.stop()


async def send(app: App, token: str, text: str, agent: str = "echo") -> None:
    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
    headers = {
        "host": HOST,
        "a2a-version": "1.0",
        "content-type": "application/json",
        "authorization": f"Bearer {token}",
    }
    answer = await request(
        app, "POST", f"/v1/a2a/agents/{agent}", envelope("SendMessage", {"message": message}), headers=headers
    )
    assert b"COMPLETED" in answer.body, answer.body


async def texts(viewer: Operator) -> list[str]:
    return sorted(row["text"] for row in (await viewer.get("/tasks"))["tasks"])


async def test_an_administrator_sees_all_tenants_and_a_tenant_sees_itself() -> None:
    async with hub_app() as (hub, app, _):
        (_, token_a), (_, token_b) = await hub.tenants.add("ada"), await hub.tenants.add("bob")
        await send(app, token_a, "of ada")
        await send(app, token_b, "of bob")
        admin, tenant = Operator(app, ADMIN), Operator(app, token_a)
        me = await admin.get("/me")
        assert (me["role"], me["tenant"], me["kind"]) == ("operator", None, "hub") and "hub" in me["features"]
        assert (await tenant.get("/me"))["role"] == "tenant" and (await tenant.get("/me"))["tenant"] == "ada"
        assert await texts(admin) == ["of ada", "of bob"]
        assert await texts(tenant) == ["of ada"]
        assert (await tenant.get("/tasks?scope=2/"))["tasks"][0]["text"] == "of ada", (
            "a filter cannot widen a scope"
        )
        assert (await admin.get("/tasks"))["counts"] == {"TASK_STATE_COMPLETED": 2}
        assert (await tenant.get("/tasks"))["counts"] == {"TASK_STATE_COMPLETED": 1}
        agents = {agent["id"]: agent["counts"] for agent in (await tenant.get("/agents"))["agents"]}
        assert agents["echo"] == {"TASK_STATE_COMPLETED": 1} and "index" in agents
        entries = (await tenant.get("/audit"))["entries"]
        assert entries and {entry["tenant"] for entry in entries} == {"ada"}
        assert {entry["principal"] for entry in entries} == {"ada/default"}, (
            "people know a tenant by its name"
        )


async def test_a_cancel_that_finds_nothing_is_refused_as_the_console_refuses() -> None:
    async with hub_app() as (hub, app, _):
        _, token = await hub.tenants.add("ada")
        refused = await Operator(app, token)("POST", "/hub/tenants/ada/requests/nothing/cancel")
        assert refused.status == 404
        assert refused.json == {
            "error": {"code": "NOT_FOUND", "message": "no in-flight request with that id"}
        }


async def test_an_operator_finds_the_tasks_and_agents_of_a_tenant_by_its_name() -> None:
    async with hub_app() as (hub, app, _):
        (_, token_a), (_, token_b) = await hub.tenants.add("ada"), await hub.tenants.add("bob")
        await send(app, token_a, "of ada")
        await send(app, token_b, "of bob")
        admin, tenant = Operator(app, ADMIN), Operator(app, token_a)
        constitution = {"id": "scout", "name": "Scout", "role": "finder", "goal": "finds more"}
        assert (await admin("POST", "/hub/tenants/bob/agents", constitution)).status == 201
        rows = (await admin.get("/tasks"))["tasks"]
        assert {row["text"]: row["tenant"] for row in rows} == {"of ada": "ada", "of bob": "bob"}
        found = await admin.get("/tasks?tenant=bob")
        assert [row["text"] for row in found["tasks"]] == ["of bob"]
        assert found["counts"] == {"TASK_STATE_COMPLETED": 1}
        agents = {agent["id"]: agent for agent in (await admin.get("/agents?tenant=bob"))["agents"]}
        assert agents["scout"]["description"] and agents["index"]["description"]
        assert agents["echo"]["counts"] == {"TASK_STATE_COMPLETED": 1}
        assert "scout" not in {agent["id"] for agent in (await admin.get("/agents?tenant=ada"))["agents"]}
        assert [row["text"] for row in (await tenant.get("/tasks?tenant=ada"))["tasks"]] == ["of ada"]
        for path in ("/tasks", "/agents"):
            refused, unknown = (
                await tenant("GET", f"{path}?tenant=bob"),
                await tenant("GET", f"{path}?tenant=eve"),
            )
            assert (refused.status, unknown.status) == (404, 404), path
            assert refused.body.replace(b"bob", b"eve") == unknown.body


async def test_a_tenant_that_was_renamed_is_shown_with_its_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_hub, "NAMES_SECONDS", 0.0)
    async with hub_app() as (hub, app, _):
        ada, token = await hub.tenants.add("ada")
        await send(app, token, "of ada")
        admin = Operator(app, ADMIN)
        assert [row["tenant"] for row in (await admin.get("/tasks"))["tasks"]] == ["ada"]
        await hub.tenants.rename(ada, "countess")
        assert [row["tenant"] for row in (await admin.get("/tasks?tenant=countess"))["tasks"]] == ["countess"]


async def test_data_of_other_tenants_is_not_found() -> None:
    async with hub_app() as (hub, app, _):
        (_, token_a), (_, token_b) = await hub.tenants.add("ada"), await hub.tenants.add("bob")
        await send(app, token_b, "of bob")
        admin, tenant = Operator(app, ADMIN), Operator(app, token_a)
        (row,) = (await admin.get("/tasks"))["tasks"]
        key = row["key"]
        for method, path in (
            ("GET", f"/tasks/{key}"),
            ("GET", f"/tasks/{key}/records"),
            ("GET", f"/tasks/{key}/records/1"),
            ("GET", f"/tasks/{key}/records/1/as"),
            ("GET", f"/tasks/{key}/at/1"),
            ("GET", f"/tasks/{key}/events"),
            ("POST", f"/tasks/{key}/cancel"),
            ("POST", f"/tasks/{key}/retry"),
            ("POST", f"/tasks/{key}/fork"),
            ("GET", f"/webhooks?task={key}"),
        ):
            refused = await tenant(method, path, {"record": 1} if path.endswith("fork") else None)
            unknown = await tenant(
                method, path.replace(key, "x"), {"record": 1} if path.endswith("fork") else None
            )
            assert refused.status == 404, path
            assert (refused.status, refused.body) == (unknown.status, unknown.body), path
        for path in ("/nodes", "/metrics"):
            assert (await tenant("GET", path)).status == 403
        assert (await tenant("POST", "/receivers")).status == 403


async def test_the_stream_of_all_tasks_has_only_the_tenants_own() -> None:
    async with hub_app() as (hub, app, _):
        (_, token_a), (_, token_b) = await hub.tenants.add("ada"), await hub.tenants.add("bob")
        live = Operator(app, token_a).open("GET", "/tasks/stream")
        await live.until(lambda: live.status == 200)
        await send(app, token_b, "of bob")
        await send(app, token_a, "of ada")
        await live.until(lambda: b"of ada" in live.body)
        live.gone.set()
        await live.end()
        assert b"of bob" not in live.body


@pytest.mark.parametrize("path", ["/tasks/stream", "/tasks/{key}/events"])
async def test_an_open_stream_ends_when_the_tenant_may_not_see_it_any_more(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "ROW_CHECK_SECONDS", 0.05)
    async with hub_app() as (hub, app, _):
        tenant, token = await hub.tenants.add("ada")
        await send(app, token, "of ada")
        viewer = Operator(app, token)
        (row,) = (await viewer.get("/tasks"))["tasks"]
        live = viewer.open("GET", path.format(key=row["key"]))
        await live.until(lambda: live.status == 200)
        await hub.tenants.rotate(tenant)
        await live.end()
        assert live.frames()[-1].event == "error" and b"UNAUTHENTICATED" in live.body


async def test_an_open_stream_ends_when_the_token_of_its_user_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "ROW_CHECK_SECONDS", 0.05)
    later = SimpleNamespace(monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(access, "time", later)
    async with hub_app() as (hub, app, _):
        await hub.tenants.add("acme")
        pages = Pages(**{CONFIGURATION: {"issuer": ISSUER, "jwks_uri": KEYS}, KEYS: PUBLISHED})
        hub.users = Users(hub.tenants, Settings(**RULES), cast(Any, pages))
        ends = int(time.time()) + 300
        ada = Operator(app, mint(claims(sub="ada", tenant="acme", scope="dragoman:read", exp=ends)))
        live = ada.open("GET", "/tasks/stream")
        await live.until(lambda: live.status == 200)
        later.time = lambda: ends + 1.0
        await live.end()
        assert live.frames()[-1].event == "error" and b"UNAUTHENTICATED" in live.body


async def test_the_printed_url_makes_an_operator_and_a_new_admin_token_ends_the_session() -> None:
    async with hub_app() as (hub, app, console):
        token = console.url(f"http://{HOST}").partition("#token=")[2]
        page = Operator(app, token="")
        answer = await page("POST", "/session", {"token": token}, **OURS)
        page.cookie = answer.headers["set-cookie"].partition(";")[0]
        assert (await page.get("/me"))["role"] == "operator"
        shown: list[Any] = []
        await hub.tenants.rotate_admin_token(show=shown.append)
        assert (await page("GET", "/me")).status == 401


async def test_an_operator_rotates_the_admin_token_in_the_console_and_goes_on_with_the_new_one() -> None:
    async with hub_app(admin_token="") as (hub, app, _):
        shown: list[str] = []
        await hub.tenants.rotate_admin_token(show=shown.append)
        page = Operator(app, token="")

        async def log_in(token: str) -> None:
            answer = await page("POST", "/session", {"token": token}, **OURS)
            assert answer.status == 204
            page.cookie = answer.headers["set-cookie"].partition(";")[0]

        await log_in(shown[-1])
        rotated = await page("POST", "/hub/admin/rotate-token", {"overlap_seconds": 3600}, **OURS)
        assert rotated.status == 200 and rotated.json["token"] not in shown
        assert (await page("GET", "/me")).status == 401, "sessions end with the token"
        for token in (rotated.json["token"], shown[-1]):
            await log_in(token)
            assert (await page.get("/me"))["role"] == "operator"


async def test_a_session_of_an_admin_token_that_was_replaced_ends_with_the_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = SimpleNamespace(monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(access, "time", later)
    async with hub_app(admin_token="") as (hub, app, _):
        shown: list[str] = []
        await hub.tenants.rotate_admin_token(show=shown.append)
        await hub.tenants.rotate_admin_token(show=shown.append, overlap=3600)
        pages = [Operator(app, token="") for _ in shown]
        for page, token in zip(pages, shown, strict=True):
            answer = await page("POST", "/session", {"token": token}, **OURS)
            page.cookie = answer.headers["set-cookie"].partition(";")[0]
            assert (await page.get("/me"))["role"] == "operator"
        later.time = lambda: time.time() + 3601
        assert [(await page("GET", "/me")).status for page in pages] == [401, 200]


async def test_a_copy_counts_as_a_request_of_its_tenant() -> None:
    async with hub_app() as (hub, app, _):
        tenant, token = await hub.tenants.add("ada")
        await send(app, token, "of ada")
        viewer = Operator(app, token)
        (row,) = (await viewer.get("/tasks"))["tasks"]
        await hub.tenants.limit(tenant, per_minute=1)
        statuses = [
            (await viewer("POST", f"/tasks/{row['key']}/fork", {"record": 1})).status for _ in range(3)
        ]
        assert statuses == [201, 429, 429]
        await until(lambda: viewer.get("/tasks"), lambda page: page["counts"] == {"TASK_STATE_COMPLETED": 2})
        assert hub.quotas.counts() in ({}, {tenant.key: 0})


async def test_a_copy_of_a_task_whose_token_is_revoked_runs_for_whoever_copied_it() -> None:
    async with hub_app() as (hub, app, _):
        tenant, token = await hub.tenants.add("ada")
        made, secret = await Tokens(hub.database).create(tenant.id, "ci", "run", actor="test")
        await send(app, secret, "of ci", agent="index")
        await Tokens(hub.database).revoke(tenant.id, made.id, actor="test")
        (row,) = (await Operator(app, token).get("/tasks"))["tasks"]
        for viewer in (Operator(app, token), Operator(app, ADMIN)):
            copied = await viewer("POST", f"/tasks/{row['key']}/fork", {"record": 1})
            assert copied.status == 201
            path = f"/tasks/{copied.json['key']}"
            await until(
                partial(viewer.get, path),
                lambda task: task["state"] in ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED"),
            )
            assert (await viewer.get(path))["state"] == "TASK_STATE_COMPLETED"


async def test_a_copy_is_refused_when_the_budget_of_its_tenant_is_used_up() -> None:
    async with hub_app() as (hub, app, _):
        tenant, token = await hub.tenants.add("ada")
        await send(app, token, "of ada", agent="index")
        await hub.policies.change(tenant.id, {"tokens_per_day": 1})
        viewer = Operator(app, token)
        (row,) = (await viewer.get("/tasks"))["tasks"]
        refused = await viewer("POST", f"/tasks/{row['key']}/fork", {"record": 1})
        assert refused.status == 429 and "budget of this tenant" in refused.json["error"]["message"]


async def test_a_copy_needs_room_for_the_log_that_it_copies() -> None:
    async with hub_app() as (hub, app, _):
        tenant, token = await hub.tenants.add("ada")
        await send(app, token, "a" * 60_000, agent="index")
        await hub.policies.change(tenant.id, {"max_request_mb": 1})
        viewer = Operator(app, token)
        (row,) = (await viewer.get("/tasks"))["tasks"]
        statuses = [
            (await viewer("POST", f"/tasks/{row['key']}/fork", {"record": 1})).status for _ in range(12)
        ]
        assert statuses[0] == 201 and statuses[-1] == 413, statuses
        copies = statuses.count(201)
        await until(
            partial(viewer.get, "/tasks"),
            lambda page: page["counts"] == {"TASK_STATE_COMPLETED": 1 + copies},
        )
        assert await hub.store.index.size(tenant.key) < 2 << 20


async def test_what_a_tenant_reads_in_the_console_counts_as_its_reads() -> None:
    async with hub_app() as (hub, app, _):
        tenant, token = await hub.tenants.add("ada")
        await hub.policies.change(tenant.id, {"reads_per_min": 2})
        viewer = Operator(app, token)
        assert [(await viewer("GET", "/tasks")).status for _ in range(4)] == [200, 200, 429, 429]
        assert (await viewer("GET", "/tasks")).headers["retry-after"]
        assert (await Operator(app, ADMIN)("GET", "/tasks")).status == 200


async def test_what_a_tenant_has_open_in_the_console_counts_as_its_open_requests() -> None:
    async with hub_app() as (hub, app, _):
        tenant, token = await hub.tenants.add("ada")
        await hub.policies.change(tenant.id, {"max_open_requests": 1})
        viewer = Operator(app, token)
        stream = viewer.open("GET", "/tasks/stream")
        await stream.until(lambda: stream.status == 200)
        assert (await viewer("GET", "/tasks")).status == 429
        stream.gone.set()
        await stream.end()
        assert (await viewer("GET", "/tasks")).status == 200


async def test_the_hubs_own_paths_stay_and_cors_does_not_reach_the_console() -> None:
    async with hub_app() as (_, app, _):
        health = await request(app, "GET", "/v1/health", headers={"host": HOST})
        assert health.status == 200
        answer = await Operator(app, ADMIN)("GET", "/me", origin="https://evil.example")
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_public_hub_prints_no_token() -> None:
    console = HubConsole(None, host="0.0.0.0", public_url="https://hub.example")
    assert console.url("http://0.0.0.0:8080").startswith("https://hub.example/console/ (")


CONSTITUTION = {"id": "scout", "name": "Scout", "role": "finder", "goal": "finds things"}


async def ok(viewer: Operator, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await viewer(method, path, body)
    assert answer.status == status, (answer.status, answer.body)
    return answer.json


async def test_an_operator_manages_tenants_and_their_agents_and_the_audit_says_so() -> None:
    async with hub_app() as (_, app, _console):
        admin = Operator(app, ADMIN)
        made = await ok(admin, "POST", "/hub/admin/tenants", {"name": "ada"}, status=201)
        assert made["token"].startswith("atr_")
        agent = await ok(admin, "POST", "/hub/tenants/ada/agents", CONSTITUTION, status=201)
        assert agent["id"] == "scout"
        changed = {**CONSTITUTION, "goal": "finds more"}
        await ok(admin, "PUT", "/hub/tenants/ada/agents/scout", changed)
        versions = (await admin.get("/hub/tenants/ada/agents/scout/versions"))["versions"]
        assert [each["version"] for each in versions] == [2, 1]
        first = await admin.get("/hub/tenants/ada/agents/scout/versions/1")
        assert first["goal"] == "finds things"
        wrong = await ok(
            admin, "POST", "/hub/tenants/ada/constitutions/validate", {**CONSTITUTION, "name": 7}
        )
        assert wrong["ok"] is False and [each["field"] for each in wrong["fields"]] == ["name"]
        assert (await ok(admin, "POST", "/hub/tenants/ada/constitutions/validate", CONSTITUTION))[
            "ok"
        ] is True
        audit = [entry["operation"] for entry in (await admin.get("/audit"))["entries"]]
        assert {"POST /v1/admin/tenants", "POST /v1/agents", "PUT /v1/agents/{id}"} <= set(audit)


async def test_a_tenant_cannot_see_another_in_the_console_nor_administer() -> None:
    async with hub_app() as (hub, app, _console):
        (_, ada), (_, _bob) = await hub.tenants.add("ada"), await hub.tenants.add("bob")
        tenant = Operator(app, ada)
        assert (await tenant.get("/hub/tenants/ada/agents"))["count"] >= 1
        missing = await ok(tenant, "GET", "/hub/tenants/bob/agents", status=404)
        unknown = await ok(tenant, "GET", "/hub/tenants/nobody/agents", status=404)
        assert missing["error"]["message"].replace("bob", "nobody") == unknown["error"]["message"]
        await ok(tenant, "GET", "/hub/admin/tenants", status=403)


async def test_files_of_agents_are_never_shown_or_run_under_the_console() -> None:
    async with hub_app() as (hub, app, _console):
        await hub.tenants.add("ada")
        admin = Operator(app, ADMIN)
        talk = await ok(admin, "POST", "/hub/tenants/ada/conversations", {"agent": "index"}, status=201)
        page = {"path": "x.html", "mime": "text/html", "content": "<script>1</script>"}
        stored = await ok(
            admin, "POST", f"/hub/tenants/ada/conversations/{talk['id']}/artifacts", page, status=201
        )
        raw = await admin("GET", f"/hub/tenants/ada/artifacts/{stored['id']}/raw")
        assert raw.body == b"<script>1</script>"
        assert raw.headers["content-type"] == "application/octet-stream"
        assert raw.headers["content-disposition"] == "attachment"


async def test_tokens_are_added_up_by_day_agent_and_model() -> None:
    async with hub_app() as (hub, _app, _console):
        ada, _ = await hub.tenants.add("ada")
        bob, _ = await hub.tenants.add("bob")
        for tenant, tokens in ((ada, 5), (ada, 7), (bob, 1)):
            hub.usages.add(Scope(tenant.key, "scout", ""), TokenUsage(model="m", input_tokens=tokens))
        (of_ada,) = await hub.usages.since(1, ada.id)
        assert (of_ada.calls, of_ada.input_tokens, of_ada.agent, of_ada.model) == (2, 12, "scout", "m")
        assert [each.input_tokens for each in await hub.usages.since(1)] == [12, 1]


async def test_a_token_that_reads_changes_nothing_in_the_console() -> None:
    async with hub_app() as (hub, app, _):
        tenant, own = await hub.tenants.add("ada")
        await send(app, own, "one")
        _, secret = await hub.tenants.tokens.create(tenant.id, "watcher", "read", actor="test")
        reader, manager = Operator(app, secret), Operator(app, own)
        assert await texts(reader) == ["one"]
        assert (await reader.get("/me"))["scope"] == "read"
        key = (await reader.get("/tasks"))["tasks"][0]["key"]
        for method, path in (
            ("POST", f"/tasks/{key}/cancel"),
            ("POST", f"/tasks/{key}/retry"),
            ("POST", "/talk"),
            ("POST", "/hub/tenants/ada/agents"),
            ("POST", "/hub/tenants/ada/todos"),
            ("GET", "/hub/tenants/ada/tokens"),
        ):
            answer = await reader(method, path, {})
            assert answer.status == 403 and b"scope" in answer.body, (path, answer.body)
        checked = await reader("POST", "/hub/tenants/ada/constitutions/validate", {})
        assert checked.status == 200, "that stores nothing"
        assert (await reader.get("/hub/tenants/ada/agents"))["agents"]
        listed = await manager.get("/hub/tenants/ada/tokens")
        assert [each["name"] for each in listed["tokens"]] == ["default", "watcher"]
        assert (await manager.get("/hub/tenants/1/whoami"))["name"] == "default"


async def test_a_session_ends_with_its_token_and_when_its_tenant_is_renamed_or_disabled() -> None:
    async with hub_app() as (hub, app, _):
        tenant, _own = await hub.tenants.add("ada")
        for end in ("revoke", "expire", "rename", "rotate", "disable"):
            token, secret = await hub.tenants.tokens.create(
                tenant.id, end, "read", expires_at=4_000_000_000, actor="test"
            )
            browser = Operator(app, "")
            answer = await browser("POST", "/session", {"token": secret}, **OURS)
            browser.cookie = answer.headers["set-cookie"].partition(";")[0]
            assert (await browser("GET", "/me", **OURS)).status == 200
            if end == "revoke":
                await hub.tenants.tokens.revoke(tenant.id, token.id, actor="test")
            elif end == "expire":
                await hub.database.change("update tokens set expires_at = 1 where id = ?", (token.id,))
            elif end == "rename":
                tenant = await hub.rename_tenant(tenant, "eve")
            elif end == "rotate":
                await hub.tenants.rotate(tenant)
            else:
                await hub.tenants.disable(tenant, True)
            assert (await browser("GET", "/me", **OURS)).status == 401, end
